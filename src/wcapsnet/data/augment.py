"""Augmentation of a whole batch on its device: a separate draw for each image, no loop, no synchronisation.

Images arrive normalised, so zero, the value outside them, is the mean (or black with `data.normalization` "unit").
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import InputError
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


@augmentation("zoom")
def random_zoom(images: Tensor, amount: float) -> Tensor:
    """Each side scaled by its own factor between 1/(1 + amount) and 1 + amount, around the centre"""
    stretch = math.log1p(amount) * _between(2, images)
    return _warp(images, torch.diag_embed((-stretch).exp()))


@augmentation("rotate")
def random_rotation(images: Tensor, degrees: float) -> Tensor:
    """Each image rotated by up to this many degrees either way"""
    angle = math.radians(degrees) * _between(1, images)[:, 0]
    cos, sin = angle.cos(), angle.sin()
    ratio = images.shape[2] / images.shape[3]  # coordinates run from -1 to 1 along both sides
    return _warp(images, torch.stack([cos, -sin * ratio, sin / ratio, cos], 1).view(-1, 2, 2))


@augmentation("colour")
def random_colour(images: Tensor, amount: float) -> Tensor:
    """Brightness moved by up to ±amount standard deviations, contrast and saturation scaled by up to exp(±amount)"""
    brightness, contrast, saturation = (amount * _between(3, images)).T[:, :, None, None, None]
    mean = images.mean((1, 2, 3), keepdim=True)
    deviation = images.std((1, 2, 3), keepdim=True)
    images = (images - mean) * contrast.exp() + mean + brightness * deviation
    gray = images.mean(1, keepdim=True)
    return (images - gray) * saturation.exp() + gray


@augmentation("erase")
def random_erasing(images: Tensor, share: float) -> Tensor:
    """A rectangle with this share of each side set to zero; its centre is drawn anywhere in the image (Cutout)"""
    return images * ~_rectangle(images, torch.full((len(images), 1), share, device=images.device))[:, None]


class Mixed(NamedTuple):
    """The answer of an augmentation that mixes pairs: image m consists of itself and of image m − 1 (cyclically).

    The loss is then share · L(labels) + (1 − share) · L(labels of image m − 1). Batches are shuffled, so any neighbour
    is a random partner.
    """

    images: Tensor
    share: Tensor  # a number in [0, 1], the same for the batch


@augmentation("mixup")
def mixup(images: Tensor, probability: float) -> Mixed:
    """With this probability, the batch is blended with its neighbours; the share is uniform in [0, 1]"""
    share = _share(images, probability)
    return Mixed(share * images + (1 - share) * images.roll(1, 0), share)


@augmentation("cutmix")
def cutmix(images: Tensor, probability: float) -> Mixed:
    """With this probability, a rectangle of each image is its neighbour's; its area is uniform in [0, 1]"""
    side = (1 - _share(images, probability)).sqrt()
    inside = _rectangle(images[:1], side.view(1, 1))  # the same for the batch, as the share is
    return Mixed(torch.where(inside[:, None], images.roll(1, 0), images), 1 - inside.float().mean())


def augment(images: Tensor, amounts: Mapping[str, float]) -> Tensor | Mixed:
    """One augmentation after the other, in this order"""
    share: Tensor | None = None
    for name, amount in amounts.items():
        images = augmentation[name](images, amount)
        if isinstance(images, Mixed):
            if share is not None:
                raise InputError("data.augment mixes images twice; choose one of mixup and cutmix.")
            images, share = images
    return images if share is None else Mixed(images, share)


def _between(columns: int, images: Tensor) -> Tensor:
    """(m, columns), uniform between -1 and 1"""
    return 2 * torch.rand(len(images), columns, device=images.device) - 1


def _share(images: Tensor, probability: float) -> Tensor:
    """1 without mixing, otherwise uniform in [0, 1]"""
    chosen, share = torch.rand(2, device=images.device)
    return torch.where(chosen < probability, share, 1.0)


def _warp(images: Tensor, matrix: Tensor) -> Tensor:
    """The pixel at x taken from `matrix` · x (m, 2, 2), interpolated; zero outside"""
    theta = F.pad(matrix, (0, 1))
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid.to(images.dtype), align_corners=False)


def _rectangle(images: Tensor, share: Tensor) -> Tensor:
    """(m, h, w): whether a pixel is in a rectangle with this share (m, 1) of each side, its centre drawn uniformly"""
    _, _, height, width = images.shape
    at = torch.rand(len(images), 2, device=images.device)

    def covered(length: int, centre: Tensor) -> Tensor:
        pixels = (torch.arange(length, device=images.device) + 0.5) / length
        return (pixels - centre[:, None]).abs() < share / 2

    return covered(height, at[:, 0])[:, :, None] & covered(width, at[:, 1])[:, None, :]
