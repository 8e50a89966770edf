"""Eq. 15 and its gradient with the kernels (reference: objective.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..network import Output
from ..objective import Terms, centred_wasserstein, cross_entropy, reconstruction, wasserstein
from .compile import Kernel, structures
from .decoder import mean_square
from .layout import STRUCTURES, build

STRUCTURES["objective.cu"] = structures("objective.cu")
# The loss terms with a kernel, in the order of summation. Of the two Wasserstein losses it computes one.
FUSED_TERMS = {
    "cross_entropy": cross_entropy,
    "wasserstein": wasserstein,
    "centred_wasserstein": centred_wasserstein,
    "reconstruction": reconstruction,
}
# The objectives whose terms the kernel also adds to the running sums, in its own order.
SUMMED_ORDERS = tuple(("cross_entropy", ws, "reconstruction") for ws in ("wasserstein", "centred_wasserstein"))


class _Objective(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, labels: Tensor, classes: int, lambda_ws: float, centred: bool, lambda_r: float, sums: Tensor | None,
        logits: Tensor, reconstruction: Tensor, *judged: Tensor,
    ) -> Tensor:  # fmt: skip
        own, images = STRUCTURES["objective.cu"], logits.shape[0]
        capsules = [a.numel() // images for a in judged[::2]]
        sizes = [n for n in capsules for _ in range(2 * centred)]
        batch = torch.zeros(sum(sizes), device=logits.device).split(sizes)
        pairs = zip(batch[::2], batch[1::2], strict=True)
        ctx.means = [{"mean": mean, "factor": factor} for mean, factor in pairs] or [{}] * len(capsules)
        levels = [
            build(own["Judged"], a=a, b=b, capsules=n, **means)
            for a, b, n, means in zip(judged[::2], judged[1::2], capsules, ctx.means, strict=True)
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
            "lambda_ws": lambda_ws,
            "lambda_r": lambda_r,
            "centred": centred,
        }
        arguments = build(own["Objective"], level=levels, **ctx.facts, sums=0 if sums is None else sums)
        blocks = -(-images // 8)
        Kernel("objective.cu", "objective_images")((blocks, 1, 1), 256, 128, arguments)
        if centred:
            Kernel("objective.cu", "objective_means")((blocks, len(levels), 1), 256, 0, arguments)
        Kernel("objective.cu", "objective_levels")((blocks, len(levels), 1), 256, 128, arguments)
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
        return (None, None, None, None, None, None, dlogits, gradient.squeeze(0) * ctx.facts["lambda_r"], *answers)


def objective(
    output: Output, images: Tensor, labels: Tensor, weights: Mapping[str, float], classes: int,
    sums: Tensor | None = None,
) -> Terms:  # fmt: skip
    """Cross entropy, one Wasserstein loss and reconstruction, with weight 0 if absent; adds total, terms, accuracy and
    1 to `sums` (float64)."""
    error = mean_square(output.reconstruction, images)
    if error is None:
        error = F.mse_loss(output.reconstruction.float(), images.float())
    judged = [one.contiguous() for routing in output.routings for one in (routing.fitness, routing.weights)]
    name = "centred_wasserstein" if "centred_wasserstein" in weights else "wasserstein"
    lambdas = weights.get(name, 0.0), name == "centred_wasserstein", weights.get("reconstruction", 0.0)
    terms = _Objective.apply(labels, classes, *lambdas, sums, output.logits.contiguous(), error, *judged)
    total, *named = terms.unbind()
    return Terms(total, dict(zip(("cross_entropy", name, "reconstruction"), named, strict=True)))
