"""The figures of the page: inline SVG that uses the page's colours, so it follows light and dark mode.

Each carries its numbers, formatted, in a data- attribute: page.js shows them at the pointer or the keyboard cursor.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from itertools import dropwhile
from typing import NamedTuple

from ..explanations.shares import scale_ends
from .html import Html, data, h
from .shades import DARK, css


class Line(NamedTuple):
    name: str
    x: Sequence[float]
    y: Sequence[float]
    color: int = 0  # index into the palette
    thin: bool = False


class Bar(NamedTuple):
    name: str
    value: float
    said: str  # the formatted value
    interval: tuple[float, float] | None = None  # confidence interval
    color: int = 0
    mark: float | None = None  # another value to compare it with


class Cell(NamedTuple):
    """A grid cell: its strength from −1 (cold) to 1 (hot), its text, and optionally its own colour."""

    strength: float
    text: str = ""
    color: str = ""


def _svg(width: float, height: float, label: str, *content: Html, **more: str) -> Html:
    return h(
        "svg",
        *content,
        viewBox=f"0 0 {_n(width)} {_n(height)}",
        style=f"max-width:{_n(width)}px",
        role="img",
        aria_label=label,
        **more,
    )


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _text(x: float, y: float, text: str, anchor: str = "start", class_: str | None = None) -> Html:
    return h("text", text, x=_n(x), y=_n(y), text_anchor=None if anchor == "start" else anchor, class_=class_)


def room(words: str) -> float:
    """An upper bound on their width at 11 pixels, in most fonts"""
    return sum(_width(letter) for letter in words)


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


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers between low and high"""
    if not high > low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def line_chart(
    label: str,
    lines: Sequence[Line],
    *,
    said: Sequence[Sequence[str]],
    low: float | None = None,
    high: float | None = None,
    marks: Mapping[float, str] | None = None,
    width: float = 320,
    height: float = 170,
    x_name: str = "epoch",
    unit: str = "",
) -> Html:
    """Lines over whole numbers. `said` formats each line's values; `marks` are vertical lines, each with a sentence. A
    line starts where it reaches `low`: the early rise would flatten the rest."""
    left, right, top, bottom = 44.0, 12.0, 12.0, 26.0
    finite = [v for line in lines for v in line.y if math.isfinite(v)]
    floor = min(finite) if low is None else low
    ceiling = max(finite) if high is None else high
    if ceiling <= floor:
        floor, ceiling = floor - (abs(floor) or 1) * 0.1, ceiling + (abs(ceiling) or 1) * 0.1
    elif low is None and high is None:
        floor, ceiling = floor - 0.04 * (ceiling - floor), ceiling + 0.04 * (ceiling - floor)
    first, last = min(line.x[0] for line in lines), max(line.x[-1] for line in lines)

    def x(value: float) -> float:
        return left + (width - left - right) * ((value - first) / (last - first) if last > first else 0.5)

    def y(value: float) -> float:
        inside = min(max(value, floor), ceiling)
        return top + (height - top - bottom) * (ceiling - inside) / (ceiling - floor)

    parts = []
    for at in ticks(floor, ceiling):
        parts.append(h("path", d=f"M{_n(left)} {_n(y(at))}H{_n(width - right)}", class_="rule"))
        name = f"{at:.10g}".replace("-", "−") + unit
        parts.append(_text(left - 6, y(at) + 4, name, "end", "tick"))
    for at in sorted({first, last, *(t for t in ticks(first, last, 5) if t == int(t))}):
        if at in (first, last) or min(abs(x(at) - x(first)), abs(x(at) - x(last))) > 26:
            anchor = "middle" if last == first else "start" if at == first else "end" if at == last else "middle"
            parts.append(_text(x(at), height - 8, f"{at:g}", anchor, "tick"))
    if last - first in (1, 3):  # a number is there already
        parts.append(_text((left + width - right) / 2, height - 8, x_name, "middle", "tick"))
    for at in marks or ():
        parts.append(h("path", d=f"M{_n(x(at))} {_n(top)}V{_n(height - bottom)}", class_="mark"))
    for line in lines:
        seen = [(a, b) for a, b in zip(line.x, line.y, strict=True) if math.isfinite(b)]
        spots = [(x(a), y(b)) for a, b in dropwhile(lambda spot: spot[1] < floor, seen)]
        style = f"line c{line.color % 8}{' thin' if line.thin else ''}"
        parts.append(h("polyline", points=" ".join(f"{_n(a)},{_n(b)}" for a, b in spots), class_=style))
        if len(spots) <= 12:
            parts += [
                h("circle", cx=_n(a), cy=_n(b), r=2.5 if line.thin else 3, class_=f"dot c{line.color % 8}")
                for a, b in spots
            ]
    every = sorted({value for line in lines for value in line.x})
    told = [
        {
            "name": line.name,
            "color": line.color % 8,
            "at": dict(zip((f"{v:g}" for v in line.x), texts, strict=True)),
        }
        for line, texts in zip(lines, said, strict=True)
    ]
    numbers = {
        "kind": "lines",
        "name": x_name,
        "x": [f"{value:g}" for value in every],
        "at": [round(x(value), 1) for value in every],
        "top": top,
        "bottom": height - bottom,
        "lines": told,
        "marks": {f"{at:g}": name for at, name in (marks or {}).items()},
    }
    return _svg(width, height, label, *parts, tabindex="0", data_numbers=data(numbers), class_="chart")


