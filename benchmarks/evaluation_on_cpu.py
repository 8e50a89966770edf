"""The full network over many images on a CPU: all cores in one batch, or a batch of its own for every core?

    python benchmarks/evaluation_on_cpu.py HARDWARE-NAME

`evaluate` on random images, by turns; medians of three rounds, and every round.
"""

from __future__ import annotations

import os
import statistics
import sys
import time

os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as the command line does
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import record
import torch

from wcapsnet.__main__ import keep_freed_memory
from wcapsnet.data import Split
from wcapsnet.data.device_data import DeviceSplit
from wcapsnet.network import WCapsNet
from wcapsnet.recipes import recipe
from wcapsnet.training import evaluate as evaluation

IMAGES, ROUNDS = 500, 3


def one_after_another(work, items, device):
    yield from map(work, items)


def main() -> None:
    keep_freed_memory()
    torch.manual_seed(0)
    network, cpu = WCapsNet(recipe("cifar10").model).eval(), torch.device("cpu")
    pictures = Split(torch.randint(0, 256, (IMAGES, 3, 32, 32), dtype=torch.uint8), torch.randint(0, 10, (IMAGES,)))
    split = DeviceSplit(pictures, (0.5,) * 3, (0.25,) * 3, cpu)
    every_core = evaluation.on_every_core
    ways = {
        "all cores, one batch of 500": (one_after_another, 500),
        "all cores, batches of 16": (one_after_another, 16),
        "a core, batches of 16 each": (every_core, 16),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, (cores, batch) in ways.items():
            evaluation.on_every_core = cores
            start = time.perf_counter()
            evaluation.evaluate(network, split, batch_size=batch)
            found[name].append(round((time.perf_counter() - start) / IMAGES * 1000, 2))
    results = {name: {"ms_an_image": statistics.median(times), "rounds": times} for name, times in found.items()}
    print(results)
    record.write("evaluation_on_cpu", sys.argv[1], results)


if __name__ == "__main__":
    main()
