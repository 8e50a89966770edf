"""The vector non-linearities of a CapsTrans layer (Section III-A). Vectors are along axis 2 of (m, n, k, i, j)."""

from __future__ import annotations

from torch import Tensor

from ..parts import nonlinearity
from .per_capsule import STORED, channels_last

VECTOR_AXIS = 2


@nonlinearity("squash")
def squash(x: Tensor, axis: int = VECTOR_AXIS) -> Tensor:
    """Eq. 1:  c = ‖x‖² / (1 + ‖x‖²) · x / ‖x‖"""
    # Written as x·‖x‖/(1+‖x‖²); the ε keeps the gradient of the root finite at x = 0.
    squared = x.float().square().sum(axis, keepdim=True)
    return (x * ((squared + 1e-12).sqrt() / (1 + squared))).to(x.dtype)


@nonlinearity("tilt")
def tilt(x: Tensor, axis: int = VECTOR_AXIS) -> Tensor:
    """Eq. 2:  c = ½ (1 + softmax(x)) ⊙ x"""
    if axis == VECTOR_AXIS and channels_last(x):  # softmax would store its result in another layout
        softmax = x.permute(STORED).softmax(-1).permute(STORED)
    else:
        softmax = x.softmax(axis)
    return (0.5 * (1 + softmax) * x).to(x.dtype)
