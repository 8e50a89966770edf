"""Augmentation of a whole batch on its device: a separate draw for each image, no loop, no synchronisation."""

from __future__ import annotations

import math
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
    limit = int(pixels)
    down, right = torch.randint(-limit, limit + 1, (2, len(images)), device=images.device)
    return shift(images, down, right, limit)


@augmentation("zoom")
def random_zoom(images: Tensor, amount: float) -> Tensor:
    """Each side scaled by its own factor between 1/(1 + amount) and 1 + amount, around the centre"""
    drawn = torch.empty(len(images), 2, device=images.device).uniform_(-1, 1)
    return _warped(images, torch.diag_embed((math.log1p(amount) * drawn).exp()))


@augmentation("rotate")
def random_rotation(images: Tensor, degrees: float) -> Tensor:
    """Each image rotated by up to this many degrees either way"""
    angle = math.radians(degrees) * torch.empty(len(images), device=images.device).uniform_(-1, 1)
    ratio, cos, sin = images.shape[2] / images.shape[3], angle.cos(), angle.sin()
    return _warped(images, torch.stack([cos, -sin * ratio, sin / ratio, cos], 1).view(-1, 2, 2))


@augmentation("erase")
def random_erasing(images: Tensor, share: float) -> Tensor:
    """A rectangle with this share of each side set to zero; its centre is drawn anywhere in the image"""
    inside = []
    for side in images.shape[2:]:
        at = (torch.arange(side, device=images.device) + 0.5) / side
        inside.append((at - torch.rand(len(images), 1, device=images.device)).abs() < share / 2)  # (m, side)
    return images.masked_fill((inside[0][:, :, None] & inside[1][:, None, :])[:, None], 0.0)


def _warped(images: Tensor, matrix: Tensor) -> Tensor:
    """The pixel at x taken from `matrix` · x (m, 2, 2), interpolated; zero outside"""
    grid = F.affine_grid(F.pad(matrix, (0, 1)), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def augment(images: Tensor, amounts: Mapping[str, float]) -> Tensor:
    """One augmentation after the other, in this order"""
    for name, amount in amounts.items():
        images = augmentation[name](images, amount)
    return images
