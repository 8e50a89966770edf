"""A loop over the capsules of a level: the obvious implementation, and the baseline for all others."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..network import WCapsNet
from ..network.capsules import CapsuleBlocks, ConvPlus
from ..network.per_capsule import BatchNorm, shared_over_capsules


class LoopedBlocks(nn.Module):
    """Computes the same as `blocks`, with its parameters and statistics, in a loop over its capsules.

    Weights are split once per layer, not once per capsule, so that the loop costs no more than a list of modules with
    separate weights.
    """

    def __init__(self, blocks: CapsuleBlocks):
        super().__init__()
        self.blocks = blocks

    def forward(self, x: Tensor) -> Tensor:
        dense, trans, n = self.blocks.dense, self.blocks.trans, self.blocks.capsules
        if self.blocks.pool > 1:
            x = F.max_pool2d(x, self.blocks.pool, ceil_mode=True)
        shortcuts = [None] * n if isinstance(dense.shortcut, nn.Identity) else dense.shortcut.weight.unbind()
        layers = [_apart(layer) for layer in (*dense.layers, trans.conv_plus)]
        vectors = [_capsule(x, shortcut, [layer[at] for layer in layers]) for at, shortcut in enumerate(shortcuts)]
        return trans.nonlinearity(shared_over_capsules(trans.norm, torch.stack(vectors, 1)))


class _Layer:
    """conv+ of one capsule."""

    def __init__(self, plus: ConvPlus, at: int, kernel: Tensor, gamma: Tensor, beta: Tensor):
        self.norm: BatchNorm = plus.norm
        self.at, self.kernel, self.gamma, self.beta = at, kernel, gamma, beta
        self.stride, self.padding = plus.conv.stride, plus.conv.kernel // 2

    def __call__(self, x: Tensor) -> Tensor:
        norm = self.norm
        estimate = norm.training and x.numel() > x.shape[1]
        mean, var = norm.running_mean[self.at], norm.running_var[self.at]
        y = F.batch_norm(x, mean, var, self.gamma, self.beta, estimate, norm.momentum, norm.eps)
        return F.conv2d(F.relu(y), self.kernel, None, self.stride, self.padding)


def _apart(plus: ConvPlus) -> list[_Layer]:
    parts = zip(plus.conv.weight.unbind(), plus.norm.weight.unbind(), plus.norm.bias.unbind(), strict=True)
    return [_Layer(plus, at, *weights) for at, weights in enumerate(parts)]


def _capsule(x: Tensor, shortcut: Tensor | None, layers: list[_Layer]) -> Tensor:
    first, *rest, to_vectors = layers
    new = first(x)
    if shortcut is not None:
        stride = first.stride
        x = F.conv2d(F.pad(x, (0, -x.shape[3] % stride, 0, -x.shape[2] % stride)), shortcut, None, stride)
    x = torch.cat([x, new], 1)
    for layer in rest:
        x = torch.cat([x, layer(x)], 1)
    return to_vectors(x)


def looped(network: WCapsNet) -> WCapsNet:
    """The same network, with its levels now computed by loops."""
    network.capsules = nn.ModuleList(LoopedBlocks(blocks) for blocks in network.capsules)  # type: ignore[arg-type]
    return network
