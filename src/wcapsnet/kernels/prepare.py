"""Before a pass: all weights in tensor-core order, and one zeroed buffer for all sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .compile import Kernel, structures
from .layout import MULTIPROCESSORS, Layer, build

PREPARE = structures("prepare.cu")
AT_ONCE = 24  # layers per launch (LAYERS in the source)


class Zeros:
    """Sums start at zero: one buffer is cleared for a whole pass, forward and backward, and shared out."""

    def __init__(self) -> None:
        self.used = self.size = 0
        self.buffer: Tensor | None = None

    def begin(self, device: torch.device) -> None:
        self.size, self.used = max(self.size, self.used), 0
        self.buffer = torch.zeros(self.size, device=device) if self.size else None

    def __call__(self, count: int, device: torch.device) -> Tensor:
        start = self.used
        self.used += -(-count // 4) * 4
        if self.buffer is not None and self.used <= len(self.buffer):
            return self.buffer[start : start + count]
        return torch.zeros(count, device=device)


@dataclass(frozen=True)
class Entry:
    """A weight (n, out, channels, kernel, kernel) and the orders in which it is needed."""

    weight: Tensor
    layer: Layer
    capsules: int = 1
    channels: int | None = None  # if fewer than the layer's chunks can hold
    sigma: Callable[[], int] | None = None  # address of σ, by which it is divided
    backward: bool = False
    transposed: bool = False

    def structure(self, **pointers: Any) -> Any:
        layer = self.layer
        return build(
            PREPARE["Weights"],
            w=self.weight,
            sigma=0 if self.sigma is None else self.sigma(),
            capsules=self.capsules,
            out=layer.out,
            kernel=layer.kernel,
            pad=layer.pad,
            taps=layer.taps,
            low=layer.low,
            stride=layer.stride,
            before=layer.before,
            growth=layer.growth,
            channels=layer.channels if self.channels is None else self.channels,
            before_chunks=layer.before_chunks,
            grown_chunks=layer.grown_chunks,
            split=layer.split,
            chunks=layer.chunks,
            out_chunks=layer.out_chunks,
            **pointers,
        )


class Prepared:
    """Weights as needed by the kernels, for one pass."""

    def __init__(self, entries: list[Entry], training: bool, device: torch.device):
        sizes = []
        for entry in entries:
            layer = entry.layer
            sizes.append(
                (
                    entry.capsules * layer.forward_size,
                    entry.capsules * layer.backward_size if entry.backward and training else 0,
                    layer.transposed_size(entry.capsules)
                    if entry.transposed and (training or entry.capsules == 1)
                    else 0,
                )
            )
        self.buffer = torch.empty(sum(map(sum, sizes)), dtype=torch.int32, device=device)
        self.places: dict[int, tuple[int, int, int]] = {}
        place, structures_ = self.buffer.data_ptr(), []
        for entry, (forward, backward, transposed) in zip(entries, sizes, strict=True):
            places = (place, place + 4 * forward, place + 4 * (forward + backward))
            self.places[id(entry.weight)] = places
            structures_.append(
                entry.structure(
                    forward=places[0],
                    backward=places[1] if backward else 0,
                    transposed=places[2] if transposed else 0,
                )
            )
            place += 4 * (forward + backward + transposed)
        launch("prepare", structures_, max((max(size) for size in sizes), default=0))

    def forward(self, weight: Tensor) -> int:
        return self.places[id(weight)][0]

    def backward(self, weight: Tensor) -> int:
        return self.places[id(weight)][1]

    def transposed(self, weight: Tensor) -> int:
        return self.places[id(weight)][2]


def gather(entries: list[Entry], sums: list[int], dw: list[Tensor], dots: list[int] | None = None) -> None:
    """The gradients of weights, reordered from the layout that `weigh` writes."""
    structures_ = [
        entry.structure(sums=place, dw=d, dot=dots[index] if dots else 0)
        for index, (entry, place, d) in enumerate(zip(entries, sums, dw, strict=True))
    ]
    launch("gather", structures_, max(d.numel() for d in dw))


def launch(kernel: str, layers: list[Any], largest: int) -> None:
    grid = max(1, min(MULTIPROCESSORS, -(-largest // 256)))
    for start in range(0, len(layers), AT_ONCE):
        some = layers[start : start + AT_ONCE]
        arguments = build(PREPARE["Prepare"], layer=some)
        Kernel("prepare.cu", kernel)((grid, len(some), 1), 256, 128, arguments)
