"""Predictions for pictures of any kind. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .data.decode import ImageSource, read_image
from .errors import InputError
from .formatting import percent
from .limits import EQUAL

if TYPE_CHECKING:
    from torch import Tensor

BATCH = 64  # images


@dataclass(frozen=True)
class Prediction:
    """The prediction for one picture"""

    label: str  # the most probable class
    probability: float
    top: tuple[tuple[str, float], ...]  # the most probable classes with their probabilities, best first
    routing: tuple[Tensor | np.ndarray, ...]  # the weights b of each level: (n,), and (n, i, j) for the last
    source: str | None = None  # the file name, if it was a file

    def __repr__(self) -> str:  # without the tensors
        return f"Prediction({self}, winners={self.winners})"

    @property
    def winners(self) -> tuple[tuple[int, ...], ...]:
        """The winning blocks of each level, counted from 0: all whose weight is within 1 % of the largest (D31)"""
        blocks = (np.asarray(b).reshape(len(b), -1).sum(1) for b in self.routing)
        return tuple(tuple(np.flatnonzero(b >= EQUAL * b.max()).tolist()) for b in blocks)

    def __str__(self) -> str:
        return f"{self.label} ({percent(self.probability, 1)}%)"


def check_finite(probabilities: Tensor | np.ndarray) -> None:
    """Refuse an output that overflowed: weights can be finite and yet too large."""
    if not np.isfinite(np.asarray(probabilities)).all():
        raise InputError("The network's output is not finite: its weights are too large, so it cannot be used.")


def best_first(
    probabilities: np.ndarray,
    weights: Sequence[Tensor] | Sequence[np.ndarray],
    classes: tuple[str, ...],
    top: int,
    names: Sequence[str | None],
) -> list[Prediction]:
    """Predictions from probabilities (m, N) and the weights of each level (m, n, …)"""
    check_finite(probabilities)
    order = np.argsort(-probabilities, axis=1, kind="stable")
    top = max(1, min(top, len(classes)))
    return [
        Prediction(
            label=classes[order[m, 0]],
            probability=float(probabilities[m, order[m, 0]]),
            top=tuple((classes[r], float(probabilities[m, r])) for r in order[m, :top]),
            routing=tuple(b[m] for b in weights),
            source=name,
        )
        for m, name in enumerate(names)
    ]


class Network(Protocol):
    @property
    def shape(self) -> tuple[int, int, int]: ...

    def classify(self, pixels: np.ndarray, top: int, names: Sequence[str | None]) -> list[Prediction]: ...


def predict(network: Network, pictures: Any, top: int) -> Any:
    """The prediction for one picture, or those for a list of pictures or for an array with a batch dimension."""
    several = isinstance(pictures, (list, tuple)) or getattr(pictures, "ndim", 0) == 4
    sources = list(pictures) if several else [pictures]
    answers: list[Prediction] = []
    for start in range(0, len(sources), BATCH):
        batch = sources[start : start + BATCH]
        names = [str(one) if isinstance(one, (str, Path)) else None for one in batch]
        answers += network.classify(read_images(batch, network.shape), top, names)
    return answers if several else answers[0]


def read_images(pictures: Iterable[ImageSource], shape: tuple[int, int, int]) -> np.ndarray:
    channels, height, width = shape
    return np.stack([read_image(one, channels=channels, height=height, width=width) for one in pictures])
