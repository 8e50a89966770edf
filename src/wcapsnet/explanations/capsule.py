"""One block: the images it wins, its classes, and what the elements of its vectors encode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import InputError
from ..network import BestCapsule, WCapsNet
from ..network.routing import heaviest
from ..training.evaluate import evaluating
from .specialization import Specialization, plain
from .survey import Survey, evenly


@dataclass(frozen=True)
class CapsuleExplanation:
    """A capsule block over a dataset"""

    level: int
    capsule: int
    images: Tensor  # (count,): the images that give it most weight, in descending order
    weights: Tensor  # (count,): its weight in them
    equal: int  # number of images whose weight ties with the largest, to within 1 %; `images` is a sample of them
    wins: int  # images it wins: its weight is within 1 % of the largest (D31)
    decoded: int  # images whose decoded vector is one of its vectors (D36); 0 before the last level
    mean: Tensor  # (N,): its mean weight for each class
    margin: Tensor  # (N,): half the 95 % confidence interval
    classes: tuple[int, ...]  # its classes: those that give it more weight than the average image, most first

    def summary(self, survey: Survey, classes: Sequence[str], files: Sequence[str] = ()) -> dict[str, Any]:
        """Plain values, ready for JSON. `files`: the file of each image of the survey, if there is one"""
        return {
            "level": self.level + 1,
            "capsule": self.capsule,
            "wins": self.wins,
            "decoded": self.decoded,
            "equal": self.equal,
            "classes": [classes[r] for r in self.classes],
            "mean": dict(zip(classes, plain(self.mean), strict=True)),
            "margin": dict(zip(classes, plain(self.margin), strict=True)),
            "favourites": [
                {**_image(survey, classes, files, index), "weight": weight}
                for index, weight in zip(self.images.tolist(), self.weights.tolist(), strict=True)
            ],
        }


class Neighbours(NamedTuple):
    """Images of a survey, nearest first."""

    images: Tensor  # (count,)
    distances: Tensor  # (count,): Euclidean, between decoded vectors

    def summary(self, survey: Survey, classes: Sequence[str], files: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Plain values, ready for JSON. `files`: the file of each image of the survey, if there is one"""
        return [
            {**_image(survey, classes, files, index), "distance": distance}
            for index, distance in zip(self.images.tolist(), self.distances.tolist(), strict=True)
        ]


class Range(NamedTuple):
    """The range of a block's decoded vectors"""

    center: Tensor  # (k,): medians
    low: Tensor  # (k,): 5 % quantiles
    high: Tensor  # (k,): 95 % quantiles
    typical: int  # the image whose vector is closest to the centre, with elements scaled by their range


class Traversal(NamedTuple):
    """Reconstructions while one element of a capsule vector goes from low to high and the others stay fixed."""

    values: Tensor  # (k, steps): of the varied element
    images: Tensor  # (k, steps, ch, h, w), normalised like the network's input
    change: Tensor  # (k,): mean absolute difference between the last image and the first


def explain_capsule(
    survey: Survey, found: Specialization, level: int, capsule: int, count: int = 16
) -> CapsuleExplanation:
    """`found` is `specialization(survey)`."""
    check_capsule([b.shape[1] for b in survey.weights], level, capsule)
    weight = survey.weights[level][:, capsule]
    images = _favourites(weight, count)
    of_level = found.levels[level]
    mean, margin = of_level.mean[:, capsule], of_level.margin[:, capsule]
    above = mean - margin.nan_to_num(torch.inf) > of_level.usage[capsule]
    order = mean.nan_to_num(-1).sort(descending=True, stable=True).indices
    return CapsuleExplanation(
        level=level,
        capsule=capsule,
        images=images,
        weights=weight[images],
        equal=int(heaviest(weight).sum()),
        wins=int(survey.winners[level][:, capsule].sum()),
        decoded=int((survey.places[:, 0] == capsule).sum()) if level == len(survey.weights) - 1 else 0,
        mean=mean,
        margin=margin,
        classes=tuple(int(r) for r in order if above[r]),
    )


