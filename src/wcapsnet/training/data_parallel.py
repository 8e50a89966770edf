"""A training step on several ranks, equal to the step of one process on the whole batch, up to rounding.

Every rank takes its share of the batch. Batch norms use the statistics of the whole batch. A loss term that is a mean
over images is computed for the share; every other term, for example L̃_WS with its N_p and N_h, is computed from the
outputs for the whole batch. Gradients are summed over ranks.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .. import kernels
from ..baselines.common import margin
from ..engine import Engine, mixed
from ..errors import InputError, Lost
from ..experiment import Experiment
from ..objective import (
    Objective,
    Terms,
    centred_wasserstein,
    class_information,
    cross_entropy,
    information,
    label_smoothing,
    reconstruction,
    wasserstein,
    weighted_sum,
)
from ..parts import loss_term
from .distributed import Group, Ranks
from .step import Step, remembered

MEANS = {cross_entropy, label_smoothing, reconstruction, margin}  # over images; shares have equal size
# Terms that need only the output and the labels
WITHOUT_IMAGES = {wasserstein, centred_wasserstein, information, class_information}


def choose(network: nn.Module, experiment: Experiment, device: torch.device, ranks: Ranks) -> Engine:
    """The engine for this experiment; fused kernels and torch.compile train in one process only."""
    if not isinstance(ranks, Group):
        return kernels.choose(network, experiment, device)
    if (wanted := experiment.training.kernels) not in ("auto", "plain"):
        raise InputError(f"--kernels {wanted} cannot be used under torchrun; choose auto or plain.")
    return DataParallel(network, ranks)


class DataParallel(Engine):
    """Plain PyTorch on several ranks: supports every network, part and device."""

    def __init__(self, network: nn.Module, ranks: Group):
        super().__init__(network)
        self.ranks = ranks
        self.description = f"plain PyTorch in {ranks.world} processes ({ranks.backend})"

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Any:
        with GlobalBatchNorm(self.ranks):
            return super().forward(images, labels)

    def terms(
        self,
        output: Any,
        images: Tensor,
        labels: Tensor,
        weights: Objective,
        sums: Tensor,
        share: Tensor | None = None,
    ) -> Terms:
        """Terms of the whole batch, or of the share for a mean. `total` is this rank's part of the loss: summed over
        ranks, its gradients are those of the loss."""
        means = {name for name in weights if loss_term[name] in MEANS}
        others = [loss_term[name] for name in weights if name not in means]
        whole = _Whole(output, self.ranks)
        all_images = images if set(others) <= WITHOUT_IMAGES else self.ranks.whole(images)

        def over_ranks(term: Any) -> Any:
            return lambda output, images, labels: term(whole, all_images, self.ranks.whole(labels))

        named = {
            name: mixed(
                loss_term[name] if name in means else over_ranks(loss_term[name]), output, images, labels, share
            )
            for name in weights
        }
        self.count(Terms(weighted_sum(named, weights), named), output, labels, sums, share)
        parts = {name: term / self.ranks.world if name in means else term for name, term in named.items()}
        return Terms(weighted_sum(parts, weights), named)

    @torch.no_grad()
    def count(self, terms: Terms, output: Any, labels: Tensor, sums: Tensor, share: Tensor | None = None) -> None:
        of_rank = torch.zeros_like(sums)
        super().count(terms, output, labels, of_rank, share)
        self.ranks.sum(of_rank)
        sums += of_rank / self.ranks.world

    def backward(self, total: Tensor) -> None:
        total.backward()
        gradients = [p.grad for p in self.network.parameters() if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        self.ranks.sum(flat)
        for gradient, value in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(value.view_as(gradient))


class ParallelStep(Step):
    """The same step on this rank's share of the batch. If a rank is lost in it, rank 0 is afterwards where it was
    before the step, and can be saved."""

    engine: DataParallel

    def __call__(self, index: Tensor) -> None:
        # Weights, momentum and average change only after the last collective.
        restore = remembered([*self.engine.network.buffers(), self.sums], self.sums.device)
        try:
            super().__call__(self.engine.ranks.mine(index))
        except Lost:
            restore()
            raise


class _Whole:
    """The network's output for the whole batch. A field is gathered from all ranks when a loss term first uses it."""

    def __init__(self, output: Any, ranks: Group):
        self._output, self._ranks = output, ranks

    def __getattr__(self, name: str) -> Any:
        value = self._gathered(getattr(self._output, name))
        setattr(self, name, value)
        return value

    def _gathered(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._ranks.whole(value)
        if isinstance(value, tuple):
            parts = [self._gathered(part) for part in value]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        return value


class GlobalBatchNorm(TorchFunctionMode):
    """While it is active, `F.batch_norm` estimates mean and variance from the batches of all ranks. All batch norms
    call that function, those of PyTorch included."""

    def __init__(self, ranks: Group):
        super().__init__()
        self.ranks = ranks

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.batch_norm:
            return self._batch_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _batch_norm(
        self,
        x: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        # A single value has no variance, so our BatchNorm does not estimate it; several ranks have several values.
        if not training and x.numel() > x.shape[1]:
            return F.batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
        y, mean, var = _Normalized.apply(x, weight, bias, eps, self.ranks)
        values = self.ranks.world * x.numel() // x.shape[1]
        with torch.no_grad():
            if running_mean is not None:
                running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            if running_var is not None:
                running_var.lerp_((var * (values / (values - 1))).to(running_var.dtype), momentum)
        return y


class _Normalized(torch.autograd.Function):
    """y = γ x̂ + β,  x̂ = (x − μ)/√(σ² + ε),  with μ and σ² over axis 1 of the x of all ranks; also returns μ and σ²"""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, ranks: Group
    ) -> tuple[Tensor, Tensor, Tensor]:
        var, mean = torch.var_mean(x.float(), _all_but_channels(x), correction=0)
        # E[x] and E[x²] in float64: their difference is exact enough for any mean. Shares have equal size.
        moments = torch.stack([mean.double(), var.double() + mean.double().square()])
        ranks.sum(moments)
        exact_mean, square = moments / ranks.world
        mean, var = exact_mean.float(), (square - exact_mean.square()).clamp_min(0).float()
        ctx.save_for_backward(x, weight, mean, var)
        ctx.eps, ctx.ranks = eps, ranks
        ctx.mark_non_differentiable(mean, var)
        return F.batch_norm(x, mean, var, weight, bias, False, 0.0, eps), mean, var

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """∂L/∂x = γ/√(σ² + ε) · (g − E[g] − x̂ E[g x̂]),  g = ∂L/∂y;  ∂L/∂γ = Σ g x̂  and  ∂L/∂β = Σ g  of this rank"""
        x, weight, mean, var = ctx.saved_tensors
        g = gradients[0].float()
        shape = (1, -1) + (1,) * (x.dim() - 2)
        scale = (var + ctx.eps).rsqrt().view(shape)
        normalized = (x.float() - mean.view(shape)) * scale
        axes = _all_but_channels(x)
        sums = torch.stack([g.sum(axes), (g * normalized).sum(axes)])
        to_bias, to_weight = sums.clone() if weight is not None else (None, None)
        if not ctx.needs_input_grad[0]:
            return None, to_weight, to_bias, None, None
        ctx.ranks.sum(sums)
        of_g, of_product = (sums / (ctx.ranks.world * x.numel() // x.shape[1])).unbind()
        if weight is not None:
            scale = scale * weight.float().view(shape)
        to_x = scale * (g - of_g.view(shape) - normalized * of_product.view(shape))
        return to_x.to(x.dtype), to_weight, to_bias, None, None


def _all_but_channels(x: Tensor) -> list[int]:
    return [axis for axis in range(x.dim()) if axis != 1]
