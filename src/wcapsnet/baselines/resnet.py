"""Pre-activation ResNet-1001 (He, Zhang, Ren, Sun: Identity Mappings in Deep Residual Networks, 2016).

Published: CIFAR-10 95.38 % with batches of 64, 95.08 % with 128; CIFAR-100 77.29 %. 10.2M parameters: 10.18M in
convolutions and the linear layer; 0.15M more in batch norms, which this number leaves out. Three stages of 111
bottleneck blocks. As in the authors' code, in the first block of a stage the shortcut is a 1×1 convolution of the
pre-activated input, and the first 1×1 convolution of the block has the stride.

In evaluation after very few steps, the running statistics of a thousand batch norms lag behind the weights, and the
output overflows. A small folder of pictures therefore needs a small batch size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import InputError
from ..parts import architecture, model
from .common import Baseline, LogitsOutput, Pictures


@architecture("resnet")
@dataclass(frozen=True)
class ResNetConfig(Pictures):
    depth: int = 1001  # 9 × blocks in a stage + 2
    widths: tuple[int, int, int] = (16, 32, 64)  # of the 3×3 convolutions; the blocks hand on four times as many

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.depth < 11 or (self.depth - 2) % 9:
            raise InputError(f"model.depth is {self.depth}, but it must be 2 + 9 n: 11, 20, 29, …")

    def build(self) -> ResNet:
        return ResNet(self)


@model("resnet-1001")
def resnet_1001(classes: int, channels: int, height: int, width: int) -> ResNetConfig:
    """Pre-activation ResNet-1001: 10.2M parameters, plus 0.15M in batch norms."""
    return ResNetConfig(classes, channels, height, width)


class Bottleneck(nn.Module):
    """x + (BN, ReLU, 1×1; BN, ReLU, 3×3; BN, ReLU, 1×1)(x)"""

    def __init__(self, channels: int, width: int, stride: int):
        super().__init__()
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, width, 1, stride, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm3 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        changes = stride > 1 or channels != 4 * width
        self.shortcut = nn.Conv2d(channels, 4 * width, 1, stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu_(self.norm1(x))
        shortcut = self.shortcut(y) if self.shortcut else x
        y = F.relu_(self.norm2(self.conv1(y)))
        y = F.relu_(self.norm3(self.conv2(y)))
        return shortcut + self.conv3(y)


class ResNet(Baseline):
    def __init__(self, config: ResNetConfig | None = None):
        super().__init__()
        self.config = config = config or ResNetConfig()
        channels = config.widths[0]
        self.conv = nn.Conv2d(config.channels, channels, 3, padding=1, bias=False)
        self.blocks = nn.Sequential()
        for stage, width in enumerate(config.widths):
            for block in range((config.depth - 2) // 9):
                self.blocks.append(Bottleneck(channels, width, 2 if stage > 0 and block == 0 else 1))
                channels = 4 * width
        self.norm = nn.BatchNorm2d(channels)
        self.linear = nn.Linear(channels, config.classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.linear.bias)

    def forward(self, images: Tensor) -> LogitsOutput:
        x = self.blocks(self.conv(images))  # (m, 256, 8, 8)
        return LogitsOutput(self.linear(F.relu_(self.norm(x)).mean((2, 3))))
