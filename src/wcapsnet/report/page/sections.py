"""The sections of a run's page, in their order: each takes the facts and gives its HTML."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from typing import Any

import torch

from ...explain import LevelSpecialization, Specialization, specialization
from ...explain.probes import share_margin
from ...settings import flat, to_dict
from ..noise import Sample, compare
from ..tables import verdict
from . import text
from .colors import heat_over, scale, signed_over, stretched
from .curves import accuracy_chart, loss_charts, metrics_table
from .facts import Example, Facts, Shown, paper_figure
from .html import Html, figure, folded, h, picture, table
from .svg import Bar, Cell, bar_chart, grid

MANY = 20  # classes beyond which numbers no longer fit into cells
MOST_TABLED = 200  # classes beyond which a matrix is not repeated as a table
EXTREMES = 30  # classes of a bar chart where there are more


def section(key: str, title: str, lead: str, *content: Html | str | list[Html] | None) -> Html:
    return h(
        "section", h("h2", title, id=f"{key}-title"), h("p", lead), *content, id=key, aria_labelledby=f"{key}-title"
    )


def unable(why: str) -> Html:
    return h("p", why, class_="note")


# ── headline ────────────────────────────────────────────────────────────────────────────────────────────────────────


def headline(facts: Facts) -> Html:
    subject, figures = facts.subject, facts.figures
    cards = []
    if figures:
        part = facts.subject.part
        accuracy, images = figures["accuracy"], figures["images"]
        said = f"{text.plural(images - figures['errors'], 'image')} of {images:,} right"
        cards.append(
            card(
                f"{part} accuracy",
                text.percent(accuracy),
                f"± {text.percent(share_margin(accuracy, images))} · {said}",
                style="first",
            )
        )
        cards += [one for one in [_paper_card(facts, accuracy, images)] if one]
        if "cross_entropy" in figures:
            cards.append(card(f"{part} cross entropy", f"{figures['cross_entropy']:.4f}", _guessing(facts)))
    cards += _training_cards(facts)
    total = sum(facts.parameters.values())
    even = (len(cards) + bool(figures)) % 2 == 0  # the first card has two places; this one fills the row
    counts = ", ".join(f"{name} {n:,}" for name, n in facts.parameters.items())
    cards.append(card("parameters", f"{total:,}", counts, "span" if even else None))
    return section(
        "overview",
        "Overview",
        _state(facts),
        h("dl", cards, class_="cards"),
        _unfinished(facts),
        _findings_in_short(facts),
    )


def card(title: str, big: str, more: str = "", style: str | None = None) -> Html:
    return h(
        "div",
        h("dt", title),
        h("dd", h("div", big, class_="big"), h("div", more, class_="more") if more else None),
        class_=style,
    )


def _guessing(facts: Facts) -> str:
    return f"guessing gives {math.log(facts.subject.experiment.model.outputs):.2f}"


def _paper_card(facts: Facts, accuracy: float, images: int) -> Html | None:
    paper = paper_figure(facts.subject.experiment)
    if paper is None or not facts.subject.finished:
        return None
    if paper.differences:
        more = f"not the same experiment: {'; '.join(paper.differences[:2])}"
        more += f" and {len(paper.differences) - 2} more" if len(paper.differences) > 2 else ""
        return card("the paper has", text.percent(paper.accuracy), more)
    difference = compare(Sample((accuracy,), images), Sample((paper.accuracy,), images))
    return card("the paper has", text.percent(paper.accuracy), f"ours is {verdict(difference)}")


def _training_cards(facts: Facts) -> list[Html]:
    metrics, results = facts.subject.metrics, facts.subject.results or {}
    if not metrics:
        return []
    best = max(metrics, key=lambda m: (m["validation_accuracy"], -m.get("validation_loss", 0)))
    epochs = facts.subject.experiment.training.epochs
    validation = results.get("validation_accuracy", best["validation_accuracy"])
    cards = [
        card(
            "best validation accuracy",
            text.percent(validation),
            f"after epoch {results.get('best_epoch', best['epoch'])}",
        ),
        card("epochs", f"{len(metrics)} of {epochs}", f"seed {facts.subject.experiment.training.seed}"),
    ]
    if "seconds" in metrics[-1]:
        speed = f"{metrics[-1]['images_per_s']:,.0f} images/s" if "images_per_s" in metrics[-1] else ""
        cards.append(card("training time", text.duration(metrics[-1]["seconds"]), speed))
    return cards


def _state(facts: Facts) -> str:
    subject, model = facts.subject, facts.subject.experiment.model
    capsules = "-".join(str(level.capsules) for level in model.levels)
    levels = text.plural(len(model.levels), "level")
    what = f"A WCapsNet of {levels} with {capsules} capsules for {text.plural(model.classes, 'class', 'classes')}"
    size = f"images of {model.channels}×{model.height}×{model.width}"
    tested = " The test set was used once, by the weights that validation chose." if subject.finished else ""
    return f"{what}, {size}, trained on {subject.data_title}.{tested}"


def _unfinished(facts: Facts) -> Html | None:
    subject = facts.subject
    if subject.finished:
        return None
    done, epochs = len(subject.metrics), subject.experiment.training.epochs
    said = f"This run is not finished: {done} of {text.plural(epochs, 'epoch')} are done. "
    if subject.failure:
        said = f"This run failed: {subject.failure} "
    if facts.seen:
        some = f"{len(facts.seen.survey):,} of its {facts.seen.of:,}" if facts.seen.of else "its"
        said += f"The figures below are of {some} validation images, by the best weights so far. "
    return h(
        "p",
        said,
        "Go on with: ",
        h("code", shlex.join(["wcapsnet", "train", "--resume", subject.source])),
        class_="warn",
    )


def _findings_in_short(facts: Facts) -> Html | None:
    said: list[str] = []
    figures = facts.figures
    if figures and "confusion" in figures:
        worst = confusions(figures["confusion"])[:1]
        said += [
            f"Most often, {facts.classes[i]} is taken for {facts.classes[j]} ({n} of {total:,})."
            for n, total, i, j in worst
        ]
    if facts.seen:
        found = specialization(facts.seen.survey)
        said += [found.trend, *found.findings]
    return h("ul", [h("li", sentence) for sentence in said], class_="said") if said else None


# ── training ────────────────────────────────────────────────────────────────────────────────────────────────────────


def training(facts: Facts) -> Html:
    metrics = facts.subject.metrics
    lead = "Every term of the loss and the accuracies, epoch by epoch."
    if not metrics:
        why = "A shipped network comes without the record of its training."
        if facts.subject.folder:
            why = "There are no curves: no epoch has been finished, or metrics.jsonl is not there."
        return section("training", "Training", lead, unable(why))
    named = {facts.subject.name: metrics}
    return section(
        "training",
        "Training",
        lead,
        accuracy_chart(named),
        h("div", loss_charts(named), class_="panels"),
        folded("All numbers as a table", metrics_table(metrics)),
    )


# ── right and wrong ─────────────────────────────────────────────────────────────────────────────────────────────────


def answers(facts: Facts) -> Html:
    figures, title = facts.figures, "Right and wrong"
    part = facts.subject.part
    lead = f"What was taken for what on the {part} images."
    if not figures or "confusion" not in figures:
        why = facts.missing.get("seen", "The record of this run has no confusion matrix.")
        return section("answers", title, lead, unable(why))
    return section(
        "answers",
        title,
        lead,
        _beside(facts, _confusion_matrix(facts, figures), _confusion_list(facts, figures)),
        _class_bars(facts, figures),
        _mistakes(facts),
    )


def _beside(facts: Facts, matrix: Html, listed: Html) -> Html:
    """A large matrix has the whole width."""
    return h("div", matrix, listed, class_="beside" if len(facts.classes) <= MANY else None)


def confusions(matrix: Sequence[Sequence[int]]) -> list[tuple[int, int, int, int]]:
    """(times, images of the true class, true, predicted), most frequent first"""
    found = [(n, sum(row), i, j) for i, row in enumerate(matrix) for j, n in enumerate(row) if i != j and n > 0]
    return sorted(found, key=lambda one: (-one[0], -one[0] / one[1], one[2], one[3]))


def class_accuracies(figures: dict[str, Any]) -> list[tuple[float, float, int]]:
    """(accuracy, half its confidence interval, images) of each class; nan without images"""
    found = []
    for r, row in enumerate(figures["confusion"]):
        images = sum(row)
        share = row[r] / images if images else math.nan
        found.append((share, share_margin(share, images) if images else math.nan, images))
    return found


def _class_bars(facts: Facts, figures: dict[str, Any]) -> Html:
    every = [(name, *one) for name, one in zip(facts.classes, class_accuracies(figures), strict=True) if one[2]]
    title = "Accuracy of each class"
    if len(every) > EXTREMES:
        every = sorted(every, key=lambda one: one[1])[:EXTREMES]
        title = f"Accuracy of the {EXTREMES} hardest classes"
    low = min(share - margin for _, share, margin, _ in every)
    low = 0.0 if low < 0.5 else math.floor(low * 20) / 20
    bars = [Bar(name, share, text.percent(share, 1), margin) for name, share, margin, _ in every]
    caption = (
        f"The bars run from {text.percent(low, 0)} to 100{text.NARROW}%; thin lines are 95{text.NARROW}% confidence intervals, "
        f"the dashed line is the accuracy of all classes."
    )
    overall = figures["accuracy"]
    chart = bar_chart(
        title,
        bars,
        low=low,
        rule=(overall, f"all {text.percent(overall, 1)}"),
        thick=16 if len(bars) <= 12 else 10,
        width=520,
    )
    numbers = folded("Accuracy of every class as a table", _class_table(facts, figures))
    return figure(title, chart, caption, numbers)


def _class_table(facts: Facts, figures: dict[str, Any]) -> Html:
    rows = []
    for r, (name, (share, margin, images)) in enumerate(zip(facts.classes, class_accuracies(figures), strict=True)):
        others = [(n, j) for j, n in enumerate(figures["confusion"][r]) if j != r and n]
        n, j = max(others, key=lambda one: (one[0], -one[1]), default=(0, 0))
        taken = f"{facts.classes[j]} ({n})" if n else ""
        shown = [text.percent(share), f"± {text.percent(margin)}"] if images else ["", ""]
        rows.append([name, f"{images:,}", *shown, taken])
    return table(
        ["class", "images", "accuracy", "interval", "most often taken for"], rows, "Accuracy of each class", True
    )


def _confusion_list(facts: Facts, figures: dict[str, Any]) -> Html:
    found = confusions(figures["confusion"])
    if not found:
        return h("p", "Not one image was taken for another class.", class_="note")
    rows = [[facts.classes[i], facts.classes[j], f"{n:,}", text.percent(n / total, 1)] for n, total, i, j in found[:10]]
    shown = table(["is", "taken for", "times", "of its images"], rows, "The most frequent mistakes", numbers_from=2)
    return h("figure", h("h3", "What is taken for what"), shown)


def _confusion_matrix(facts: Facts, figures: dict[str, Any]) -> Html:
    matrix, names = figures["confusion"], facts.classes
    count = len(names)
    shares = {(i, j): n / sum(row) for i, row in enumerate(matrix) for j, n in enumerate(row) if n}
    worst = max((share for (i, j), share in shares.items() if i != j), default=1.0)
    cells = {
        (i, j): Cell(
            -0.75 * share if i == j else max(0.06, 0.95 * math.sqrt(share / worst)),
            f"{matrix[i][j]}" if count <= MANY else "",
        )
        for (i, j), share in shares.items()
    }
    said = {
        (i, j): f"{text.plural(matrix[i][j], 'image')} ({text.percent(share, 1)} of its class)"
        for (i, j), share in shares.items()
    }
    drawing = grid(
        f"Confusion matrix of {count} classes",
        names,
        names,
        cells,
        say="{row} taken for {column}: {value}",
        said=said,
        row_title="true class",
        column_title="predicted class",
        cell=_cell_size(count),
        nothing="no image",
    )
    if count <= MOST_TABLED:
        rows = [[name, *(f"{n:,}" if n else "·" for n in row)] for name, row in zip(names, matrix, strict=True)]
        caption = "Rows: true class; columns: predicted class"
        numbers = folded("Confusion matrix as a table", table(["true class", *names], rows, caption))
    else:
        numbers = h("p", "As a table the matrix is in confusion.csv.", class_="soft")
    return figure(
        "Confusion matrix",
        h("div", drawing, class_="wide", style=f"--least:{min(640, 90 + 34 * count)}px"),
        "A row for each true class, a column for each answer: blue is right, orange is wrong, the darker the more often. "
        "Point at a cell, or focus the matrix and use the arrow keys, to read its number.",
        numbers,
    )


def _cell_size(count: int) -> tuple[float, float]:
    if count <= 12:
        return 44, 26
    if count <= MANY:
        return 32, 22
    return (
        (20, 16)
        if count <= 40
        else (13, 13)
        if count <= 60
        else (8.4, 8.4)
        if count <= 110
        else (max(2.0, 900 / count),) * 2
    )


def _mistakes(facts: Facts) -> Html:
    title = "The worst mistakes"
    if facts.pictures is None:
        return h("figure", h("h3", title), unable(_why_no_pictures(facts)))
    wrong = facts.pictures.mistakes
    if not wrong:
        return h("figure", h("h3", title), unable("There is none: every image was answered rightly."))
    items = [h("li", _thumb(facts, one), _told(facts, one)) for one in wrong]
    caption = "Wrong answers that the network was surest of, surest first: below each its true class, what it was taken for, and how surely."
    return h("figure", h("h3", title), h("figcaption", caption), h("ul", items, class_="thumbs"))


def _why_no_pictures(facts: Facts) -> str:
    return f"The pictures cannot be shown. {facts.missing.get('pictures', '')}".strip()


def _thumb(facts: Facts, one: Shown, side: int = 92) -> Html:
    alt = f"{one.name}: {facts.classes[one.label]}, taken for {facts.classes[one.predicted]}"
    return picture(one.pixels, alt, scale=side)


def _told(facts: Facts, one: Shown) -> list[Html | str]:
    verdict_class = "right" if one.right else "wrong"
    return [
        h(
            "div",
            h("span", facts.classes[one.label], class_="true"),
            " → ",
            h("span", facts.classes[one.predicted], class_=verdict_class),
        ),
        h("div", text.percent(one.probability, 1), class_="soft", data_tip=one.name),
    ]


# ── specialisation ──────────────────────────────────────────────────────────────────────────────────────────────────


def specialisation(facts: Facts) -> Html:
    title = "Who acts for which class"
    lead = (
        "Each level has several capsule blocks, and a critic gives each a weight for every image. Here are the mean weights for "
        "each class: where a row differs from the others, the level treats that class in its own way."
    )
    if facts.seen is None:
        return section("routing", title, lead, unable(facts.missing["seen"]))
    found = specialization(facts.seen.survey)
    levels = [h("div", _level(facts, level), class_="level") for level in found.levels]
    return section("routing", title, lead, _trend(found), levels, _positions(facts, found))


def _trend(found: Specialization) -> Html | None:
    several = [level for level in found.levels if level.capsules > 1]
    if not several:
        return None
    bars = [
        Bar(
            f"level {level.level + 1}",
            level.information_chosen,
            f"{level.information_chosen:.3f} (chance {level.information_chosen_by_chance:.3f})",
            mark=level.information_chosen_by_chance,
        )
        for level in several
    ]
    high = max(0.1, *(max(bar.value, bar.mark or 0) for bar in bars))
    chart = bar_chart("Information of the winning capsule about the class, by level", bars, high=high, width=520)
    caption = (
        f"{found.trend} The number is normalised mutual information: 0 if the capsule that wins says nothing about the "
        "class, 1 if it says as much as that many capsules can. The upright lines are chance: what shuffled classes give."
    )
    return figure("Do deeper levels specialise more?", chart, caption)


def _level(facts: Facts, level: LevelSpecialization) -> list[Html | None]:
    n, names = level.capsules, facts.classes
    rows = [r for r in range(len(names)) if level.counts[r] > 0]
    ordered = len(rows) > MANY
    if ordered:  # classes with the same favourite side by side
        rows.sort(key=lambda r: (int(level.mean[r].argmax()), -float(level.mean[r].max())))
    apart = (level.mean[rows] - 1 / n).abs().max()
    strength = (level.mean[rows] - 1 / n) / apart.clamp_min(1e-6)
    wide = min(90.0, max(36.0, 320 / n))
    tall = 24.0 if len(rows) <= MANY else 13.0 if len(rows) <= 60 else 9.0 if len(rows) <= MOST_TABLED else 3.0
    cells = [
        [
            Cell(float(s), f"{float(level.mean[r, k]):.3f}".lstrip("0") if not ordered else "")
            for k, s in enumerate(strength[i])
        ]
        for i, r in enumerate(rows)
    ]
    said = [[text.weight(float(level.mean[r, k]), float(level.margin[r, k])) for k in range(n)] for r in rows]
    drawing = grid(
        f"Mean weights of level {level.level + 1}: {len(rows)} classes by {n} capsules",
        [names[r] for r in rows],
        [str(k) for k in range(n)],
        cells,
        say="{row}, capsule {column}: mean weight {value}",
        said=said,
        row_title="class",
        column_title="capsule",
        cell=(wide, tall),
    )
    margins = level.margin[rows].flatten()
    margins = margins[~margins.isnan()]
    widest = f" 95{text.NARROW}% confidence intervals are at most ± {float(margins.max()):.3f}." if len(margins) else ""
    caption = (
        f"Mean weight of each capsule for the images of each class. Orange is more than an equal share ({1 / n:.3f}), blue is less; "
        f"the strongest colour is {float(apart):.3f} away from it.{widest}"
        + (" Classes are sorted by the capsule they favour." if ordered else "")
    )
    numbers = None
    if len(rows) <= MOST_TABLED:
        shown = table(
            ["class", "images", *(f"capsule {k}" for k in range(n))],
            [[names[r], f"{int(level.counts[r]):,}", *texts] for r, texts in zip(rows, said, strict=True)],
            f"Level {level.level + 1}: mean weight and half its 95 % confidence interval",
            sortable=True,
        )
        numbers = folded("Mean weights as a table", shown)
    title = f"Level {level.level + 1}: {text.plural(n, 'capsule')}"
    if n == 1:
        return [h("h3", title), unable("A level with one capsule has nothing to select.")]
    least = f"--least:{min(640, 110 + 34 * n)}px"
    size = "large" if n > 8 else None
    left = h("figure", h("div", drawing, class_="wide", style=least), h("figcaption", caption), numbers, class_=size)
    findings = [h("p", finding, class_="warn") for finding in level.findings]
    return [h("h3", title), *findings, h("div", left, h("div", _level_facts(level), _wins(level)), class_="beside")]


def _level_facts(level: LevelSpecialization) -> Html:
    n = level.capsules
    said = {
        "the winning capsule tells of the class": f"{level.information_chosen:.3f} (chance {level.information_chosen_by_chance:.3f})",
        "the weights tell of the class": f"{level.information:.3f} (chance {level.information_by_chance:.3f})",
        "capsules in use, by weight": f"{level.effective:.2f} of {n}",
        "capsules that win": f"{level.effective_chosen:.2f} of {n}",
        "capsules that weigh in one image": f"{level.effective_per_image:.2f} of {n}",
    }
    return h("ul", [h("li", h("span", name), h("span", value)) for name, value in said.items()], class_="facts")


def _wins(level: LevelSpecialization) -> Html:
    shares = level.chosen_overall.tolist()
    bars = [Bar(f"capsule {k}", share, text.percent(share, 1), color=2) for k, share in enumerate(shares)]
    chart = bar_chart(
        f"Level {level.level + 1}: share of images that each capsule wins",
        bars,
        high=max(max(shares), 0.01),
        thick=14 if len(bars) <= 8 else 8,
        width=380,
    )
    return h("figure", chart, h("figcaption", "In how many of all images each capsule has the largest weight."))


def _positions(facts: Facts, found: Specialization) -> Html:
    maps = found.map_mean
    shown = [r for r in range(len(facts.classes)) if not bool(maps[r].isnan().any())]
    some = ""
    if len(shown) > MANY:
        shown = [shown[k * len(shown) // MANY] for k in range(MANY)]
        some = f" {MANY} of {len(facts.classes)} classes are shown."
    low, high = float(maps[shown].min()), float(maps[shown].max())
    span = max(high - low, 1e-9)
    items = []
    for r in shown:
        drawn = [
            picture(
                scale((maps[r, k] - low) / span),
                f"{facts.classes[r]}, capsule {k}: mean weight at every position",
                scale=64,
            )
            for k in range(min(maps.shape[1], 4))
        ]
        items.append(h("li", h("div", drawn, class_="pair"), h("div", facts.classes[r])))
    caption = (
        f"Where the last level looks: the mean weight of its capsules (side by side{', the first four' if maps.shape[1] > 4 else ''}) at every "
        f"position of its {maps.shape[2]}×{maps.shape[3]} map, from {low:.4f} (dark) to {high:.4f} (bright).{some}"
    )
    return figure("The last level, over positions", h("ul", items, class_="thumbs maps"), caption)


# ── probes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def probes(facts: Facts) -> Html:
    title = "How well each level knows the class"
    lead = "A linear classifier learns to read the class from what each level passes on: from validation images, measured on test images."
    if facts.seen is None or not facts.seen.probes:
        return section("probes", title, lead, unable(facts.missing.get("probes", facts.missing.get("seen", ""))))
    found = facts.seen.probes
    bars = [
        Bar(f"level {probe.level + 1}", probe.accuracy, text.percent(probe.accuracy, 1), probe.margin, color=5)
        for probe in found
    ]
    bars.append(
        Bar(
            "the network",
            facts.seen.survey.accuracy,
            text.percent(facts.seen.survey.accuracy, 1),
            share_margin(facts.seen.survey.accuracy, len(facts.seen.survey)),
            color=0,
        )
    )
    chance = found[0].by_chance
    chart = bar_chart(
        "Accuracy of a linear probe on each level", bars, rule=(chance, f"chance {text.percent(chance, 1)}")
    )
    rows = [
        [
            f"level {p.level + 1}",
            f"{p.features:,}",
            text.percent(p.accuracy),
            f"± {text.percent(p.margin)}",
            f"{p.penalty:g}",
        ]
        for p in found
    ]
    numbers = table(["probe", "numbers it reads", "accuracy", "interval", "penalty"], rows, "Linear probes")
    caption = "Test accuracy of the probes, with the network's own below; the dashed line is always saying the most frequent class."
    return section(
        "probes",
        title,
        lead,
        figure("Accuracy of a linear probe", chart, caption, folded("Probes as a table", numbers)),
    )


# ── examples ────────────────────────────────────────────────────────────────────────────────────────────────────────


def examples(facts: Facts) -> Html:
    title = "Images and their way through the network"
    lead = (
        "For each image: which capsules weighed how much in every level, where the last level looked, and what each of its capsules "
        "added to the winning logit. The contributions add up to the logit exactly."
    )
    if facts.pictures is None:
        return section("examples", title, lead, unable(_why_no_pictures(facts)))
    return section("examples", title, lead, [_example(facts, one) for one in facts.pictures.examples])


def _example(facts: Facts, example: Example) -> Html:
    one, shown = example.explained, example.shown
    image = shown.pixels.float() / 255
    answer = "right" if shown.right else "wrong"
    head = h(
        "header",
        h("h3", facts.classes[shown.label]),
        h(
            "span",
            f"taken for {facts.classes[shown.predicted]} with {text.percent(shown.probability, 1)}",
            class_=answer,
        ),
        h("span", shown.name, class_="soft"),
    )
    heat, parts = one.heat(), one.contribution_heat()
    n = heat.shape[0]
    strip = [_framed(picture(shown.pixels, f"{shown.name}: {facts.classes[shown.label]}", scale=112), "input")]
    strip.append(
        _framed(picture(example.reconstruction, f"reconstruction of {shown.name}", scale=112), "reconstruction")
    )
    for k in range(min(n, 3)):
        drawn = heat_over(image, stretched(heat)[k])
        share = float(one.block_weights(len(one.weights) - 1)[k])
        strip.append(
            _framed(
                picture(drawn, f"where capsule {k} of the last level weighs most", scale=112),
                f"capsule {k} looks here (weight {share:.3f})",
            )
        )
    total = parts.sum(0)
    drawn = signed_over(image, total / total.abs().max().clamp_min(1e-9))
    strip.append(
        _framed(
            picture(drawn, "contributions to the winning logit over the image", scale=112),
            f"adds (orange) or takes (blue) for {facts.classes[one.predicted]}",
        )
    )
    top = one.probabilities.argsort(descending=True)[:4].tolist()
    bars = [
        Bar(
            facts.classes[r],
            float(one.probabilities[r]),
            text.percent(float(one.probabilities[r]), 1),
            color=2 if r == shown.label else 7,
        )
        for r in top
    ]
    chart = bar_chart("The most probable classes", bars, width=230, thick=13)
    strip.append(h("div", h("h4", "Answers (green: the true class)"), chart))
    return h("article", head, h("div", strip, class_="strip"), _levels_of(facts, example), class_="example")


def _framed(drawn: Html, caption: str) -> Html:
    return h("figure", drawn, h("figcaption", caption))


def _levels_of(facts: Facts, example: Example) -> Html:
    one = example.explained
    name = facts.classes[one.predicted]
    panels, rows = [], []
    for level in range(len(one.weights)):
        weights = one.block_weights(level).tolist()
        off = one.without[level][:, one.predicted].tolist() if one.without else [math.nan] * len(weights)
        bars = [Bar(f"{k}", w, f"{w:.3f}", color=1 if k == one.winners[level] else 7) for k, w in enumerate(weights)]
        chart = bar_chart(
            f"Weights of level {level + 1}", bars, high=max(weights), width=230, thick=13 if len(bars) <= 8 else 7
        )
        panels.append(h("div", h("h4", f"Level {level + 1}: weights"), chart))
        rows += [
            [f"level {level + 1}, capsule {k}", f"{w:.3f}", "" if math.isnan(p) else text.percent(p, 1)]
            for k, (w, p) in enumerate(zip(weights, off, strict=True))
        ]
    parts = one.contributions[one.predicted].flatten(1).sum(1).tolist()
    logit = float(one.logits[one.predicted])
    most = max(*(abs(part) for part in parts), abs(logit), 1e-9)
    bars = [
        Bar(f"capsule {k}", abs(part), text.signed(part, 2), color=1 if part >= 0 else 0)
        for k, part in enumerate(parts)
    ]
    bars.append(Bar("logit", abs(logit), text.signed(logit, 2), color=7))
    chart = bar_chart(
        f"Contributions to the logit of {name}", bars, high=most, width=230, thick=13 if len(bars) <= 8 else 7
    )
    panels.append(h("div", h("h4", f"Adds to the logit of {name}"), chart))
    numbers = table(
        ["capsule", "weight", f"probability of {name} without it"],
        rows,
        f"Every capsule, and what switching it off does (with all: {text.percent(float(one.probabilities[one.predicted]), 1)})",
    )
    return h(
        "div",
        h("div", panels, class_="levels"),
        folded("All weights, and what switching each capsule off does", numbers),
    )


# ── reconstructions ─────────────────────────────────────────────────────────────────────────────────────────────────


def reconstructions(facts: Facts) -> Html:
    title = "Reconstructions"
    lead = "The decoder redraws the image from one vector: the best capsule of the last level, with its position."
    if facts.pictures is None:
        return section("reconstructions", title, lead, unable(_why_no_pictures(facts)))
    items = []
    for one in facts.pictures.reconstructions:
        name = facts.classes[one.shown.label]
        pair = [
            picture(one.shown.pixels, f"{one.shown.name}: {name}", scale=72),
            picture(one.reconstruction, f"its reconstruction, squared error {one.shown.squared_error:.3f}", scale=72),
        ]
        items.append(
            h(
                "li",
                h("div", pair, class_="pair"),
                h("div", name),
                h("div", f"error {one.shown.squared_error:.3f}", class_="soft"),
            )
        )
    caption = "Input and reconstruction of the image with the median error of its class (mean squared error of the normalised pixels)."
    return section("reconstructions", title, lead, h("ul", items, class_="thumbs pairs"), h("p", caption))


# ── configuration ───────────────────────────────────────────────────────────────────────────────────────────────────


def configuration(facts: Facts) -> Html:
    subject = facts.subject
    lead = "All that it takes to do it again."
    content: list[Html | None] = []
    command = subject.environment.get("command")
    if isinstance(command, list):
        content.append(_command("The command", shlex.join(map(str, command))))
    if subject.folder:
        content.append(_command("The same experiment again", shlex.join(["wcapsnet", "train", subject.source])))
        content.append(_command("This page again", shlex.join(["wcapsnet", "report", subject.source])))
    asked = [[name, h("span", _plain(value))] for name, value in flat(to_dict(subject.experiment)).items()]
    content.append(
        folded(
            "Configuration: every field of experiment.json",
            table(["field", "value"], asked, "Configuration", numbers_from=9),
        )
    )
    if subject.environment:
        where = [[name, h("span", _plain(value))] for name, value in subject.environment.items()]
        content.append(folded("Environment", table(["what", "value"], where, "Environment", numbers_from=9)))
    return section("configuration", "Configuration and environment", lead, _environment(facts), *content)


def _environment(facts: Facts) -> Html | None:
    known = facts.subject.environment
    said = {
        "hardware": known.get("hardware"),
        "wcapsnet": known.get("wcapsnet"),
        "PyTorch": known.get("torch"),
        "Python": known.get("python"),
        "precision": facts.subject.experiment.training.precision,
        "seed": facts.subject.experiment.training.seed,
        "started": text.date(str(known["started"])) if known.get("started") else None,
    }
    items = [h("li", h("span", name), h("span", str(value))) for name, value in said.items() if value is not None]
    return h("ul", items, class_="facts two")


def _command(title: str, line: str) -> Html:
    copy = h("button", "Copy", type="button", class_="copy", hidden=True, aria_label=f"Copy: {title}")
    return h("div", h("h3", title), h("div", h("pre", line, tabindex=0), copy, class_="command"))


def _plain(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return shlex.join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
