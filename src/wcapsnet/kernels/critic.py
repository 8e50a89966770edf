"""Critics and routing of a level's capsule blocks, forward and backward (network/critic.py, network/routing.py)."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..network.critic import Critic, SpectralConv2d
from ..network.routing import Router, Routing
from .compile import Kernel, Unavailable, structures
from .layout import (
    ACTIVATED,
    BIASED,
    MASKED,
    MULTIPROCESSORS,
    STRUCTURES,
    Layer,
    SumsAt,
    Where,
    build,
    map_layout,
    means,
    norm_arguments,
    tiling,
)
from .level import finish, launch_convolve, launch_weigh
from .prepare import Entry, Prepared, Zeros, gather
from .side_stream import Aside
from .supports import NORMALIZED

for _file in ("spectral.cu", "route.cu"):
    STRUCTURES[_file] = structures(_file)


class Spectral:
    """σ of all critics' kernels, in one launch per step."""

    def __init__(self, convolutions: list[SpectralConv2d]):
        self.convolutions = convolutions
        self.sigma = torch.empty(0)

    def _matrices(self, convolutions: list[SpectralConv2d], **more: list[Any]) -> list[Any]:
        return [
            build(
                STRUCTURES["spectral.cu"]["Matrix"],
                w=conv.weight,
                u=conv.u,
                v=conv.v,
                sigma=self.address(conv),
                rows=conv.weight.shape[0],
                columns=conv.weight[0].numel(),
                **{name: values[index] for name, values in more.items()},
            )
            for index, conv in enumerate(convolutions)
        ]

    def address(self, conv: SpectralConv2d) -> int:
        return self.sigma.data_ptr() + 4 * self.convolutions.index(conv)

    def forward(self, training: bool) -> None:
        if self.convolutions:
            self.sigma = torch.empty(len(self.convolutions), device=self.convolutions[0].weight.device)
            matrices = self._matrices(self.convolutions)
            arguments = build(STRUCTURES["spectral.cu"]["Spectral"], matrix=matrices, iterate=training)
            shared = 4 * (32 + max(c.weight.shape[0] + c.weight[0].numel() for c in self.convolutions))
            Kernel("spectral.cu", "spectral")((len(matrices), 1, 1), 512, shared, arguments)

    def backward(self, convolutions: list[SpectralConv2d], dw: list[Tensor], dots: list[int]) -> None:
        matrices = self._matrices(convolutions, dw=dw, dot=dots)
        arguments = build(STRUCTURES["spectral.cu"]["Spectral"], matrix=matrices)
        parts = -(-max(d.numel() for d in dw) // 1024)
        Kernel("spectral.cu", "spectral_backward")((len(matrices), parts, 1), 256, 0, arguments)


class FusedCritic:
    """A critic's convolutions on (images, positions, channels), all capsules of all samples as images."""

    def __init__(
        self, critic: Critic, spectral: Spectral, height: int, width: int, salt: int, aside: Aside, zeros: Zeros
    ):
        self.critic, self.spectral, self.salt, self.aside, self.zeros = critic, spectral, salt, aside, zeros
        self.convolutions: list[Any] = list(critic.layers)
        self.layers = []
        self.maps = [(height, width)]
        for conv in self.convolutions:
            out, channels, kernel, _ = conv.weight.shape
            if channels % 8:
                raise Unavailable(f"a critic has {channels} channels, which is not a multiple of 8")
            if conv.stride > 1 and kernel != 3:
                raise Unavailable("a critic's convolution is not supported")
            height, width = -(-height // conv.stride), -(-width // conv.stride)
            self.maps.append((height, width))
            to_one = conv.stride == 2 and height == width == 1
            self.layers.append(Layer(channels, 8, 0, out, kernel, kernel // 2, conv.stride, to_one))
        self.entries = [
            Entry(conv.weight, layer, sigma=partial(spectral.address, conv), transposed=index > 0)
            for index, (conv, layer) in enumerate(zip(self.convolutions, self.layers, strict=True))
        ]

    def parameters(self) -> list[nn.Parameter]:
        """Parameters of the convolutions, in the order of `backward`."""
        return [p for conv in self.convolutions for p in (conv.weight, conv.bias)]

    def all_parameters(self) -> list[nn.Parameter]:
        return [*self.parameters(), self.critic.norm.weight, self.critic.norm.bias]

    def forward(
        self, x: Tensor, training: bool, seed: Tensor, sums: SumsAt, prepared: Prepared | None
    ) -> tuple[Tensor, Any]:
        """x (images, positions, k) → output before norm and sigmoid (images, remaining positions, 8): the first of 8"""
        device = x.device
        prepared = prepared or Prepared(self.entries, training, device)
        keep = 1 - self.critic.dropout if training else 1.0
        values = [x]
        for index, (conv, layer) in enumerate(zip(self.convolutions, self.layers, strict=True)):
            height, width = self.maps[index + 1]
            last = index == len(self.layers) - 1
            y = torch.empty((x.shape[0], height * width, layer.out_chunks * 8), dtype=torch.bfloat16, device=device)
            convolution(
                values[-1], y, layer, self.maps[index], (height, width), prepared.forward(conv.weight),
                epilogue=BIASED if last else ACTIVATED, bias=conv.bias, keep=keep, seed=seed, salt=self.salt + index,
                sums=sums if last and training else None,
            )  # fmt: skip
            values.append(y)
        return values[-1], (values, prepared, keep)

    def backward(self, saved: Any, dy: Tensor) -> list[Tensor]:
        values, prepared, keep = saved
        sizes = [layer.sums_size for layer in self.layers]
        widths = sum(layer.out_chunks * 8 for layer in self.layers)
        arena = self.zeros(sum(sizes) + 2 * widths + len(sizes), dy.device)
        dw = [torch.empty_like(conv.weight) for conv in self.convolutions]
        sums, place = [], arena.data_ptr()
        for size in sizes:
            sums.append(place)
            place += 4 * size
        biases, offset = [], sum(sizes)
        for layer in self.layers:
            width = layer.out_chunks * 8
            biases.append((arena[offset : offset + layer.out], SumsAt(place, place + 4 * width, 0)))
            place += 8 * width
            offset += 2 * width
        made = [d.detach() for d in dw]  # kept alive: unused gradients would be freed before they are computed
        with self.aside.work(dy, prepared.buffer, arena, self.spectral.sigma, *values, *made):
            self._backward(values, dy, prepared, keep, sums, [at for _, at in biases], dw, place)
        # The batch norm after it removes the last bias, so its gradient is zero, as in `biases`.
        return [g for d, (bias, _) in zip(dw, biases, strict=True) for g in (d, bias)]

    def through_norm(
        self, facts: dict[str, Any], g: Tensor, raw: Tensor, dgamma: Tensor, dbeta: Tensor, images: int, each: int
    ) -> Tensor:
        """Backward through the norm after the last convolution: `each` values per image."""
        norm, statistics = self.critic.norm, facts["statistics"]
        reader = build(STRUCTURES["finish.cu"]["Reader"], gamma=norm.weight, beta=norm.bias, dgamma=dgamma, dbeta=dbeta)
        of = means("finish.cu", [reader], 1, 0, 1, SumsAt(statistics.sum, statistics.square, 0), images * each)
        d_raw = torch.empty_like(raw)
        rows = Where(0, 8, 8 * each, 0, 8)
        finish(of, rows.on(g), rows.on(raw), rows.on(d_raw), images, 1, 1, each)
        return d_raw

    def _backward(
        self, values: list[Tensor], dy: Tensor, prepared: Prepared, keep: float, sums: list[int],
        biases: list[SumsAt], dw: list[Tensor], place: int,
    ) -> None:  # fmt: skip
        for index in reversed(range(len(self.layers))):
            layer, x = self.layers[index], values[index]
            weigh(x, dy, layer, self.maps[index], self.maps[index + 1], sums[index])
            if index:
                dx = torch.empty_like(x)
                convolution_back(
                    dy, dx, layer, self.maps[index], self.maps[index + 1],
                    prepared.transposed(self.convolutions[index].weight), x, keep, biases[index - 1],
                )  # fmt: skip
                dy = dx
        dots = [place + 4 * index for index in range(len(self.layers))]
        gather(self.entries, sums, dw, dots)
        self.spectral.backward(self.convolutions, dw, dots)


def map_input(file: str, x: Tensor, layer: Layer, size: tuple[int, int]) -> Any:
    return build(
        STRUCTURES[file]["Input"],
        before=map_layout(x).view(file),
        height=size[0],
        width=size[1],
        images=x.shape[0],
        channels=layer.before,
        growth=8,
        chunks=layer.chunks,
        layer_channels=layer.channels,
    )


def convolution(
    x: Tensor, y: Tensor, layer: Layer, size_in: tuple[int, int], size: tuple[int, int], weights: int, *,
    epilogue: int = 0, bias: Tensor | None = None, keep: float = 1.0, seed: Tensor | None = None, salt: int = 0,
    sums: SumsAt | None = None,
) -> None:  # fmt: skip
    file = "convolve.cu"
    groups = -(-layer.out_chunks // layer.columns)
    tile = tiling(x.shape[0], *size, layer.taps, groups, layer.pitch, shift=layer.shift(size[1]))
    arguments = build(
        STRUCTURES[file]["Convolve"],
        **{"in": map_input(file, x, layer, size_in)},
        out=map_layout(y).view(file),
        weights=weights,
        out_chunks=layer.out_chunks,
        bias=0 if bias is None else bias,
        out_channels=layer.out,
        keep=keep,
        seed=0 if seed is None else seed,
        salt=salt,
        **({} if sums is None else {"out_sum": sums.sum, "out_square": sums.square}),
    )
    launch_convolve(tile, layer, layer.low, layer.columns, groups, 1, epilogue, arguments)


def convolution_back(
    dy: Tensor, dx: Tensor, layer: Layer, size_in: tuple[int, int], size: tuple[int, int], weights: int,
    mask: Tensor, keep: float, sums: SumsAt,
) -> None:  # fmt: skip
    """dx = mask ∘ (the transposed convolution of dy), and Σ dx per channel: the gradient of the bias before it."""
    file = "convolve.cu"
    read = Layer(layer.out_chunks * 8, 8, 0, layer.chunks * 8, layer.kernel, layer.pad, 1, layer.to_one)
    columns = min(layer.chunks, 4)
    groups = -(-layer.chunks // columns)
    tile = tiling(dy.shape[0], *size, layer.taps, groups, read.pitch, 4)
    arguments = build(
        STRUCTURES[file]["Convolve"],
        **{"in": map_input(file, dy, read, size)},
        out=map_layout(dx).view(file),
        weights=weights,
        out_chunks=layer.chunks,
        out_height=size_in[0],
        out_width=size_in[1],
        out_place_chunks=layer.before // 8,
        keep=keep,
        mask=map_layout(mask).view(file),
        out_sum=sums.sum,
        out_square=sums.square,
    )
    launch_convolve(tile, read, 0, columns, groups, layer.stride, MASKED, arguments)


def weigh(
    x: Tensor, dy: Tensor, layer: Layer, size_in: tuple[int, int], size: tuple[int, int], dw: int,
    dy_norm: dict[str, Any] | None = None,
) -> None:  # fmt: skip
    file = "weigh.cu"
    launch_weigh(
        layer, None, x.shape[0], size, 1, 2,
        **{"in": map_input(file, x, layer, size_in)}, dy=map_layout(dy).view(file), dw=dw, **(dy_norm or {}),
    )  # fmt: skip


class FusedRouter:
    """Fitness, weights and weighted sum of a feature level: c → a, b, x. Without a critic, the router sets a."""

    def __init__(
        self,
        router: Router,
        critic: FusedCritic | None,
        detach: bool,
        dropout: float,
        salt: int,
        zeros: Zeros | None = None,
    ):
        self.router, self.critic = router, critic
        self.zeros = zeros or (critic.zeros if critic else Zeros())
        self.detach, self.dropout, self.salt = detach, dropout, salt
        self.normalized = NORMALIZED[router.weighting]
        self.per_position = router.per_position

    def parameters(self) -> list[nn.Parameter]:
        return [] if self.critic is None else self.critic.all_parameters()

    def _weights(self, positions: int) -> int:
        """Number of weights per block"""
        return positions if self.per_position else 1

    def _parts(self, c: Tensor) -> int:
        """Thread blocks per image; weights per position are kept in shared memory."""
        m, n, positions, k = c.shape
        parts = max(1, min(-(-positions * k // 2048), 8 * MULTIPROCESSORS // m))
        return max(parts, -(-n * positions // 2048)) if self.per_position else parts

    def _shared(self, c: Tensor, parts: int) -> int:
        """Bytes of shared memory for the weights per position"""
        return 4 * c.shape[1] * -(-c.shape[2] // parts)

    def forward(
        self, c: Tensor, training: bool, seed: Tensor, prepared: Prepared | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Any]:
        """c (m, n, position, k) → a, b (m, n) or (m, n, position), x (chunk, m, position, 8) and Σx, Σx²"""
        m, n, positions, k = c.shape
        sums = self.zeros(16 + 2 * k, c.device)
        of_raw = SumsAt(sums.data_ptr(), sums.data_ptr() + 32, 0)
        said, saved = judged(self.router, self.critic, c, training, seed, of_raw, prepared)
        shape = (m, n, positions) if self.per_position else (m, n)
        a, b, applied, noisy = torch.empty((4, *shape), device=c.device)
        x = torch.empty((k // 8, m, positions, 8), dtype=torch.bfloat16, device=c.device)
        facts = {
            **said,
            "c": c,
            "a": a,
            "b": b,
            "applied": applied,
            "noisy": noisy,
            "images": m,
            "capsules": n,
            "values": positions * k,
            "k": k,
            "running": not training,
            "normalized": self.normalized,
            "sharpness": self.router.sharpness,
            "growing": 0 if self.router.growing is None or not training else self.router.growing,
            "detach": self.detach,
            "keep": 1 - self.dropout if training else 1.0,
            "seed": seed,
            "salt": self.salt,
            "statistics": STRUCTURES["route.cu"]["Statistics"](*of_raw.addresses()),
            "count": m * n * self._weights(positions),
        }
        x_sums = sums[16:].view(2, k)
        arguments = build(
            STRUCTURES["route.cu"]["Route"],
            **facts,
            x=x,
            x_sum=x_sums[0] if training else 0,
            x_square=x_sums[1],
            update=training and self.critic is not None,
            share=self.router.noise_share if training else 0.0,
            std=self.router.noise_std,
        )
        parts = self._parts(c)
        if self.per_position:
            shared = 4 * 256 * 16 + self._shared(c, parts)
            Kernel("route.cu", "positions_forward")((m, parts, 1), 256, shared, arguments)
        else:
            Kernel("route.cu", "route_forward")((m, parts, 1), 256, 4 * (128 + 256 * 16), arguments)
        return a, b, x, x_sums, (saved, facts, sums)

    def backward(self, saved: Any, da: Tensor | None, db: Tensor | None, dx: Tensor) -> tuple[Tensor, list[Tensor]]:
        of_critic, facts, _sums = saved
        c = facts["c"]
        m, n, positions, _ = c.shape
        dc = torch.empty_like(c)
        gradient = self.zeros(m * n + 2, c.device)
        dgamma, dbeta = gradient[m * n], gradient[m * n + 1]
        g = None if self.critic is None else torch.empty_like(facts["raw"])
        arguments = build(
            STRUCTURES["route.cu"]["Route"],
            **facts,
            dx=dx,
            dc=dc,
            g=0 if g is None else g,
            noisy_gradient=gradient,
            da=0 if da is None else da,
            db=0 if db is None else db,
            dgamma=dgamma,
            dbeta=dbeta,
        )
        parts = self._parts(c)
        if self.per_position:
            shared = 128 + self._shared(c, parts)
            Kernel("route.cu", "positions_backward")((m, parts, 1), 256, shared, arguments)
        else:
            Kernel("route.cu", "route_backward")((m, parts, 1), 256, 4 * 8 * 64, arguments)
        if self.critic is None or g is None:
            return dc, []
        if not self.per_position:
            Kernel("route.cu", "weights_backward")((-(-m * n // 256), 1, 1), 256, 128, arguments)
        d_raw = self.critic.through_norm(facts, g, facts["raw"], dgamma, dbeta, m, n * self._weights(positions))
        return dc, [*self.critic.backward(of_critic, d_raw), dgamma.view(1), dbeta.view(1)]


def judged(
    router: Router, critic: FusedCritic | None, c: Tensor, training: bool, seed: Tensor, of_raw: SumsAt,
    prepared: Prepared | None,
) -> tuple[dict[str, Any], Any]:  # fmt: skip
    """The source of the fitness: the output of the critic's last convolution and its norm, or the fitness itself."""
    m, n, positions, k = c.shape
    if critic is None:
        given = router.critic(c).float().contiguous()
        return {"given": given}, None
    raw, saved = critic.forward(c.view(m * n, positions, k), training, seed, of_raw, prepared)
    return {**norm_arguments(critic.critic.norm), "raw": raw}, saved


class _Routed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, router: FusedRouter, c: Tensor, seed: Tensor, prepared: Prepared | None, *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        a, b, x, x_sums, saved = router.forward(c, True, seed, prepared)
        ctx.router, ctx.saved, ctx.like = router, saved, (x.shape, x.dtype, x.device)
        ctx.mark_non_differentiable(x_sums, *(() if router.critic else (a, b)))
        ctx.set_materialize_grads(False)
        return a, b, x, x_sums

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        da, db, dx, _ = gradients
        if dx is None:  # a loss that does not depend on this level's output
            shape, dtype, device = ctx.like
            dx = torch.zeros(shape, dtype=dtype, device=device)
        da, db = (None if d is None else d.float().contiguous() for d in (da, db))
        dc, of_parameters = ctx.router.backward(ctx.saved, da, db, dx.contiguous())
        del ctx.saved
        return (None, dc, None, None, *of_parameters)


def routed(
    router: FusedRouter, c: Tensor, training: bool, seed: Tensor, prepared: Prepared | None = None
) -> tuple[Routing, Tensor, Tensor]:
    """c (m, n, position, k) → routing, (m, n) or (m, n, position); x (chunk, m, position, 8) and its sums"""
    if training:
        a, b, x, x_sums = _Routed.apply(router, c, seed, prepared, *router.parameters())
    else:
        a, b, x, x_sums, _ = router.forward(c, False, seed, prepared)
    return Routing(fitness=a, weights=b), x, x_sums
