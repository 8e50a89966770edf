"""The augmentations that the systems of Table V were trained with, beyond mirroring and shifting."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..parts import augmentation


@augmentation("contrast")
def random_contrast(images: Tensor, amount: float) -> Tensor:
    """The distance of each channel from its mean, times 1 ± this much"""
    mean = images.mean((2, 3), keepdim=True)
    return mean + (images - mean) * _factors(images, amount)[:, None, None, None]


@augmentation("zoom")
def random_zoom(images: Tensor, amount: float) -> Tensor:
    """Height and width of what each image shows, each times 1 ± this much"""
    zero = images.new_zeros(len(images))
    return _warped(images, _factors(images, amount), zero, zero, _factors(images, amount))


@augmentation("rotate")
def random_rotation(images: Tensor, degrees: float) -> Tensor:
    """Every second image, on average, turned by up to this angle"""
    drawn = torch.empty(len(images), device=images.device).uniform_(-1, 1)
    turned = torch.rand(len(images), device=images.device) < 0.5
    angle = math.radians(degrees) * drawn * turned
    ratio = images.shape[2] / images.shape[3]
    return _warped(images, angle.cos(), -angle.sin() * ratio, angle.sin() / ratio, angle.cos())


@augmentation("erase")
def random_erasing(images: Tensor, side: float) -> Tensor:
    """A square of this side set to zero, anywhere in each image"""
    inside = []
    for pixels in images.shape[2:]:
        at = torch.arange(pixels, device=images.device)
        first = torch.randint(pixels - int(side) + 1, (len(images), 1), device=images.device)
        inside.append((at >= first) & (at < first + int(side)))  # (m, pixels)
    return images.masked_fill((inside[0][:, :, None] & inside[1][:, None, :])[:, None], 0.0)


def _factors(images: Tensor, amount: float) -> Tensor:
    return torch.empty(len(images), device=images.device).uniform_(1 - amount, 1 + amount)


def _warped(images: Tensor, xx: Tensor, xy: Tensor, yx: Tensor, yy: Tensor) -> Tensor:
    """Bilinear, about the centre; beyond the edge, the edge continues"""
    zero = torch.zeros_like(xx)
    theta = torch.stack([xx, xy, zero, yx, yy, zero], 1).view(-1, 2, 3)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)
