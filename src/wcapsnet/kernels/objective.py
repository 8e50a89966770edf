"""Eq. 15 and its gradient on the kernels (objective.py is the slow truth)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..network import Output
from ..objective import ObjectiveConfig, Terms
from .compile import Kernel, structures
from .decoder import mean_square
from .layout import STRUCTURES, build

STRUCTURES["objective.cu"] = structures("objective.cu")


class _Objective(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, labels: Tensor, classes: int, config: ObjectiveConfig, sums: Tensor | None, logits: Tensor,
        reconstruction: Tensor, *judged: Tensor,
    ) -> Tensor:  # fmt: skip
        own, images = STRUCTURES["objective.cu"], logits.shape[0]
        levels = [
            build(own["Judged"], a=a, b=b, capsules=a.numel() // images)
            for a, b in zip(judged[::2], judged[1::2], strict=True)
        ]
        cos, terms = torch.empty(images, device=logits.device), torch.empty(4, device=logits.device)
        added = torch.zeros(8, device=logits.device)
        ctx.facts = {
            "levels": len(levels),
            "logits": logits,
            "labels": labels,
            "reconstruction": reconstruction,
            "cos": cos,
            "added": added,
            "terms": terms,
            "images": images,
            "outputs": logits.shape[1],
            "classes": classes,
            "lambda_ws": config.lambda_ws,
            "lambda_r": config.lambda_r,
        }
        arguments = build(own["Objective"], level=levels, **ctx.facts, sums=0 if sums is None else sums)
        blocks = -(-images // 8)
        Kernel("objective.cu", "objective_images")((blocks, 1, 1), 256, 128, arguments)
        Kernel("objective.cu", "objective_levels")((blocks, len(levels), 1), 256, 128, arguments)
        Kernel("objective.cu", "objective_terms")((1, 1, 1), 32, 0, arguments)
        ctx.config, ctx.judged = config, judged
        return terms

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        own, images = STRUCTURES["objective.cu"], ctx.facts["images"]
        gradient = gradients[0][:1].contiguous()  # of the total: the rest is for looking at
        dlogits = torch.empty_like(ctx.facts["logits"])
        answers = [torch.empty_like(one) for one in ctx.judged]
        levels = [
            build(own["Judged"], a=a, b=b, da=da, db=db, capsules=a.numel() // images)
            for a, b, da, db in zip(ctx.judged[::2], ctx.judged[1::2], answers[::2], answers[1::2], strict=True)
        ]
        arguments = build(own["Objective"], level=levels, **ctx.facts, gradient=gradient, dlogits=dlogits)
        Kernel("objective.cu", "objective_backward")((-(-images // 8), len(levels) + 1, 1), 256, 0, arguments)
        return (None, None, None, None, dlogits, gradient.squeeze(0) * ctx.config.lambda_r, *answers)


def objective(
    output: Output, images: Tensor, labels: Tensor, config: ObjectiveConfig, classes: int, sums: Tensor | None = None
) -> Terms:
    """The terms; `sums` (float64: the terms, accuracy, 1) grows by them where it is given."""
    reconstruction = mean_square(output.reconstruction, images)
    if reconstruction is None:
        reconstruction = F.mse_loss(output.reconstruction.float(), images.float())
    judged = [one.contiguous() for routing in output.routings for one in (routing.fitness, routing.weights)]
    terms = _Objective.apply(labels, classes, config, sums, output.logits.contiguous(), reconstruction, *judged)
    return Terms(*terms.unbind())
