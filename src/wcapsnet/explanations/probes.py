"""How well the class can be read from each level: a linear probe on the level's routed output.

The paper calls this the evaluation of the prediction vectors. A probe is a logistic regression, trained on one survey
of images that the network was not trained on, and tested on another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import InputError
from .survey import Survey

PENALTIES = (1.0, 0.1, 0.01, 0.001, 0.0001)  # on the squares of the weights; features are standardised


@dataclass(frozen=True)
class Probe:
    level: int  # counted from 0
    features: int  # number of input features
    accuracy: float  # on the test survey
    margin: float  # half its 95 % confidence interval
    by_chance: float  # accuracy of always predicting the most frequent class of the probe's training images
    penalty: float  # chosen on a fifth of its training images


class LinearProbe:
    """softmax(XA + o),  X standardised, fitted by a few dozen steps of L-BFGS on cross entropy + ½ λ ‖A‖²"""

    def __init__(self, x: Tensor, labels: Tensor, classes: int):
        self.center, scale = x.mean(0), x.std(0, correction=0)
        self.scale = torch.where(scale > 1e-6 * self.center.abs().clamp_min(1e-6), scale, torch.inf)  # constants: 0
        self.x, self.labels = self._standardized(x), labels
        self.weight = x.new_zeros(x.shape[1], classes)
        self.offset = x.new_zeros(classes)

    def fit(self, penalty: float) -> LinearProbe:
        """Continue from the current weights: going from strong to weak penalties, each fit is a small change."""
        weight, offset = self.weight.clone().requires_grad_(), self.offset.clone().requires_grad_()
        optimizer = torch.optim.LBFGS(
            [weight, offset], max_iter=25, tolerance_grad=1e-4, tolerance_change=1e-6, line_search_fn="strong_wolfe"
        )

        def loss() -> Tensor:
            optimizer.zero_grad()
            total = F.cross_entropy(self.x @ weight + offset, self.labels) + penalty / 2 * weight.square().sum()
            total.backward()
            return total

        with torch.enable_grad():
            optimizer.step(loss)
        self.weight, self.offset = weight.detach(), offset.detach()
        return self

    def scores(self, x: Tensor) -> Tensor:
        return self._standardized(x) @ self.weight + self.offset

    def accuracy(self, x: Tensor, labels: Tensor) -> float:
        return float((self.scores(x).argmax(1) == labels).double().mean())

    def loss(self, x: Tensor, labels: Tensor) -> float:
        return float(F.cross_entropy(self.scores(x), labels))

    def _standardized(self, x: Tensor) -> Tensor:
        return (x - self.center) / self.scale


def probe_levels(fit: Survey, test: Survey) -> tuple[Probe, ...]:
    """One probe per level, from `survey(…, routed=True)` of two splits: trained on `fit`, tested on `test`."""
    if not fit.routed or not test.routed:
        raise ValueError("Probes need the routed outputs: survey(…, routed=True).")
    if len(fit) < 2:
        raise InputError("A probe needs at least two training images.")
    classes = fit.probabilities.shape[1]
    most_frequent = int(fit.counts.argmax())
    by_chance = float((test.labels == most_frequent).double().mean())
    probes = []
    for level, (x, x_test) in enumerate(zip(fit.routed, test.routed, strict=True)):
        penalty = _penalty(x, fit.labels, classes)
        probe = LinearProbe(x, fit.labels, classes)
        for each in PENALTIES[: PENALTIES.index(penalty) + 1]:
            probe.fit(each)
        accuracy = probe.accuracy(x_test, test.labels)
        low, high = share_interval(accuracy, len(test))
        probes.append(Probe(level, x.shape[1], accuracy, (high - low) / 2, by_chance, penalty))
    return tuple(probes)


def share_interval(share: float, images: int) -> tuple[float, float]:
    """Wilson's 95 % confidence interval: all p from which the share is at most z standard errors √(p(1 − p)/m) away.

    It stays within [0, 1] and reaches 0 or 1 only for shares of 0 or 1; its centre is closer to ½ than the share is.
    """
    z2 = 1.959964**2
    middle = (share * images + z2 / 2) / (images + z2)
    margin = math.sqrt(z2 * (images * share * (1 - share) + z2 / 4)) / (images + z2)
    return max(min(middle - margin, share), 0.0), min(max(middle + margin, share), 1.0)  # guards against rounding


def _penalty(x: Tensor, labels: Tensor, classes: int) -> float:
    """The penalty that does best on a fifth of the images after training on the others."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    held, rest = order[: max(1, len(x) // 5)], order[max(1, len(x) // 5) :]
    probe = LinearProbe(x[rest], labels[rest], classes)
    losses = {penalty: probe.fit(penalty).loss(x[held], labels[held]) for penalty in PENALTIES}
    return min(PENALTIES, key=losses.__getitem__)
