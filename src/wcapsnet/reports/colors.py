"""The colours of weight maps and contribution maps.

Weight maps are pale below the equal share, gray at it, dark and warm above. Lightness only decreases, so the order is
visible in print and without colour vision. Light and dark mode share these colours: pictures cannot change with the
page, and each map has a legend.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..explanations.shares import against_share

# From half the equal share, over the equal share, to twice the equal share. The live page has the same (paint.js).
RAMP = ((222, 235, 247), (196, 205, 213), (168, 166, 163), (186, 100, 52), (112, 20, 10))
DARK = 0.35  # from here on, text must be light
# Contributions: orange below zero, blue above
HOT, ZERO, COLD = (194, 65, 12), (179, 179, 179), (29, 99, 184)
THROUGH = 0.32  # contrast of a picture that shows through a weight map


def shades(positions: Tensor, ramp: tuple[tuple[int, int, int], ...] = RAMP) -> Tensor:
    """Positions on the scale in [−1, 1], of any shape → the same shape with r, g, b in [0, 1] at the end"""
    at = np.linspace(-1, 1, len(ramp))
    channels = [np.interp(positions, at, channel) for channel in zip(*ramp, strict=True)]
    return torch.from_numpy(np.stack(channels, -1) / 255).float()


def hex_of(position: float, ramp: tuple[tuple[int, int, int], ...] = RAMP) -> str:
    red, green, blue = (shades(torch.tensor(position), ramp) * 255).round().int().tolist()
    return f"#{red:02x}{green:02x}{blue:02x}"


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
    cold, hot = (torch.tensor(rgb).view(3, 1, 1) / 255 for rgb in (COLD, HOT))
    return gray * (1 - strong) + torch.where(heat[None] >= 0, cold, hot) * strong
