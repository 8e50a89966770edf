"""DeepCaps (Rajasegaran et al.: DeepCaps: Going Deeper with Capsule Networks, 2019).

In its authors' repository: MNIST 99.72 %, CIFAR-10 92.74 % as an ensemble of 7. Second-hand: CIFAR-10 91.01 %, SVHN
97.16 %, both on images resized to 64×64, Fashion-MNIST 94.46 %. 8,500,337 parameters at 28×28, 13,426,995 at 64×64.

Left open, and decided here: strided convolutions are padded symmetrically. Kernels start with variance 4 / fan-in, for
which a squashed convolution keeps vectors of length 0.5; with less, nothing reaches the last cell. In the decoder they
start Glorot-uniform. The 3-D routing squashes the whole map of an output type, as the authors' code does, where the
paper squashes every capsule. The decoder doubles the sides three times from 64 pixels on and twice below. If images
are resized, the reconstruction is averaged back to their own size, because the error is measured there. The authors'
second training phase (margins 0.95 and 0.05, starting from the best weights of the first) is not part of the recipes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..network.nonlinearity import squash
from ..parts import architecture, model
from .capsnet import ClassCapsules
from .common import Baseline, CapsuleOutput, Pictures, lengths, log_odds, one_class


@architecture("deepcaps")
@dataclass(frozen=True)
class DeepCapsConfig(Pictures):
    """The defaults are the network for MNIST and Fashion-MNIST."""

    channels: int = 1
    height: int = 28
    width: int = 28
    resize: int = 0  # > 0: the network sees squares of this side
    conv_channels: int = 128
    types: int = 32
    dimensions: tuple[int, int, int, int] = (4, 8, 8, 8)  # of the capsules of each cell
    class_dimension: int = 32
    iterations: int = 3

    may_be_zero: ClassVar[tuple[str, ...]] = ("resize",)
    training: ClassVar[dict[str, object]] = {"optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.0}  # Adam
    normalization: ClassVar[str] = "unit"

    def build(self) -> DeepCaps:
        return DeepCaps(self)

    @property
    def terms(self) -> dict[str, float]:
        return {"margin": 1.0, "reconstruction": 0.4}


@model("deepcaps")
def deepcaps(classes: int, channels: int, height: int, width: int) -> DeepCapsConfig:
    """DeepCaps at the size of the images: 8,500,337 parameters at 28×28."""
    return DeepCapsConfig(classes, channels, height, width)


@model("deepcaps-64")
def deepcaps_64(classes: int, channels: int, height: int, width: int) -> DeepCapsConfig:
    """DeepCaps for CIFAR-10, on images resized to 64×64: 13,426,995 parameters."""
    return DeepCapsConfig(classes, channels, height, width, resize=64)


class ConvCaps(nn.Module):
    """A 3×3 convolution over all types, then squash: capsules without routing, (m, n, d, h, w) → the same"""

    def __init__(self, channels: int, types: int, dimension: int, stride: int = 1):
        super().__init__()
        self.shape = types, dimension
        self.conv = nn.Conv2d(channels, types * dimension, 3, stride, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return squash(self.conv(x.flatten(1, -3)).unflatten(1, self.shape), 2)


class RoutedCaps(nn.Module):
    """3-D routing: each input type i votes for all output types j with the same 3×3 kernels, V_ij = kernel_j * u_i."""

    def __init__(self, dimension: int, types: int, out_dimension: int, iterations: int):
        super().__init__()
        self.iterations, self.shape = iterations, (types, out_dimension)
        self.conv = nn.Conv2d(dimension, types * out_dimension, 3, padding=1, bias=False)
        self.bias = nn.Parameter(torch.full((types, out_dimension, 1, 1), 0.1))

    def forward(self, u: Tensor) -> tuple[Tensor, Tensor]:
        votes = self.conv(u.flatten(0, 1)).unflatten(0, u.shape[:2]).unflatten(2, self.shape)  # (m, i, j, d, h, w)
        return routing_3d(votes, self.bias, self.iterations)


def routing_3d(votes: Tensor, bias: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """c_i = softmax over (j, y, x) of b_i;  S_j = squash(Σ_i c_ij V_ij + bias_j);  b_ij ← b_ij + V_ij·S_j

    V·S is the product of the vectors at a position; squash is of the whole map of j.

    Returns S (m, j, d, h, w) and c (m, i, j, h, w).
    """
    m, i, j, _, height, width = votes.shape
    b = torch.zeros(m, i, j, height, width, device=votes.device)
    for iteration in range(iterations):
        c = b.flatten(2).softmax(2).view_as(b)
        s = (c[:, :, :, None].to(votes.dtype) * votes).sum(1) + bias
        s = squash(s.flatten(2), 2).view_as(s)
        if iteration < iterations - 1:
            b = b + (votes * s[:, None]).sum(3)
    return s, c


class Cell(nn.Module):
    """a = ConvCaps, stride 2; skip(a) + ConvCaps(ConvCaps(a))"""

    def __init__(self, channels: int, types: int, dimension: int, skip: nn.Module):
        super().__init__()
        self.first = ConvCaps(channels, types, dimension, stride=2)
        self.main = nn.Sequential(*(ConvCaps(types * dimension, types, dimension) for _ in range(2)))
        self.skip = skip

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        a = self.first(x)
        skip, c = self.skip(a) if isinstance(self.skip, RoutedCaps) else (self.skip(a), None)
        return self.main(a) + skip, c


class Decoder(nn.Module):
    """One class capsule → a patch of 16 channels, enlarged by transposed 3×3 convolutions; it ends with ReLU."""

    def __init__(self, dimension: int, channels: int, height: int, width: int):
        super().__init__()
        widths = (64, 32, 16, 8) if min(height, width) >= 64 else (64, 32, 16)
        scale = 2 ** (len(widths) - 1)
        self.size, self.patch = (height, width), (16, -(-height // scale), -(-width // scale))
        self.linear = nn.Linear(dimension, self.patch[0] * self.patch[1] * self.patch[2])
        self.norm = nn.BatchNorm2d(16, momentum=0.2)
        self.layers = nn.Sequential(nn.ConvTranspose2d(16, widths[0], 3, padding=1))
        for before, after in pairwise(widths):
            self.layers.append(nn.ConvTranspose2d(before, after, 3, stride=2, padding=1, output_padding=1))
        self.layers.append(nn.ConvTranspose2d(widths[-1], channels, 3, padding=1))

    def forward(self, vector: Tensor) -> Tensor:
        x = self.norm(F.relu(self.linear(vector)).unflatten(1, self.patch))
        return F.relu(self.layers(x))[:, :, : self.size[0], : self.size[1]]


class DeepCaps(Baseline):
    couples = True
    takes_labels = True

    def __init__(self, config: DeepCapsConfig | None = None):
        super().__init__()
        self.config = config = config or DeepCapsConfig()
        height, width = (config.resize or side for side in (config.height, config.width))
        types, (*inner, last) = config.types, config.dimensions
        self.conv = nn.Conv2d(config.channels, config.conv_channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(config.conv_channels)
        self.cells, channels = nn.ModuleList(), config.conv_channels
        for dimension in config.dimensions:
            routed = len(self.cells) == len(inner)
            plain = ConvCaps(types * dimension, types, dimension)
            skip = RoutedCaps(dimension, types, dimension, config.iterations) if routed else plain
            self.cells.append(Cell(channels, types, dimension, skip))
            channels = types * dimension
        maps = [-(-height // 2**level) * -(-width // 2**level) for level in (3, 4)]
        dimensions = last, config.classes, config.class_dimension
        self.class_capsules = ClassCapsules(types * sum(maps), *dimensions, config.iterations, leaky=False)
        self.decoder = Decoder(config.class_dimension, config.channels, height, width)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, std=2 * module.weight[0].numel() ** -0.5)
            elif isinstance(module, nn.ConvTranspose2d):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]

    def forward(self, images: Tensor, labels: Tensor | None = None) -> CapsuleOutput:
        """`labels`: the classes to decode, as in training; without them, the longest capsule is decoded."""
        config = self.config
        x = F.interpolate(images, (config.resize,) * 2, mode="bilinear") if config.resize else images
        x = self.norm(F.relu(self.conv(x)))[:, None]  # (m, 1, 128, h, w)
        maps = []
        for cell in self.cells:
            x, c3 = cell(x)  # (m, n, d, h/2, w/2), …
            maps.append(x)
        u = torch.cat([capsules(x) for x in maps[-2:]], 1)  # (m, i, 8)
        v, c = self.class_capsules(u)  # (m, r, 32), (m, i, r)
        length = lengths(v)  # (m, r)
        image = self.decoder((v * one_class(length, labels)[:, :, None]).sum(1))
        if config.resize:
            image = F.adaptive_avg_pool2d(image, (config.height, config.width))
        return CapsuleOutput(log_odds(length), length, v, (c3, c), image)


def capsules(x: Tensor) -> Tensor:
    """(m, n, d, h, w) → (m, n·h·w, d)"""
    return x.movedim(2, -1).flatten(1, 3)
