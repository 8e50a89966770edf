"""Training curves of one run, or of several in one figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from .. import formatting as text
from .html import Html, figure, h, table
from .svg import Line, legend, line_chart

Metrics = Sequence[Mapping[str, Any]]
# Field of metrics.jsonl, title, description; a second field is drawn thin.
TERMS = (
    ("total", None, "Total loss", "The training objective: the weighted sum of the terms below."),
    ("cross_entropy", "validation_loss", "Cross entropy", "Classification loss; dashed on validation images."),
    (
        "wasserstein",
        None,
        "Wasserstein loss",
        "The critics' loss: lower means they separate good from bad capsules better.",
    ),
    ("reconstruction", None, "Reconstruction loss", "Mean squared error of the decoder's images."),
    ("l2", None, "L2", "Half the sum of squared weights subject to weight decay."),
    ("lr", None, "Learning rate", "Set by the schedule."),
)


def accuracy_chart(runs: Mapping[str, Metrics]) -> Html:
    lines, said = [], []
    for color, (name, metrics) in enumerate(runs.items()):
        for field, part, thin in (("validation_accuracy", "validation", False), ("train_accuracy", "training", True)):
            values = _series(metrics, field)
            if values:
                shade = color if len(runs) > 1 else int(thin)
                named = f"{name}, {part}" if len(runs) > 1 else part
                lines.append(Line(named, [x for x, _ in values], [100 * y for _, y in values], shade, thin))
                said.append([text.percentage(y) for _, y in values])
    low = _low(runs)
    charts = [  # text keeps its size on a phone
        h(
            "div",
            line_chart(
                "Accuracy by epoch",
                lines,
                said=said,
                low=low,
                high=100.0,
                marks=_marks(runs),
                width=width,
                height=height,
                unit="%",
            ),
            class_=where,
        )
        for where, width, height in (("broad", 1000, 300), ("narrow", 350, 220))
    ]
    keys = [(line.name, line.color, line.thin) for line in lines]
    falls = " Dashed vertical lines: the learning rate drops." if _marks(runs) else ""
    start = f" The scale starts at {low:g}{text.NARROW}%." if low else ""
    caption = (
        f"Share of correct predictions on validation images, and on training images during training.{falls}{start}"
    )
    return figure("Accuracy", [legend(keys), *charts], caption)


def loss_charts(runs: Mapping[str, Metrics]) -> list[Html]:
    return [one for term in TERMS for one in [_loss_chart(runs, *term)] if one]


def _loss_chart(runs: Mapping[str, Metrics], field: str, other: str | None, title: str, caption: str) -> Html | None:
    lines, said = [], []
    for color, (name, metrics) in enumerate(runs.items()):
        for key, part, thin in ((field, "training", False), (other, "validation", True)):
            values = _series(metrics, key) if key else []
            if values:
                named = (f"{name}, {part}" if other else name) if len(runs) > 1 else part if other else title.lower()
                shade = color if len(runs) > 1 else (int(not thin) if other else 0)
                lines.append(Line(named, [x for x, _ in values], [y for _, y in values], shade, thin))
                said.append([text.loss(y) for _, y in values])
    if not lines or len(lines[0].x) == 0:
        return None
    return figure(title, line_chart(f"{title} by epoch", lines, said=said), caption)


def metrics_table(metrics: Metrics) -> Html:
    fields = [name for name in metrics[-1] if name not in ("epoch", "best")]
    rows = [[str(record["epoch"]), *(_written(name, record.get(name)) for name in fields)] for record in metrics]
    return table(["epoch", *(name.replace("_", " ") for name in fields)], rows, "One row per epoch", sortable=True)


def _written(name: str, value: Any) -> str:
    if not isinstance(value, (int, float)):
        return ""
    return text.percentage(value) if name.endswith("accuracy") else text.loss(value)


def _series(metrics: Metrics, field: str) -> list[tuple[int, float]]:
    """(epoch, value) wherever there is a number"""
    found = ((int(record["epoch"]), record.get(field)) for record in metrics)
    return [(epoch, float(v)) for epoch, v in found if isinstance(v, (int, float)) and math.isfinite(v)]


def _low(runs: Mapping[str, Metrics]) -> float:
    """The validation accuracy after a tenth of the epochs, rounded: the early rise would flatten the rest."""
    epochs = max(len(metrics) for metrics in runs.values())
    late = [100 * y for metrics in runs.values() for x, y in _series(metrics, "validation_accuracy") if x > epochs / 10]
    least = min(late, default=0.0)
    step = 10.0 if least < 90 else 5.0 if least < 95 else 1.0
    return min(step * math.floor(least / step), 100 - step)


def _marks(runs: Mapping[str, Metrics]) -> dict[float, str]:
    """Where the learning rate drops, if this is the same in all runs"""
    each = []
    for metrics in filter(None, runs.values()):
        each.append(
            {
                float(after["epoch"]): f"the learning rate drops to {after['lr']:.3g}"
                for before, after in pairwise(metrics)
                if after.get("lr", 0) < before.get("lr", 0) * 0.999
            }
        )
    return each[0] if each and all(one == each[0] for one in each) else {}
