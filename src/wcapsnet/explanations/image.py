"""One image: which blocks each level chose, where, and the effect on the prediction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..formatting import percent
from ..network import Output, WCapsNet
from ..network.routing import block_weights, heaviest, kept, winners
from ..prediction import check_finite
from ..training.evaluate import evaluating
from .specialization import plain


@dataclass(frozen=True)
class ImageExplanation:
    """How one image was routed. Levels, capsules, positions and classes count from 0. Tensors are on the CPU."""

    probabilities: Tensor  # (N,): over the real classes
    logits: Tensor  # (r,): including "none of these" if the network has it
    fitness: tuple[Tensor, ...]  # a of each level: (n,); for the last, or per position (D39), (n, i, j)
    weights: tuple[Tensor, ...]  # b of each level: (n,), and (n, i, j) for the last
    contributions: Tensor  # (r, n, i, j): what each vector of the last level adds to each logit; the sum is the logit
    vector: Tensor  # (k,): the vector of the last level that is decoded (D36)
    place: tuple[int, int, int]  # its n, i, j
    position: Tensor  # (2,): x and y in [-1, 1], as given to the decoder
    reconstruction: Tensor  # (ch, h, w), normalised like the input
    without_logits: tuple[Tensor, ...]  # for each level (n, r): logits with that block off too; nan if none is left
    stride: int  # side in pixels of the square covered by one position of the last level

    def __repr__(self) -> str:  # without the tensors
        likely = percent(float(self.probabilities.max()), 1)
        return f"ImageExplanation(predicted={self.predicted}, probability={likely} %, winners={self.winners})"

    @property
    def predicted(self) -> int:
        return int(self.probabilities.argmax())

    @property
    def without(self) -> tuple[Tensor, ...]:
        """For each level (n, N): probabilities with that block also switched off; nan if no block is left"""
        return tuple(logits[:, : len(self.probabilities)].softmax(1) for logits in self.without_logits)

    @property
    def winners(self) -> tuple[tuple[int, ...], ...]:
        """The winning blocks of each level: all whose weight is within 1 % of the largest (D31)"""
        return winners(self.weights)

    @property
    def tied(self) -> Tensor:
        """(n, i, j) boolean: the vectors of the last level whose weight is within 1 % of the largest"""
        b = self.weights[-1]
        return heaviest(b.flatten()).view_as(b)

    def decoded(self, classes: Sequence[str]) -> str:
        """Which vector is decoded, and how it was chosen (D36)"""
        n, i, j = self.place
        count = int(self.tied.sum())
        chosen = (
            f"one of {count:,} equally weighted vectors, the one that adds most to '{classes[self.predicted]}'"
            if count > 1
            else "the vector with the largest weight"
        )
        return f"decoded: block {n}, row {i}, column {j}; {chosen}"

    def block_weights(self, level: int) -> Tensor:
        """(n,): in the last level, the sum over positions"""
        return block_weights(self.weights[level][None])[0]

    def heat(self) -> Tensor:
        """(n, h, w): the last level's weights, resized to the image"""
        return over_image(self.weights[-1], self.reconstruction.shape[-2:], self.stride)

    def contribution_heat(self) -> Tensor:
        """(n, h, w): contributions to the logit of the predicted class, resized to the image"""
        return over_image(self.contributions[self.predicted], self.reconstruction.shape[-2:], self.stride)

    def summary(self, classes: Sequence[str], target: int | None = None) -> dict[str, Any]:
        """Plain values, ready for JSON. `target` is the class to explain (default: the predicted one)."""
        target = self.predicted if target is None else target
        names = [*classes, "none of these"][: len(self.logits)]
        n, i, j = self.place
        return {
            "class": classes[self.predicted],
            "probability": float(self.probabilities[self.predicted]),
            "probabilities": dict(zip(classes, self.probabilities.tolist(), strict=True)),
            "logits": dict(zip(names, self.logits.tolist(), strict=True)),
            "explained": classes[target],
            "levels": [
                {
                    "fitness": a.tolist(),
                    "weights": b.tolist(),
                    "block_weights": self.block_weights(level).tolist(),
                    "winners": list(self.winners[level]),
                    "probability_without": plain(self.without[level][:, target]) if self.without else None,
                    "logit_without": plain(self.without_logits[level][:, target]) if self.without else None,
                }
                for level, (a, b) in enumerate(zip(self.fitness, self.weights, strict=True))
            ],
            "contributions": self.contributions[target].tolist(),
            "best_capsule": {
                "capsule": n,
                "row": i,
                "column": j,
                "vector": self.vector.tolist(),
                "chosen": self.decoded(classes),
            },
            "tied": {"count": int(self.tied.sum()), "places": self.tied.nonzero().tolist()},
        }


