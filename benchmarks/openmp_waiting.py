"""What idle OpenMP threads cost: a training step of the quick network alone, and beside a second process.

    python benchmarks/openmp_waiting.py HARDWARE-NAME

Medians of 12 steps after 3, in processes of their own, since OpenMP reads its settings when it is loaded.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

SETTINGS = {
    "default": {},
    "GOMP_SPINCOUNT=10000": {"GOMP_SPINCOUNT": "10000"},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
}


def measure() -> None:
    import torch

    from wcapsnet import create
    from wcapsnet.objective import ObjectiveConfig, objective

    network = create("wcapsnet-quick", classes=10, channels=1, size=28)
    images, labels = torch.rand(64, 1, 28, 28), torch.randint(0, 10, (64,))
    times = []
    for _ in range(15):
        start = time.perf_counter()
        objective(network(images), images, labels, ObjectiveConfig()).total.backward()
        times.append(time.perf_counter() - start)
    print(statistics.median(times[3:]) * 1000)


def processes(count: int, settings: dict[str, str]) -> list[float]:
    environment = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")} | settings
    command = [sys.executable, __file__, "--measure"]
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    return [round(float(process.communicate()[0]), 1) for process in running]


def main() -> None:
    import record

    results = []
    for repetition in range(2):
        for name, settings in SETTINGS.items():
            alone, beside = processes(1, settings), processes(2, settings)
            results.append({"setting": name, "repetition": repetition, "alone_ms": alone, "two_processes_ms": beside})
            print(results[-1])
    record.write("openmp_waiting", sys.argv[1], results)


if __name__ == "__main__":
    measure() if "--measure" in sys.argv else main()
