"""Colours of pictures, which cannot follow the page: one scale that rises in lightness, one with two ends."""

from __future__ import annotations

import torch
from torch import Tensor

# From dark blue over teal to pale yellow: lightness rises all the way, so that it reads in gray and by any eye.
SCALE = (
    torch.tensor([[12, 16, 48], [26, 62, 122], [24, 122, 140], [72, 176, 124], [188, 214, 92], [255, 244, 184]]) / 255
)
HOT, COLD = torch.tensor([194.0, 65.0, 12.0]) / 255, torch.tensor([29.0, 99.0, 184.0]) / 255


def scale(values: Tensor) -> Tensor:
    """(h, w) in [0, 1] → (3, h, w)"""
    at = values.clamp(0, 1) * (len(SCALE) - 1)
    low = at.floor().long().clamp(max=len(SCALE) - 2)
    share = (at - low)[..., None]
    return (SCALE[low] * (1 - share) + SCALE[low + 1] * share).permute(2, 0, 1)


def heat_over(image: Tensor, heat: Tensor) -> Tensor:
    """A picture (ch, h, w) in [0, 1] in gray, below a heat map (h, w) in [0, 1]: (3, h, w)"""
    gray = image.mean(0, keepdim=True).expand(3, -1, -1)
    strong = 0.25 + 0.55 * heat.clamp(0, 1)
    return gray * (1 - strong) + scale(heat) * strong


def signed_over(image: Tensor, heat: Tensor) -> Tensor:
    """The same for values in [−1, 1]: blue above zero, orange below, as on the live page"""
    gray = image.mean(0, keepdim=True).expand(3, -1, -1) * 0.5 + 0.45
    strong = 0.85 * heat.abs().clamp(0, 1)
    color = torch.where(heat[None] >= 0, COLD[:, None, None], HOT[:, None, None])
    return gray * (1 - strong) + color * strong


def stretched(values: Tensor) -> Tensor:
    """To [0, 1], from the smallest value to the largest; constants to ½"""
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high - low > 1e-9 else torch.full_like(values, 0.5)
