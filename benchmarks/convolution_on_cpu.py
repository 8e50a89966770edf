"""A 3×3 convolution of N capsules on a CPU, forward and backward: which formulation is fastest?

    python benchmarks/convolution_on_cpu.py HARDWARE-NAME

Medians of 15 after 3 warm-up runs, all formulations side by side for each shape.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import record
import torch
import torch.nn.functional as F
from torch import Tensor

# images, capsules, channels, growth, side, stride: the quick network's first and second layer, Table I's level 1
SHAPES = ((64, 4, 8, 8, 28, 2), (64, 4, 16, 8, 14, 1), (64, 16, 64, 8, 16, 1))


def grouped(x: Tensor, w: Tensor, stride: int) -> Tensor:
    n = x.shape[1]
    return F.conv2d(x.flatten(1, 2), w.flatten(0, 1), None, stride, 1, groups=n).unflatten(1, (n, -1))


def grouped_channels_last(x: Tensor, w: Tensor, stride: int) -> Tensor:
    n = x.shape[1]
    last = x.flatten(1, 2).contiguous(memory_format=torch.channels_last)
    return F.conv2d(last, w.flatten(0, 1), None, stride, 1, groups=n).unflatten(1, (n, -1))


def unfolded(x: Tensor, w: Tensor, stride: int) -> Tensor:
    m, n, _, side, _ = x.shape
    out = -(-side // stride)
    patches = F.unfold(x.flatten(0, 1), 3, padding=1, stride=stride).view(m, n, -1, out * out)
    return (w.flatten(2) @ patches).view(m, n, -1, out, out)


def looped(x: Tensor, w: Tensor, stride: int) -> Tensor:
    return torch.stack([F.conv2d(x[:, n], w[n], None, stride, 1) for n in range(x.shape[1])], 1)


FORMULATIONS = {
    "grouped": grouped,
    "grouped, channels last": grouped_channels_last,
    "unfold and batched product": unfolded,
    "loop over capsules": looped,
}


def milliseconds(
    formulation: Callable[[Tensor, Tensor, int], Tensor], x: Tensor, w: Tensor, stride: int, gradient: Tensor
) -> float:
    times = []
    for _ in range(18):
        start = time.perf_counter()
        torch.autograd.grad(formulation(x, w, stride), (x, w), gradient)
        times.append(time.perf_counter() - start)
    return round(statistics.median(times[3:]) * 1000, 2)


def main() -> None:
    results = []
    for m, n, c, g, side, stride in SHAPES:
        x, w = torch.randn(m, n, c, side, side, requires_grad=True), torch.randn(n, g, c, 3, 3, requires_grad=True)
        expected = grouped(x, w, stride)
        gradient = torch.randn_like(expected)
        row: dict[str, object] = {
            "images": m,
            "capsules": n,
            "channels": c,
            "growth": g,
            "side": side,
            "stride": stride,
        }
        for name, formulation in FORMULATIONS.items():
            torch.testing.assert_close(formulation(x, w, stride), expected, rtol=1e-3, atol=1e-3)
            row[name] = milliseconds(formulation, x, w, stride, gradient)
        print(row)
        results.append(row)
    record.write("convolution_on_cpu", sys.argv[1], results)


if __name__ == "__main__":
    main()
