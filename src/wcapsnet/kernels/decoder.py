"""The decoder and the reconstruction loss, forward and backward (network/decoder.py)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..network import BestCapsule
from ..network.decoder import Decoder
from .compile import Kernel, Unavailable, structures
from .critic import weigh
from .layout import BIASED, NORMED, STRUCTURES, Layer, SumsAt, build, map_layout, means, norm_arguments, tiling
from .level import finish, launch_convolve
from .prepare import Entry, Prepared, Zeros, gather
from .side_stream import Aside

STRUCTURES["decoder.cu"] = structures("decoder.cu")


class Stage:
    """norm, ReLU and a transposed convolution of stride 2, (m, position, channel) → (m, 4·position, channel): the
    backward pass of the convolution of stride 2 with the same weights."""

    def __init__(self, norm: Any, conv: nn.ConvTranspose2d, height: int, width: int):
        self.norm, self.conv, self.size, self.size_out = norm, conv, (height, width), (2 * height, 2 * width)
        self.read, self.made, kernel, _ = conv.weight.shape
        self.layer = Layer(-(-self.made // 8) * 8, 8, 0, self.read, kernel, 1, 2)
        self.entry = Entry(conv.weight, self.layer, channels=self.made, transposed=True)
        self.reading = Layer(self.read, 8, 0, self.layer.chunks * 8, kernel, 1, 1, patched=True)

    def input(self, file: str, x: Tensor, sums: SumsAt, training: bool, update: bool) -> Any:
        own = STRUCTURES[file]
        return build(
            own["Input"],
            before=map_layout(x).view(file),
            height=self.size[0],
            width=self.size[1],
            images=x.shape[0],
            channels=self.read,
            growth=8,
            chunks=self.reading.chunks,
            running=not training,
            update=update,
            before_statistics=own["Statistics"](*sums.addresses()),
            layer_channels=self.read,
            count=x.shape[0] * x.shape[1],
            **norm_arguments(self.norm),
        )

    def forward(self, x: Tensor, sums: SumsAt, training: bool, prepared: Prepared, made: SumsAt | None) -> Tensor:
        layer, file = self.layer, "convolve.cu"
        y = torch.empty((x.shape[0], 4 * x.shape[1], layer.before), dtype=torch.bfloat16, device=x.device)
        columns = min(layer.chunks, 4)
        groups = -(-layer.chunks // columns)
        tile = tiling(x.shape[0], *self.size, 2, groups, self.reading.pitch)
        arguments = build(
            STRUCTURES[file]["Convolve"],
            **{"in": self.input(file, x, sums, training, update=training)},
            out=map_layout(y).view(file),
            weights=prepared.transposed(self.conv.weight),
            out_chunks=layer.chunks,
            out_height=self.size_out[0],
            out_width=self.size_out[1],
            out_place_chunks=layer.before // 8,
            bias=self.conv.bias,
            out_channels=self.made,
            **({"out_sum": made.sum, "out_square": made.square} if made and training else {}),
        )
        launch_convolve(tile, self.reading, 0, columns, groups, 2, BIASED, arguments, self.norm)
        return y

    def backward(self, x: Tensor, sums: SumsAt, prepared: Prepared, dy: Tensor, of_norm: SumsAt) -> Tensor:
        """dx; the gradients of the norm, dβ and dγ, are added to `of_norm`"""
        layer, file, own = self.layer, "convolve.cu", STRUCTURES["convolve.cu"]
        g, dx = torch.empty_like(x), torch.empty_like(x)
        groups = -(-layer.out_chunks // layer.columns)
        tile = tiling(x.shape[0], *self.size, layer.taps, groups, layer.pitch)
        count = x.shape[0] * x.shape[1]
        arguments = build(
            own["Convolve"],
            **{
                "in": build(
                    own["Input"],
                    before=map_layout(dy).view(file),
                    height=self.size_out[0],
                    width=self.size_out[1],
                    images=x.shape[0],
                    channels=layer.before,
                    growth=8,
                    chunks=layer.chunks,
                )
            },
            out=map_layout(g).view(file),
            weights=prepared.forward(self.conv.weight),
            out_chunks=layer.out_chunks,
            mask=map_layout(x).view(file),
            mask_statistics=own["Statistics"](*sums.addresses()),
            mask_gamma=self.norm.weight,
            mask_beta=self.norm.bias,
            mask_count=count,
            mask_eps=self.norm.eps,
            mask_before=layer.out_chunks,
            mask_channels=self.read,
            out_sum=of_norm.sum,
            out_square=of_norm.square,
        )
        launch_convolve(tile, layer, layer.low, layer.columns, groups, 1, NORMED, arguments)
        dbeta, dgamma, _ = of_norm.addresses()
        reader = build(STRUCTURES["finish.cu"]["Reader"], gamma=self.norm.weight, dgamma=dgamma, dbeta=dbeta)
        of = means("finish.cu", [reader], 1, 0, self.read, sums, count)
        finish(of, map_layout(g), map_layout(x), map_layout(dx), x.shape[0], 1, self.read // 8, x.shape[1])
        return dx

    def weights(self, x: Tensor, sums: SumsAt, dy: Tensor, place: int, dw: Tensor) -> None:
        """The convolution with these weights reads dy and returns the gradient of relu(norm(x))."""
        weigh(dy, x, self.layer, self.size_out, self.size, place, self.norm_of_dy(x, sums))
        gather([self.entry], [place], [dw])

    def norm_of_dy(self, x: Tensor, sums: SumsAt) -> dict[str, Any]:
        return {
            "dy_norm": 1,
            "dy_statistics": STRUCTURES["weigh.cu"]["Statistics"](*sums.addresses()),
            "dy_gamma": self.norm.weight,
            "dy_beta": self.norm.bias,
            "dy_count": x.shape[0] * x.shape[1],
            "dy_eps": self.norm.eps,
        }


class FusedDecoder:
    """Best capsule → image, as (m, position of the patches' map, 8): the first of the eight are its channels."""

    def __init__(self, decoder: Decoder, aside: Aside, zeros: Zeros):
        first, height, width = decoder.patch
        channels = decoder.conv2.weight.shape[1]
        if channels > 8 or first % 8 or decoder.conv2.weight.shape[0] % 8:
            raise Unavailable("the decoder's channels are not supported")
        self.decoder, self.aside, self.zeros, self.channels = decoder, aside, zeros, channels
        self.stages = (
            Stage(decoder.norm1, decoder.conv1, height, width),
            Stage(decoder.norm2, decoder.conv2, 2 * height, 2 * width),
        )
        self.entries = [stage.entry for stage in self.stages]
        self.size_out = self.stages[1].size_out

    def parameters(self) -> list[nn.Parameter]:
        d: Any = self.decoder
        found = [d.linear.weight, d.linear.bias]
        for stage in self.stages:
            found += [stage.norm.weight, stage.norm.bias, stage.conv.weight, stage.conv.bias]
        return found

    def _linear(
        self, kernel: str, grid: tuple[int, int], vector: Tensor, position: Tensor, threads: int = 256, **more: Any
    ) -> None:
        first, height, width = self.decoder.patch
        arguments = build(
            STRUCTURES["decoder.cu"]["Linear"],
            vector=vector,
            position=position,
            w=self.decoder.linear.weight,
            b=self.decoder.linear.bias,
            images=vector.shape[0],
            k=vector.shape[1],
            channels=first,
            positions=height * width,
            **more,
        )
        shared = 4 * (vector.shape[1] + 8 + 256 * 16)
        Kernel("decoder.cu", kernel, ELEMENTS=vector.shape[1])((*grid, 1), threads, shared, arguments)

    def forward(self, vector: Tensor, position: Tensor, training: bool, prepared: Prepared) -> tuple[Tensor, Any]:
        first, height, width = self.decoder.patch
        m, device, second = vector.shape[0], vector.device, self.stages[1].read
        sums = self.zeros(2 * (first + second), device)
        at = sums.data_ptr()
        of = [SumsAt(at, at + 4 * first, 0), SumsAt(at + 8 * first, at + 8 * first + 4 * second, 0)]
        values = [torch.empty((m, height * width, first), dtype=torch.bfloat16, device=device)]
        self._linear("linear_forward", (m, 1), vector, position, y=values[0], sum=of[0].sum, square=of[0].square)
        for stage, own, made in zip(self.stages, of, (of[1], None), strict=True):
            values.append(stage.forward(values[-1], own, training, prepared, made))
        return values[-1], (vector, position, values, sums, of, prepared)

    def backward(self, saved: Any, dy: Tensor) -> tuple[Tensor, list[Tensor]]:
        vector, position, values, sums, of, prepared = saved
        parameters = self.parameters()
        device, m = dy.device, vector.shape[0]
        found = [torch.empty_like(p) for p in parameters]
        for index in (0, 1):
            found[index] = self.zeros(parameters[index].numel(), device).view(parameters[index].shape)
        widths = [stage.read for stage in self.stages]
        places = [stage.layer.sums_size for stage in self.stages]
        arena = self.zeros(2 * sum(widths) + sum(places) + widths[1], device)
        at, gradients = arena.data_ptr(), dy
        for index in (1, 0):
            stage, width = self.stages[index], widths[index]
            start = 2 * widths[0] * index
            of_norm = SumsAt(at + 4 * start, at + 4 * (start + width), 0)
            found[3 + 4 * index] = arena[start : start + width]  # dβ
            found[2 + 4 * index] = arena[start + width : start + 2 * width]  # dγ
            dx = stage.backward(values[index], of[index], prepared, gradients, of_norm)
            place = at + 4 * (2 * sum(widths) + sum(places[:index]))
            made = [found[4 + 4 * index].detach(), found[9].detach()]
            with self.aside.work(values[index], sums, gradients, arena, *made):
                stage.weights(values[index], of[index], gradients, place, found[4 + 4 * index])
                if index == 1:
                    torch.sum(dy[..., : self.channels], (0, 1), dtype=torch.float32, out=found[9])
            gradients = dx
        # The norm removes the first bias.
        found[5] = arena[-widths[1] :]
        dvector = torch.empty_like(vector)
        self._linear("linear_backward", (m, 1), vector, position, dy=gradients, dvector=dvector)
        first, height, width = self.decoder.patch
        with self.aside.work(vector, position, gradients, found[0].detach(), found[1].detach()):
            blocks = (-(-first * height * width // 64), -(-m // 64))
            self._linear("linear_weights", blocks, vector, position, 64, dy=gradients, dw=found[0], db=found[1])
        return dvector, found


class _Decoded(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, decoder: FusedDecoder, vector: Tensor, position: Tensor, prepared: Prepared, *parameters: Tensor
    ) -> Tensor:
        y, ctx.saved = decoder.forward(vector, position, True, prepared)
        ctx.decoder = decoder
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        dvector, found = ctx.decoder.backward(ctx.saved, gradients[0].contiguous())
        del ctx.saved
        return (None, dvector, None, None, *found)


def decoded(decoder: FusedDecoder, best: BestCapsule, training: bool, prepared: Prepared) -> Tensor:
    """The image (m, ch, h, w); `whole` is the buffer it was made from, for `mean_square`."""
    vector, position = best.vector.float().contiguous(), best.position.float().contiguous()
    if training:
        y = _Decoded.apply(decoder, vector, position, prepared, *decoder.parameters())
    else:
        y, _ = decoder.forward(vector, position, False, prepared)
    maps = y.unflatten(1, decoder.size_out).permute(0, 3, 1, 2)
    image: Any = maps[:, : decoder.channels, : decoder.decoder.height, : decoder.decoder.width]
    image.whole = (y, decoder)
    return image


class _MeanSquare(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, decoder: FusedDecoder, y: Tensor, images: Tensor) -> Tensor:
        loss = decoder.zeros(1, y.device)
        ctx.facts = {
            "y": y,
            "images": images,
            "count": y.shape[0],
            "channels": decoder.channels,
            "height": images.shape[2],
            "width": images.shape[3],
            "map_height": decoder.size_out[0],
            "map_width": decoder.size_out[1],
        }
        arguments = build(STRUCTURES["decoder.cu"]["Square"], **ctx.facts, loss=loss)
        Kernel("decoder.cu", "square_forward", ELEMENTS=1)((y.shape[0], 1, 1), 256, 128, arguments)
        return loss.squeeze(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        dy = torch.empty_like(ctx.facts["y"])
        gradient = gradients[0].contiguous()
        arguments = build(STRUCTURES["decoder.cu"]["Square"], **ctx.facts, gradient=gradient, dy=dy)
        Kernel("decoder.cu", "square_backward", ELEMENTS=1)((dy.shape[0], 1, 1), 256, 128, arguments)
        return None, dy, None


def mean_square(reconstruction: Tensor, images: Tensor) -> Tensor | None:
    """L_R, if the reconstruction came from the kernels."""
    whole = getattr(reconstruction, "whole", None)
    if whole is None:
        return None
    y, decoder = whole
    return _MeanSquare.apply(decoder, y, images.float().contiguous())
