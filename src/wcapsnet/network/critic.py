"""f, the critics, which score the fitness of a capsule (Section IV-B); two untrained ones (Table IV); joint ones (D44).

Each maps c (m, n, k, i, j) to a fitness in [0, 1]: (m, n) for whole blocks, (m, n, i, j) for single vectors.
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .per_capsule import BatchNorm, capsules_as_channels, shared_over_capsules


class SpectralConv2d(nn.Module):
    """Convolution with w / σ(w): the kernel, reshaped to (out, in·3·3), has a largest singular value of 1 (D9)."""

    u: Tensor
    v: Tensor

    def __init__(self, channels: int, out_channels: int, kernel: int, stride: int):
        super().__init__()
        self.stride, self.padding = stride, kernel // 2
        self.weight = nn.Parameter(torch.empty(out_channels, channels, kernel, kernel))
        self.bias = nn.Parameter(torch.zeros(out_channels))
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu")
        self.register_buffer("u", F.normalize(torch.randn(out_channels), dim=0))
        self.register_buffer("v", F.normalize(torch.randn(channels * kernel * kernel), dim=0))
        for _ in range(15):
            self._power_iteration()

    @torch.no_grad()
    def _power_iteration(self) -> tuple[Tensor, Tensor]:
        w = self.weight.flatten(1)
        v = F.normalize(w.mT @ self.u, dim=0)
        u = F.normalize(w @ v, dim=0)
        self.u.copy_(u)
        self.v.copy_(v)
        return u, v

    def normalized_weight(self) -> Tensor:
        """w / σ,  σ = uᵀ w v,  with one power iteration per training step"""
        with torch.autocast(self.weight.device.type, enabled=False):  # σ in half precision would drift from 1
            u, v = self._power_iteration() if self.training else (self.u, self.v)
            sigma = torch.dot(u, self.weight.flatten(1) @ v)
            return self.weight / sigma.clamp_min(1e-12)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.normalized_weight(), self.bias, self.stride, self.padding)


class Critic(nn.Module):
    """Convolutions with ReLU and dropout, the last one to a single channel; then batch norm and sigmoid."""

    def __init__(self, channels: list[int], kernel: int, stride: int, dropout: float):
        super().__init__()
        self.dropout = dropout
        self.layers = nn.ModuleList(
            SpectralConv2d(before, after, kernel, stride) for before, after in itertools.pairwise(channels)
        )
        self.norm = BatchNorm(1)

    def judge(self, x: Tensor) -> Tensor:
        *hidden, last = self.layers
        for layer in hidden:
            x = self.drop(F.relu(layer(x)))
        return self.norm(last(x)).float().sigmoid()

    def drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)

    def forward(self, c: Tensor) -> Tensor:
        # Detached: a critic judges the capsules but does not train them. Shared: it sees one capsule at a time.
        return shared_over_capsules(self.judge, c.detach()).squeeze(2)  # (m, n, i', j')


class BlockCritic(Critic):
    """3×3 convolutions of stride 2 until one value per block is left: a (m, n)"""

    def __init__(self, dimension: int, height: int, width: int, base: int, dropout: float):
        layers = max(1, (max(height, width) - 1).bit_length())  # each halves the side, rounding up
        super().__init__([dimension, *(j * base for j in range(1, layers)), 1], 3, 2, dropout)

    def forward(self, c: Tensor) -> Tensor:
        return super().forward(c).flatten(1)


class VectorCritic(Critic):
    """Four 1×1 convolutions: a fitness for every capsule vector, a (m, n, i, j)"""

    def __init__(self, dimension: int, base: int, dropout: float):
        super().__init__([dimension, base, 2 * base, 3 * base, 1], 1, 1, dropout)


class JointCritic(nn.Module):
    """Not in the paper: judges all blocks of a level together, and its gradient reaches them (D44).

    a = σ(W₃ ReLU(BN(W₁ x_ij) + BN(W₂ mean_ij x)) + bias),  x (m, n·k, i, j): the vectors of all blocks at a position,
    concatenated. One fitness per block and image is computed without W₁.
    """

    def __init__(self, capsules: int, dimension: int, width: int, per_position: bool):
        super().__init__()
        self.local = joint_layer(capsules * dimension, width) if per_position else None
        self.whole = joint_layer(capsules * dimension, width)
        self.last = nn.Conv2d(width, capsules, 1)

    def forward(self, c: Tensor) -> Tensor:
        x = capsules_as_channels(c)
        h = self.whole(x.mean((2, 3), keepdim=True))
        if self.local is not None:
            h = h + self.local(x)
        a = self.last(F.relu(h)).float().sigmoid()
        return a.flatten(1) if self.local is None else a


def joint_layer(channels: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, width, 1, bias=False), BatchNorm(width))


class ConstantFitness(nn.Module):
    """Every capsule has the same fitness (*Uniform* in Table IV)."""

    def __init__(self, *shape: int):
        super().__init__()
        self.shape = shape

    def forward(self, c: Tensor) -> Tensor:
        return c.new_ones(c.shape[0], *self.shape, dtype=torch.float32)


class RandomFitness(nn.Module):
    """Fitness drawn from U(0, 1), redrawn for every sample in training (*Random* in Table IV).

    Evaluation uses one draw, made at initialisation and saved with the weights: a prediction must not depend on when it
    is made, or on the other images in its batch (D16).
    """

    drawn: Tensor

    def __init__(self, *shape: int):
        super().__init__()
        self.register_buffer("drawn", torch.rand(shape))

    def forward(self, c: Tensor) -> Tensor:
        drawn = self.drawn.expand(c.shape[0], *self.drawn.shape)
        return torch.rand_like(drawn) if self.training else drawn
