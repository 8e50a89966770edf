"""Colours of pictures, the same in light and dark mode: weights against the equal share, contributions around zero."""

from __future__ import annotations

import torch
from torch import Tensor

from ..explanations.shares import against_share
from .shades import shades

HOT, COLD = torch.tensor([194.0, 65.0, 12.0]) / 255, torch.tensor([29.0, 99.0, 184.0]) / 255
THROUGH = 0.32  # contrast of a picture that shows through a weight map


def share_map(weights: Tensor, n: int) -> Tensor:
    """Weights (h, w) → colours (3, h, w); the equal share is 1/N"""
    return shades(against_share(weights, n)).permute(2, 0, 1)


def share_over(image: Tensor, weights: Tensor, n: int) -> Tensor:
    """The same over a picture (ch, h, w) in [0, 1], in gray: (3, h, w)

    Where the picture has its median brightness, as in most of the background, the colours are those of the legend.
    """
    gray = image.mean(0)
    return (share_map(weights, n) + THROUGH * (gray - gray.median())).clamp(0, 1)


def signed_over(image: Tensor, heat: Tensor) -> Tensor:
    """For values in [−1, 1]: blue above zero, orange below, as on the live page"""
    gray = image.mean(0, keepdim=True).expand(3, -1, -1) * 0.5 + 0.45
    strong = 0.85 * heat.abs().clamp(0, 1)
    color = torch.where(heat[None] >= 0, COLD[:, None, None], HOT[:, None, None])
    return gray * (1 - strong) + color * strong
