"""DenseNet-BC (Huang, Liu, van der Maaten, Weinberger: Densely Connected Convolutional Networks, 2017).

Published: CIFAR-10 96.38 %, CIFAR-100 82.40 % with depth 250, k = 24, 15.3M parameters; 95.49 % and 77.73 % with depth
100, k = 12, 0.77M parameters, the one of WCapsNet's size, which Table V leaves out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import InputError
from ..parts import architecture, model
from .common import Baseline, LogitsOutput, Pictures


@architecture("densenet")
@dataclass(frozen=True)
class DenseNetConfig(Pictures):
    """Three dense blocks of (depth - 4) / 6 layers each."""

    depth: int = 100
    growth: int = 12  # k

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.depth < 10 or (self.depth - 4) % 6:
            raise InputError(f"model.depth is {self.depth}, but it must be 4 + 6 n: 10, 16, 22, …")

    def build(self) -> DenseNet:
        return DenseNet(self)


@model("densenet-bc-100")
def densenet_bc_100(classes: int, channels: int, height: int, width: int) -> DenseNetConfig:
    """DenseNet-BC-100, k = 12: 0.77M parameters."""
    return DenseNetConfig(classes, channels, height, width)


@model("densenet-bc-250")
def densenet_bc_250(classes: int, channels: int, height: int, width: int) -> DenseNetConfig:
    """DenseNet-BC-250, k = 24: 15.3M parameters."""
    return DenseNetConfig(classes, channels, height, width, depth=250, growth=24)


class DenseLayer(nn.Module):
    """B: BN, ReLU, 1×1 convolution to 4k channels; BN, ReLU, 3×3 convolution to k, concatenated to the input."""

    def __init__(self, channels: int, growth: int):
        super().__init__()
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, 4 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        new = self.conv2(F.relu_(self.norm2(self.conv1(F.relu_(self.norm1(x))))))
        return torch.cat([x, new], 1)


class Transition(nn.Module):
    """C: BN, ReLU, 1×1 convolution to half the channels (θ = 0.5); 2×2 average pooling"""

    def __init__(self, channels: int):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.conv = nn.Conv2d(channels, channels // 2, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(self.conv(F.relu_(self.norm(x))), 2)


class DenseNet(Baseline):
    def __init__(self, config: DenseNetConfig | None = None):
        super().__init__()
        self.config = config = config or DenseNetConfig()
        layers, growth = (config.depth - 4) // 6, config.growth
        width = 2 * growth
        self.init_conv = nn.Conv2d(config.channels, width, 3, padding=1, bias=False)
        self.blocks, self.transitions = nn.ModuleList(), nn.ModuleList()
        for block in range(3):
            self.blocks.append(nn.Sequential(*(DenseLayer(width + at * growth, growth) for at in range(layers))))
            width += layers * growth
            if block < 2:
                self.transitions.append(Transition(width))
                width //= 2
        self.norm = nn.BatchNorm2d(width)
        self.linear = nn.Linear(width, config.classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.linear.bias)

    def forward(self, images: Tensor) -> LogitsOutput:
        x = self.init_conv(images)
        for block, transition in zip(self.blocks, [*self.transitions, nn.Identity()], strict=True):
            x = transition(block(x))
        return LogitsOutput(self.linear(F.relu_(self.norm(x)).mean((2, 3))))  # (m, r)
