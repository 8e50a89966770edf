"""Computes training steps: in PyTorch here, plain or compiled; with fused CUDA kernels in `kernels/`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from .data.augment import Mixed, augment
from .data.device_data import DeviceSplit
from .errors import InputError, first_line
from .objective import Objective, Terms, objective, weighted_sum


class Engine:
    """Plain PyTorch: supports every network, part and device."""

    description = "plain PyTorch"

    def __init__(self, network: nn.Module):
        self.network: Any = network
        self.called: Callable[..., Any] = network

    def batch(
        self, data: DeviceSplit, index: Tensor, augmentations: Mapping[str, float]
    ) -> tuple[Tensor | Mixed, Tensor]:
        """Images as the network sees them in training, and their labels"""
        images, labels = data.take(index)
        return augment(images, augmentations), labels

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Any:
        """Networks that decode the true class in training take the labels too."""
        if getattr(self.network, "takes_labels", False):
            return self.called(images, labels)
        return self.called(images)

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


class Compiled(Engine):
    """The network compiled by torch.compile; losses and optimizer in plain PyTorch."""

    description = "torch.compile"

    def __init__(self, network: nn.Module):
        super().__init__(network)
        check_compiler(next(network.parameters()).device)
        self.called = torch.compile(network, dynamic=False)


@cache
def check_compiler(device: torch.device) -> None:
    try:
        torch.compile(lambda x: x * 2 + 1)(torch.ones(8, device=device))
    except Exception as error:  # the compiler may raise any exception
        raise InputError(f"torch.compile does not work here ({type(error).__name__}: {first_line(error)}).") from error


def mixed(term: Callable[..., Tensor], output: Any, images: Any, labels: Tensor, share: Tensor | None) -> Tensor:
    """L(labels); for mixed images:  share · L(labels) + (1 − share) · L(labels of the previous image)"""
    if share is None:
        return term(output, images, labels)
    return share * term(output, images, labels) + (1 - share) * term(output, images, labels.roll(1))
