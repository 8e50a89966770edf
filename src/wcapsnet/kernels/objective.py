"""Eq. 15 and its gradient with the kernels (reference: objective.py)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..network import Output
from ..objective import (
    Terms,
    centred_wasserstein,
    cross_entropy,
    information,
    label_smoothing,
    reconstruction,
    wasserstein,
)
from .compile import Kernel, structures
from .decoder import mean_square
from .layout import STRUCTURES, build

STRUCTURES["objective.cu"] = structures("objective.cu")
# The loss terms with a kernel, in its own order. Of the two Wasserstein losses it computes one.
FUSED_TERMS = {
    "cross_entropy": cross_entropy,
    "wasserstein": wasserstein,
    "centred_wasserstein": centred_wasserstein,
    "reconstruction": reconstruction,
    "label_smoothing": label_smoothing,
    "information": information,
}


class _Objective(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, facts: dict[str, Any], positions: list[int], logits: Tensor, reconstruction: Tensor, *judged: Tensor
    ) -> Tensor:
        own, images, device = STRUCTURES["objective.cu"], logits.shape[0], logits.device
        capsules = [a.numel() // images for a in judged[::2]]
        sizes = [n for n in capsules for _ in range(2 * facts["centred"])]
        batch = torch.zeros(sum(sizes), device=device).split(sizes)
        pairs = zip(batch[::2], batch[1::2], strict=True)
        ctx.means = [{"mean": mean, "factor": factor} for mean, factor in pairs] or [{} for _ in capsules]
        blocks = [n // of_block for n, of_block in zip(capsules, positions, strict=True)]
        usage = torch.zeros(sum(blocks), device=device).split(blocks)
        for of_level, of_block, used in zip(ctx.means, positions, usage, strict=True):
            of_level |= {"positions": of_block, "usage": used}
        levels = [
            build(own["Judged"], a=a, b=b, capsules=n, **means)
            for a, b, n, means in zip(judged[::2], judged[1::2], capsules, ctx.means, strict=True)
        ]
        cos, terms = torch.empty((2, images), device=device), torch.empty(6, device=device)
        added = torch.zeros(16, device=device)
        ctx.facts = {
            **facts,
            "levels": len(levels),
            "logits": logits,
            "reconstruction": reconstruction,
            "cos": cos,
            "added": added,
            "terms": terms,
            "images": images,
            "outputs": logits.shape[1],
        }
        arguments = build(own["Objective"], level=levels, **ctx.facts)
        grid = -(-images // 8)
        Kernel("objective.cu", "objective_images")((grid, 1, 1), 256, 128, arguments)
        if facts["centred"] or facts["information"]:
            Kernel("objective.cu", "objective_means")((grid, len(levels), 1), 256, 128, arguments)
        Kernel("objective.cu", "objective_levels")((grid, len(levels), 1), 256, 128, arguments)
        Kernel("objective.cu", "objective_terms")((1, 1, 1), 32, 0, arguments)
        ctx.judged = judged
        return terms

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        own, images = STRUCTURES["objective.cu"], ctx.facts["images"]
        gradient = gradients[0][:1].contiguous()  # of the total; the other terms are only reported
        dlogits = torch.empty_like(ctx.facts["logits"])
        answers = [torch.empty_like(one) for one in ctx.judged]
        levels = [
            build(own["Judged"], a=a, b=b, da=da, db=db, capsules=a.numel() // images, **means)
            for a, b, da, db, means in zip(
                ctx.judged[::2], ctx.judged[1::2], answers[::2], answers[1::2], ctx.means, strict=True
            )
        ]
        arguments = build(own["Objective"], level=levels, **ctx.facts, gradient=gradient, dlogits=dlogits)
        Kernel("objective.cu", "objective_backward")((-(-images // 8), len(levels) + 1, 1), 256, 0, arguments)
        return (None, None, dlogits, gradient.squeeze(0) * ctx.facts["lambda_r"], *answers)


def objective(
    output: Output, images: Tensor, labels: Tensor, weights: Mapping[str, float], classes: int,
    sums: Tensor | None = None, share: Tensor | None = None, order: Sequence[str] | None = None,
) -> Terms:  # fmt: skip
    """The terms in `weights`: L_CE with weight 1, and any others of FUSED_TERMS. Adds total, terms, accuracy and 1 to
    `sums` (float64), whose terms are in this `order`. With `share`, the loss of mixed images."""
    order = list(order or weights)
    error = mean_square(output.reconstruction, images)
    if error is None:
        error = F.mse_loss(output.reconstruction.float(), images.float())
    judged = [one.contiguous() for routing in output.routings for one in (routing.fitness, routing.weights)]
    positions = [max(1, math.prod(routing.weights.shape[2:])) for routing in output.routings]
    ws = "centred_wasserstein" if "centred_wasserstein" in weights else "wasserstein"
    names = ("cross_entropy", ws, "reconstruction", "label_smoothing", "information")
    facts = {
        "labels": labels,
        "share": 0 if share is None else share,
        "sums": 0 if sums is None else sums,
        "place": [order.index(name) + 1 if name in weights else 0 for name in names],
        "accuracy": len(order) + 1,
        "classes": classes,
        "lambda_ws": weights.get(ws, 0.0),
        "lambda_r": weights.get("reconstruction", 0.0),
        "lambda_s": weights.get("label_smoothing", 0.0),
        "lambda_i": weights.get("information", 0.0),
        "centred": ws == "centred_wasserstein",
        "information": "information" in weights,
    }
    total, *terms = _Objective.apply(facts, positions, output.logits.contiguous(), error, *judged).unbind()
    return Terms(total, {name: term for name, term in zip(names, terms, strict=True) if name in weights})
