"""Input: a batch with augmentation, and the first convolution."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..data.device_data import DeviceSplit
from .compile import Kernel, structures
from .critic import convolution, weigh
from .layout import MULTIPROCESSORS, STRUCTURES, Layer, SumsAt, build
from .prepare import Entry, Prepared, Zeros, gather

STRUCTURES["images.cu"] = structures("images.cu")


def take(data: DeviceSplit, index: Tensor, mirroring: bool, shifting: int) -> tuple[Tensor, Tensor]:
    """`DeviceSplit.take`, mirroring with probability ½ and shifting, in one launch."""
    m, (channels, height, width) = len(index), data.images.shape[1:]
    images = torch.empty((m, channels, height, width), device=index.device)
    labels = torch.empty(m, dtype=torch.int64, device=index.device)
    seed = draw(index.device)
    arguments = build(
        STRUCTURES["images.cu"]["Images"],
        data=data.images,
        labels=data.labels,
        index=index,
        mean=data.mean,
        std=data.std,
        images=images,
        chosen=labels,
        channels=channels,
        height=height,
        width=width,
        mirror=mirroring,
        shift=shifting,
        seed=seed,
    )
    Kernel("images.cu", "take")((m, 1, 1), 256, 0, arguments)
    return images, labels


def draw(device: torch.device) -> Tensor:
    """A seed for the kernels' own random numbers, drawn from PyTorch's, so that both are reproducible together."""
    return torch.randint(-(2**63), 2**63 - 1, (1,), device=device)


class FusedInit:
    """The first convolution: images → (chunk, m, position, 8) with the sums of every channel."""

    def __init__(self, conv: nn.Conv2d, height: int, width: int, zeros: Zeros):
        self.conv, self.size, self.zeros = conv, (height, width), zeros
        out, channels, kernel, _ = conv.weight.shape
        self.channels = channels
        self.layer = Layer(-(-channels // 8) * 8, 8, 0, out, kernel, kernel // 2, 1)
        self.entry = Entry(conv.weight, self.layer, channels=channels)

    def forward(self, images: Tensor, prepared: Prepared) -> tuple[Tensor, Tensor, Tensor]:
        m, layer, device = images.shape[0], self.layer, images.device
        positions, chunks = self.size[0] * self.size[1], layer.before // 8
        x = torch.empty((m, positions, layer.before), dtype=torch.bfloat16, device=device)
        arguments = build(
            STRUCTURES["images.cu"]["Chunks"],
            images=images,
            x=x,
            channels=self.channels,
            positions=positions,
            chunks=chunks,
        )
        parts = max(1, min(-(-positions * chunks // 256), 8 * MULTIPROCESSORS // m))
        Kernel("images.cu", "to_chunks")((m, parts, 1), 256, 0, arguments)
        y = torch.empty((layer.out_chunks, m, positions, 8), dtype=torch.bfloat16, device=device)
        sums = self.zeros(2 * layer.out, device).view(2, -1)
        convolution(
            x, y, layer, self.size, self.size, prepared.forward(self.conv.weight),
            sums=SumsAt(sums[0].data_ptr(), sums[1].data_ptr(), 0),
        )  # fmt: skip
        return y, sums, x

    def backward(self, x: Tensor, dy: Tensor) -> Tensor:
        sums = self.zeros(self.layer.sums_size, dy.device)
        weigh(x, dy, self.layer, self.size, self.size, sums.data_ptr())
        dw = torch.empty_like(self.conv.weight)
        gather([self.entry], [sums.data_ptr()], [dw])
        return dw


class _Init(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, init: FusedInit, images: Tensor, prepared: Prepared, weight: Tensor) -> tuple[Tensor, Tensor]:
        y, sums, x = init.forward(images, prepared)
        ctx.init, ctx.x = init, x
        ctx.mark_non_differentiable(sums)
        return y, sums

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, None, ctx.init.backward(ctx.x, gradients[0].contiguous())


def first_convolution(init: FusedInit, images: Tensor, training: bool, prepared: Prepared) -> tuple[Tensor, Tensor]:
    images = images.float().contiguous()
    if training:
        return _Init.apply(init, images, prepared, init.conv.weight)
    y, sums, _ = init.forward(images, prepared)
    return y, sums
