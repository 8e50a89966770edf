"""Every figure of the reports and documents, drawn once: the page embeds it, `--figures` and the documents save it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup
from torch import Tensor

from .. import formatting
from ..explanations import ImageExplanation, LevelSpecialization, Specialization
from ..explanations.probes import share_interval
from ..explanations.shares import against_share, outlined, scale_ends
from ..formatting import percentage, plural
from ..network.routing import heaviest
from ..parts import loss_term
from ..training.evaluate import Calibration
from .charts import Bar, Cell, Line, bar_chart, beginning, line_chart, matrix
from .colors import COLD, HOT, ZERO, hex_of, share_over, signed_over
from .facts import Facts, class_accuracies
from .pictures import Example, Picture, marked, picture
from .survey_cache import Seen
from .svg import Drawing, arranged, scale, shortened, text

Metrics = Sequence[Mapping[str, Any]]
MANY = 20  # classes beyond which numbers no longer fit into cells
EXTREMES = 30  # most classes in a bar chart
# Field of metrics.jsonl: its title and description. Other loss terms follow under their own names.
TERMS = {
    "total": ("Total loss", "The training objective: the weighted sum of all terms."),
    "cross_entropy": ("Cross entropy", "The classification loss."),
    "wasserstein": ("Wasserstein loss", "The critics' loss; it falls as they tell fit blocks from unfit ones."),
    "centred_wasserstein": (
        "Centred Wasserstein loss",
        "The Wasserstein loss of each block's fitness less its mean over the batch; it falls as fitness depends on the "
        "image.",
    ),
    "information": (
        "Information",
        "Minus the information about the image in the weights, in nats, averaged over levels.",
    ),
    "class_information": (
        "Class information",
        "Minus the information about the class in the weights of the last feature level, in nats.",
    ),
    "margin": ("Margin loss", "The classification loss, on the lengths of the class capsules."),
    "reconstruction": ("Reconstruction loss", "Mean squared error of the reconstructed images."),
    "label_smoothing": (
        "Label smoothing",
        "Cross entropy against equal probabilities. It rises as the network becomes more confident.",
    ),
    "l2": ("L2", "Half the sum of squares of all weights subject to weight decay."),
    "lr": ("Learning rate", "As scheduled."),
}
NO_TERMS = ("epoch", "best", "seconds", "images_per_s", "train_accuracy", "validation_accuracy", "validation_loss")


# ── training ──


def accuracy(runs: Mapping[str, Metrics], width: float = 640, height: float = 300) -> Drawing:
    """Validation and training accuracy of one run, or of several"""
    shown = [
        line._replace(y=[100 * y for y in line.y], said=[percentage(y) for y in line.y])
        for line in _lines(runs, "validation_accuracy", "train_accuracy")
    ]
    return line_chart(
        "Accuracy by epoch",
        shown,
        low=lowest_accuracy(runs),
        high=100.0,
        marks=drops(runs),
        width=width,
        height=height,
        y_name="accuracy",
        unit="%",
        keys=True,
    )


def losses(runs: Mapping[str, Metrics]) -> list[tuple[str, str, Drawing]]:
    """Title, description and chart of every loss term that was recorded"""
    known = [field for metrics in runs.values() if metrics for field in metrics[-1] if field not in NO_TERMS]
    found = []
    for field in dict.fromkeys([*(field for field in TERMS if field in known), *known]):
        title, about = TERMS.get(field) or (field.replace("_", " ").capitalize(), _described(field))
        if lines := _lines(runs, "validation_loss" if field == "cross_entropy" else None, field):
            keys = len(runs) == 1 and len(lines) > 1
            found.append((title, about, line_chart(f"{title} by epoch", lines, keys=keys)))
    return found


def _described(term: str) -> str:
    """The first line of a loss term's docstring"""
    text = (getattr(loss_term.get(term), "__doc__", None) or "").strip()
    line = text.splitlines()[0] if text else "A term of the loss."
    return f"{line}." if line[-1].isalpha() else line