def _favourites(weight: Tensor, count: int) -> Tensor:
    """The images of largest weight (m,), in descending order. Critics saturate, so many images may tie for the largest
    weight to within 1 %; then a sample spread evenly over them is returned, since the first may all be of one class."""
    tied = heaviest(weight).nonzero().flatten()
    if len(tied) > count:
        tied = tied[evenly(len(tied), count)]
        return tied[weight[tied].argsort(descending=True, stable=True)]
    return weight.argsort(descending=True, stable=True)[:count]


def nearest(survey: Survey, vector: Tensor, count: int = 8) -> Neighbours:
    """The images of a survey whose decoded vectors are nearest to `vector` (k,)"""
    distances = (survey.vectors - vector.to(survey.vectors)).square().sum(1).sqrt()
    near = distances.sort(stable=True)
    return Neighbours(near.indices[:count], near.values[:count])


def vector_range(survey: Survey, capsule: int) -> Range:
    """Over the images whose decoded vector is from this block of the last level

    These are not the images that the block wins: where blocks tie, the decoded vector may be from another winner, and
    only this block's own vectors count.
    """
    check_capsule([b.shape[1] for b in survey.weights], len(survey.weights) - 1, capsule)
    chosen = survey.places[:, 0] == capsule
    if not chosen.any():
        raise InputError(f"No vector of block {capsule} of the last level was decoded ({len(survey):,} images).")
    vectors = survey.vectors[chosen]
    low, center, high = (torch.quantile(vectors, q, dim=0) for q in (0.05, 0.5, 0.95))
    distance = ((vectors - center) / (high - low).clamp_min(1e-12)).square().sum(1)
    return Range(center, low, high, typical=int(chosen.nonzero()[distance.argmin()]))


@torch.no_grad()
def decode(network: WCapsNet, vectors: Tensor, positions: Tensor) -> Tensor:
    """Capsule vectors (m, k) at positions (m, 2) → reconstructions (m, ch, h, w), normalised like the input"""
    with evaluating(network):
        device = network.projection.device
        place = torch.zeros(len(vectors), 3, dtype=torch.long, device=device)  # the decoder ignores it
        return network.decoder(BestCapsule(vectors.to(device), positions.to(device), place)).cpu()


def traverse(
    network: WCapsNet, vector: Tensor, position: Tensor, low: Tensor, high: Tensor, steps: int = 7
) -> Traversal:
    """Vary each element of `vector` (k,) from `low` to `high` (k,), at `position` (2,)"""
    k = len(vector)
    share = torch.linspace(0, 1, steps)
    values = low[:, None] + (high - low)[:, None] * share  # (k, steps)
    vectors = vector.expand(k, steps, k).clone()
    vectors[torch.arange(k), :, torch.arange(k)] = values
    images = decode(network, vectors.flatten(0, 1), position.expand(k * steps, 2)).unflatten(0, (k, steps))
    change = (images[:, -1] - images[:, 0]).abs().flatten(1).mean(1)
    return Traversal(values, images, change)


def traverse_capsule(network: WCapsNet, survey: Survey, capsule: int) -> Traversal:
    """Starting from the most typical decoded vector of a last-level block, over the range of all of them"""
    seen = vector_range(survey, capsule)
    return traverse(network, survey.vectors[seen.typical], survey.positions[seen.typical], seen.low, seen.high)


def _image(survey: Survey, classes: Sequence[str], files: Sequence[str], index: int) -> dict[str, Any]:
    named = {"file": files[index]} if files else {}
    return {"image": index, **named, "class": classes[int(survey.labels[index])]}


def check_capsule(capsules: Sequence[int], level: int, capsule: int) -> None:
    """`capsules`: how many each level has. The level is counted from 0."""
    if not 0 <= level < len(capsules):
        raise InputError(f"The network has levels 1 to {len(capsules)}, not {level + 1}.")
    if not 0 <= capsule < capsules[level]:
        raise InputError(f"Level {level + 1} has blocks 0 to {capsules[level] - 1}, not {capsule}.")
