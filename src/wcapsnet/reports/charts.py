"""Line charts, bar charts and matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from .colors import DARK
from .svg import Drawing, legend, n, path, room, shortened, tag, text

PALETTE = 8  # colours of lines and bars: the classes c0 to c7


class Line(NamedTuple):
    name: str
    x: Sequence[float]
    y: Sequence[float]
    said: Sequence[str]  # the formatted values
    color: int | None = 0  # None: a dashed gray line without dots
    thin: bool = False

    @property
    def style(self) -> str:
        return "mark" if self.color is None else f"line c{self.color % PALETTE}{' thin' if self.thin else ''}"


class Point(NamedTuple):
    name: str
    x: float
    y: float
    said: str  # the formatted value
    color: int = 0
    hollow: bool = False


class Bar(NamedTuple):
    name: str
    value: float
    said: str  # the formatted value
    interval: tuple[float, float] | None = None  # confidence interval
    color: int = 0
    mark: float | None = None  # another value to compare it with


class Cell(NamedTuple):
    """A cell of a matrix"""

    strength: float  # from −1 (cold) to 1 (hot)
    said: str  # the formatted value
    text: str = ""  # written into it
    color: str = ""  # its own colour, if it has one


def ticks(low: float, high: float) -> list[float]:
    """About five round numbers between low and high"""
    if not high > low:
        return [low]
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def line_chart(
    label: str,
    lines: Sequence[Line],
    *,
    low: float | None = None,
    high: float | None = None,
    marks: Mapping[float, str] | None = None,
    width: float = 320,
    height: float = 190,
    x_name: str = "epoch",
    y_name: str = "",
    unit: str = "",
    keys: bool = False,
    logarithmic: bool = False,
) -> Drawing:
    """`marks` are vertical lines, each with a sentence; `keys` adds a legend; `logarithmic` concerns both axes."""
    named = legend([(line.name, line.style) for line in lines], width) if keys else None
    above = named.height + 4 if named else 0.0
    left, right, top, bottom = 50.0, 12.0, above + (26.0 if y_name else 10.0), above + height - 42
    floor, ceiling = _limits([v for line in lines for v in line.y if math.isfinite(v)], low, high, logarithmic)
    every = sorted({value for line in lines for value in line.x})
    first, last = every[0], every[-1]
    x = _scale(first, last, left, width - right, logarithmic)
    y = _scale(floor, ceiling, bottom, top, logarithmic)
    parts = [named.body] if named else []
    if y_name:
        parts.append(text(0, top - 14, y_name, "tick"))
    rules = {at: f"{at:,.0f}" for at in _powers(floor, ceiling)} if logarithmic else _ticks_named(floor, ceiling)
    for at, name in rules.items():
        parts += _rule(left, width - right, y(at), name + unit)
    shown = every if logarithmic else sorted({first, last, *(t for t in ticks(first, last) if t == int(t))})
    for at in shown:
        if logarithmic or at in (first, last) or min(abs(x(at) - x(first)), abs(x(at) - x(last))) > 26:
            parts.append(text(x(at), bottom + 16, f"{at:g}", "tick", "middle"))
    parts.append(text((left + width - right) / 2, bottom + 34, x_name, "tick", "middle"))
    parts += [path(f"M{n(x(at))} {n(top)}V{n(bottom)}", "mark") for at in marks or ()]
    for line in lines:
        seen = [(a, b) for a, b in zip(line.x, line.y, strict=True) if math.isfinite(b)]
        spots = [(x(a), y(b)) for a, b in seen]
        parts.append(tag("polyline", points=" ".join(f"{n(a)},{n(b)}" for a, b in spots), class_=line.style))
        if len(spots) <= 12 and line.color is not None:
            radius, class_ = 2.5 if line.thin else 3, f"dot c{line.color % PALETTE}"
            parts += [tag("circle", cx=a, cy=b, r=radius, class_=class_) for a, b in spots]
    numbers = {
        "kind": "lines",
        "name": x_name,
        "x": [f"{value:g}" for value in every],
        "at": [round(x(value), 1) for value in every],
        "top": top,
        "bottom": bottom,
        "lines": [
            {
                "name": line.name,
                "style": line.style,
                "at": {f"{at:g}": said for at, said in zip(line.x, line.said, strict=True)},
            }
            for line in lines
        ],
        "marks": {f"{at:g}": name for at, name in (marks or {}).items()},
    }
    return Drawing(width, above + height, label, Markup("").join(parts), "chart", numbers)


def scatter(label: str, points: Sequence[Point], *, x_name: str, y_name: str) -> Drawing:
    """Named points; the horizontal axis is logarithmic. A name that would cover a point or another name moves to
    the other side, up or down."""
    width, height, left, right, top, bottom = 520.0, 340.0, 50.0, 12.0, 26.0, 298.0
    floor, ceiling = _limits([point.y for point in points], None, None, False)
    first, last = _limits([point.x for point in points], None, None, True)
    x, y = _scale(first, last, left, width - right, logarithmic=True), _scale(floor, ceiling, bottom, top)
    parts = [text(0, top - 14, y_name, "tick"), text((left + width) / 2, bottom + 34, x_name, "tick", "middle")]
    for at, name in _ticks_named(floor, ceiling).items():
        parts += _rule(left, width - right, y(at), name)
    parts += [text(x(at), bottom + 16, f"{at:g}", "tick", "middle") for at in _powers(first, last)]
    # Left end, right end and height of what a name must not cover: all points and the names already placed.
    taken = [(x(point.x) - 6, x(point.x) + 6, y(point.y) + 4) for point in points]
    for point in sorted(points, key=lambda point: -point.y):
        across, up, wide = x(point.x), y(point.y), room(point.name)
        usual = 0.85 * wide  # `room` is an upper bound
        sides = {None: (across + 8, across + 8 + usual), "end": (across - 8 - usual, across - 8)}
        fitting = [None] * (across + 8 + wide < width) + ["end"] * (across - 8 - wide > left) or ["end"]
        free = [
            (anchor, at)
            for at in (up + 4 + move for move in (0, -12, 12, -24, 24, -36, 36))
            for anchor in fitting
            if top <= at <= bottom
            and all(sides[anchor][0] > b or sides[anchor][1] < a or abs(at - other) >= 11 for a, b, other in taken)
        ]
        anchor, at = (free or [(fitting[0], up + 4)])[0]
        taken.append((*sides[anchor], at))
        kind = f"{'line' if point.hollow else 'dot'} c{point.color % PALETTE}"
        tip = f"{point.name}: {point.said}"
        parts.append(tag("circle", cx=across, cy=up, r=4.5, class_=kind, data_tip=tip))
        parts.append(text(across + (-8 if anchor else 8), at, point.name, "label", anchor))
    return Drawing(width, height, label, Markup("").join(parts), "points")


def _scale(low: float, high: float, start: float, end: float, logarithmic: bool = False) -> Callable[[float], float]:
    """Values between low and high → coordinates between start and end; values beyond are moved to the nearer end."""
    bent = math.log if logarithmic else float

    def at(value: float) -> float:
        part = (bent(min(max(value, low), high)) - bent(low)) / (bent(high) - bent(low)) if high > low else 0.5
        return start + (end - start) * part

    return at


def _ticks_named(low: float, high: float) -> dict[float, str]:
    return {at: f"{at:.10g}".replace("-", "−") for at in ticks(low, high)}


def _rule(left: float, right: float, y: float, name: str) -> list[Markup]:
    """A horizontal line with its value on the left"""
    return [path(f"M{n(left)} {n(y)}H{n(right)}", "rule"), text(left - 6, y + 4, name, "tick", "end")]


def _limits(values: Sequence[float], low: float | None, high: float | None, logarithmic: bool) -> tuple[float, float]:
    floor, ceiling = min(values) if low is None else low, max(values) if high is None else high
    if logarithmic:
        return floor / 1.15, ceiling * 1.15
    if ceiling <= floor:
        return floor - (abs(floor) or 1) * 0.1, ceiling + (abs(ceiling) or 1) * 0.1
    margin = 0.04 * (ceiling - floor) if low is None and high is None else 0.0
    return floor - margin, ceiling + margin


def _powers(low: float, high: float) -> list[float]:
    """Round numbers on a logarithmic axis, at most nine"""
    powers = [10.0**p for p in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    for steps in ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 5)):
        inside = [s * power for power in powers for s in steps if low <= s * power <= high]
        if len(inside) <= 9:
            return inside
    return [power for power in powers if low <= power <= high]


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
    width: float = 440,
) -> Drawing:
    """Horizontal bars with confidence intervals, names on the left, values on the right. `rule` is a vertical line."""
    thick = (16 if len(bars) <= 12 else 10) if width > 400 else 13 if len(bars) <= 8 else 8
    names = [shortened(bar.name, 0.36 * width) for bar in bars]
    left, right = 14 + max(map(room, names)), 12 + max(room(bar.said) for bar in bars)
    top, step = 4.0, thick + min(8.0, 3 + thick / 3)
    height = top + step * len(bars) + (20 if rule else 4)
    x = _scale(low, high, left, width - right)

    def box(y: float, end: float) -> str:
        return f"M{n(left)} {n(y)}H{n(end)}v{n(thick)}H{n(left)}z"

    parts = []
    for index, bar in enumerate(bars):
        y = top + step * index
        middle, class_ = y + thick / 2, f"bar c{bar.color % PALETTE}"
        parts += [
            text(left - 8, middle + 4, names[index], "label", "end"),
            path(box(y, width - right), "track"),
            path(box(y, max(x(bar.value), left + 0.5)), class_, data_tip=f"{bar.name}: {bar.said}"),
        ]
        if bar.interval:
            a, b = map(x, bar.interval)
            ends = f"M{n(a)} {n(middle - 3)}v6M{n(b)} {n(middle - 3)}v6"
            parts.append(path(f"M{n(a)} {n(middle)}H{n(b)}{ends}", "whisker"))
        if bar.mark is not None:
            parts.append(path(f"M{n(x(bar.mark))} {n(y - 2)}v{n(thick + 4)}", "against"))
        parts.append(text(width - right + 6, middle + 4, bar.said, "value"))
    if rule:
        at, name = rule
        end = x(at) > (left + width - right) / 2
        parts.append(path(f"M{n(x(at))} {n(top - 2)}V{n(height - 14)}", "mark"))
        parts.append(text(x(at) + (-4 if end else 4), height - 4, name, "tick", "end" if end else None))
    return Drawing(width, height, label, Markup("").join(parts), "bars")


def matrix(
    label: str,
    rows: Sequence[str],
    columns: Sequence[str],
    cells: Mapping[tuple[int, int], Cell],
    *,
    say: str,
    row_title: str,
    column_title: str,
    cell: tuple[float, float],
    nothing: str = "0",
) -> Drawing:
    """Cells in colour; those that are left out are empty. `say` is a sentence with {row}, {column}, {value}.

    Cells of equal strength share one path, so that a matrix of a hundred by a hundred classes stays small.
    """
    wide, tall = cell
    beside, above = [shortened(name, 140) for name in rows], [shortened(name, 100) for name in columns]
    small = wide < 13  # names of columns are upright then, otherwise they lean by 50° if they do not fit
    slanted, longest = max(map(room, columns)) > wide, max(map(room, above)) * (0.73 if small else 0.77)
    heading = 0.0 if wide < 8 else 18.0 if not slanted else 12 + longest
    left, top = 20 + (10 + max(map(room, beside)) if tall >= 8 else 6.0), 18 + heading
    beyond = heading if slanted and not small else 0.0  # leaning names extend beyond the right border
    width, height = left + wide * len(columns) + 4 + beyond, top + tall * len(rows) + 4
    shades: dict[tuple[str, float, str], list[str]] = {}
    for (row, column), one in cells.items():
        opacity = 1.0 if one.color else _opacity(one)
        if opacity > 0:
            place = f"M{n(left + wide * column)} {n(top + tall * row)}h{n(wide)}v{n(tall)}h{n(-wide)}z"
            kind = "own" if one.color else "hot" if one.strength > 0 else "cold"
            shades.setdefault((kind, opacity, one.color), []).append(place)
    parts = [path(f"M{n(left)} {n(top)}h{n(wide * len(columns))}v{n(tall * len(rows))}H{n(left)}z", "bed")]
    parts += [
        path("".join(places), kind, fill=color or None, fill_opacity=None if color else f"{opacity:g}")
        for (kind, opacity, color), places in sorted(shades.items())
    ]
    if tall >= 8:
        size, drop = ("label", 4) if tall >= 13 else ("small", 3)
        parts += [text(left - 6, top + tall * (i + 0.5) + drop, name, size, "end") for i, name in enumerate(beside)]
    for j, name in enumerate(above if wide >= 8 else ()):
        x, y = left + wide * (j + 0.5) + (3 if small else 0), top - 6
        turn = f"rotate({-90 if small else -50} {n(x)} {n(y)})" if slanted else None
        parts.append(text(x, y, name, "small" if small else "label", None if slanted else "middle", transform=turn))
    for (row, column), one in cells.items():
        if one.text:
            size = "over" if _opacity(one) > 0.55 else "inside"
            if one.color:
                size = "light" if one.strength > DARK else "dark"
            parts.append(text(left + wide * (column + 0.5), top + tall * (row + 0.5) + 4, one.text, size, "middle"))
    middle = top + tall * len(rows) / 2
    parts.append(text(left + wide * len(columns) / 2, 12, column_title, "title", "middle"))
    parts.append(text(10, middle + 3, row_title, "title", "middle", transform=f"rotate(-90 10 {n(middle)})"))
    numbers = {
        "kind": "grid",
        "left": round(left, 1),
        "top": round(top, 1),
        "cell": [wide, tall],
        "rows": list(rows),
        "columns": list(columns),
        "say": say,
        "nothing": nothing,
        "said": {f"{i},{j}": one.said for (i, j), one in cells.items()},
    }
    return Drawing(width, height, label, Markup("").join(parts), "grid", numbers)


def _opacity(one: Cell) -> float:
    """At most ¾, so that text on it stays readable"""
    return round(min(1.0, abs(one.strength)) * 0.75 * 20) / 20