def _lines(runs: Mapping[str, Metrics], validation: str | None, training: str) -> list[Line]:
    """Where both are drawn, validation is solid and training dashed."""
    lines = []
    for number, (name, metrics) in enumerate(runs.items()):
        run = name if len(runs) > 1 else ""
        of = {"validation": series(metrics, validation) if validation else [], "training": series(metrics, training)}
        both = all(of.values())
        lines += [
            Line(
                f"{run}, {part}" if run and validation else run or part,
                [epoch for epoch, _ in values],
                [value for _, value in values],
                [formatting.loss(value) for _, value in values],
                number if run else int(both and part == "training"),
                thin=part == "training" and both,
            )
            for part, values in of.items()
            if values
        ]
    return lines


def series(metrics: Metrics, field: str) -> list[tuple[int, float]]:
    """(epoch, value) wherever there is a number"""
    found = ((int(record["epoch"]), record.get(field)) for record in metrics)
    return [(epoch, float(v)) for epoch, v in found if isinstance(v, (int, float)) and math.isfinite(v)]


def lowest_accuracy(runs: Mapping[str, Metrics]) -> float:
    """Where the axis starts: at or below every accuracy that is drawn, rounded"""
    fields = ("validation_accuracy", "train_accuracy")
    drawn = [100 * y for metrics in runs.values() for field in fields for _, y in series(metrics, field)]
    least = min(drawn, default=0.0)
    step = 10.0 if least < 90 else 5.0 if least < 95 else 1.0
    return min(step * math.floor(least / step), 100 - step)


def drops(runs: Mapping[str, Metrics]) -> dict[float, str]:
    """Where the learning rate drops, if this is the same in all runs. A drop has a constant rate on both sides, or is
    large: a cosine falls at most by a factor of 4."""
    each = []
    for metrics in filter(None, runs.values()):
        rates = [record.get("lr", 0) for record in metrics]
        around = zip([None, *rates], rates, rates[1:], [*rates[2:], None], metrics[1:], strict=False)
        each.append(
            {
                float(record["epoch"]): f"the learning rate drops to {after:.3g}"
                for earlier, before, after, later, record in around
                if after < before * 0.999
                and ((earlier in (None, before) and later in (None, after) and len(rates) > 2) or after < before / 5)
            }
        )
    return each[0] if each and all(one == each[0] for one in each) else {}


# ── right and wrong ──


def confusion_matrix(counts: Sequence[Sequence[int]], classes: Sequence[str]) -> Drawing:
    count = len(classes)
    shares = {(i, j): times / sum(row) for i, row in enumerate(counts) for j, times in enumerate(row) if times}
    worst = max((share for (i, j), share in shares.items() if i != j), default=1.0)
    cells = {}
    for (i, j), share in shares.items():
        strength = -0.75 * share if i == j else max(0.06, 0.95 * math.sqrt(share / worst))
        said = f"{plural(counts[i][j], 'image')} ({percentage(share, 1)} of its class)"
        cells[i, j] = Cell(strength, said, f"{counts[i][j]}" if count <= MANY else "")
    sizes = ((12, (44, 26)), (MANY, (32, 22)), (40, (20, 16)), (60, (13, 13)), (110, (8.4, 8.4)))
    return matrix(
        f"Confusion matrix of {count} classes",
        classes,
        classes,
        cells,
        say="{row} taken for {column}: {value}",
        row_title="true class",
        column_title="predicted class",
        cell=next((size for most, size in sizes if count <= most), (max(2.0, 900 / count),) * 2),
        nothing="no image",
    )


def class_bars(figures: Mapping[str, Any], classes: Sequence[str], most: int = EXTREMES) -> tuple[Drawing, float]:
    """The classes with the lowest accuracy if there are more than `most`; and where the axis begins"""
    every = [(name, *one) for name, one in zip(classes, class_accuracies(figures["confusion"]), strict=True) if one[1]]
    if len(every) > most:
        every = sorted(every, key=lambda one: one[1])[:most]
    bars = [Bar(name, share, percentage(share, 1), share_interval(share, images)) for name, share, images in every]
    low, overall = beginning(bar.interval for bar in bars if bar.interval), figures["accuracy"]
    rule = overall, f"all {percentage(overall, 1)}"
    return bar_chart("Accuracy of each class", bars, low=low, rule=rule), low


