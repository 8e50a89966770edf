"""Mean routing weights of a level, networks side by side, as a small SVG file that needs no library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

from .drawing import document

CELL = 17
LEFT, TOP, GAP, RIGHT, BELOW = 58, 44, 22, 12, 24  # room around and between panels
COLOR = "#1f5fa8"


class Panel(NamedTuple):
    classes: Sequence[str]
    mean: Sequence[Sequence[float | None]]  # of every class, for every capsule; null for a class without images


def svg(title: str, panels: Mapping[str, Panel]) -> str:
    """A row a block, a column a class; the darker, the heavier: from white, 0, to full colour, 1."""
    parts = [f'<text x="8" y="18" font-size="13">{escape(title)}</text>']
    blocks = len(next(iter(panels.values())).mean[0])
    for n in range(blocks):
        y = TOP + CELL * (n + 0.5) + 4
        parts.append(f'<text x="{LEFT - 6}" y="{y:.1f}" text-anchor="end">block {n}</text>')
    x, bottom = LEFT, TOP + CELL * blocks
    for name, (classes, mean) in panels.items():
        parts.append(f'<text x="{x}" y="{TOP - 7}">{escape(name)}</text>')
        for r, (label, b) in enumerate(zip(classes, mean, strict=True)):
            middle = x + CELL * (r + 0.5)
            parts.append(f'<text x="{middle:.1f}" y="{bottom + 14}" text-anchor="middle">{escape(label)}</text>')
            for n, weight in enumerate(b):
                place = f'x="{x + CELL * r}" y="{TOP + CELL * n}" width="{CELL}" height="{CELL}"'
                known = "no images" if weight is None else f"{weight:.3f}"
                said = f"<title>{escape(label)}, block {n}: {known}</title>"
                parts.append(
                    f'<rect {place} fill="{COLOR}" fill-opacity="{weight or 0:.3f}" stroke="#ddd">{said}</rect>'
                )
        x += CELL * len(classes) + GAP
    return document(x - GAP + RIGHT, bottom + BELOW, parts)
