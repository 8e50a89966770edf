"""The best capsule of the last level, and the image decoded from it (Section IV-C)."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .per_capsule import BatchNorm
from .routing import heaviest, predict


class BestCapsule(NamedTuple):
    """The decoded capsule vector of the last level, and its position."""

    vector: Tensor  # (m, k)
    position: Tensor  # (m, 2): x and y in [-1, 1]
    place: Tensor  # (m, 3): n, i, j


def best_capsule(b: Tensor, c: Tensor, w: Tensor) -> BestCapsule:
    """c_nij for (n, i, j) = argmax b_nij; among ties, the one that adds most to the predicted class (D36)

    b (m, n, i, j) are the weights without noise, w (k, r) the projection to the real classes.
    """
    m, _, _, height, width = c.shape
    flat = _best_place(b.detach().float(), c.detach().float(), w.detach().float())  # (m,)
    vectors = c.permute(0, 1, 3, 4, 2).flatten(1, 3)  # (m, n·i·j, k)
    vector = vectors.gather(1, flat.view(m, 1, 1).expand(-1, -1, vectors.shape[2])).squeeze(1)
    n, i, j = flat // (height * width), flat // width % height, flat % width
    position = torch.stack([_coordinate(j, width), _coordinate(i, height)], dim=1)
    return BestCapsule(vector, position.to(c.dtype), torch.stack([n, i, j], dim=1))


def _best_place(b: Tensor, c: Tensor, w: Tensor) -> Tensor:
    """n·i·j as one index  (m,)"""
    predicted = predict(b, c, w).argmax(1)  # (m,)
    with torch.autocast(c.device.type, enabled=False):
        votes = torch.einsum("mnkij,km->mnij", c, w[:, predicted])  # for the predicted class
    b = b.flatten(1)
    return torch.where(heaviest(b), b * votes.flatten(1), -torch.inf).argmax(1)


def _coordinate(index: Tensor, size: int) -> Tensor:
    """0 … size-1 → -1 … 1, and 0 if there is only one position"""
    return 2 * index / max(size - 1, 1) - (1 if size > 1 else 0)


class Decoder(nn.Module):
    """A linear layer to a patch with a quarter of the image's sides, then two transposed convolutions to the image."""

    def __init__(self, dimension: int, channels: int, height: int, width: int, widths: tuple[int, int]):
        super().__init__()
        first, second = widths
        self.height, self.width = height, width
        self.patch = (first, -(-height // 4), -(-width // 4))
        self.linear = nn.Linear(dimension + 2, self.patch[0] * self.patch[1] * self.patch[2])
        self.norm1 = BatchNorm(first)
        self.conv1 = nn.ConvTranspose2d(first, second, 3, stride=2, padding=1, output_padding=1)
        self.norm2 = BatchNorm(second)
        self.conv2 = nn.ConvTranspose2d(second, channels, 3, stride=2, padding=1, output_padding=1)

    def forward(self, best: BestCapsule) -> Tensor:
        x = self.linear(torch.cat([best.vector, best.position], dim=1)).unflatten(1, self.patch)
        x = self.conv1(F.relu_(self.norm1(x)))
        x = self.conv2(F.relu_(self.norm2(x)))
        return x[:, :, : self.height, : self.width]  # the patch is rounded up if 4 does not divide the image
