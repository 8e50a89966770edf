"""SVG: elements, drawings made of them, and a drawing as part of a page or as a file of its own.

A drawing uses the classes of figures.css. On a page they take the page's colours, light or dark; a file carries its own
copy of the style with the light colours.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from markupsafe import Markup, escape

MARGIN = 12  # around a drawing that is a file


def tag(name: str, inside: str = "", **attributes: Any) -> Markup:
    """`tag("text", "a < b", x=3, class_="label")`; text is escaped, None omits an attribute."""
    written = [
        f'{key.rstrip("_").replace("_", "-")}="{escape(n(value) if isinstance(value, float) else value)}"'
        for key, value in attributes.items()
        if value is not None
    ]
    return Markup(f"<{' '.join([name, *written])}>{escape(inside)}</{name}>")


def n(value: float) -> str:
    """A coordinate"""
    return f"{value:.1f}".removesuffix(".0")


def path(d: str, class_: str, **more: Any) -> Markup:
    return tag("path", d=d, class_=class_, **more)


def text(x: float, y: float, words: str, class_: str, anchor: str | None = None, **more: Any) -> Markup:
    return tag("text", words, x=float(x), y=float(y), text_anchor=anchor, class_=class_, **more)


class Drawing(NamedTuple):
    width: float
    height: float
    label: str  # what a screen reader says
    body: Markup
    kind: str = ""  # its class
    numbers: Mapping[str, Any] | None = None  # page.js shows them at the pointer and the keyboard cursor

    def __html__(self) -> str:
        """As part of a page"""
        numbers = json.dumps(self.numbers, ensure_ascii=False, separators=(",", ":")) if self.numbers else None
        return tag(
            "svg",
            self.body,
            viewBox=f"0 0 {n(self.width)} {n(self.height)}",
            style=f"max-width:{n(self.width)}px",
            role="img",
            aria_label=self.label,
            class_=self.kind or None,
            tabindex=0 if numbers else None,
            data_numbers=numbers,
        )

    def file(self) -> str:
        """As a file of its own"""
        width, height = n(self.width + 2 * MARGIN), n(self.height + 2 * MARGIN)
        inside = tag("g", self.body, transform=f"translate({MARGIN} {MARGIN})")
        lines = re.sub(r"(</\w+>)(?=<)", r"\1\n", str(inside))  # one element per line, for readable diffs
        size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        head = f"<title>{escape(self.label)}</title>\n<style>\n{style()}</style>"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n{head}\n'
            f'<rect width="{width}" height="{height}" fill="#fff"/>\n{lines}\n</svg>\n'
        )


@cache
def style() -> str:
    """figures.css with the page's light colours filled in: other programs do not support variables"""
    colors = dict(re.findall(r"--([\w-]+): light-dark\((#\w+),", asset("page.css")))
    return re.sub(r"var\(--([\w-]+)\)", lambda found: colors[found[1]], asset("figures.css"))


def asset(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def room(words: str) -> float:
    """An upper bound on their width at 11 pixels, in most fonts"""
    return sum(map(_width, words))


def _width(letter: str) -> float:
    if unicodedata.east_asian_width(letter) in "WF":
        return 11.0
    return 11.0 if letter in "mwMW@%…" else 8.5 if letter.isupper() else 3.5 if letter in "ijl.,:;'|!() " else 7.0


def shortened(words: str, most: float) -> str:
    """As many letters as fit"""
    if room(words) <= most:
        return words
    while words and room(words) + room("…") > most:
        words = words[:-1]
    return f"{words}…"


def arranged(drawings: Sequence[Drawing], columns: int, gap: float = 20, label: str = "") -> Drawing:
    """Row by row, in columns of one width"""
    wide, parts, y = max(one.width for one in drawings), [], 0.0
    for first in range(0, len(drawings), columns):
        row = drawings[first : first + columns]
        parts += [tag("g", one.body, transform=f"translate({n(k * (wide + gap))} {n(y)})") for k, one in enumerate(row)]
        y += max(one.height for one in row) + gap
    columns = min(columns, len(drawings))
    return Drawing(columns * (wide + gap) - gap, y - gap, label or drawings[0].label, Markup("").join(parts))


def titled(title: str, *drawings: Drawing, note: str = "") -> Drawing:
    """Drawings below each other, under a title and above a note"""
    below = [Drawing(room(note), 14, note, text(0, 10, note, "title"))] if note else []
    inside = arranged([*drawings, *below], 1, 10)
    body = text(0, 12, title, "heading") + tag("g", inside.body, transform="translate(0 26)")
    return Drawing(max(inside.width, 1.3 * room(title)), inside.height + 26, title, body)


def legend(keys: Iterable[tuple[str, str]], width: float) -> Drawing:
    """Name and class of each line, in as many rows as they need"""
    parts, x, y = [], 0.0, 10.0
    for name, class_ in keys:
        name = shortened(name, width - 30)
        if x and x + 30 + room(name) > width:
            x, y = 0.0, y + 17
        parts += [path(f"M{n(x)} {n(y - 4)}h22", class_), text(x + 28, y, name, "label")]
        x += 44 + room(name)
    return Drawing(width, y + 6, "Legend", Markup("").join(parts))


def scale(colors: Sequence[str], ends: tuple[str, str, str], width: float = 300) -> Drawing:
    """The legend of a map: a bar of colours, and what its ends and its middle mean"""
    step = width / len(colors)
    parts = [
        path(f"M{n(k * step)} 0H{n(min(width, (k + 1) * step + 0.5))}v10H{n(k * step)}z", "own", fill=color)
        for k, color in enumerate(colors)
    ]
    parts.append(path(f"M{n(width / 2)} 10v5", "against"))
    places = zip(ends, (0.0, width / 2, width), ("start", "middle", "end"), strict=True)
    parts += [text(x, 27, words, "tick", anchor) for words, x, anchor in places]
    return Drawing(width, 31, f"Colour scale: {', '.join(ends)}", Markup("").join(parts), "scale")
