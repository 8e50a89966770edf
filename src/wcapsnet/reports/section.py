"""Parts shared by sections."""

from __future__ import annotations

from .facts import Facts
from .html import Child, Html, h

MANY = 20  # classes beyond which numbers no longer fit into cells
MOST_TABLED = 200  # classes beyond which a matrix is not repeated as a table


def section(key: str, title: str, lead: str, *content: Child) -> Html:
    return h(
        "section", h("h2", title, id=f"{key}-title"), h("p", lead), *content, id=key, aria_labelledby=f"{key}-title"
    )


def unable(why: str) -> Html:
    """Shown in place of something that could not be made"""
    return h("p", why, class_="note")


def why_no_pictures(facts: Facts) -> str:
    return f"The pictures cannot be shown. {facts.missing.get('pictures', '')}".strip()
