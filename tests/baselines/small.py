"""Every registered model, small enough to train on a CPU in a second."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import wcapsnet
from wcapsnet.engine import Engine
from wcapsnet.network import Level
from wcapsnet.objective import PAPER, Objective, Terms, objective

_LEVELS = (Level(3, 2, 6, 2), Level(2, 2, 4, 2))
_WCAPSNET = {"levels": _LEVELS, "init_channels": 4, "dense_layers": 2, "critic_channels": 3, "decoder_channels": (4, 5)}
_CAPSNET = {"conv_channels": 12, "types": 3, "primary_dimension": 4, "class_dimension": 5}
_DEEPCAPS = {"conv_channels": 12, "types": 4, "dimensions": (3, 4, 4, 4), "class_dimension": 6}
_SELF_ROUTING = {"widths": (6, 8, 10), "blocks": 1, "capsules": 4, "dimension": 5}

SMALL: dict[str, dict[str, Any]] = {
    "attention-routing": {"widths": (6, 8), "blocks": (1, 1), "capsules": 4, "pose": 3},
    "capsnet": _CAPSNET,
    "capsnet-cifar": _CAPSNET,
    "deepcaps": _DEEPCAPS,
    "deepcaps-64": _DEEPCAPS,
    "densenet-bc-100": {"depth": 16, "growth": 4},
    "densenet-bc-250": {"depth": 10, "growth": 6},
    "efficient-capsnet": {"widths": (6, 6, 6, 48)},
    "resnet-1001": {"depth": 20, "widths": (4, 6, 8)},
    "sr-capsnet": _SELF_ROUTING,
    "sr-capsnet-2": _SELF_ROUTING,
    "vgg-19": {"widths": (6, 8, 8, 10, 10), "layers": (1, 1, 1, 1, 1)},
    "wcapsnet": _WCAPSNET,
    "wcapsnet-plus": _WCAPSNET,
    "wcapsnet-quick": _WCAPSNET,
    "wcapsnet-small": _WCAPSNET,
}


def small(name: str, classes: int = 3, channels: int = 1, size: tuple[int, int] = (20, 20)) -> Any:
    torch.manual_seed(0)
    return wcapsnet.create(name, classes=classes, channels=channels, size=size, **SMALL[name])


def batch(network: Any, count: int = 6, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Images told apart by which third is bright, and their labels"""
    config, generator = network.config, torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    images = 0.3 * torch.rand(count, config.channels, config.height, config.width, generator=generator)
    for m, label in enumerate(labels.tolist()):
        images[m, :, label * config.height // 3 : (label + 1) * config.height // 3] += 0.6
    return images, labels


def loss(network: Any, images: Tensor, labels: Tensor) -> Terms:
    """As in training on a folder of pictures"""
    weights = Objective(getattr(network.config, "terms", PAPER))
    return objective(Engine(network).forward(images, labels), images, labels, weights)


def shaken(network: nn.Module) -> nn.Module:
    """Parameters that start at zero are moved away from it: behind them no gradient flows in the first step."""
    with torch.no_grad():
        for p in network.parameters():
            if not p.any():
                p.normal_(std=0.1)
    return network
