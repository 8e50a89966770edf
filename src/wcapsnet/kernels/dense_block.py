"""A dense block of DenseNet-BC and the norm, ReLU and 1×1 convolution behind it, forward and backward, as CUDA kernels
(reference: baselines/densenet.py).

All channels of the block are in one buffer (chunk, m, n = 1, position, 8), so that concatenation is a write. Their sums
are computed once, by the kernel that produces them. The gradient G of all channels (formula: pull.cu) is a second such
buffer: every layer adds its part, last to first, and what a layer has grown is finished when its turn comes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .layout import (
    AS_IT_IS,
    NORMED,
    STRUCTURES,
    Layer,
    SumsAt,
    Where,
    build,
    grown_layout,
    map_layout,
    means,
    norm_arguments,
    tiling,
)
from .level import add_up, finish, launch_convolve, launch_weigh
from .prepare import Entry, Prepared, Zeros, gather
from .side_stream import Aside

MOST_LAYERS = 19  # the convolution behind the block reads its first channels too: LAYERS in the source is 20


class Convolution:
    """Norm, ReLU, convolution."""

    def __init__(self, norm: nn.BatchNorm2d, weight: nn.Parameter, layer: Layer):
        self.norm, self.weight, self.layer = norm, weight, layer
        self.back = Layer(layer.out, 8, 0, layer.chunks * 8, layer.kernel, layer.pad, 1)  # its data gradient
        self.entry = Entry(weight, layer, transposed=True)
        self.groups = -(-layer.out_chunks // 8)  # chunks of output that are computed at once: at most eight
        self.columns = -(-layer.out_chunks // self.groups)


class Maps(NamedTuple):
    """Channels that a convolution reads, (chunk, m, 1, position, 8), and their Σ and Σ² (2, channel)."""

    data: Tensor
    sums: Tensor

    def sums_of(self, chunk: int = 0) -> SumsAt:
        """From this chunk on"""
        at, half = self.sums.data_ptr() + 32 * chunk, 4 * self.sums.shape[1]
        return SumsAt(at, at + half, 0)


class FusedDenseBlock:
    def __init__(
        self, block: nn.Sequential, norm: Any, weight: nn.Parameter, height: int, width: int,
        aside: Aside | None = None, zeros: Zeros | None = None,
    ):  # fmt: skip
        self.aside, self.zeros = aside or Aside(), zeros or Zeros()
        layers: Any = list(block)
        self.height, self.width, self.depth = height, width, len(layers)
        self.channels, self.growth = layers[0].norm1.num_features, layers[0].conv2.out_channels
        inside = layers[0].conv1.out_channels
        self.wide = [
            Convolution(one.norm1, one.conv1.weight, Layer(self.channels, self.growth, index, inside, 1, 0, 1))
            for index, one in enumerate(layers)
        ]
        self.narrow = [
            Convolution(one.norm2, one.conv2.weight, Layer(inside, 8, 0, self.growth, 3, 1, 1)) for one in layers
        ]
        self.head = Convolution(norm, weight, Layer(self.channels, self.growth, self.depth, len(weight), 1, 0, 1))
        pairs = zip(self.wide, self.narrow, strict=True)
        self.convolutions = [*(one for pair in pairs for one in pair), self.head]
        self.entries = [one.entry for one in self.convolutions]
        self.first = self.head.layer.before_chunks  # chunks from before the block
        self.grown = self.head.layer.grown_chunks  # chunks a layer grows

    def parameters(self) -> list[nn.Parameter]:
        return [p for one in self.convolutions for p in (one.norm.weight, one.norm.bias, one.weight)]

    def check(self) -> None:
        """Whether the tiles of all convolutions fit into shared memory."""
        for one in self.convolutions:
            one.layer.check(self.width)
            one.back.check(self.width)

    # ── forward ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def forward(
        self, x: Tensor, x_sums: Tensor | None, training: bool, prepared: Prepared
    ) -> tuple[Tensor, tuple[Maps, list[Maps], Prepared]]:
        """x (chunk, m, position, 8) and, if known, its sums (2, channel) → z (m, position, channel of whole chunks)"""
        block, inside = self._maps(x, self.head.layer.chunks), []
        block.data[: self.first] = x.unsqueeze(2)
        if training:
            block.sums[:, : 8 * self.first] = add_up(x, self.zeros) if x_sums is None else x_sums
        for index, (wide, narrow) in enumerate(zip(self.wide, self.narrow, strict=True)):
            y, at = self._maps(x, wide.layer.out_chunks), self.first + index * self.grown
            self._convolve(wide, block, grown_layout(y.data), y.sums_of(), training, prepared)
            self._convolve(narrow, y, grown_layout(block.data, at), block.sums_of(at), training, prepared)
            inside.append(y)
        z = torch.empty((*x.shape[1:3], 8 * self.head.layer.out_chunks), dtype=torch.bfloat16, device=x.device)
        self._convolve(self.head, block, map_layout(z), None, training, prepared)
        return z, (block, inside, prepared)

    def _maps(self, x: Tensor, chunks: int) -> Maps:
        data = torch.empty((chunks, x.shape[1], 1, *x.shape[2:]), dtype=torch.bfloat16, device=x.device)
        return Maps(data, self.zeros(16 * chunks, x.device).view(2, -1))

    def _input(self, file: str, one: Convolution, read: Maps, training: bool, update: bool) -> Any:
        own, layer = STRUCTURES[file], one.layer
        return build(
            own["Input"],
            before=grown_layout(read.data).view(file),
            grown=grown_layout(read.data, layer.before_chunks).view(file),
            height=self.height,
            width=self.width,
            images=read.data.shape[1],
            channels=layer.before,
            growth=layer.growth,
            chunks=layer.chunks,
            running=not training,
            update=update,
            before_statistics=own["Statistics"](*read.sums_of().addresses()),
            grown_statistics=own["Statistics"](*read.sums_of(layer.before_chunks).addresses()),
            layer_channels=layer.channels,
            count=self._count(read),
            **norm_arguments(one.norm),
        )

    def _count(self, read: Maps) -> int:
        return read.data.shape[1] * self.height * self.width

    def _convolve(
        self, one: Convolution, read: Maps, out: Where, sums: SumsAt | None, training: bool, prepared: Prepared
    ) -> None:
        file, layer = "convolve.cu", one.layer
        tile = tiling(
            read.data.shape[1], self.height, self.width, layer.taps, one.groups, layer.pitch,
            4 if one.columns <= 4 else 2, shift=layer.shift(self.width), beside=layer.beside,
        )  # fmt: skip
        arguments = build(
            STRUCTURES[file]["Convolve"],
            **{"in": self._input(file, one, read, training, update=training)},
            out=out.view(file),
            weights=prepared.forward(one.weight),
            out_chunks=layer.out_chunks,
            **({"out_sum": sums.sum, "out_square": sums.square} if sums and training else {}),
        )
        launch_convolve(tile, layer, layer.low, one.columns, one.groups, 1, AS_IT_IS, arguments, one.norm)

    # ── backward ────────────────────────────────────────────────────────────────────────────────────────────────────

    def backward(self, saved: tuple[Maps, list[Maps], Prepared], dz: Tensor) -> tuple[Tensor, list[Tensor]]:
        """dz (m, position, channel of whole chunks) → dx (chunk, m, position, 8) and the gradients of `parameters()`"""
        block, inside, prepared = saved
        gradients = Gradients(self, dz.device)
        kept = [dz, block.data, block.sums, gradients.sums, *(t for maps in inside for t in maps)]
        count, positions, images = self._count(block), self.height * self.width, len(dz)

        def weigh(one: Convolution, read: Maps, dy: Where, *more: Tensor) -> None:
            """Launched as soon as dy is available: it waits for memory while other kernels compute."""
            with self.aside.work(*kept, *more):
                launch_weigh(
                    one.layer, one.norm, images, (self.height, self.width), 1, 1,
                    **{"in": self._input("weigh.cu", one, read, True, update=False)},
                    dy=dy.view("weigh.cu"), dw=gradients.places[self.convolutions.index(one)],
                )  # fmt: skip

        def through(one: Convolution, read: Maps, dy: Where, g: Tensor, add: bool = False) -> None:
            self._through(one, read, dy, g, add, prepared, gradients.of_norm(one))

        def finished(readers: list[Convolution], read: Maps, g: Tensor, chunk: int, first: int, to: Tensor) -> None:
            """What the norms of the readers leave of G, for the chunks from `chunk` on: their channels from `first`"""
            channels = min(readers[0].layer.channels, self.growth if chunk else readers[0].layer.before)
            of = means(
                "finish.cu", [gradients.reader(one) for one in readers], 1, first, channels, read.sums_of(chunk), count
            )
            finish(
                of, grown_layout(g, chunk), grown_layout(read.data, chunk), grown_layout(to), images, 1, len(to),
                positions,
            )  # fmt: skip

        g = torch.empty_like(block.data)
        weigh(self.head, block, map_layout(dz))
        through(self.head, block, map_layout(dz), g)
        for index in reversed(range(self.depth)):
            wide, narrow, y = self.wide[index], self.narrow[index], inside[index]
            later, chunk = [*self.wide[index + 1 :], self.head], self.first + index * self.grown
            d = torch.empty((self.grown, *g.shape[1:]), dtype=g.dtype, device=g.device)
            finished(later, block, g, chunk, self.channels + index * self.growth, d)
            weigh(narrow, y, grown_layout(d), d)
            of_y, dy = torch.empty_like(y.data), torch.empty_like(y.data)
            through(narrow, y, grown_layout(d), of_y)
            finished([narrow], y, of_y, 0, 0, dy)
            weigh(wide, block, grown_layout(dy), dy)
            through(wide, block, grown_layout(dy), g, add=True)
        dx = torch.empty((self.first, *g.shape[1:]), dtype=g.dtype, device=g.device)
        finished([*self.wide, self.head], block, g, 0, 0, dx)
        with self.aside.work(gradients.sums, gradients.of_matrices):
            gather(self.entries, gradients.places, gradients.views[2::3])
        return dx.squeeze(2), gradients.views

    def _through(
        self, one: Convolution, read: Maps, dy: Where, g: Tensor, add: bool, prepared: Prepared, of_norm: SumsAt
    ) -> None:
        """The gradient behind a convolution, through it, its ReLU and γ, is written or added to g; dβ and dγ to
        `of_norm`."""
        file, own, layer, back = "convolve.cu", STRUCTURES["convolve.cu"], one.layer, one.back
        images = read.data.shape[1]
        groups = -(-layer.chunks // back.columns)
        tile = tiling(
            images, self.height, self.width, back.taps, groups, back.pitch, shift=back.shift(self.width)
        )  # fmt: skip
        arguments = build(
            own["Convolve"],
            **{
                "in": build(
                    own["Input"],
                    before=dy.view(file),
                    height=self.height,
                    width=self.width,
                    images=images,
                    channels=back.before,
                    growth=8,
                    chunks=back.chunks,
                )
            },
            out=grown_layout(g).view(file),
            weights=prepared.transposed(one.weight),
            out_chunks=layer.chunks,
            mask=grown_layout(read.data).view(file),
            mask_statistics=own["Statistics"](*read.sums_of().addresses()),
            mask_gamma=one.norm.weight,
            mask_beta=one.norm.bias,
            mask_count=self._count(read),
            mask_eps=one.norm.eps,
            mask_before=layer.before_chunks,
            mask_channels=layer.before,
            mask_grown=layer.grown_chunks,
            mask_growth=layer.growth,
            add=add,
            out_sum=of_norm.sum,
            out_square=of_norm.square,
        )
        launch_convolve(tile, back, back.low, back.columns, groups, 1, NORMED, arguments)


class Gradients:
    """Gradients of all parameters of a block, initialised with zeros where kernels add to them."""

    def __init__(self, block: FusedDenseBlock, device: torch.device):
        self.block = block
        parameters = block.parameters()
        matrices = [p.numel() if p.dim() > 1 else 0 for p in parameters]  # fully written by `gather`
        vectors = [p.numel() if p.dim() == 1 else 0 for p in parameters]
        self.of_matrices = torch.empty(sum(matrices), device=device)
        of_vectors = block.zeros(sum(vectors), device).split(vectors)
        self.views = [
            (matrix if p.dim() > 1 else vector).view(p.shape)
            for p, matrix, vector in zip(parameters, self.of_matrices.split(matrices), of_vectors, strict=True)
        ]
        sizes = [entry.layer.sums_size for entry in block.entries]
        self.sums = block.zeros(sum(sizes), device)
        self.places, place = [], self.sums.data_ptr()
        for size in sizes:
            self.places.append(place)
            place += 4 * size

    def of_norm(self, one: Convolution) -> SumsAt:
        """Where dβ and dγ are"""
        index = 3 * self.block.convolutions.index(one)
        return SumsAt(self.views[index + 1].data_ptr(), self.views[index].data_ptr(), 0)

    def reader(self, one: Convolution) -> Any:
        dbeta, dgamma, _ = self.of_norm(one).addresses()
        return build(
            STRUCTURES["finish.cu"]["Reader"],
            gamma=one.norm.weight,
            dgamma=dgamma,
            dbeta=dbeta,
            channels=one.layer.channels,
        )


class _DenseBlock(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, block: FusedDenseBlock, x: Tensor, x_sums: Tensor | None, prepared: Prepared, *parameters: Tensor
    ) -> Tensor:
        z, ctx.saved = block.forward(x, x_sums, True, prepared)
        ctx.block = block
        return z

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        dx, of_parameters = ctx.block.backward(ctx.saved, gradients[0].to(torch.bfloat16).contiguous())
        del ctx.saved
        return (None, dx, None, None, *of_parameters)


def dense_block(block: FusedDenseBlock, x: Tensor, x_sums: Tensor | None, training: bool, prepared: Prepared) -> Tensor:
    """x (chunk, m, position, 8) → z (m, position, channel of whole chunks)"""
    if training:
        return _DenseBlock.apply(block, x, x_sums, prepared, *block.parameters())
    return block.forward(x, x_sums, False, prepared)[0]
