"""The training objective (Sections III-C and III-F): pure functions of the network's output.

Everything is computed in float32, regardless of the network's precision.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .errors import InputError
from .network import Output, Routing
from .network.routing import block_weights
from .parts import loss_term
from .settings import Amounts

# Smaller than every nonzero N_p and N_h, so that it matters only for exact zero (D3).
TINY = torch.finfo(torch.float32).tiny


class Objective(Amounts):
    """The λ of Eq. 15, one for each loss term; λ_WD belongs to the optimizer."""

    kind = loss_term
    renamed = {"lambda_ws": "wasserstein", "lambda_r": "reconstruction"}  # noqa: RUF012


class Terms(NamedTuple):
    """The loss, and its terms by name (the loss is their weighted sum)."""

    total: Tensor
    named: dict[str, Tensor]


def objective(output: Any, images: Tensor, labels: Tensor, weights: Objective) -> Terms:
    """Eq. 15:  L_tot = L_CE + λ_WS L̃_WS + λ_R L_R   (+ λ_WD L₂, which the optimizer adds as weight decay)"""
    named = {name: loss_term[name](output, images, labels) for name in weights}
    return Terms(weighted_sum(named, weights), named)


def weighted_sum(named: dict[str, Tensor], weights: Objective) -> Tensor:
    """Σ_t λ_t L_t"""
    return sum((weights[name] * term for name, term in named.items()), start=torch.zeros(()))


@loss_term("cross_entropy")
def cross_entropy(output: Any, images: Tensor, labels: Tensor) -> Tensor:
    """L_CE"""
    return F.cross_entropy(output.logits.float(), labels)


@loss_term("label_smoothing")
def label_smoothing(output: Any, images: Tensor, labels: Tensor) -> Tensor:
    """−1/R Σ_r log p_r: the cross entropy against the uniform distribution over all R outputs of the network

    With weight λ next to L_CE, the targets are smoothed by ε = λ / (1 + λ). "None of these" counts as an output, if the
    network has it (`model.extra_class`).
    """
    return -output.logits.float().log_softmax(1).mean()


@loss_term("wasserstein")
def wasserstein(output: Output, images: Tensor, labels: Tensor) -> Tensor:
    """L̃_WS, the mean over levels (D7); it takes the prediction as given (D1)"""
    cos = correctness(output.logits, labels).detach()
    return torch.stack([wasserstein_loss(routing, cos) for routing in routings_of(output)]).mean()


@loss_term("centred_wasserstein")
def centred_wasserstein(output: Output, images: Tensor, labels: Tensor) -> Tensor:
    """L̃_WS of a − ā, the fitness less each capsule's mean over the batch (D38): M Σ_n cov_m(L̃_WS's factor of a, a)

    A critic that ignores the image gets 0 and no gradient; L̃_WS itself rewards such a critic for a constant mask.
    """
    cos = correctness(output.logits, labels).detach()
    centred = (r._replace(fitness=r.fitness.float() - r.fitness.float().mean(0)) for r in routings_of(output))
    return torch.stack([wasserstein_loss(routing, cos) for routing in centred]).mean()


@loss_term("information")
def information(output: Output, images: Tensor, labels: Tensor) -> Tensor:
    """−I(image; block) in nats, the mean over levels (D40):  I = H(mean_m b) − mean_m H(b)

    The minimum is −ln N: every image is routed to a single block, and all N blocks get equally many images. Weights
    that ignore the image give 0.
    """
    return -torch.stack([information_of(block_weights(routing.weights)) for routing in routings_of(output)]).mean()


@loss_term("class_information")
def class_information(output: Output, images: Tensor, labels: Tensor) -> Tensor:
    """−I(class; block) in nats, in the last feature level (D43):  I = H(mean_m b) − Σ_r P(r) H(mean_{m of r} b)

    At least −min(ln N, H(class)). Lowest if every class has one block and the blocks get equally many images. Weights
    that ignore the image give 0 and no gradient. A network with a single level uses that level.
    """
    routings = routings_of(output)
    level = routings[max(0, len(routings) - 2)]
    return -class_information_of(block_weights(level.weights), labels)


@loss_term("reconstruction")
def reconstruction(output: Any, images: Tensor, labels: Tensor) -> Tensor:
    """L_R: mean squared error against the network's input (D12)"""
    return F.mse_loss(output.reconstruction.float(), images.float())


PAPER = Objective(cross_entropy=1.0, wasserstein=0.2, reconstruction=0.1)


def routings_of(output: Any) -> tuple[Routing, ...]:
    if not hasattr(output, "routings"):
        terms = "wasserstein, centred_wasserstein, information and class_information"
        raise InputError(f"The loss terms {terms} need the routing of a WCapsNet; set them to null for this model.")
    routings: tuple[Routing, ...] = output.routings
    return routings


def correctness(logits: Tensor, labels: Tensor) -> Tensor:
    """Eq. 9:  cos θ = p·t / (‖p‖ ‖t‖),  p = softmax(logits), t one-hot  (m,)"""
    p = logits.float().softmax(1)
    return p.gather(1, labels[:, None]).squeeze(1) / p.norm(dim=1)


def wasserstein_loss(routing: Routing, cos: Tensor) -> Tensor:
    """Eq. 4, 8, 10–12:  L̃_WS = E_h̃[f] − E_p̃[f] for one level

    In the last level every position counts as a capsule: ñ = n × i × j.
    """
    a, b = routing.fitness.float().flatten(1), routing.weights.float().flatten(1)
    n = a.shape[1]
    if n == 1:  # there is no choice, so no wrong choice
        return a.sum() * 0
    cos = cos.clamp(0, 1)  # rounding up would make 1 − cos θ negative
    selected = (b * a).sum(1)  # F_s   (m,)
    not_selected = ((1 - b) * a).sum(1) / (n - 1)  # F_ns  (m,)
    n_p = cos.sum().clamp_min(TINY)  # D3
    n_h = (1 - cos).sum().clamp_min(TINY)
    expected_h = ((1 - cos) * selected).sum() / (2 * n_h) + (cos * not_selected).sum() / (2 * n_p)
    expected_p = (cos * selected).sum() / n_p
    return expected_h - expected_p


def information_of(b: Tensor) -> Tensor:
    """H(mean_m b) − mean_m H(b),  for b (m, n)"""
    return entropy(b.mean(0)) - entropy(b).mean()


def class_information_of(b: Tensor, labels: Tensor) -> Tensor:
    """H(mean_m b) − Σ_r P(r) H(mean_{m of r} b),  for b (m, n): a sample counts as its class does on average"""
    same = labels[:, None] == labels  # (m, m)
    # mean_{m of r} b, for the class r of every sample; not by @, which autocast would round to bf16
    of_its_class = (same[:, :, None] * b).sum(1) / same.sum(1, keepdim=True)
    return information_of(of_its_class)


def entropy(b: Tensor) -> Tensor:
    """H(b) = −Σ_n b_n ln b_n"""
    return -(b * b.clamp_min(TINY).log()).sum(-1)


def l2(parameters: Iterable[Tensor]) -> Tensor:
    """L₂ = ½ Σ w² (D32): its gradient times λ_WD is the weight decay of the optimizer."""
    return 0.5 * torch.stack([p.detach().float().square().sum() for p in parameters]).sum()