def reliability(found: Calibration) -> Drawing:
    """Accuracy over probability, bin by bin; perfect calibration is the diagonal"""
    x, y = ([100 * one[place] for one in found.bins] for place in (1, 2))
    said = [f"{percentage(a, 1)} of {plural(n, 'image')}" for n, _, a in found.bins]
    ideal = Line("perfect calibration", [0, 100], [0, 100], ["0 %", "100 %"], color=None)
    return line_chart(
        "Reliability diagram",
        [ideal, Line("accuracy", x, y, said)],
        low=0.0,
        high=100.0,
        width=440,
        height=320,
        x_name="probability of the predicted class, %",
        y_name="accuracy",
        unit="%",
    )


# ── routing ──


def trend(found: Specialization) -> Drawing | None:
    """Information of the winning block about the class, level by level"""
    told = {f"level {level.level + 1}": level.information_chosen for level in found.selecting}
    bars = [Bar(name, one.value, str(one), mark=one.by_chance) for name, one in told.items()]
    high = max([0.1, *(max(bar.value, bar.mark or 0) for bar in bars)])
    return bar_chart("Information of the winning block about the class, by level", bars, high=high) if bars else None


def classes_of(level: LevelSpecialization) -> list[int]:
    """Classes that have images; if there are many, those with the same favourite block next to each other"""
    rows = level.counts.nonzero().flatten().tolist()
    if len(rows) > MANY:
        favourites = heaviest(level.mean)
        rows.sort(key=lambda r: (favourites[r].nonzero().flatten().tolist(), -float(level.mean[r].max())))
    return rows


def level_map(level: LevelSpecialization, classes: Sequence[str]) -> Drawing:
    """Mean weights, one row per class and one column per block"""
    rows = classes_of(level)
    tall = 24.0 if len(rows) <= MANY else 13.0 if len(rows) <= 60 else 9.0 if len(rows) <= 200 else 3.0
    return weight_matrix(
        f"Mean weights of level {level.level + 1}: {len(rows)} classes by {level.capsules} blocks",
        [classes[r] for r in rows],
        level.mean[rows],
        level.margin[rows],
        cell=(min(90.0, max(36.0, 320 / level.capsules)), tall),
    )


def weight_matrix(label: str, names: Sequence[str], mean: Tensor, margin: Tensor, cell: tuple[float, float]) -> Drawing:
    """`mean` and `margin` are (class, capsule)"""
    positions = (against_share(mean, mean.shape[1]) * 20).round() / 20  # few colours: few paths
    written = cell[1] >= 20
    cells = {}
    for i, j in (~mean.isnan()).nonzero().tolist():
        at, value = float(positions[i, j]), float(mean[i, j])
        said, text = formatting.weight(value, float(margin[i, j])), f"{value:.3f}".lstrip("0") if written else ""
        cells[i, j] = Cell(at, said, text, hex_of(at))
    capsules = [str(k) for k in range(mean.shape[1])]
    say, titles = "{row}, block {column}: mean weight {value}", {"row_title": "class", "column_title": "block"}
    return matrix(label, names, capsules, cells, say=say, cell=cell, **titles)


def share_scale(count: int) -> Drawing:
    """The legend of a map of weights, where 1/N is the equal share"""
    return scale([hex_of(k / 10) for k in range(-10, 11)], scale_ends(count))


def signed_scale(most: float) -> Drawing:
    """The legend of a map of contributions, with the largest absolute value"""
    ends = (f"−{most:.3g}", "0", f"+{most:.3g}" if most else "0")
    return scale([hex_of(k / 10, (HOT, ZERO, COLD)) for k in range(-10, 11)], ends)


def wins(level: LevelSpecialization) -> Drawing:
    shares = level.chosen_overall.tolist()
    bars = [Bar(f"block {k}", share, percentage(share, 1), color=2) for k, share in enumerate(shares)]
    label = f"Level {level.level + 1}: share of images that each block wins"
    return bar_chart(label, bars, high=max(*shares, 0.01), width=380)


def probes(seen: Seen) -> Drawing:
    shares = [(f"level {probe.level + 1}", probe.accuracy, 5) for probe in seen.probes]
    shares.append(("the network", seen.survey.accuracy, 0))
    images = len(seen.survey)
    bars = [
        Bar(name, share, percentage(share, 1), share_interval(share, images), color) for name, share, color in shares
    ]
    chance = seen.probes[0].by_chance
    rule = (chance, f"chance {percentage(chance, 1)}")
    return bar_chart("Accuracy of a linear probe on each level", bars, rule=rule)


