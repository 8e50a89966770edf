"""Mean routing weights of a level, with networks side by side, as a small SVG file that needs no library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

import torch

from ..explanations.shares import against_share, scale_ends
from .drawing import document
from .shades import RAMP, hex_of

CELL = 17
LEFT, TOP, GAP, RIGHT, BELOW = 58, 44, 22, 12, 24  # margins around and between panels
SCALE_WIDTH, SCALE_HEIGHT = 240, 34  # the legend, below the panels


class Panel(NamedTuple):
    classes: Sequence[str]
    mean: Sequence[Sequence[float | None]]  # for every class and capsule; null for a class without images


def svg(title: str, panels: Mapping[str, Panel]) -> str:
    """One row per block, one column per class. Colours compare a weight with the equal share; see the legend."""
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
                fill = "none" if weight is None else hex_of(float(against_share(torch.tensor(weight), blocks)))
                parts.append(f'<rect {place} fill="{fill}" stroke="#fff" class="cell">{said}</rect>')
        x += CELL * len(classes) + GAP
    parts += _scale(blocks, bottom + BELOW)
    width = max(x - GAP + RIGHT, LEFT + SCALE_WIDTH + RIGHT)
    return document(width, bottom + BELOW + SCALE_HEIGHT, parts)


def _scale(blocks: int, y: int) -> list[str]:
    """The legend: a bar, and below it the values at its ends and in its middle"""
    stops = "".join(
        f'<stop offset="{k / (len(RAMP) - 1):g}" stop-color="rgb{rgb}"/>'.replace(", ", ",")
        for k, rgb in enumerate(RAMP)
    )
    bar = f'x="{LEFT}" y="{y}" width="{SCALE_WIDTH}" height="9"'
    low, share, high = (escape(words) for words in scale_ends(blocks))
    labels = (("start", low, 0.0), ("middle", share, 0.5), ("end", high, 1.0))
    return [
        f'<linearGradient id="shares">{stops}</linearGradient>',
        f'<rect {bar} fill="url(#shares)" class="scale"/>',
        f'<path d="M{LEFT + SCALE_WIDTH / 2:g} {y + 9}v4" stroke="#333"/>',
        *(
            f'<text x="{LEFT + part * SCALE_WIDTH:g}" y="{y + 24}" text-anchor="{anchor}">{words}</text>'
            for anchor, words, part in labels
        ),
    ]
