"""A new routing in one file: sparsemax weights, a new loss term, a short training run.

python examples/new_routing.py
wcapsnet train demo --plugin examples/new_routing.py --set model.routing.weighting=sparsemax
"""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import torch
from torch import Tensor

import wcapsnet
from wcapsnet.parts import loss_term, weighting


@weighting("sparsemax")
def sparsemax_weights(a: Tensor) -> Tensor:
    """Project the fitness onto the simplex: most weights are exactly zero (Martins & Astudillo 2016)."""
    z = a.flatten(1).sort(1, descending=True).values
    k = torch.arange(1, z.shape[1] + 1, device=a.device)
    support = 1 + k * z > z.cumsum(1)  # the largest k values that stay above the threshold
    count = support.sum(1, keepdim=True)
    threshold = (z.cumsum(1).gather(1, count - 1) - 1) / count
    return (a.flatten(1) - threshold).clamp_min(0).view_as(a)


@loss_term("balance")
def balance(output: Any, images: Tensor, labels: Tensor) -> Tensor:
    """Σ_n b̄_n²: smallest when all capsules are used equally often over the batch."""
    return torch.stack([r.weights.flatten(1).mean(0).square().sum() for r in output.routings]).sum()


if __name__ == "__main__":
    import own_dataset  # noqa: F401 - registers the recipe `stripes`, which trains in seconds

    settings = ["model.routing.weighting=sparsemax", "objective.balance=0.1"]
    with tempfile.TemporaryDirectory() as folder:
        trained = wcapsnet.train("stripes", epochs=2, out=f"{folder}/sparsemax", settings=settings, report=False)
        answer = trained.load().predict(np.zeros((16, 16), np.uint8))
        zeros = [f"{float((b == 0).float().mean()):.0%}" for b in answer.routing]
        print(f"accuracy {trained.accuracy:.1%}; weights that are exactly zero, level by level: {', '.join(zeros)}")
