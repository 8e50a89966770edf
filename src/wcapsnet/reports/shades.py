"""The colours of weight maps: pale below the equal share, gray at it, dark and warm above.

Lightness only decreases, so the order is visible in print and without colour vision. The colours are the same in light
and dark mode: pictures cannot change with the page, and each map has a legend.
"""

from __future__ import annotations

import torch
from torch import Tensor

# From half the equal share, over the equal share, to twice the equal share. The live page has the same (paint.js).
RAMP = ((222, 235, 247), (196, 205, 213), (168, 166, 163), (186, 100, 52), (112, 20, 10))
DARK = 0.35  # from here on, text must be light


def shades(positions: Tensor) -> Tensor:
    """Positions on the scale in [−1, 1], of any shape → the same shape with r, g, b in [0, 1] at the end"""
    ramp = torch.tensor(RAMP, dtype=torch.float64) / 255
    at = (positions.double().clamp(-1, 1) + 1) / 2 * (len(RAMP) - 1)
    low = at.floor().long().clamp(max=len(RAMP) - 2)
    part = (at - low)[..., None]
    return (ramp[low] * (1 - part) + ramp[low + 1] * part).float()


def hex_of(position: float) -> str:
    red, green, blue = (shades(torch.tensor(position)) * 255).round().int().tolist()
    return f"#{red:02x}{green:02x}{blue:02x}"


def css() -> str:
    return f"linear-gradient(to right,{','.join(f'#{r:02x}{g:02x}{b:02x}' for r, g, b in RAMP)})"
