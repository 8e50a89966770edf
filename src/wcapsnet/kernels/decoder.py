"""The decoder's two transposed convolutions on the kernels; its norms and the linear layer are PyTorch's."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..network import BestCapsule
from ..network.decoder import Decoder
from .aside import Aside
from .critic import BIASED, convolution, launch, map_input, weigh
from .layout import STRUCTURES, Layer, build, map_layout, tiling
from .prepare import Entry, Prepared, Zeros, gather


class FusedTransposed:
    """A transposed convolution of stride 2, (m, position, channel) → (m, 4·position, channel): the way back through the
    convolution of stride 2 that has the same weights."""

    def __init__(self, conv: nn.ConvTranspose2d, height: int, width: int, aside: Aside, zeros: Zeros):
        self.aside, self.zeros = aside, zeros
        self.conv, self.size, self.size_out = conv, (height, width), (2 * height, 2 * width)
        read, self.channels, kernel, _ = conv.weight.shape
        self.layer = Layer(-(-self.channels // 8) * 8, 8, 0, read, kernel, 1, 2)
        self.entry = Entry(conv.weight, self.layer, channels=self.channels, transposed=True)

    def forward(self, x: Tensor, prepared: Prepared) -> Tensor:
        layer, file = self.layer, "convolve.cu"
        y = torch.empty((x.shape[0], 4 * x.shape[1], layer.before), dtype=torch.bfloat16, device=x.device)
        read = Layer(layer.out, 8, 0, layer.chunks * 8, layer.kernel, layer.pad, 1)
        columns = min(layer.chunks, 4)
        groups = -(-layer.chunks // columns)
        tile = tiling(x.shape[0], *self.size, layer.taps, groups, read.pitch)
        arguments = build(
            STRUCTURES[file]["Convolve"],
            **{"in": map_input(file, x, read, self.size)},
            out=map_layout(y).view(file),
            weights=prepared.transposed(self.conv.weight),
            out_chunks=layer.chunks,
            out_height=self.size_out[0],
            out_width=self.size_out[1],
            out_place_chunks=layer.before // 8,
            bias=self.conv.bias,
            out_channels=self.channels,
        )
        launch(tile, read, 0, columns, groups, layer.stride, BIASED, arguments)
        return y

    def backward(self, x: Tensor, prepared: Prepared, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        dx = torch.empty_like(x)
        convolution(dy, dx, self.layer, self.size_out, self.size, prepared.forward(self.conv.weight))
        sums = self.zeros(self.layer.sums_size, dy.device)
        dw, db = torch.empty_like(self.conv.weight), torch.empty(self.channels, device=dy.device)
        with self.aside.work(dy, x, sums):
            weigh(dy, x, self.layer, self.size_out, self.size, sums.data_ptr())
            gather([self.entry], [sums.data_ptr()], [dw])
            torch.sum(dy[..., : self.channels], (0, 1), dtype=torch.float32, out=db)
        return dx, dw, db


class _Transposed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, conv: FusedTransposed, x: Tensor, prepared: Prepared, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.conv, ctx.x, ctx.prepared = conv, x, prepared
        return conv.forward(x, prepared)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        dx, dw, db = ctx.conv.backward(ctx.x, ctx.prepared, gradients[0].contiguous())
        return None, dx, None, dw, db


class FusedDecoder:
    def __init__(self, decoder: Decoder, aside: Aside, zeros: Zeros):
        self.decoder = decoder
        _, height, width = decoder.patch
        self.convolutions = (
            FusedTransposed(decoder.conv1, height, width, aside, zeros),
            FusedTransposed(decoder.conv2, 2 * height, 2 * width, aside, zeros),
        )

    def __call__(self, best: BestCapsule, training: bool, prepared: Prepared) -> Tensor:
        decoder = self.decoder
        first, height, width = decoder.patch
        x = decoder.linear(torch.cat([best.vector, best.position], dim=1))
        x = x.to(torch.bfloat16).view(-1, first, height * width).mT.contiguous()  # (m, position, channel)
        for norm, conv in zip((decoder.norm1, decoder.norm2), self.convolutions, strict=True):
            x = F.relu(norm(x.flatten(0, 1))).view(x.shape)
            if training:
                x = _Transposed.apply(conv, x, prepared, conv.conv.weight, conv.conv.bias)
            else:
                x = conv.forward(x, prepared)
        images = x.unflatten(1, conv.size_out).permute(0, 3, 1, 2)
        return images[:, : conv.channels, : decoder.height, : decoder.width]
