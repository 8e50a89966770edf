"""Sections III-A and IV-A: a level as a loop over its capsule blocks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .compare import Tensors, Twin, norm_tensors, per_capsule, prefixed


def squash_twin(x: Tensor) -> Tensor:
    """Eq. 1 for one vector, element by element."""
    squared = sum(element * element for element in x)
    if squared.item() == 0:
        return x * 0
    length = squared**0.5
    return torch.stack([squared / (1 + squared) * element / length for element in x])


def tilt_twin(x: Tensor) -> Tensor:
    """Eq. 2 for one vector, element by element."""
    exponentials = [element.exp() for element in x]
    total = sum(exponentials)
    return torch.stack([0.5 * (1 + e / total) * element for e, element in zip(exponentials, x, strict=True)])


def at_every_position(function, x: Tensor) -> Tensor:
    """(m, k, i, j): the vectors x[m, :, i, j] one by one."""
    return torch.stack(
        [
            torch.stack(
                [
                    torch.stack([function(image[:, i, j]) for j in range(image.shape[2])], 1)
                    for i in range(image.shape[1])
                ],
                1,
            )
            for image in x
        ]
    )


class BlockTwin(nn.Module):
    """One capsule: a Dense Block and the conv+ of its CapsTrans layer. Knows nothing of other capsules."""

    def __init__(self, channels: int, growth: int, layers: int, dimension: int, stride: int):
        super().__init__()
        self.stride = stride
        # "a shortcut convolution layer with a kernel size equal to its stride"
        self.shortcut = nn.Conv2d(channels, channels, stride, stride, bias=False) if stride > 1 else None
        self.norms, self.convs = nn.ModuleList(), nn.ModuleList()
        for layer in range(layers):
            width = channels + layer * growth
            self.norms.append(nn.BatchNorm2d(width))
            # "we reduce the spatial dimension of the input within the first layer of the Dense Blocks"
            self.convs.append(nn.Conv2d(width, growth, 3, stride if layer == 0 else 1, padding=1, bias=False))
        self.trans_norm = nn.BatchNorm2d(channels + layers * growth)
        self.trans_conv = nn.Conv2d(channels + layers * growth, dimension, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        kept = x
        if self.shortcut is not None:
            bottom, right = -x.shape[2] % self.stride, -x.shape[3] % self.stride
            kept = self.shortcut(F.pad(x, (0, right, 0, bottom)))
        for layer, (norm, conv) in enumerate(zip(self.norms, self.convs, strict=True)):
            new = conv(norm(x if layer == 0 else kept).relu())
            kept = torch.cat([kept, new], 1)
        return self.trans_conv(self.trans_norm(kept).relu())

    def tensors(self) -> Tensors:
        named: Tensors = {}
        if self.shortcut is not None:
            named["dense.shortcut.weight"] = self.shortcut.weight
        for layer, (norm, conv) in enumerate(zip(self.norms, self.convs, strict=True)):
            named |= prefixed(f"dense.layers.{layer}.norm", norm_tensors(norm))
            named[f"dense.layers.{layer}.conv.weight"] = conv.weight
        named |= prefixed("trans.conv_plus.norm", norm_tensors(self.trans_norm))
        named["trans.conv_plus.conv.weight"] = self.trans_conv.weight
        return named


class LevelTwin(Twin):
    """N blocks in a loop; the batch norm before the non-linearity is one, over the vectors of all of them (D4)."""

    def __init__(self, capsules, channels, growth, layers, dimension, stride, nonlinearity: str):
        super().__init__()
        self.blocks = nn.ModuleList(BlockTwin(channels, growth, layers, dimension, stride) for _ in range(capsules))
        self.norm = nn.BatchNorm2d(dimension)
        self.nonlinearity = {"tilt": tilt_twin, "squash": squash_twin}[nonlinearity]

    def forward(self, x: Tensor) -> Tensor:
        vectors = [block(x) for block in self.blocks]
        normed = self.norm(torch.cat(vectors)).split(len(x))
        return torch.stack([at_every_position(self.nonlinearity, one) for one in normed], 1)

    def tensors(self) -> Tensors:
        named = per_capsule("", [block.tensors() for block in self.blocks])
        named = {name.lstrip("."): tensors for name, tensors in named.items()}
        return named | prefixed("trans.norm", norm_tensors(self.norm))
