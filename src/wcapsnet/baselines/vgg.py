"""VGG-19 (Simonyan, Zisserman: Very Deep Convolutional Networks, 2015) with batch norm, in its form for CIFAR.

Table V: CIFAR-10 93.66 %, CIFAR-100 73.26 %, 20M parameters. This is the baseline of Liu et al. (Learning Efficient
Convolutional Networks through Network Slimming, 2017): sixteen 3×3 convolutions, and one linear layer in place of VGG's
three; the scales of batch norm start at 0.5. Left open, and decided here: convolutions have no bias, which batch norm
would cancel; for images of any size, the last map is averaged (at 32×32, it has a single position).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import InputError
from ..parts import architecture, model
from .common import Baseline, LogitsOutput, Pictures


@architecture("vgg")
@dataclass(frozen=True)
class VGGConfig(Pictures):
    widths: tuple[int, ...] = (64, 128, 256, 512, 512)  # of the stages, each followed by 2×2 max pooling
    layers: tuple[int, ...] = (2, 2, 4, 4, 4)  # in each stage

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.widths or len(self.widths) != len(self.layers):
            raise InputError(
                f"model.widths and model.layers have {len(self.widths)} and {len(self.layers)} entries, but they must "
                "have one for each stage."
            )

    def build(self) -> VGG:
        return VGG(self)


@model("vgg-19")
def vgg_19(classes: int, channels: int, height: int, width: int) -> VGGConfig:
    """VGG-19 with batch norm: 20M parameters."""
    return VGGConfig(classes, channels, height, width)


class VGG(Baseline):
    def __init__(self, config: VGGConfig | None = None):
        super().__init__()
        self.config = config = config or VGGConfig()
        self.stages, channels = nn.ModuleList(), config.channels
        for width, layers in zip(config.widths, config.layers, strict=True):
            stage = nn.Sequential()
            for _ in range(layers):
                stage.extend([nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()])
                channels = width
            self.stages.append(stage)
        self.linear = nn.Linear(channels, config.classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, nn.BatchNorm2d):
                nn.init.constant_(module.weight, 0.5)

    def forward(self, images: Tensor) -> LogitsOutput:
        x = images
        for stage in self.stages:
            x = F.max_pool2d(stage(x), 2, ceil_mode=True)  # (m, 512, 1, 1) at last
        return LogitsOutput(self.linear(x.mean((2, 3))))
