"""Sections III-C to III-E as explicit sums."""

from __future__ import annotations

import torch
from torch import Tensor


def softmax_twin(a: Tensor) -> Tensor:
    """Eq. 6, sample by sample, over everything that sample has: n, or n × i × j."""
    return torch.stack([one.exp() / sum(value.exp() for value in one.reshape(-1)) for one in a])


def normalized_twin(a: Tensor) -> Tensor:
    """Eq. 7, sample by sample."""
    return torch.stack([one / sum(one.reshape(-1)) for one in a])


def route_twin(b: Tensor, c: Tensor) -> Tensor:
    """Eq. 13"""
    return torch.stack([sum(b[m, n] * c[m, n] for n in range(c.shape[1])) for m in range(len(c))])


def predict_twin(b: Tensor, c: Tensor, w: Tensor) -> Tensor:
    """Eq. 14"""
    samples, capsules, dimension, height, width = c.shape
    predictions = []
    for m in range(samples):
        p = [torch.zeros((), dtype=c.dtype) for _ in range(w.shape[1])]
        for n in range(capsules):
            for i in range(height):
                for j in range(width):
                    projected = [sum(c[m, n, k, i, j] * w[k, r] for k in range(dimension)) for r in range(w.shape[1])]
                    p = [total + b[m, n, i, j] * value for total, value in zip(p, projected, strict=True)]
        predictions.append(torch.stack(p))
    return torch.stack(predictions)
