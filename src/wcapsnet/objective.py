"""What the network is trained for (Sections III-C and III-F): pure functions of its output.

Everything is computed in float32, whatever the precision of the network.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .errors import InputError
from .network import Output, Routing

# Below every N_p and N_h but exact zero, so that it changes nothing else (D3).
TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class ObjectiveConfig:
    """The λ of Eq. 15 that stand before a function of the output; λ_WD belongs to the optimizer."""

    lambda_ws: float = 0.2
    lambda_r: float = 0.1

    def __post_init__(self) -> None:
        for name in ("lambda_ws", "lambda_r"):
            value = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not (number and 0 <= value < math.inf):
                raise InputError(f"objective.{name} is {value!r}, but it must be a number, zero or more.")


class Terms(NamedTuple):
    """The loss and what it is the sum of, before the λ."""

    total: Tensor
    cross_entropy: Tensor
    wasserstein: Tensor
    reconstruction: Tensor


def objective(output: Output, images: Tensor, labels: Tensor, config: ObjectiveConfig) -> Terms:
    """Eq. 15:  L_tot = L_CE + λ_WS L̃_WS + λ_R L_R   (+ λ_WD L₂, which the optimizer adds as weight decay)"""
    cross_entropy = F.cross_entropy(output.logits.float(), labels)
    cos = correctness(output.logits, labels).detach()  # D1
    wasserstein = torch.stack([wasserstein_loss(routing, cos) for routing in output.routings]).sum()  # D7
    reconstruction = F.mse_loss(output.reconstruction.float(), images.float())  # D12
    total = cross_entropy + config.lambda_ws * wasserstein + config.lambda_r * reconstruction
    return Terms(total, cross_entropy, wasserstein, reconstruction)


def correctness(logits: Tensor, labels: Tensor) -> Tensor:
    """Eq. 9:  cos θ = p·t / (‖p‖ ‖t‖),  p = softmax(logits), t one-hot  (m,)"""
    p = logits.float().softmax(1)
    return p.gather(1, labels[:, None]).squeeze(1) / p.norm(dim=1)


def wasserstein_loss(routing: Routing, cos: Tensor) -> Tensor:
    """Eq. 4, 8, 10–12:  L̃_WS = E_h̃[f] − E_p̃[f] for one level

    In the last level every position is a capsule of its own: ñ = n × i × j.
    """
    a, b = routing.fitness.float().flatten(1), routing.weights.float().flatten(1)
    n = a.shape[1]
    if n == 1:  # nothing was selected, so nothing can have been selected wrongly
        return a.sum() * 0
    cos = cos.clamp(0, 1)  # a quotient rounded up would make 1 − cos θ negative
    selected = (b * a).sum(1)  # F_s   (m,)
    not_selected = ((1 - b) * a).sum(1) / (n - 1)  # F_ns  (m,)
    n_p = cos.sum().clamp_min(TINY)  # D3
    n_h = (1 - cos).sum().clamp_min(TINY)
    expected_h = ((1 - cos) * selected).sum() / (2 * n_h) + (cos * not_selected).sum() / (2 * n_p)
    expected_p = (cos * selected).sum() / n_p
    return expected_h - expected_p


def l2(parameters: Iterable[Tensor]) -> Tensor:
    """L₂ = ½ Σ w² (D32): its gradient times λ_WD is the weight decay of the optimizer."""
    return 0.5 * torch.stack([p.detach().float().square().sum() for p in parameters]).sum()
