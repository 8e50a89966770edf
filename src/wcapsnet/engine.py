"""Computes training steps: plain PyTorch here, fused CUDA kernels in `kernels/`, with the same interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .data.augment import Mixed, augment
from .data.device_data import DeviceSplit
from .objective import Objective, Terms, objective, weighted_sum


class Engine:
    """Plain PyTorch: supports every network, part and device."""

    description = "plain PyTorch"

    def __init__(self, network: nn.Module):
        self.network: Any = network

    def batch(
        self, data: DeviceSplit, index: Tensor, augmentations: Mapping[str, float]
    ) -> tuple[Tensor | Mixed, Tensor]:
        """Images as the network sees them in training, and their labels"""
        images, labels = data.take(index)
        return augment(images, augmentations), labels

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Any:
        """Networks that decode the true class in training take the labels too."""
        if getattr(self.network, "takes_labels", False):
            return self.network(images, labels)
        return self.network(images)

    def terms(
        self,
        output: Any,
        images: Tensor,
        labels: Tensor,
        weights: Objective,
        sums: Tensor,
        share: Tensor | None = None,
    ) -> Terms:
        """The loss, of mixed images if `share` is given. Adds the total, every term, the accuracy and 1 to `sums`."""
        terms = objective(output, images, labels, weights)
        if share is not None:
            other = objective(output, images, labels.roll(1), weights).named
            named = {name: share * term + (1 - share) * other[name] for name, term in terms.named.items()}
            terms = Terms(weighted_sum(named, weights), named)
        self.count(terms, output, labels, sums, share)
        return terms

    @torch.no_grad()
    def count(self, terms: Terms, output: Any, labels: Tensor, sums: Tensor, share: Tensor | None = None) -> None:
        predicted = output.logits[:, : self.network.config.classes].argmax(1)

        def accuracy(output: Any, images: Any, labels: Tensor) -> Tensor:
            return (predicted == labels).to(sums.dtype).mean()

        right = mixed(accuracy, output, None, labels, share)
        sums[:-1] += torch.stack([*(term.to(sums.dtype) for term in (terms.total, *terms.named.values())), right])
        sums[-1] += 1

    def backward(self, total: Tensor) -> None:
        total.backward()

    def optimizer(
        self, groups: list[dict[str, Any]], lr: Tensor, momentum: float, name: str = "sgd", nesterov: bool = True
    ) -> torch.optim.Optimizer:
        """SGD with Nesterov or plain momentum, or AdamW with β₁ = momentum"""
        # `fused`: the other implementations synchronise to read the learning rate.
        if name == "adamw":
            return torch.optim.AdamW(groups, lr=lr, betas=(momentum, 0.999), fused=True, capturable=lr.is_cuda)
        return torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=nesterov and momentum > 0, fused=True)


def mixed(term: Callable[..., Tensor], output: Any, images: Any, labels: Tensor, share: Tensor | None) -> Tensor:
    """L(labels); for mixed images:  share · L(labels) + (1 − share) · L(labels of the previous image)"""
    if share is None:
        return term(output, images, labels)
    return share * term(output, images, labels) + (1 - share) * term(output, images, labels.roll(1))