def explain_image(
    network: WCapsNet, image: Tensor, *, keep: Sequence[Tensor | None] | None = None, without: bool = True
) -> ImageExplanation:
    """`image` is (ch, h, w), normalised, as returned by `Classifier.preprocess`. Otherwise like `explain_images`."""
    return explain_images(network, image[None], keep=keep, without=without)[0]


@torch.no_grad()
def explain_images(
    network: WCapsNet, images: Tensor, *, keep: Sequence[Tensor | None] | None = None, without: bool = True
) -> list[ImageExplanation]:
    """(m, ch, h, w) → one explanation each, in fp32.

    `keep` switches capsules off, as in `WCapsNet.keeping`: for each level None or a boolean mask (n,).
    `without=False` skips the effect of switching each block off, which is most of the work.
    """
    with evaluating(network), torch.autocast(images.device.type, enabled=False):
        output = network(images, routes=network.keeping(keep))
        parts = contributions(output, network.projection).cpu()
        off = [logits.cpu() for logits in without_each_block(network, images, keep)] if without else []
    routings = [(r.fitness.float().cpu(), r.weights.float().cpu()) for r in output.routings]
    probabilities = network.class_logits(output).softmax(1).cpu()
    check_finite(probabilities)
    logits, reconstruction = output.logits.cpu(), output.reconstruction.cpu()
    vector, position = output.best.vector.cpu(), output.best.position.cpu()
    places, stride = output.best.place.tolist(), pixels_per_cell(network)
    return [
        ImageExplanation(
            probabilities=probabilities[m],
            logits=logits[m],
            fitness=tuple(a[m] for a, _ in routings),
            weights=tuple(b[m] for _, b in routings),
            contributions=parts[m],
            vector=vector[m],
            place=(places[m][0], places[m][1], places[m][2]),
            position=position[m],
            reconstruction=reconstruction[m],
            without_logits=tuple(logits[m] for logits in off),
            stride=stride,
        )
        for m in range(len(images))
    ]


def contributions(output: Output, w: Tensor) -> Tensor:
    """(m, r, n, i, j):  b_nij Σ_k c_nijk W_kr,  the terms of Eq. 14"""
    b, c = output.routings[-1].weights.float(), output.capsules[-1].float()
    return torch.einsum("mnij,mnkij,kr->mrnij", b, c, w.float())


def pixels_per_cell(network: WCapsNet) -> int:
    """The side of the square of pixels covered by one position of the last level."""
    return network.config.stem_stride() * math.prod(level.stride for level in network.config.levels)


def over_image(maps: Tensor, size: Sequence[int], stride: int) -> Tensor:
    """(n, i, j) → (n, h, w), bilinear; every position covers a square with a side of `stride` pixels"""
    whole = (maps.shape[1] * stride, maps.shape[2] * stride)  # the last squares may extend beyond the border (D18)
    return F.interpolate(maps[None].float(), whole, mode="bilinear", align_corners=False)[0, :, : size[0], : size[1]]


@torch.no_grad()
def without_each_block(
    network: WCapsNet, images: Tensor, keep: Sequence[Tensor | None] | None = None
) -> tuple[Tensor, ...]:
    """For each level (m, n, r): logits with capsule n of that level switched off, in addition to those off in `keep`.

    Equivalent to `network.keeping` all but that capsule, but the levels before it are computed only once.
    nan if no capsule of a level is left.
    """
    answers, routes = [], network.keeping(keep)
    last = len(network.config.levels) - 1
    with evaluating(network):
        output = network(images, routes=routes)
        for (level, _, router), c, routing in zip(network.levels(), output.capsules, output.routings, strict=True):
            b = routing.weights
            m, n = b.shape[:2]
            others = (~torch.eye(n, dtype=torch.bool, device=b.device)).expand(m, n, n)  # (m, off, n)
            if keep is not None and (mask := keep[level]) is not None:
                others = others & mask.expand(m, n)[:, None]
            each = kept(b.repeat_interleave(n, 0), others.flatten(0, 1), router.per_position)  # (m·off, n, …)
            handed_on = [network.handed_on(level, each.unflatten(0, (m, n))[:, off], c) for off in range(n)]
            x = torch.stack(handed_on, 1)  # (m, off, …)
            if level < last:
                x = network(x.flatten(0, 1), start=level + 1, routes=routes).logits.unflatten(0, (m, n))
            answers.append(x)
    return tuple(answers)
