"""Confusions between classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .. import formatting as text
from ..explanations.probes import share_interval
from .facts import Facts
from .html import Html, figure, folded, h, picture, table
from .pictures import Shown
from .section import MANY, MOST_TABLED, section, unable, why_no_pictures
from .significance import interval
from .svg import Bar, Cell, bar_chart, beginning, grid

EXTREMES = 30  # most classes in a bar chart


def answers(facts: Facts) -> Html:
    figures, title = facts.figures, "Right and wrong"
    part = facts.subject.part
    lead = f"Which classes were confused on the {part} images."
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
    """A large matrix takes the full width."""
    return h("div", matrix, listed, class_="beside" if len(facts.classes) <= MANY else None)


def confusions(matrix: Sequence[Sequence[int]]) -> list[tuple[int, int, int, int]]:
    """(times, images of the true class, true, predicted), most frequent first"""
    found = [(n, sum(row), i, j) for i, row in enumerate(matrix) for j, n in enumerate(row) if i != j and n > 0]
    return sorted(found, key=lambda one: (-one[0], -one[0] / one[1], one[2], one[3]))


def class_accuracies(figures: dict[str, Any]) -> list[tuple[float, int]]:
    """(accuracy, images) of each class; nan without images"""
    counts = [(row[r], sum(row)) for r, row in enumerate(figures["confusion"])]
    return [(right / images if images else math.nan, images) for right, images in counts]


def _class_bars(facts: Facts, figures: dict[str, Any]) -> Html:
    every = [(name, *one) for name, one in zip(facts.classes, class_accuracies(figures), strict=True) if one[1]]
    title = "Accuracy of each class"
    if len(every) > EXTREMES:
        every = sorted(every, key=lambda one: one[1])[:EXTREMES]
        title = f"The {EXTREMES} classes with the lowest accuracy"
    intervals = [share_interval(share, images) for _, share, images in every]
    low = beginning(intervals)
    bars = [
        Bar(name, share, text.percentage(share, 1), interval)
        for (name, share, _), interval in zip(every, intervals, strict=True)
    ]
    caption = (
        f"The bars run from {text.percentage(low, 0)} to {text.percentage(1, 0)}; thin lines are "
        f"{text.percentage(0.95, 0)} confidence intervals, the dashed line is the accuracy of all classes."
    )
    overall = figures["accuracy"]
    chart = bar_chart(
        title,
        bars,
        low=low,
        rule=(overall, f"all {text.percentage(overall, 1)}"),
        thick=16 if len(bars) <= 12 else 10,
        width=440,
    )
    numbers = folded("Accuracy of every class as a table", _class_table(facts, figures))
    return figure(title, chart, caption, numbers)


def _class_table(facts: Facts, figures: dict[str, Any]) -> Html:
    rows = []
    for r, (name, (share, images)) in enumerate(zip(facts.classes, class_accuracies(figures), strict=True)):
        others = [(n, j) for j, n in enumerate(figures["confusion"][r]) if j != r and n]
        n, j = max(others, key=lambda one: (one[0], -one[1]), default=(0, 0))
        taken = f"{facts.classes[j]} ({n})" if n else ""
        shown = [text.percentage(share), interval(share, images)] if images else ["", ""]
        rows.append([name, f"{images:,}", *shown, taken])
    return table(
        ["class", "images", "accuracy", "95 % interval", "most often taken for"], rows, "Accuracy of each class", True
    )


def _confusion_list(facts: Facts, figures: dict[str, Any]) -> Html:
    found = confusions(figures["confusion"])
    if not found:
        return h("p", "No image was taken for another class.", class_="note")
    rows = [
        [facts.classes[i], facts.classes[j], f"{n:,}", text.percentage(n / total, 1)] for n, total, i, j in found[:10]
    ]
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
        (i, j): f"{text.plural(matrix[i][j], 'image')} ({text.percentage(share, 1)} of its class)"
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
        numbers = h("p", "confusion.csv has the matrix as a table.", class_="soft")
    return figure(
        "Confusion matrix",
        h("div", drawing, class_="wide", style=f"--least:{min(640, 40 + 30 * count)}px"),
        "One row per true class, one column per prediction: blue is right, orange is wrong; stronger is more "
        "frequent. Point at a cell, or focus the matrix and use the arrow keys, to read its number.",
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
    title = "The most confident mistakes"
    if facts.pictures is None:
        return h("figure", h("h3", title), unable(why_no_pictures(facts)))
    wrong = facts.pictures.mistakes
    if not wrong:
        return h("figure", h("h3", title), unable("None: every image was classified correctly."))
    items = [h("li", _thumb(facts, one), _told(facts, one)) for one in wrong]
    caption = (
        "Wrong predictions in order of decreasing probability; below each image its true class, the predicted class, "
        "and its probability."
    )
    return h("figure", h("h3", title), h("figcaption", caption), h("ul", items, class_="thumbs"))


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
        h("div", text.percentage(one.probability, 1), class_="soft", data_tip=one.name),
    ]