def legend(lines: Sequence[tuple[str, int, bool]]) -> Html:
    """Name, colour, thin"""
    items = [
        h("li", h("span", class_=f"key k{color % 8}{' thin' if thin else ''}"), name) for name, color, thin in lines
    ]
    return h("ul", items, class_="legend")


def share_scale(n: int) -> Html:
    """The legend of a map of weights, where 1/N is the equal share"""
    return _scale(css(), scale_ends(n))


def signed_scale(most: float) -> Html:
    """The legend of a map of contributions, with the largest absolute value"""
    return _scale(
        "linear-gradient(to right,#c2410c,#b3b3b3,#1d63b8)", (f"−{most:.3g}", "0", f"+{most:.3g}" if most else "0")
    )


def _scale(gradient: str, ends: tuple[str, str, str]) -> Html:
    low, middle, high = ends
    bar = h("i", style=f"background:{gradient}")
    ticks = [h("span", name) for name in ends]
    return h("div", bar, ticks, class_="scale", role="img", aria_label=f"Colour scale: {low}, {middle}, {high}")


def marked(
    picture: Html,
    size: Sequence[int],
    stride: int,
    outlines: Sequence[tuple[int, int]] = (),
    dot: tuple[int, int] | None = None,
) -> Html:
    """A picture (h, w) with thin outlines around squares of `stride` pixels, and a dot in one. Positions are i, j."""
    height, width = size
    inset = stride * 0.08

    def square(i: int, j: int) -> tuple[float, float, float, float]:
        """Squares in the last row and column may extend beyond the border (D18)"""
        x, y = j * stride, i * stride
        return x, y, min(stride, width - x), min(stride, height - y)

    parts = []
    for place in outlines:
        x, y, wide, tall = square(*place)
        sides = {"width": f"{wide - 2 * inset:.2f}", "height": f"{tall - 2 * inset:.2f}"}
        parts.append(h("rect", x=f"{x + inset:.2f}", y=f"{y + inset:.2f}", **sides, class_="tied"))
    if dot:
        x, y, wide, tall = square(*dot)
        parts.append(h("circle", cx=_n(x + wide / 2), cy=_n(y + tall / 2), r=f"{0.2 * stride:.2f}", class_="decoded"))
    if not parts:
        return picture
    said = ", ".join(
        [f"{len(outlines)} positions outlined"] * bool(outlines) + ["a dot at the decoded vector"] * bool(dot)
    )
    drawn = h("svg", parts, viewBox=f"0 0 {width} {height}", role="img", aria_label=said, class_="marks")
    return h("div", picture, drawn, class_="marked")


def beginning(intervals: Iterable[tuple[float, float]]) -> float:
    """The start of the axis for shares with these intervals: 0, or a multiple of 5 % if all are high"""
    low = min(low for low, _ in intervals)
    return 0.0 if low < 0.5 else math.floor(low * 20) / 20


def bar_chart(
    label: str,
    bars: Sequence[Bar],
    *,
    low: float = 0.0,
    high: float = 1.0,
    rule: tuple[float, str] | None = None,
    width: float = 400,
    thick: float = 16,
) -> Html:
    """Horizontal bars with confidence intervals, names on the left, values on the right. `rule` is a vertical line."""
    names = [shortened(bar.name, 0.36 * width) for bar in bars]
    left = 14 + max(map(room, names))
    right = 12 + max(room(bar.said) for bar in bars)
    top, step = 4.0, thick + min(8.0, 3 + thick / 3)
    height = top + step * len(bars) + (20 if rule else 4)
    span = (high - low) or 1.0

    def x(value: float) -> float:
        return left + (width - left - right) * min(max((value - low) / span, 0), 1)

    parts = []
    for index, bar in enumerate(bars):
        y = top + step * index
        tip = f"{bar.name}: {bar.said}"
        parts += [
            _text(left - 8, y + thick / 2 + 4, names[index], "end", "label"),
            h("path", d=f"M{_n(left)} {_n(y)}H{_n(width - right)}v{_n(thick)}H{_n(left)}z", class_="track"),
            h(
                "path",
                d=f"M{_n(left)} {_n(y)}H{_n(max(x(bar.value), left + 0.5))}v{_n(thick)}H{_n(left)}z",
                class_=f"bar c{bar.color % 8}",
                data_tip=tip,
            ),
        ]
        if bar.interval:
            a, b, middle = *map(x, bar.interval), y + thick / 2
            parts.append(
                h(
                    "path",
                    d=f"M{_n(a)} {_n(middle)}H{_n(b)}M{_n(a)} {_n(middle - 3)}v6M{_n(b)} {_n(middle - 3)}v6",
                    class_="whisker",
                )
            )
        if bar.mark is not None:
            parts.append(h("path", d=f"M{_n(x(bar.mark))} {_n(y - 2)}v{_n(thick + 4)}", class_="against"))
        parts.append(_text(width - right + 6, y + thick / 2 + 4, bar.said, class_="value"))
    if rule:
        at, name = rule
        side = "end" if x(at) > (left + width - right) / 2 else "start"
        parts.append(h("path", d=f"M{_n(x(at))} {_n(top - 2)}V{_n(height - 14)}", class_="mark"))
        parts.append(_text(x(at) + (4 if side == "start" else -4), height - 4, name, side, "tick"))
    return _svg(width, height, label, *parts, class_="bars")


