"""The N capsule blocks of a level: Dense Blocks, then CapsTrans (Fig. 2, Sections III-A and IV-A)."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from .per_capsule import (
    BatchNorm,
    PerCapsuleConv2d,
    PerCapsuleShortcut,
    concatenated,
    for_each_capsule,
    shared_over_vectors,
)


class ConvPlus(nn.Module):
    """conv+: batch normalisation, ReLU, convolution."""

    def __init__(self, capsules: int, channels: int, out_channels: int, kernel: int, stride: int = 1):
        super().__init__()
        self.norm = BatchNorm(capsules, channels)
        self.conv = PerCapsuleConv2d(capsules, channels, out_channels, kernel, stride)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.norm(x, relu=True))


class DenseBlock(nn.Module):
    """n_D dense layers: each adds g channels computed from all earlier ones. The first has the stride (Fig. 2)."""

    def __init__(self, capsules: int, channels: int, growth: int, layers: int, stride: int):
        super().__init__()
        self.shortcut = PerCapsuleShortcut(capsules, channels, stride) if stride > 1 else nn.Identity()
        self.layers = nn.ModuleList(
            ConvPlus(capsules, channels + layer * growth, growth, kernel=3, stride=stride if layer == 0 else 1)
            for layer in range(layers)
        )
        self.out_channels = channels + layers * growth

    def forward(self, x: Tensor) -> Tensor:
        first, *rest = self.layers
        x = concatenated(self.shortcut(x), first(x))
        for layer in rest:
            x = concatenated(x, layer(x))
        return x  # (m, n, c + n_D·g, i, j)


class CapsTrans(nn.Module):
    """conv+ to k elements, a batch norm shared by the level's capsules (D4), then the vector non-linearity."""

    def __init__(self, capsules: int, channels: int, dimension: int, nonlinearity: Callable[[Tensor], Tensor]):
        super().__init__()
        self.conv_plus = ConvPlus(capsules, channels, dimension, kernel=1)
        self.norm = BatchNorm(dimension)
        self.nonlinearity = nonlinearity

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_plus(x)
        return self.nonlinearity(shared_over_vectors(self.norm, x))


class CapsuleBlocks(nn.Module):
    """All capsule blocks of one level: x (m, c, i, j) → c (m, n, k, i/s, j/s)

    With `pool`, max pooling of the common input takes the place of the strided convolutions.
    """

    def __init__(
        self,
        capsules: int,
        channels: int,
        growth: int,
        dense_layers: int,
        dimension: int,
        stride: int,
        nonlinearity: Callable[[Tensor], Tensor],
        pool: bool = False,
    ):
        super().__init__()
        self.capsules = capsules
        self.pool = stride if pool else 1
        self.dense = DenseBlock(capsules, channels, growth, dense_layers, 1 if pool else stride)
        self.trans = CapsTrans(capsules, self.dense.out_channels, dimension, nonlinearity)

    def forward(self, x: Tensor) -> Tensor:
        if self.pool > 1:
            x = F.max_pool2d(x, self.pool, ceil_mode=True)
        return self.trans(self.dense(for_each_capsule(x, self.capsules)))
