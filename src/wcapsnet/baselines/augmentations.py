"""The augmentation of CapsNet on CIFAR-10 that no other network here uses."""

from __future__ import annotations

import torch
from torch import Tensor

from ..parts import augmentation


@augmentation("contrast")
def random_contrast(images: Tensor, amount: float) -> Tensor:
    """The distance of each channel from its mean, times 1 ± this much"""
    mean = images.mean((2, 3), keepdim=True)
    factor = torch.empty(len(images), 1, 1, 1, device=images.device).uniform_(1 - amount, 1 + amount)
    return mean + (images - mean) * factor
