"""Figures from a confusion matrix (true, predicted): accuracy and the figures printed next to it. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .formatting import percent


def accuracy(confusion: np.ndarray) -> float:
    return float(confusion.trace() / confusion.sum())


def balanced_accuracy(confusion: np.ndarray) -> float:
    """The mean of the accuracies of all classes that have images"""
    totals = confusion.sum(1)
    present = totals > 0
    return float((confusion.diagonal()[present] / totals[present]).mean())


def majority(confusion: np.ndarray) -> float:
    """The accuracy of always answering the most frequent class"""
    return float(confusion.sum(1).max() / confusion.sum())


def imbalanced(counts: Sequence[int]) -> bool:
    """Whether the largest class has more than 1.5 times as many images as the smallest"""
    return max(counts) > 1.5 * min(counts)


def in_percent(share: float) -> str:
    return f"{percent(share)}%"


def beside(balanced: float, majority: float, counts: Sequence[int], show: Callable[[float], str] = in_percent) -> str:
    """The text after an accuracy on images with these `counts` per class; empty if the classes are balanced.

    Only classes with images are compared, and those without are counted. A single class is not balanced: a constant
    answer is always right.
    """
    present = [count for count in counts if count > 0]
    absent = f"; no images of {len(counts) - len(present)} of {len(counts)} classes" if 0 in counts else ""
    if len(present) > 1 and not imbalanced(present):
        return absent
    return f"; balanced accuracy {show(balanced)}, majority class {show(majority)}{absent}"


def summary(
    confusion: np.ndarray, loss: float, names: Sequence[str], mean_weights: Sequence[np.ndarray]
) -> dict[str, Any]:
    """Plain values, ready for JSON; `mean_weights` is for each level (classes, n)"""
    right, total = confusion.diagonal().tolist(), confusion.sum(1).tolist()
    return {
        "images": sum(total),
        "accuracy": accuracy(confusion),
        "balanced_accuracy": balanced_accuracy(confusion),
        "majority": majority(confusion),
        "errors": sum(total) - sum(right),
        "cross_entropy": loss,
        "per_class": {
            name: {"accuracy": right[r] / total[r] if total[r] else None, "images": total[r]}
            for r, name in enumerate(names)
        },
        "confusion": confusion.tolist(),
        "mean_weights": [[[round(w, 6) for w in row] for row in level.tolist()] for level in mean_weights],
    }
