"""Accuracy and the figures printed next to it. Needs no torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .formatting import percent


class Scores(ABC):
    """The figures of an evaluation"""

    loss: float
    mean_weights: Any  # for each level (classes, n), as tensors or arrays

    @property
    @abstractmethod
    def confusion(self) -> Any:
        """(true, predicted), as a tensor or an array"""

    @property
    def accuracy(self) -> float:
        confusion = np.asarray(self.confusion)
        return float(confusion.trace() / confusion.sum())

    @property
    def balanced_accuracy(self) -> float:
        """The mean of the accuracies of all classes that have images"""
        confusion = np.asarray(self.confusion)
        totals = confusion.sum(1)
        present = totals > 0
        return float((confusion.diagonal()[present] / totals[present]).mean())

    @property
    def majority(self) -> float:
        """The accuracy of always answering the most frequent class"""
        totals = np.asarray(self.confusion).sum(1)
        return float(totals.max() / totals.sum())

    def beside(self) -> str:
        return beside(self.balanced_accuracy, self.majority, self.confusion.sum(1).tolist())

    def summary(self, names: Sequence[str]) -> dict[str, Any]:
        """Plain values, ready for JSON"""
        confusion = np.asarray(self.confusion)
        right, total = confusion.diagonal().tolist(), confusion.sum(1).tolist()
        return {
            "images": sum(total),
            "accuracy": self.accuracy,
            "balanced_accuracy": self.balanced_accuracy,
            "majority": self.majority,
            "errors": sum(total) - sum(right),
            "cross_entropy": self.loss,
            "per_class": {
                name: {"accuracy": right[r] / total[r] if total[r] else None, "images": total[r]}
                for r, name in enumerate(names)
            },
            "confusion": confusion.tolist(),
            "mean_weights": [[[round(w, 6) for w in row] for row in level.tolist()] for level in self.mean_weights],
        }


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
