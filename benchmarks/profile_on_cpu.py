"""Where a training step on a CPU spends its time, and what no faster convolution could save.

    python benchmarks/profile_on_cpu.py HARDWARE-NAME

The step of `quick` (64 images) as the network computes it and as a loop over capsules, by PyTorch's profiler: the time
of operations themselves, summed up by kind, medians of 7 steps after 3.
"""

from __future__ import annotations

import os
import statistics
import sys

os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as the command line does

import torch
from record import write
from torch.profiler import ProfilerActivity, profile

from wcapsnet.__main__ import keep_freed_memory
from wcapsnet.bench.contenders import Contender
from wcapsnet.bench.tasks import synthetic, training
from wcapsnet.recipes import recipe

KINDS = {
    "convolutions and products": ("conv", "mkldnn", "mm", "addmm", "bmm", "einsum"),
    "batch norm": ("batch_norm",),
    "ReLU, dropout, softmax, sigmoid": ("relu", "threshold", "dropout", "bernoulli", "softmax", "sigmoid", "where"),
    "concatenation and copies": ("cat", "copy", "clone", "contiguous", "slice", "narrow", "fill", "zero"),
}


def kind(name: str) -> str:
    short = name.removeprefix("aten::")
    return next((kind for kind, parts in KINDS.items() if any(part in short for part in parts)), "the rest")


def measure(name: str) -> dict[str, float]:
    experiment, cpu = recipe("quick"), torch.device("cpu")
    step = training(Contender(name, "fp32", name), experiment, 64, synthetic(experiment, cpu)).call
    for _ in range(3):
        step()
    found: dict[str, list[float]] = {kind: [] for kind in (*KINDS, "the rest")}
    for _ in range(7):
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            step()
        sums = dict.fromkeys(found, 0.0)
        for event in profiler.key_averages():
            sums[kind(event.key)] += event.self_cpu_time_total / 1000
        for one, total in sums.items():
            found[one].append(total)
    return {one: round(statistics.median(values), 2) for one, values in found.items()}


def main() -> None:
    keep_freed_memory()
    results = {name: measure(name) for name in ("plain", "loop")}
    for name, row in results.items():
        print(name, f"{sum(row.values()):.1f} ms", row)
    rest = sum(value for one, value in results["plain"].items() if one != "convolutions and products")
    bound = sum(results["loop"].values()) / rest
    print(f"With convolutions that cost nothing the step would be {bound:.2f} times as fast as the loop.")
    write("profile_on_cpu", sys.argv[1], {"ms": results, "bound_against_the_loop": round(bound, 2)})


if __name__ == "__main__":
    main()
