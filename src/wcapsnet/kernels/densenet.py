"""The forward pass of `baselines/densenet.py`, its dense blocks computed by CUDA."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..baselines.common import LogitsOutput
from ..baselines.densenet import DenseLayer, DenseNet, Transition
from .compile import Unavailable
from .dense_block import MOST_LAYERS, FusedDenseBlock, dense_block
from .forward import Fused
from .images import FusedInit, first_convolution
from .prepare import Prepared
from .supports import EPSILON, exactly


class FusedDenseNet(Fused):
    def __init__(self, network: DenseNet):
        super().__init__()
        check_network(network)
        config = network.config
        height, width = config.height, config.width
        self.init = FusedInit(network.init_conv, height, width, self.zeros)
        blocks: Any = network.blocks
        transitions: Any = network.transitions
        behind = [*((one.norm, one.conv.weight) for one in transitions), (network.norm, network.linear.weight)]
        self.blocks = []
        for block, (norm, weight) in zip(blocks, behind, strict=True):
            self.blocks.append(FusedDenseBlock(block, norm, weight, height, width, self.aside, self.zeros))
            height, width = height // 2, width // 2
        self.entries = [self.init.entry, *(entry for block in self.blocks for entry in block.entries)]
        self.init.layer.check(config.width)
        for one in self.blocks:
            one.check()
        # The kernels do not count their batches.
        norms: list[Any] = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
        self.counts = [norm.num_batches_tracked for norm in norms]

    def __call__(self, network: DenseNet, images: Tensor) -> LogitsOutput:
        output: LogitsOutput = super().__call__(network, images)
        if network.training and self.serves(network, images):
            torch._foreach_add_(self.counts, 1)
        return output

    def _rehearsal(self, network: DenseNet, images: Tensor) -> None:
        logits = self._run(network, images).logits
        if network.training:
            torch.autograd.grad(logits, list(network.parameters()), torch.zeros_like(logits))

    def _run(self, network: DenseNet, images: Tensor) -> LogitsOutput:
        training = network.training
        self.zeros.begin(images.device)
        prepared = Prepared(self.entries, training, images.device)
        sums: Tensor | None
        x, sums = first_convolution(self.init, images, training, prepared)  # (chunk, m, position, 8)
        *first, last = self.blocks
        for block in first:
            z = dense_block(block, x, sums, training, prepared)  # (m, position, channel)
            x, sums = _pooled(z.unflatten(1, (block.height, block.width))), None
        z = dense_block(last, x, sums, training, prepared)
        # The mean over positions and the last layer change places: both are linear.
        return LogitsOutput(z[..., : network.config.classes].float().mean(1) + network.linear.bias)


def check_network(network: DenseNet) -> None:
    """Raise `Unavailable` unless this is the published network with a growth that the kernels support."""
    exactly(network, DenseNet)
    exactly(network.init_conv, nn.Conv2d)
    exactly(network.linear, nn.Linear)
    for block in network.blocks:
        exactly(block, nn.Sequential)
    layers: Any = [layer for block in network.blocks for layer in block]  # type: ignore[attr-defined]
    for kind, found in ((DenseLayer, layers), (Transition, network.transitions)):
        for one in found:
            exactly(one, kind)
    modules: list[Any] = list(network.modules())
    for module in modules:
        if isinstance(module, nn.BatchNorm2d):
            exactly(module, nn.BatchNorm2d)
            if module.eps != EPSILON or module.momentum is None:
                raise Unavailable(f"a batch norm has ε = {module.eps:g} and momentum {module.momentum}")
        elif isinstance(module, nn.Conv2d):
            exactly(module, nn.Conv2d)
    if network.config.growth % 4:
        raise Unavailable(f"model.growth is {network.config.growth}, but it must be a multiple of 4")
    if len(layers) > 3 * MOST_LAYERS:
        raise Unavailable(f"a dense block has {len(layers) // 3} layers, more than {MOST_LAYERS}")


def _pooled(z: Tensor) -> Tensor:
    """The mean over 2×2 positions: (m, i, j, channel) → (chunk, m, position, 8)"""
    height, width = z.shape[1] // 2, z.shape[2] // 2
    z = z[:, : 2 * height, : 2 * width].unflatten(2, (width, 2)).unflatten(1, (height, 2))
    return z.mean((2, 4)).flatten(1, 2).unflatten(2, (-1, 8)).permute(2, 0, 1, 3).contiguous()
