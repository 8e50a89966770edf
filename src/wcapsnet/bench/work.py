"""The work per image: multiply-adds, values that convolutions read and write, and memory kept for the gradient."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..network import WCapsNet
from ..network.critic import SpectralConv2d
from ..network.per_capsule import PerCapsuleConv2d
from ..training.evaluate import evaluating

LAYERS = (nn.Conv2d, nn.ConvTranspose2d, nn.Linear, PerCapsuleConv2d, SpectralConv2d)
BYTES = {"fp32": 4, "bf16": 2}
TRAINING = 3  # a layer's forward pass, the gradient of its input and the gradient of its weights cost the same


class Work(NamedTuple):
    """Forward work for one image."""

    macs: int  # multiply-adds of all layers that have weights, and of the routing
    values: int  # values read and written if each layer reads its input and writes its output once

    def __add__(self, other: tuple[int, ...]) -> Work:  # type: ignore[override]  # sums, not concatenation
        return Work(self.macs + other[0], self.values + other[1])


def work_of(network: nn.Module, channels: int, height: int, width: int) -> dict[str, Work]:
    """The work of each part of the network, counted by passing an image through it on the CPU."""
    parts: dict[str, Work] = {}

    def count(name: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
            # Every weight is applied at every position of the output; for a transposed convolution, of the input.
            at = inputs[0] if isinstance(module, nn.ConvTranspose2d) else output
            positions = 1 if isinstance(module, nn.Linear) else at.shape[0] * math.prod(at.shape[-2:])
            added = Work(
                module.weight.numel() * positions,  # type: ignore[operator]
                inputs[0].numel() + output.numel(),
            )
            parts[name] = parts.get(name, Work(0, 0)) + added

        return hook

    hooks = [
        module.register_forward_hook(count(_part(name)))
        for name, module in network.named_modules()
        if isinstance(module, LAYERS)
    ]
    with evaluating(network), torch.no_grad():
        network(torch.zeros(1, channels, height, width))
    for hook in hooks:
        hook.remove()
    if isinstance(network, WCapsNet):
        parts["routing"] = _routing(network)
    return parts


def total(parts: dict[str, Work]) -> Work:
    return sum(parts.values(), Work(0, 0))


def multiply_adds(network: nn.Module) -> int:
    """Of one image in evaluation: all convolutions and matrix products, routing included; nothing that is elementwise.

    `work_of` splits WCapsNet's into parts and counts layers alone; this counts any network, as PyTorch executes it.
    """
    from torch.utils.flop_counter import FlopCounterMode  # imports slowly

    config: Any = network.config
    with evaluating(network), torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(torch.zeros(1, config.channels, config.height, config.width))
    return int(counter.get_total_flops()) // 2


def kept_for_gradient(network: nn.Module) -> int:
    """Bytes that a forward pass in training keeps for each image, in float32 and with plain PyTorch.

    The difference between batches of three and one, so without parameters. What a step needs only for a while, such as
    the gradients themselves, comes on top.
    """
    one, three = (_kept(network, images) for images in (1, 3))
    return (three - one) // 2


def _kept(network: nn.Module, images: int) -> int:
    config: Any = network.config
    storages: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = network(torch.rand(images, config.channels, config.height, config.width))
    del output  # kept alive until here so that no address is reused
    return sum(storages.values())


def _part(name: str) -> str:
    """capsules.0.dense.layers.1.conv → level 1, routers.0.critic.layers.2 → critic 1, else the first name"""
    first, *rest = name.split(".")
    numbered = {"capsules": "level", "routers": "critic", "blocks": "block", "transitions": "transition"}
    return f"{numbered[first]} {int(rest[0]) + 1}" if first in numbered else first


def _routing(network: WCapsNet) -> Work:
    """Eq. 13 for every feature level, Eq. 14 for the last"""
    config = network.config
    macs = values = 0
    for level, (height, width) in zip(config.levels, config.maps(), strict=True):
        vectors = level.capsules * level.dimension * height * width
        macs, values = macs + vectors, values + vectors
    return Work(macs + config.levels[-1].dimension * config.outputs, values)