# ── single images ──


class Evidence(NamedTuple):
    """What is shown of an example."""

    strip: list[tuple[Picture, str]]  # input, reconstruction, weights of capsules, contributions
    weights: Drawing  # legend
    contributions: Drawing  # legend
    top: Drawing  # the most probable classes
    levels: list[Drawing]  # weights of each level
    logit: Drawing


def evidence(facts: Facts, example: Example, capsules: int = 3) -> Evidence:
    one, shown = example.explained, example.shown
    image, heat, vectors = shown.pixels.float() / 255, one.heat(), one.weights[-1].numel()
    strip = [
        (picture(shown.pixels, f"{shown.name}: {facts.classes[shown.label]}", 112), "input"),
        (picture(example.reconstruction, f"reconstruction of {shown.name}", 112), "reconstruction"),
    ]
    tied, shares = outlined(one.tied), one.block_weights(len(one.weights) - 1).tolist()
    for k in range(min(len(heat), capsules)):
        drawn = picture(share_over(image, heat[k], vectors), f"weights of block {k} of the last level", 112)
        places, dot = [(i, j) for of, i, j in tied if of == k], one.place[1:] if one.place[0] == k else None
        drawn = marked(drawn, heat.shape[1:], one.stride, places, dot)
        strip.append((drawn, f"weights of block {k} (sum {shares[k]:.3f})"))
    total = one.contribution_heat().sum(0)
    most, name = float(total.abs().max()), facts.classes[one.predicted]
    over = picture(signed_over(image, total / max(most, 1e-9)), f"contributions to the logit of {name}", 112)
    strip.append((over, f"evidence for (blue) and against (orange) {name}"))
    levels = [_weights_of(one, level) for level in range(len(one.weights))]
    return Evidence(strip, share_scale(vectors), signed_scale(most), _top(facts, example), levels, _logit(one, name))


def _top(facts: Facts, example: Example) -> Drawing:
    probabilities, label = example.explained.probabilities, example.shown.label
    bars = [
        Bar(facts.classes[r], p, percentage(p, 1), color=2 if r == label else 7)
        for r in probabilities.argsort(descending=True)[:4].tolist()
        for p in [float(probabilities[r])]
    ]
    return bar_chart("The most probable classes", bars, width=230)


def _weights_of(one: ImageExplanation, level: int) -> Drawing:
    weights = one.block_weights(level).tolist()
    winners = one.winners[level] if len(one.winners[level]) < len(weights) else ()  # all tie: none stands out
    bars = [
        Bar(f"{k}", w, f"{w:.3f}", color=1 if k in winners else 7, mark=1 / len(weights)) for k, w in enumerate(weights)
    ]
    label = f"Weights of level {level + 1}; vertical lines are the equal share"
    return bar_chart(label, bars, high=max(weights), width=230)


def _logit(one: ImageExplanation, name: str) -> Drawing:
    parts = one.contributions[one.predicted].flatten(1).sum(1).tolist()
    logit = float(one.logits[one.predicted])
    bars = [
        Bar(f"block {k}", abs(part), formatting.signed(part, 2), color=0 if part >= 0 else 1)
        for k, part in enumerate(parts)
    ]
    bars.append(Bar("logit", abs(logit), formatting.signed(logit, 2), color=7))
    high = max(*(bar.value for bar in bars), 1e-9)
    return bar_chart(f"Contributions to the logit of {name}", bars, high=high, width=230)


def gallery(label: str, items: Sequence[tuple[Picture, Sequence[str]]], columns: int, wide: float = 112) -> Drawing:
    """Pictures in rows, each with lines of text below it"""
    tiles = []
    for shown, lines in items:
        words = [
            text(0, shown.height + 14 + 13 * k, shortened(line, wide), "label") for k, line in enumerate(lines) if line
        ]
        body = shown.drawn + Markup("").join(words)
        tiles.append(Drawing(wide, shown.height + 8 + 13 * len(lines), shown.alt, body))
    return arranged(tiles, columns, 14, label)
