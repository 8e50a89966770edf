"""One layer for all N capsules of a level at once: the only module concerned with speed.

A layer is either *per capsule* (every capsule has its own weights) or *shared over capsules* (all use the same ones).
Tensors with capsules are (m, n, …) everywhere; only here is the n axis merged with a neighbour for a layer.

The network keeps the memory layout of its input. With channels last (faster on CPUs), the elements of a vector are
neighbours in memory: (m, n, k, i, j) is stored as (m, i, j, n, k).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STORED = (0, 3, 4, 1, 2)  # (m, n, k, i, j) ↔ (m, i, j, n, k)


def channels_last(x: Tensor) -> bool:
    """Whether (m, n, k, i, j) is stored as (m, i, j, n, k)"""
    return x.stride(2) == 1 and x.stride(4) >= x.stride(1)


def capsules_as_channels(x: Tensor) -> Tensor:
    """(m, n, c, i, j) → (m, n·c, i, j)"""
    return x.permute(STORED).flatten(3).permute(0, 3, 1, 2) if channels_last(x) else x.flatten(1, 2)


def concatenated(x: Tensor, y: Tensor) -> Tensor:
    """(m, n, c, i, j), (m, n, g, i, j) → (m, n, c + g, i, j)"""
    if channels_last(x) and channels_last(y):
        return torch.cat([x.permute(STORED), y.permute(STORED)], dim=4).permute(STORED)
    return torch.cat([x, y], dim=2)


class PerCapsuleConv2d(nn.Module):
    """y_n = x_n ∗ w_n: capsule n convolves its own channels with its own kernel. No bias.

    The kernel is centred: stride s takes a side of h to ⌈h/s⌉.
    """

    def __init__(self, capsules: int, channels: int, out_channels: int, kernel: int, stride: int = 1):
        super().__init__()
        self.kernel, self.stride = kernel, stride
        self.weight = nn.Parameter(torch.empty(capsules, out_channels, channels, kernel, kernel))
        nn.init.normal_(self.weight, std=math.sqrt(2 / (channels * kernel * kernel)))  # He

    def forward(self, x: Tensor) -> Tensor:
        return self._convolve(x, padding=self.kernel // 2)

    def _convolve(self, x: Tensor, padding: int) -> Tensor:
        n = x.shape[1]
        if x.stride(1) == 0:  # all capsules have the same input: one convolution with all kernels
            y = F.conv2d(x[:, 0], self.weight.flatten(0, 1), None, self.stride, padding)
        elif self.kernel == self.stride == 1 and x.is_cpu and not channels_last(x):  # faster as matrix products
            return (self.weight.flatten(2) @ x.flatten(3)).unflatten(3, x.shape[3:])
        else:
            x = capsules_as_channels(x)  # capsules become the groups of a grouped convolution
            y = F.conv2d(x, self.weight.flatten(0, 1), None, self.stride, padding, groups=n)
        return y.unflatten(1, (n, -1))


class PerCapsuleShortcut(PerCapsuleConv2d):
    """The same with a kernel as large as the stride, so that every value is used once (Fig. 2, dotted).

    If s does not divide h, zero padding below and to the right gives ⌈h/s⌉ as well: the two are concatenated (D18).
    """

    def __init__(self, capsules: int, channels: int, stride: int):
        super().__init__(capsules, channels, channels, kernel=stride, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        below, right = (-side % self.stride for side in x.shape[-2:])
        if below or right:
            x = F.pad(x, (0, right, 0, below))
        return self._convolve(x, padding=0)


class BatchNorm(nn.Module):
    """y = γ·(x − μ)/√(σ² + ε) + β over axis 1, or over axes 1 and 2 if `shape` is (capsules, channels)."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, *shape: int, momentum: float = 0.1, eps: float = 1e-5):
        super().__init__()
        self.shape, self.momentum, self.eps = shape, momentum, eps
        self.weight = nn.Parameter(torch.ones(shape))
        self.bias = nn.Parameter(torch.zeros(shape))
        self.register_buffer("running_mean", torch.zeros(shape))
        self.register_buffer("running_var", torch.ones(shape))

    def forward(self, x: Tensor, relu: bool = False) -> Tensor:
        y = capsules_as_channels(x) if len(self.shape) == 2 else x
        # One value per channel has no variance: then the running statistics are used.
        estimate = self.training and y.numel() > y.shape[1]
        y = F.batch_norm(
            y,
            self.running_mean.view(-1),
            self.running_var.view(-1),
            self.weight.view(-1),
            self.bias.view(-1),
            estimate,
            self.momentum,
            self.eps,
        )
        if relu:
            F.relu_(y)  # in place: the norm does not need its result again; before `view`, whose autograd would copy
        return y.view(x.shape)


def shared_over_capsules(layer: Callable[[Tensor], Tensor], c: Tensor) -> Tensor:
    """The same layer for every capsule: capsules count as samples, so each is processed alone (with one statistic)."""
    m, n = c.shape[:2]
    if channels_last(c):
        samples = c.permute(0, 1, 3, 4, 2).flatten(0, 1).permute(0, 3, 1, 2)
        return layer(samples).unflatten(0, (m, n))
    return layer(c.flatten(0, 1)).unflatten(0, (m, n))


def shared_over_vectors(layer: Callable[[Tensor], Tensor], c: Tensor) -> Tensor:
    """The same for a layer that processes every vector alone: with channels last, capsules can count as columns."""
    if not channels_last(c):
        return shared_over_capsules(layer, c)
    columns = c.permute(0, 2, 3, 4, 1)  # (m, k, i, j, n)
    return layer(columns.flatten(3)).unflatten(3, columns.shape[3:]).permute(0, 4, 1, 2, 3)


def for_each_capsule(x: Tensor, capsules: int) -> Tensor:
    """(m, c, i, j) → (m, n, c, i, j): every capsule of a level has the same input."""
    if x.stride(1) == 1:  # channels last; the gradient of `expand` would lose the layout
        return torch.cat([x] * capsules, dim=1).unflatten(1, (capsules, -1))
    return x.unsqueeze(1).expand(-1, capsules, -1, -1, -1)
