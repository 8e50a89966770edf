"""What computes a training step: plain PyTorch here, fused CUDA kernels in `kernels/`. Both have this interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .data.augment import Mixed, augment
from .data.device_data import DeviceSplit
from .objective import Objective, Terms, objective


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

    def terms(self, output: Any, images: Tensor, labels: Tensor, weights: Objective, sums: Tensor) -> Terms:
        """The loss. Adds the total, every term, the accuracy and 1 to `sums`."""
        terms = objective(output, images, labels, weights)
        self.count(terms, output, labels, sums)
        return terms

    @torch.no_grad()
    def count(self, terms: Terms, output: Any, labels: Tensor, sums: Tensor) -> None:
        classes = output.logits[:, : self.network.config.classes]
        accuracy = (classes.argmax(1) == labels).to(sums.dtype).mean()
        sums[:-1] += torch.stack([*(term.to(sums.dtype) for term in (terms.total, *terms.named.values())), accuracy])
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
