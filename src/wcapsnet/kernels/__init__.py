"""Fused CUDA kernels behind one interface: an `Engine` that computes a training step with them.

The modules are unchanged (parameters, buffers, the reference implementation); the engine reads them.
"""

from __future__ import annotations

import torch
from torch import nn

from ..baselines.common import Baseline
from ..engine import Compiled, Engine
from ..errors import InputError
from ..experiment import Experiment
from .compile import Unavailable, start
from .engine import FusedEngine, fused_optimizer

__all__ = ["FusedEngine", "choose"]


def choose(network: nn.Module, experiment: Experiment, device: torch.device) -> Engine:
    """The engine for this experiment; its `description` is for the log."""
    training, wanted = experiment.training, experiment.training.kernels
    if wanted in ("compiled", "plain"):
        return (Compiled if wanted == "compiled" else Engine)(_laid_out(network, device))
    try:
        _check(training.precision, device)
        fused = FusedEngine(network, experiment.objective, experiment.data.augmentations())
        if not fused_optimizer(training.optimizer, training.momentum, training.nesterov):
            which = "sgd without Nesterov momentum" if training.optimizer == "sgd" else training.optimizer
            fused.description += f"; optimizer {which} in PyTorch"
        return fused
    except Unavailable as reason:
        if wanted == "fused":
            raise InputError(f"The fused kernels cannot be used: {reason}; choose --kernels auto or plain.") from None
        plain = Engine(_laid_out(network, device))
        if device.type == "cuda":
            plain.description = f"plain PyTorch ({reason})"
        return plain


def _laid_out(network: nn.Module, device: torch.device) -> nn.Module:
    if device.type == "cuda" and isinstance(network, Baseline):
        # Tensor cores compute ordinary convolutions in this layout.
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def _check(precision: str, device: torch.device) -> None:
    if device.type != "cuda":
        raise Unavailable("they need a CUDA device")
    if precision != "bf16":
        raise Unavailable(f"they compute in bf16, not in {precision}")
    if torch.cuda.get_device_capability(device) < (8, 0):
        raise Unavailable("they need a GPU of compute capability 8.0 or newer")
    start()
