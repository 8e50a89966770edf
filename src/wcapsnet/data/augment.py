"""Augmentation of a whole batch on its device: a separate draw for each image, no loop, no synchronisation."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from ..parts import augmentation


def mirror(images: Tensor, mirrored: Tensor) -> Tensor:
    """Images (m, ch, h, w) flipped left to right where `mirrored` (m,) is true."""
    return torch.where(mirrored[:, None, None, None], images.flip(3), images)


def shift(images: Tensor, down: Tensor, right: Tensor, limit: int) -> Tensor:
    """Image m shifted by down[m] and right[m] pixels, both within ±limit; zero padding."""
    m, _, height, width = images.shape
    padded = F.pad(images, (limit,) * 4)
    rows = torch.arange(height, device=images.device) + limit - down[:, None]  # (m, h)
    columns = torch.arange(width, device=images.device) + limit - right[:, None]  # (m, w)
    samples = torch.arange(m, device=images.device)[:, None, None]
    moved = padded.permute(0, 2, 3, 1)[samples, rows[:, :, None], columns[:, None, :]]  # (m, h, w, ch)
    return moved.permute(0, 3, 1, 2).contiguous()


@augmentation("mirror")
def random_mirror(images: Tensor, probability: float) -> Tensor:
    """Each image flipped left to right with this probability"""
    return mirror(images, torch.rand(len(images), device=images.device) < probability)


@augmentation("shift")
def random_shift(images: Tensor, pixels: float) -> Tensor:
    """Each image shifted by up to this many pixels in each direction"""
    limit = int(min(pixels, max(images.shape[2:])))  # further out there is nothing left of an image
    down, right = torch.randint(-limit, limit + 1, (2, len(images)), device=images.device)
    return shift(images, down, right, limit)


def augment(images: Tensor, amounts: Mapping[str, float]) -> Tensor:
    """One augmentation after the other, in this order"""
    for name, amount in amounts.items():
        images = augmentation[name](images, amount)
    return images
