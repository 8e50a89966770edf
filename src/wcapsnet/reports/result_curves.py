"""Training curves as small SVG files, without any library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any
from xml.sax.saxutils import escape

from .drawing import document

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 46, 96, 34, 34  # margins around the panel
COLORS = ("#c8102e", "#1f5fa8", "#2e8b57", "#c98a1b", "#8a6fb0", "#777777")
STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20)  # between grid lines, in points


def svg(title: str, runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Validation accuracy (thick) and training accuracy (thin) of every run, by epoch; dotted: learning-rate drops.

    The scale starts at the validation accuracy after a tenth of the epochs: the early rise would flatten the rest.
    """
    epochs = max(len(records) for records in runs.values())
    late = [100 * r["validation_accuracy"] for records in runs.values() for r in records if r["epoch"] > epochs / 10]
    step = next((s for s in STEPS if (100 - min(late)) / s <= 6), STEPS[-1])
    low = step * max(0, int(min(late) / step + 1e-9))
    low = min(low, 100 - step)

    def x(epoch: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (epoch - 1) / max(1, epochs - 1)

    def y(accuracy: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (100 - max(low, accuracy)) / (100 - low)

    parts = [f'<text x="{LEFT}" y="20" font-size="13">{escape(title)}</text>']
    for line in range(round((100 - low) / step) + 1):
        at = y(low + line * step)
        parts.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{low + line * step:g} %</text>')
    for epoch in sorted({1, epochs, *(round(epochs * q / 4) for q in (1, 2, 3))} - {0}):
        parts.append(f'<text x="{x(epoch):.1f}" y="{HEIGHT - 14}" text-anchor="middle">{epoch}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT + 20}" y="{HEIGHT - 14}">epoch</text>')
    first = next(iter(runs.values()))
    for before, after in pairwise(first):
        if after["lr"] < before["lr"]:
            at = x(before["epoch"] + 0.5)
            parts.append(f'<path d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#bbb" stroke-dasharray="2 3"/>')
    for number, (name, records) in enumerate(runs.items()):
        color = COLORS[number % len(COLORS)]
        for field, width, opacity in (("train_accuracy", 0.8, 0.5), ("validation_accuracy", 1.6, 1)):
            begin = next((i for i, r in enumerate(records) if 100 * r[field] >= low), len(records))
            points = " ".join(f"{x(r['epoch']):.1f},{y(100 * r[field]):.1f}" for r in records[begin:])
            style = f'stroke="{color}" stroke-width="{width}" opacity="{opacity}"'
            parts.append(f'<polyline fill="none" points="{points}" {style}/>')
        parts.append(f'<text x="{WIDTH - RIGHT + 8}" y="{TOP + 10 + 15 * number}" fill="{color}">{escape(name)}</text>')
    return document(WIDTH, HEIGHT, parts)
