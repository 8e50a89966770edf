"""The page around the sections: one file, with embedded style and script."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from .. import __version__
from .. import formatting as text
from . import confusion, examples, overview, routing
from .facts import Facts
from .html import Html, h

SECTIONS = (
    ("overview", "Overview", overview.headline),
    ("training", "Training", overview.training),
    ("answers", "Right and wrong", confusion.answers),
    ("routing", "Routing", routing.specialisation),
    ("probes", "Probes", routing.probes),
    ("examples", "Examples", examples.examples),
    ("reconstructions", "Reconstructions", examples.reconstructions),
    ("configuration", "Configuration", overview.configuration),
)


def run_page(facts: Facts) -> str:
    subject = facts.subject
    started = subject.environment.get("started")
    when = f" · {text.date(str(started))}" if started else ""
    return document(
        subject.name,
        f"wcapsnet report · {subject.data_title}{when}",
        [(key, name) for key, name, _ in SECTIONS],
        [make(facts) for _, _, make in SECTIONS],
    )


def document(title: str, above: str, links: Sequence[tuple[str, str]], content: Sequence[Html]) -> str:
    menu = [h("li", h("a", name, href=f"#{key}")) for key, name in links]
    button = h("button", "Dark", type="button", id="theme", hidden=True, aria_label="Switch between light and dark")
    body = h(
        "body",
        h("a", "Skip to content", href="#content", class_="skip"),
        h("header", h("p", above, class_="eyebrow"), h("h1", title), class_="top"),
        h("nav", h("div", h("ul", menu), button), aria_label="Sections"),
        h("main", *content, id="content"),
        h("footer", h("p", f"Made by wcapsnet {__version__}. Capsules are counted from 0, levels from 1.")),
        h("div", id="tip", role="status", aria_live="polite"),
        Html(f"<script>{_file('page.js')}</script>"),
    )
    head = h(
        "head",
        h("meta", charset="utf-8"),
        h("meta", name="viewport", content="width=device-width, initial-scale=1"),
        h("meta", name="generator", content=f"wcapsnet {__version__}"),
        h("title", f"{title} · wcapsnet"),
        h("link", rel="icon", href="data:,"),
        Html(f"<style>{_file('page.css')}</style>"),
    )
    return f"<!DOCTYPE html>\n{h('html', head, body, lang='en')}\n"


def _file(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")
