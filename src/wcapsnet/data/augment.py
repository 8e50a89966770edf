"""Augmentation of a whole batch on its device: every image its own draw, no loop, no synchronisation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def mirror(images: Tensor, mirrored: Tensor) -> Tensor:
    """Images (m, ch, h, w) flipped left to right where `mirrored` (m,) says so."""
    return torch.where(mirrored[:, None, None, None], images.flip(3), images)


def shift(images: Tensor, down: Tensor, right: Tensor, limit: int) -> Tensor:
    """Image m moved by down[m] and right[m] pixels, both within ±limit; zeros come in from outside."""
    m, _, height, width = images.shape
    padded = F.pad(images, (limit,) * 4)
    rows = torch.arange(height, device=images.device) + limit - down[:, None]  # (m, h)
    columns = torch.arange(width, device=images.device) + limit - right[:, None]  # (m, w)
    samples = torch.arange(m, device=images.device)[:, None, None]
    moved = padded.permute(0, 2, 3, 1)[samples, rows[:, :, None], columns[:, None, :]]  # (m, h, w, ch)
    return moved.permute(0, 3, 1, 2).contiguous()


def augment(images: Tensor, *, mirroring: bool, shifting: int) -> Tensor:
    """Each image mirrored with probability ½ and shifted by up to `shifting` pixels in each direction."""
    m = images.shape[0]
    if mirroring:
        images = mirror(images, torch.rand(m, device=images.device) < 0.5)
    if shifting:
        down, right = torch.randint(-shifting, shifting + 1, (2, m), device=images.device)
        images = shift(images, down, right, shifting)
    return images
