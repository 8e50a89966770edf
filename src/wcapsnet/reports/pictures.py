"""Which images a page shows, and what it says about each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..classifier import Classifier
from ..data import Dataset, Split
from ..data.device_data import DeviceSplit
from ..explanations import ImageExplanation, Survey, explain_images
from .survey_cache import Seen, evenly

MISTAKES, EXAMPLES, RECONSTRUCTIONS = 24, 8, 20


@dataclass(frozen=True)
class Shown:
    """An image on the page, and its prediction."""

    index: int
    name: str  # file name, or number
    pixels: Tensor  # (ch, h, w) uint8
    label: int
    predicted: int
    probability: float  # of the predicted class
    squared_error: float  # of its reconstruction

    @property
    def right(self) -> bool:
        return self.label == self.predicted


@dataclass(frozen=True)
class Example:
    shown: Shown
    explained: ImageExplanation
    reconstruction: Tensor  # (ch, h, w) in [0, 1]


@dataclass(frozen=True)
class Pictures:
    mistakes: list[Shown]
    examples: list[Example]
    reconstructions: list[Example]


def choose(classifier: Classifier, dataset: Dataset, seen: Seen, device: torch.device) -> Pictures:
    """The most confident mistakes; for evenly spaced classes, the correct image of median probability, and the two
    worst mistakes; for evenly spaced classes, the reconstruction of median error."""
    found, split = seen.survey, getattr(dataset, seen.part)
    files: Sequence[str] = getattr(dataset, f"{seen.part}_files")
    places = evenly(len(split.labels), len(found))  # positions of the survey's images in the split
    right, sure = found.labels == found.predicted, found.probabilities.max(1).values
    wrong = (~right).nonzero().flatten()
    mistakes = wrong[sure[wrong].argsort(descending=True, stable=True)][:MISTAKES].tolist()
    few = mistakes[:2]
    typical = _medians(sure, [right & (found.labels == r) for r in _present(found, EXAMPLES - len(few))])
    rebuilt = _medians(found.squared_error, [found.labels == r for r in _present(found, RECONSTRUCTIONS)])

    def shown(one: int) -> Shown:
        index = int(places[one])
        named = files[index] if files else f"image {index}"
        return Shown(
            index,
            named,
            split.images[index],
            int(found.labels[one]),
            int(found.predicted[one]),
            float(sure[one]),
            float(found.squared_error[one]),
        )

    def explained(chosen: Sequence[int], without: bool) -> list[Example]:
        if not chosen:
            return []
        images = Split(split.images[places[list(chosen)]], split.labels[places[list(chosen)]])
        normalized, _ = DeviceSplit(images, *classifier.normalization, device).take(slice(None))
        answers = explain_images(classifier.network, normalized, without=without)
        return [
            Example(shown(one), answer, classifier.pixels(answer.reconstruction).cpu())
            for one, answer in zip(chosen, answers, strict=True)
        ]

    return Pictures(
        [shown(one) for one in mistakes],
        explained(typical + few, without=True),
        explained(rebuilt, without=False),
    )


def _present(found: Survey, count: int) -> list[int]:
    """This many classes that have images, evenly spaced"""
    classes = found.counts.nonzero().flatten()
    return classes[evenly(len(classes), count)].tolist()


def _medians(values: Tensor, masks: Sequence[Tensor]) -> list[int]:
    """The position of the median for each non-empty mask"""
    chosen = [mask.nonzero().flatten() for mask in masks if mask.any()]
    return [int(places[values[places].argsort(stable=True)[(len(places) - 1) // 2]]) for places in chosen]
