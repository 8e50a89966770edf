"""Figures from a confusion matrix (true, predicted): accuracy and what is printed beside it. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
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


def beside(balanced: float, majority: float, counts: Sequence[int]) -> str:
    """What to print after an accuracy on images of which a class has `counts`; nothing if they are balanced.

    Only classes with images are compared. A single class is not balanced: a constant answer is always right.
    """
    present = [count for count in counts if count > 0]
    if len(present) > 1 and not imbalanced(present):
        return ""
    return f"; balanced accuracy {percent(balanced)}%, majority class {percent(majority)}%"


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