def grid(
    label: str,
    rows: Sequence[str],
    columns: Sequence[str],
    cells: Sequence[Sequence[Cell]] | Mapping[tuple[int, int], Cell],
    *,
    say: str,
    said: Sequence[Sequence[str]] | Mapping[tuple[int, int], str],
    row_title: str,
    column_title: str,
    cell: tuple[float, float],
    nothing: str = "0",
) -> Html:
    """A matrix in colour. `say` is a sentence with {row}, {column}, {value}; a mapping leaves out empty cells.

    Cells of equal strength share one path, so that a matrix of a hundred by a hundred classes stays small.
    """
    wide, tall = cell
    beside, above = [shortened(name, 140) for name in rows], [shortened(name, 100) for name in columns]
    name_room = 10 + max(map(room, beside)) if tall >= 8 else 6.0
    slanted = max(map(room, columns)) > wide
    heading = 0.0 if wide < 8 else 18.0 if not slanted else 12 + 0.77 * max(map(room, above))  # leaning by 50°
    left, top = 20 + name_room, 18 + heading
    beyond = heading if slanted and heading else 0.0  # slanted names extend beyond the right border
    width, height = left + wide * len(columns) + 4 + beyond, top + tall * len(rows) + 4
    filled = dict(cells) if isinstance(cells, Mapping) else _by_place(cells)
    shades: dict[tuple[str, float, str], list[str]] = {}
    for (row, column), one in filled.items():
        opacity = 1.0 if one.color else _opacity(one)
        if opacity > 0:
            place = f"M{_n(left + wide * column)} {_n(top + tall * row)}h{_n(wide)}v{_n(tall)}h{_n(-wide)}z"
            kind = "own" if one.color else "hot" if one.strength > 0 else "cold"
            shades.setdefault((kind, opacity, one.color), []).append(place)
    parts = [
        h("path", d=f"M{_n(left)} {_n(top)}h{_n(wide * len(columns))}v{_n(tall * len(rows))}H{_n(left)}z", class_="bed")
    ]
    parts += [
        h("path", d="".join(places), class_=kind, fill=color or None, fill_opacity=None if color else f"{opacity:g}")
        for (kind, opacity, color), places in sorted(shades.items())
    ]
    if tall >= 8:
        parts += [
            _text(left - 6, top + tall * (i + 0.5) + 4, name, "end", "label" if tall >= 13 else "small")
            for i, name in enumerate(beside)
        ]
    if wide >= 8:
        for j, name in enumerate(above):
            x, y = left + wide * (j + 0.5), top - 6
            if slanted:
                turn = f"rotate(-50 {_n(x)} {_n(y)})"
                class_ = "label" if wide >= 13 else "small"
                parts.append(h("text", name, x=_n(x), y=_n(y), transform=turn, class_=class_))
            else:
                parts.append(_text(x, y, name, "middle", "label"))
    for (row, column), one in filled.items():
        if one.text:
            style = "over" if _opacity(one) > 0.55 else "inside"
            if one.color:
                style = "light" if one.strength > DARK else "dark"
            parts.append(_text(left + wide * (column + 0.5), top + tall * (row + 0.5) + 4, one.text, "middle", style))
    middle = top + tall * len(rows) / 2
    parts.append(_text(left + wide * len(columns) / 2, 12, column_title, "middle", "title"))
    turn = f"rotate(-90 10 {_n(middle)})"
    parts.append(h("text", row_title, x=10, y=_n(middle + 3), text_anchor="middle", transform=turn, class_="title"))
    numbers = {
        "kind": "grid",
        "left": round(left, 1),
        "top": round(top, 1),
        "cell": [wide, tall],
        "rows": list(rows),
        "columns": list(columns),
        "say": say,
        "nothing": nothing,
        "said": {f"{i},{j}": text for (i, j), text in said.items()} if isinstance(said, Mapping) else said,
    }
    return _svg(width, height, label, *parts, tabindex="0", data_numbers=data(numbers), class_="grid")


def _opacity(one: Cell) -> float:
    """At most ¾, so that text on it stays readable"""
    return round(min(1.0, abs(one.strength)) * 0.75 * 20) / 20


def _by_place(cells: Sequence[Sequence[Cell]]) -> dict[tuple[int, int], Cell]:
    return {(i, j): one for i, row in enumerate(cells) for j, one in enumerate(row)}
