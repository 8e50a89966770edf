"""All capsule blocks of a level, forward and backward, as CUDA kernels (reference: network/capsules.py).

Layout: chunks of eight channels. The channels added by a dense block are stored as (chunk, m, n, position, 8) in one
buffer, so that concatenation is a write; data between levels as (chunk, m, position, 8). The statistics of a channel
are computed once, by the kernel that produces it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..network.capsules import CapsuleBlocks
from .compile import LARGEST_SHARED, Kernel, Unavailable, largest_shared
from .layout import (
    MULTIPROCESSORS,
    NORMED,
    NOWHERE,
    STRUCTURES,
    Layer,
    SumsAt,
    Tiling,
    Where,
    build,
    capsule_layout,
    grown_layout,
    map_layout,
    means,
    norm_arguments,
    occupancy,
    registers,
    tiling,
)
from .prepare import PREPARE, Entry, Prepared, Zeros, gather
from .side_stream import Aside
from .supports import SQUASHED

TWO_STAGES = 108 * 1024  # bytes up to which `weigh` uses two buffers: other kernels need shared memory too


class FusedLevel:
    """The kernels of one level: which ones, in which order, on which memory."""

    def __init__(
        self, blocks: CapsuleBlocks, height: int, width: int, aside: Aside | None = None, zeros: Zeros | None = None
    ):
        self.aside, self.zeros = aside or Aside(), zeros or Zeros()
        self.blocks: Any = blocks  # nn.Module types its attributes as Tensor | Module
        first: Any = self.blocks.dense.layers[0].conv
        self.n, self.growth, self.channels = (int(size) for size in first.weight.shape[:3])
        self.stride: int = first.stride
        self.height_in, self.width_in = height, width
        self.height, self.width = -(-height // self.stride), -(-width // self.stride)
        self.positions = self.height * self.width
        self.k: int = self.blocks.trans.conv_plus.conv.weight.shape[1]
        self.squash = SQUASHED[blocks.trans.nonlinearity]
        self.depth = len(self.blocks.dense.layers)
        self.grown_chunks = -(-self.growth // 8)
        self.layers = [
            Layer(self.channels, self.growth, index, self.growth, 3, 1, self.stride if index == 0 else 1)
            for index in range(self.depth)
        ]
        self.trans = Layer(self.channels, self.growth, self.depth, self.k, 1, 0, 1)
        self.shortcut = Layer(self.channels, self.growth, 0, self.channels, self.stride, 0, self.stride)
        self.through_at_once = self._through_at_once()
        convolutions: list[Any] = [layer.conv for layer in self.blocks.dense.layers] + [
            self.blocks.trans.conv_plus.conv
        ]
        layers = [*self.layers, self.trans]
        if self.stride > 1:
            convolutions.append(self.blocks.dense.shortcut)
            layers.append(self.shortcut)
        self.entries = [
            Entry(conv.weight, layer, self.n, backward=layer is not self.shortcut, transposed=layer is self.shortcut)
            for conv, layer in zip(convolutions, layers, strict=True)
        ]
        self.whole = self._whole()

    def parameters(self) -> list[nn.Parameter]:
        """In the order of the gradients returned by `backward`."""
        found = []
        for conv_plus in [*self.blocks.dense.layers, self.blocks.trans.conv_plus]:
            found += [conv_plus.norm.weight, conv_plus.norm.bias, conv_plus.conv.weight]
        found += [self.blocks.trans.norm.weight, self.blocks.trans.norm.bias]
        if self.stride > 1:
            found.append(self.blocks.dense.shortcut.weight)
        return found

    def _whole(self) -> tuple[Kernel, int, int] | None:
        """The kernel that evaluates a whole block, with its threads and shared memory; None if it does not fit."""
        if self.width > 16 or self.depth > 14 or self.k > 64:
            return None
        strips = -(-self.width // 8)
        least = 8 >> min(3, (self.width - 1).bit_length())
        rows = next((rows for rows in ((4, 2) if strips > 1 else (2, 1)) if self.height >= rows), 1)
        if -(-self.height // rows) * strips > 16 or least > 1:
            return None
        units = -(-self.height // rows) * strips
        threads = 32 * max(2, -(-units // 2))
        chunks, patch = self.trans.chunks, self.stride**2
        places = self.positions * (chunks | 1) * 16 + 16
        if self.stride > 1:
            places = max(places, self.positions * (-(-patch // 2) * 2 | 1) * 16)
        norms = sum(layer.even for layer in [*self.layers[1:], self.trans]) + -(-self.channels // 16) * 2
        shared = places + norms * 64
        if shared > largest_shared():
            return None
        defines = {"HEIGHT": self.height, "WIDTH": self.width, "ROWS": rows, "BEFORE": self.channels // 8}
        defines |= {"STRIDE": self.stride, "GROWN": self.grown_chunks, "DEPTH": self.depth, "VECTOR": self.k // 8}
        return (
            Kernel("block.cu", "block", **defines, **occupancy(threads, shared, 128 if rows == 4 else 104)),
            threads,
            shared,
        )

    def _evaluate(self, x: Tensor, prepared: Prepared, kernel: Kernel, threads: int, shared: int) -> Tensor:
        file, own, blocks = "block.cu", STRUCTURES["block.cu"], self.blocks

        def running(norm: Any, channels: int) -> Any:
            return own["Running"](
                norm.weight.data_ptr(),
                norm.bias.data_ptr(),
                norm.running_mean.data_ptr(),
                norm.running_var.data_ptr(),
                channels,
            )

        images = x.shape[1]
        c = torch.empty((images, self.n, self.positions, self.k), dtype=torch.bfloat16, device=x.device)
        norms = [conv_plus.norm for conv_plus in [*blocks.dense.layers, blocks.trans.conv_plus]]
        layers = [*self.layers, self.trans]
        arguments = build(
            own["Block"],
            x=map_layout(x).view(file),
            c=c,
            capsules=self.n,
            height=self.height_in,
            width=self.width_in,
            growth=self.growth,
            norm=[running(norm, layer.channels) for norm, layer in zip(norms, layers, strict=True)],
            weights=[prepared.forward(entry.weight) for entry in self.entries],
            shared=running(blocks.trans.norm, 0),
            eps=blocks.trans.norm.eps,
            squash=self.squash,
        )
        kernel((images, self.n, 1), threads, shared, arguments)
        return c

    def weight_of(self, layer: Layer) -> Tensor:
        return next(entry.weight for entry in self.entries if entry.layer is layer)

    # ── forward ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def forward(
        self, x: Tensor, training: bool, x_sums: Tensor | None = None, prepared: Prepared | None = None
    ) -> tuple[Tensor, Memory | None]:
        """x (chunk, m, position, 8) and, if known, its sums (2, channel) → c (m, n, position, k)"""
        prepared = prepared or Prepared(self.entries, training, x.device)
        if not training and self.whole is not None:
            return self._evaluate(x, prepared, *self.whole), None
        memory = Memory(self, x, training, x_sums, prepared)
        if self.stride > 1:
            self._convolve(memory, self.shortcut, None, memory.base_layout(), memory.base_sums)
        for index, layer in enumerate(self.layers):
            out = grown_layout(memory.grown, index * self.grown_chunks)
            self._convolve(memory, layer, self.blocks.dense.layers[index].norm, out, memory.grown_sums_of(index))
        self._convolve(memory, self.trans, self.blocks.trans.conv_plus.norm, capsule_layout(memory.z), memory.z_sums)
        c = torch.empty_like(memory.z)
        kernel, arguments, threads, grid = self._vectors(memory, "vectors_forward", c=c)
        kernel((grid, 1, 1), threads, 0, arguments)
        return c, memory

    def _input(self, file: str, memory: Memory, layer: Layer, norm: nn.Module | None, update: bool) -> Any:
        """The input of a layer: the level's input if it has a stride or the block has none; then the added channels."""
        own = STRUCTURES[file]
        from_x = layer.stride > 1 or self.stride == 1
        before_sums = memory.x_sums if from_x else memory.base_sums
        return build(
            own["Input"],
            before=(map_layout(memory.x) if from_x else memory.base_layout()).view(file),
            grown=grown_layout(memory.grown).view(file),
            height=self.height_in if layer.stride > 1 else self.height,
            width=self.width_in if layer.stride > 1 else self.width,
            images=memory.images,
            channels=layer.before,
            growth=layer.growth,
            chunks=layer.chunks,
            running=not memory.training,
            update=update,
            before_statistics=own["Statistics"](*before_sums.addresses()),
            grown_statistics=own["Statistics"](*memory.grown_sums.addresses()),
            layer_channels=layer.channels,
            count=memory.images * (self.height_in * self.width_in if layer.stride > 1 else self.positions),
            **({} if norm is None else norm_arguments(norm)),
        )

    def _convolve(self, memory: Memory, layer: Layer, norm: nn.Module | None, out: Where, sums: SumsAt) -> None:
        file = "convolve.cu"
        groups = -(-layer.out_chunks // layer.columns)
        tile = tiling(
            memory.images,
            self.height,
            self.width,
            layer.taps,
            self.n * groups,
            layer.pitch,
            shift=layer.shift(self.width),
        )
        arguments = build(
            STRUCTURES[file]["Convolve"],
            **{"in": self._input(file, memory, layer, norm, update=memory.training)},
            out=out.view(file),
            weights=memory.prepared.forward(self.weight_of(layer)),
            out_chunks=layer.out_chunks,
            out_sum=sums.sum if memory.training else 0,
            out_square=sums.square,
            out_capsule=sums.capsule,
        )
        alike = not layer.earlier and (layer.stride > 1 or self.stride == 1)  # the same input for all capsules
        each = layer.even * 64 if norm else 0
        most = (LARGEST_SHARED - 4096 - tile.positions * layer.pitch) // each if each else 4
        together = next(c for c in (4, 2, 1) if c == 1 or (alike and self.n % c == 0 and c <= most))
        launch_convolve(tile, layer, layer.low, layer.columns, groups, 1, 0, arguments, norm, self.n, together)

    def _vectors(self, memory: Memory, kernel: str, **more: Any) -> tuple[Kernel, Any, int, int]:
        lanes = 1 << (self.k // 8 - 1).bit_length()
        vectors = memory.images * self.n * self.positions
        arguments = build(
            STRUCTURES["vectors.cu"]["Vectors"],
            z=memory.z,
            vectors=vectors,
            squash=self.squash,
            norm=1 if memory.training else 2,
            statistics=STRUCTURES["vectors.cu"]["Statistics"](*memory.z_sums.addresses()),
            count=vectors,
            **norm_arguments(self.blocks.trans.norm),
            **more,
        )
        grid = max(1, min(4 * MULTIPROCESSORS, -(-vectors * lanes // 256)))
        return Kernel("vectors.cu", kernel, LANES=lanes, CHUNKS=self.k // 8), arguments, 256, grid

    # ── backward ────────────────────────────────────────────────────────────────────────────────────────────────────

    def backward(self, memory: Memory, dc: Tensor) -> tuple[Tensor, list[Tensor]]:
        """dc (m, n, position, k) → dx (chunk, m, position, 8) and the gradients of `parameters()`"""
        gradients = Gradients(self, memory)
        images, chunks, n = memory.images, self.grown_chunks, self.n
        positions = self.positions

        # CapsTrans: its vectors, the norm they share.
        dz = torch.empty_like(memory.z)
        g = torch.empty_like(memory.z)
        dgamma, dbeta = gradients.vectors
        kernel, arguments, threads, grid = self._vectors(
            memory, "vectors_backward", dc=dc, g=g, dgamma=dgamma, dbeta=dbeta
        )
        kernel((grid, 1, 1), threads, 2 * self.k * 4, arguments)
        of = means(
            "finish.cu", [gradients.vectors_reader("finish.cu")], 1, 0, self.k, memory.z_sums, images * n * positions
        )
        finish(of, capsule_layout(g), capsule_layout(memory.z), capsule_layout(dz), images, n, self.k // 8, positions)
        kept = [dz, gradients.sums, *memory.tensors()]

        def weigh(layer: Layer, norm: nn.Module | None, dy: Where, *read: Tensor) -> None:
            """Launched as soon as dy is available: it waits for memory while other kernels compute."""
            with self.aside.work(*kept, *read):
                self._weigh(memory, gradients, layer, norm, dy)

        weigh(self.trans, self.blocks.trans.conv_plus.norm, capsule_layout(dz))

        # Dense layers, last to first: each pulls its gradient from all of its readers.
        made = torch.empty_like(memory.grown)
        pending = torch.empty((chunks, images, n, positions, 8), dtype=torch.bfloat16, device=dz.device)
        spare = torch.empty_like(pending)

        def weigh_layer(index: int) -> None:
            weigh(self.layers[index], self.blocks.dense.layers[index].norm, grown_layout(made, index * chunks), made)

        for index in reversed(range(self.depth)):
            self._pull(
                memory, gradients, dz, made,
                readers=range(index + 1, self.depth), fresh=pending,
                x=grown_layout(memory.grown, index * chunks), g=grown_layout(spare),
                sums=memory.grown_sums_of(index), channel=self.channels + index * self.growth, channels=self.growth,
                first_chunk=self.channels // 8 + index * chunks,
            )  # fmt: skip
            pending, spare = spare, pending
            if index + 1 < self.depth:  # finished by this kernel
                weigh_layer(index + 1)

        base_chunks = self.channels // 8
        g_base = torch.empty((base_chunks, images, n, positions, 8), dtype=torch.bfloat16, device=dz.device)
        strided = self.stride > 1
        first = 1 if strided else 0
        self._pull(
            memory, gradients, dz, made,
            readers=range(first, self.depth), fresh=None if strided else pending,
            x=memory.base_layout(), g=grown_layout(g_base),
            sums=memory.base_sums, channel=0, channels=self.channels, first_chunk=0,
        )  # fmt: skip
        readers = [gradients.layer_reader("finish.cu", index) for index in range(first, self.depth)]
        readers.append(gradients.trans_reader("finish.cu"))
        dx = torch.empty_like(memory.x)
        if not strided:
            weigh_layer(0)
            of = means("finish.cu", readers, n, 0, self.channels, memory.x_sums, images * positions)
            finish(
                of, grown_layout(g_base), map_layout(memory.x), map_layout(dx), images, 1, base_chunks, positions,
                sum_over=n,
            )  # fmt: skip
        else:
            of = means("finish.cu", readers, 1, 0, self.channels, memory.base_sums, images * positions)
            d_base = torch.empty((n, base_chunks, images, positions, 8), dtype=torch.bfloat16, device=dz.device)
            of_base = Where(d_base.data_ptr(), d_base.stride(1), positions * 8, d_base.stride(0), 8)
            finish(of, grown_layout(g_base), memory.base_layout(), of_base, images, n, base_chunks, positions)
            weigh(self.shortcut, None, of_base, d_base)
            of = means("finish.cu", readers, 1, self.channels, self.growth, memory.grown_sums_of(0), images * positions)
            finish(
                of, grown_layout(pending), grown_layout(memory.grown), grown_layout(made), images, n, chunks, positions
            )
            weigh_layer(0)
            through = self._through_shortcut(memory, d_base)
            g_x = torch.empty_like(memory.x)
            self._pull(
                memory, gradients, None, made, readers=range(1), fresh=None, x=map_layout(memory.x), g=map_layout(g_x),
                sums=memory.x_sums, channel=0, channels=self.channels, first_chunk=0,
            )  # fmt: skip
            readers = [gradients.layer_reader("finish.cu", 0)]
            inside = self.height_in * self.width_in
            of = means("finish.cu", readers, n, 0, self.channels, memory.x_sums, images * inside)
            finish(
                of, map_layout(g_x), map_layout(memory.x), map_layout(dx), images, 1, base_chunks, inside,
                more=map_layout(through),
            )  # fmt: skip

        with self.aside.work(gradients.sums, gradients.of_matrices):
            gather(self.entries, gradients.places, gradients.of_weights)
        return dx, gradients.views

    def _pull(
        self, memory: Memory, gradients: Gradients, dz: Tensor | None, made: Tensor, *, readers: range,
        fresh: Tensor | None, x: Where, g: Where, sums: SumsAt, channel: int, channels: int, first_chunk: int,
    ) -> None:  # fmt: skip
        """G of some channels, from the layers `readers` and CapsTrans; without dz, of the level's input, which the
        first layers of all capsules read as patches."""
        file, chunks, own = "pull.cu", self.grown_chunks, STRUCTURES["pull.cu"]
        of_patches = dz is None
        stride, taps, repeats = (self.stride, 2, self.n) if of_patches else (1, 3, 1)
        height, width = (self.height_in, self.width_in) if of_patches else (self.height, self.width)
        layers = [gradients.layer_reader(file, index, grown_layout(made, index * chunks).data) for index in readers]
        extra: dict[str, Any] = {}
        if fresh is not None and layers:
            newest = readers[0]
            layers[0].gradient = fresh.data_ptr()
            after = [gradients.layer_reader(file, index) for index in range(newest + 1, self.depth)]
            extra = {
                "fresh": 1,
                "finish": means(
                    file, [*after, gradients.trans_reader(file)], 1, self.channels + newest * self.growth,
                    self.growth, memory.grown_sums_of(newest), memory.images * self.positions,
                ),
                "fresh_x": grown_layout(memory.grown, newest * chunks).view(file),
                "finished": grown_layout(made, newest * chunks).view(file),
            }  # fmt: skip
        own_chunks = -(-channels // 8)
        every = len(layers) * repeats + 1
        fresh_planes = int("fresh" in extra)
        for together in (3, 2, 1):  # chunks pulled by one thread block
            if own_chunks % together or (together > 1 and every * together >= 128):
                continue
            groups, width_of = own_chunks // together, 8 * together
            capsules, blocks_deep = (1, groups * stride**2) if of_patches else (self.n, groups)
            tile = tiling(
                memory.images, self.height, self.width, taps, capsules * blocks_deep, 16 * chunks * (1 + fresh_planes),
                4 if together == 1 else 2,  # registers
            )  # fmt: skip
            plane = chunks * tile.positions * 16
            floats = every * width_of * 3 + 2 * width_of + fresh_planes * 3 * chunks * 8
            floats += tile.warps * every * 2 * width_of
            room = (LARGEST_SHARED - floats * 4) // plane - fresh_planes
            at_once = max(1, min(len(layers) * repeats, 48 * 1024 // plane, room))
            if room >= 1:
                break
        arguments = build(
            own["Pull"],
            of=means(file, layers, repeats, channel, channels, sums, memory.images * height * width),
            **({} if dz is None else {"trans": gradients.trans_reader(file, dz.data_ptr())}),
            x=x.view(file),
            g=g.view(file),
            height=height,
            width=width,
            chunks=own_chunks,
            images=memory.images,
            first_chunk=first_chunk,
            made=grown_layout(made).view(file),
            **({} if dz is None else {"trans_made": capsule_layout(dz).view(file), "trans_chunks": self.k // 8}),
            at_once=at_once,
            **extra,
        )
        shared = floats * 4 + (at_once + fresh_planes) * plane
        defines = {**tile.defines(), **occupancy(tile.threads, shared, 128)}
        kernel = Kernel(file, "pull", **defines, STRIDE=stride, GROWN=chunks, CHUNKS=together)
        kernel((tile.blocks, capsules, blocks_deep), tile.threads, shared, arguments)

    def _through_shortcut(self, memory: Memory, d_base: Tensor) -> Tensor:
        """The shortcuts' part of dx: from the channels of all capsules to the positions of a patch, in one product;
        or in groups of capsules, if a row of the map with all of them does not fit."""
        whole = torch.empty_like(memory.x)
        for first in range(0, self.n, self.through_at_once):
            part = torch.empty_like(whole) if first else whole
            self._through_some(memory, d_base[first : first + self.through_at_once], first, part)
            if first:
                whole += part
        return whole

    def _through_some(self, memory: Memory, d_base: Tensor, first: int, through: Tensor) -> None:
        file, own, layer = "convolve.cu", STRUCTURES["convolve.cu"], self.shortcut
        read = self._through_layer(len(d_base))
        columns = min(layer.chunks, 12)  # the tile is large: load it once rather than process several rows at a time
        groups = -(-layer.chunks // columns)
        tile = tiling(memory.images, self.height, self.width, 1, groups, read.pitch, 1)
        arguments = build(
            own["Convolve"],
            **{
                "in": build(
                    own["Input"],
                    before=Where(d_base.data_ptr(), d_base.stride(1), self.positions * 8, 0, 8).view(file),
                    height=self.height,
                    width=self.width,
                    images=memory.images,
                    channels=read.before,
                    growth=8,
                    chunks=read.chunks,
                )
            },
            out=map_layout(through).view(file),
            weights=memory.prepared.transposed(self.weight_of(layer)) + 4 * layer.transposed_size(first),
            out_chunks=layer.chunks,
            out_height=self.height_in,
            out_width=self.width_in,
            out_place_chunks=self.channels // 8,
        )
        launch_convolve(tile, read, 0, columns, groups, self.stride, 0, arguments)

    def _through_layer(self, capsules: int) -> Layer:
        return Layer(capsules * self.channels, 8, 0, self.shortcut.chunks * 8, 1, 0, 1)

    def _through_at_once(self) -> int:
        """Capsules per product, an even number unless it is all of them: their chunks come in pairs."""
        at_once = self.n
        while at_once > 2:
            try:
                self._through_layer(at_once).check(self.width)
                break
            except Unavailable:
                at_once = -(-at_once // 4) * 2
        return at_once

    def _weigh(self, memory: Memory, gradients: Gradients, layer: Layer, norm: nn.Module | None, dy: Where) -> None:
        file = "weigh.cu"
        launch_weigh(
            layer, norm, memory.images, (self.height, self.width), self.n, 1,
            **{"in": self._input(file, memory, layer, norm, update=False)},
            dy=dy.view(file), dw=gradients.places[[entry.layer for entry in self.entries].index(layer)],
        )  # fmt: skip


def launch_convolve(
    tile: Tiling, layer: Layer, low: int, columns: int, groups: int, out_stride: int, epilogue: int, arguments: Any,
    norm: nn.Module | None = None, capsules: int = 1, together: int = 1,
) -> None:  # fmt: skip
    """`together`: number of capsules that share a tile."""
    affine = 0 if norm is None else together * layer.even * 64
    shared = tile.positions * layer.pitch + affine + tile.threads // 32 * 64 * columns
    shared += 8 * columns * 24 if epilogue == NORMED else 0
    kernel = Kernel(
        "convolve.cu", "convolve", **tile.defines(), **layer.defines(norm, tile, getattr(arguments, "in")),
        LOW=low, COLUMNS=columns, OUT_STRIDE=out_stride, EPILOGUE=epilogue, CAPSULES=together,
        **occupancy(tile.threads, shared, registers(tile, columns)),
    )  # fmt: skip
    kernel((tile.blocks, capsules // together, groups), tile.threads, shared, arguments)


def launch_weigh(
    layer: Layer, norm: nn.Module | None, images: int, size: tuple[int, int], capsules: int, at_once: int, **more: Any
) -> None:
    """The sums of a weight's gradient, with `at_once` thread blocks per multiprocessor: each adds to all of it."""
    file = "weigh.cu"
    steps, columns = layer.even // 2, layer.columns
    room = layer.pitch + 16 * columns
    tile = tiling(images, *size, layer.taps, capsules, room, shift=layer.shift(size[1]), beside=layer.beside)
    together = min(steps, 8)
    warps_a_pair = max(1, min(8 // together, tile.warps))
    deep = -(-layer.out_chunks // columns) * -(-steps // together)
    arguments = build(STRUCTURES[file]["Weigh"], dy_chunks=layer.out_chunks, groups=tile.blocks, **more)
    stage = tile.positions * layer.pitch + tile.made_positions * columns * 16
    norms = layer.even * 64
    stages = 2 if 2 * stage <= min(TWO_STAGES, largest_shared() - max(4096, norms)) else 1
    shared = stages * stage + norms
    if warps_a_pair > 1:  # which are summed in shared memory
        shared = max(shared, together * layer.taps**2 * columns * 512)
    at_once = max(1, min(at_once, 200 * 1024 // (shared + 1024)))
    grid = max(1, min(tile.blocks, at_once * MULTIPROCESSORS // (capsules * deep)))
    threads = 32 * together * warps_a_pair
    kernel = Kernel(
        file, "weigh", **tile.defines(), **layer.defines(norm, tile, more["in"]), **occupancy(threads, shared, 128),
        LOW=layer.low, COLUMNS=columns, WARPS_A_PAIR=warps_a_pair, STAGES=stages,
    )  # fmt: skip
    kernel((grid, capsules, deep), threads, shared, arguments)


def finish(
    of: Any, g: Where, x: Where, dx: Where, images: int, capsules: int, chunks: int, positions: int,
    sum_over: int = 1, more: Where = NOWHERE,
) -> None:  # fmt: skip
    file = "finish.cu"
    arguments = build(
        STRUCTURES[file]["Finish"],
        of=of,
        g=g.view(file),
        x=x.view(file),
        more=more.view(file),
        dx=dx.view(file),
        sum_over=sum_over,
        images=images,
        chunks=chunks,
        positions=positions,
        per_image=positions * chunks,
    )
    parts = max(1, min(-(-positions * chunks // 256), 8 * MULTIPROCESSORS // (images * capsules)))
    Kernel(file, "finish")((images, capsules, parts), 256, 4 * chunks * 8 * 4, arguments)


def add_up(x: Tensor, zeros: Zeros) -> Tensor:
    """Σx and Σx² (2, channel) of x (chunk, m, position, 8)"""
    chunks, rows = len(x), x.shape[1] * x.shape[2]
    sums = zeros(16 * chunks, x.device).view(2, -1)
    grid = max(1, min(4 * MULTIPROCESSORS, -(-rows * chunks // 512)))
    arguments = build(PREPARE["Sums"], x=x, rows=rows, chunks=chunks, sum=sums[0], square=sums[1])
    Kernel("prepare.cu", "sums")((grid, 1, 1), 256, 256 // chunks * chunks * 64, arguments)
    return sums


class Memory:
    """Written by the forward pass, read by the backward pass."""

    def __init__(self, level: FusedLevel, x: Tensor, training: bool, x_sums: Tensor | None, prepared: Prepared):
        self.level, self.x, self.training, self.prepared = level, x, training, prepared
        self.images = images = x.shape[1]
        n, positions = level.n, level.positions

        def chunks(count: int) -> Tensor:
            return torch.empty((count, images, n, positions, 8), dtype=torch.bfloat16, device=x.device)

        self.grown = chunks(level.depth * level.grown_chunks)
        self.base = chunks(level.channels // 8) if level.stride > 1 else None
        self.z = torch.empty((images, n, positions, level.k), dtype=torch.bfloat16, device=x.device)

        wide = level.depth * level.grown_chunks * 8
        sizes = [n * level.channels if level.stride > 1 else 0, n * wide, level.k]
        self.sums = level.zeros(2 * sum(sizes), x.device)
        half, place = 4 * sum(sizes), self.sums.data_ptr()
        found = []
        for size, capsule in zip(sizes, (level.channels, wide, 0), strict=True):
            found.append(SumsAt(place, place + half, capsule))
            place += 4 * size
        self.base_sums, self.grown_sums, self.z_sums = found
        self.of_x = add_up(x, level.zeros) if x_sums is None and training else x_sums
        self.x_sums = SumsAt(0, 0, 0)
        if self.of_x is not None:
            self.x_sums = SumsAt(self.of_x[0].data_ptr(), self.of_x[1].data_ptr(), 0)
        if level.stride == 1:
            self.base_sums = self.x_sums

    def tensors(self) -> list[Tensor]:
        kept = [self.x, self.grown, self.base, self.z, self.sums, self.of_x, self.prepared.buffer]
        return [tensor for tensor in kept if tensor is not None]

    def base_layout(self) -> Where:
        return map_layout(self.x) if self.base is None else grown_layout(self.base)

    def grown_sums_of(self, index: int) -> SumsAt:
        offset = 4 * index * self.level.grown_chunks * 8
        return SumsAt(self.grown_sums.sum + offset, self.grown_sums.square + offset, self.grown_sums.capsule)


class Gradients:
    """Gradients of all parameters of a level, initialised with zeros where kernels add to them."""

    def __init__(self, level: FusedLevel, memory: Memory):
        self.level, self.memory = level, memory
        parameters = level.parameters()
        device = memory.x.device
        matrices = [p.numel() if p.dim() > 2 else 0 for p in parameters]  # fully written by `gather`
        vectors = [p.numel() if p.dim() <= 2 else 0 for p in parameters]
        self.of_matrices = torch.empty(sum(matrices), device=device)
        of_matrices = self.of_matrices.split(matrices)
        of_vectors = level.zeros(sum(vectors), device).split(vectors)
        self.views = [
            (matrix if p.dim() > 2 else vector).view(p.shape)
            for p, matrix, vector in zip(parameters, of_matrices, of_vectors, strict=True)
        ]
        self.norms = [(self.views[3 * i], self.views[3 * i + 1]) for i in range(level.depth + 1)]
        self.vectors = self.views[3 * level.depth + 3], self.views[3 * level.depth + 4]
        self.of_weights = [view for view in self.views if view.dim() > 2]  # in the order of the level's entries
        sizes = [entry.capsules * entry.layer.sums_size for entry in level.entries]
        self.sums = level.zeros(sum(sizes), device)
        self.places, place = [], self.sums.data_ptr()
        for size in sizes:
            self.places.append(place)
            place += 4 * size

    def layer_reader(self, file: str, index: int, gradient: int = 1) -> Any:
        layer = self.level.layers[index]
        norm = self.level.blocks.dense.layers[index].norm
        return self._reader(file, layer, norm, *self.norms[index], gradient)

    def trans_reader(self, file: str, gradient: int = 1) -> Any:
        level = self.level
        return self._reader(file, level.trans, level.blocks.trans.conv_plus.norm, *self.norms[level.depth], gradient)

    def vectors_reader(self, file: str) -> Any:
        norm, (dgamma, dbeta) = self.level.blocks.trans.norm, self.vectors
        return build(STRUCTURES[file]["Reader"], gamma=norm.weight, beta=norm.bias, dgamma=dgamma, dbeta=dbeta)

    def _reader(self, file: str, layer: Layer, norm: nn.Module, dgamma: Tensor, dbeta: Tensor, gradient: int) -> Any:
        return build(
            STRUCTURES[file]["Reader"],
            gradient=gradient,
            weights=self.memory.prepared.backward(self.level.weight_of(layer)),
            gamma=norm.weight,
            beta=norm.bias,
            dgamma=dgamma,
            dbeta=dbeta,
            channels=layer.channels,
            chunks=layer.chunks,
        )


class _CapsuleBlocks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, level: FusedLevel, x: Tensor, x_sums: Tensor | None, prepared: Prepared | None, *parameters: Tensor
    ) -> Tensor:
        c, memory = level.forward(x, True, x_sums, prepared)
        assert memory is not None
        ctx.level, ctx.memory = level, memory
        return c

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (dc,) = gradients
        dx, of_parameters = ctx.level.backward(ctx.memory, dc.to(torch.bfloat16).contiguous())
        del ctx.memory
        return (None, dx, None, None, *of_parameters)


def capsule_blocks(
    level: FusedLevel, x: Tensor, x_sums: Tensor | None, training: bool, prepared: Prepared | None = None
) -> Tensor:
    """x (chunk, m, position, 8) → c (m, n, position, k)"""
    if training:
        return _CapsuleBlocks.apply(level, x, x_sums, prepared, *level.parameters())
    return level.forward(x, False, None, prepared)[0]


def to_chunks(x: Tensor) -> Tensor:
    """(m, channel, i, j) → (chunk, m, position, 8)"""
    return x.to(torch.bfloat16).flatten(2).unflatten(1, (-1, 8)).permute(1, 0, 3, 2).contiguous()
