"""A training step with the kernels, part by part; parts without a kernel run in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..baselines.densenet import DenseNet
from ..data.augment import Mixed, augment, random_mirror, random_shift
from ..data.device_data import DeviceSplit
from ..engine import Engine, mixed
from ..objective import Objective, Terms
from ..parts import augmentation, loss_term
from .densenet import FusedDenseNet
from .forward import FusedNetwork
from .images import take
from .objective import FUSED_TERMS, objective
from .optimizer import FusedNesterov


class FusedEngine(Engine):
    def __init__(self, network: nn.Module, weights: Objective, augmentations: Mapping[str, float]):
        super().__init__(network)
        self.fused: Any = FusedDenseNet(network) if isinstance(network, DenseNet) else FusedNetwork(self.network)
        left = {part: reason for part, reason in self.fused.left.items() if reason}
        left |= {f"loss term {name}": "" for name in self._without_kernel(weights)}
        left |= {f"augmentation {name}": "" for name in _split(augmentations)[1]}
        notes = [f"{part} in PyTorch" + (f" ({reason})" if reason else "") for part, reason in left.items()]
        self.description = "; ".join(["fused kernels", *notes])

    def batch(
        self, data: DeviceSplit, index: Tensor, augmentations: Mapping[str, float]
    ) -> tuple[Tensor | Mixed, Tensor]:
        if type(data) is not DeviceSplit:
            return super().batch(data, index, augmentations)
        fused, rest = _split(augmentations)
        images, labels = take(data, index, "mirror" in fused, int(fused.get("shift", 0)))
        return augment(images, rest), labels

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Any:
        return self.fused(self.network, images)

    def terms(
        self, output: Any, images: Tensor, labels: Tensor, weights: Objective, sums: Tensor,
        share: Tensor | None = None,
    ) -> Terms:  # fmt: skip
        others = self._without_kernel(weights)
        if len(others) == len(weights):
            return super().terms(output, images, labels, weights, sums, share)
        fused = {name: value for name, value in weights.items() if name not in others}
        total, named = objective(
            output, images, labels, fused, self.network.config.classes, sums, share, order=tuple(weights)
        )
        for name in others:
            named[name] = mixed(loss_term[name], output, images, labels, share)
            total = total + weights[name] * named[name]
            with torch.no_grad():
                sums[0] += weights[name] * named[name]
                sums[1 + list(weights).index(name)] += named[name]
        return Terms(total, {name: named[name] for name in weights})

    def _without_kernel(self, weights: Objective) -> list[str]:
        """The loss terms computed by PyTorch. The kernel adds L_CE with weight 1; with any other weight it is not used,
        nor for networks other than WCapsNet."""
        without = [name for name in weights if loss_term[name] is not FUSED_TERMS.get(name)]
        if {"wasserstein", "centred_wasserstein"} <= set(weights) - set(without):
            without.append("centred_wasserstein")
        none = not isinstance(self.fused, FusedNetwork) or "cross_entropy" in without
        return list(weights) if none or weights.get("cross_entropy") != 1 else without

    def backward(self, total: Tensor) -> None:
        self.fused.aside.enabled = True  # only the optimizer reads gradients, and there are none before
        try:
            total.backward()
        finally:
            self.fused.aside.enabled = False

    def optimizer(
        self, groups: list[dict[str, Any]], lr: Tensor, momentum: float, name: str = "sgd", nesterov: bool = True
    ) -> torch.optim.Optimizer:
        if not fused_optimizer(name, momentum, nesterov):
            return super().optimizer(groups, lr, momentum, name, nesterov)
        return FusedNesterov(groups, lr=lr, momentum=momentum, nesterov=True, fused=True)


def fused_optimizer(name: str, momentum: float, nesterov: bool) -> bool:
    """Whether there is a kernel for this update: SGD with Nesterov momentum only"""
    return name == "sgd" and nesterov and momentum > 0


def _split(augmentations: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """The leading terms that one kernel computes, and the rest"""
    fused: dict[str, float] = {}
    rest = dict(augmentations)
    if rest.get("mirror") == 0.5 and next(iter(rest)) == "mirror" and augmentation["mirror"] is random_mirror:
        fused["mirror"] = rest.pop("mirror")
    if rest and next(iter(rest)) == "shift" and augmentation["shift"] is random_shift:
        fused["shift"] = rest.pop("shift")
    return fused, rest
