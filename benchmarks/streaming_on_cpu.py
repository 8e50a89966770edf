"""A training step with images in memory and with images streamed from a file; and how fast a file is read.

    python benchmarks/streaming_on_cpu.py HARDWARE-NAME

The step is that of the recipe `quick` with batch size 64 on one thread, measured by turns: medians over rounds of four
steps, and the processor time of all threads, which other programs on the machine disturb less. Reading is measured
without training, for CIFAR's 3×32×32 and for photographs of 3×64×64 and 3×224×224, in random order: with the file in
the system's page cache ("warm"), and after dropping it from there ("cold").
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as the command line does

import numpy as np
import record
import torch

from wcapsnet.__main__ import keep_freed_memory
from wcapsnet.data import Split
from wcapsnet.data.device_data import DeviceSplit, epoch_order
from wcapsnet.data.reader import Reader
from wcapsnet.data.stream import Rows
from wcapsnet.engine import Engine
from wcapsnet.recipes import recipe
from wcapsnet.training.step import Step, make_optimizer

CPU = torch.device("cpu")
ROUNDS, STEPS, BATCH = 7, 4, 64
SHAPES = {(3, 32, 32): 60_000, (3, 64, 64): 30_000, (3, 224, 224): 3_000}


def in_a_file(images: np.ndarray, folder: Path) -> tuple[Rows, Path]:
    path = folder / "images.npy"
    np.save(path, images)
    return Rows(np.load(path, mmap_mode="r"), np.arange(len(images))), path


def make_step(images: torch.Tensor | Rows, labels: torch.Tensor) -> Step:
    experiment = recipe("quick")
    torch.manual_seed(0)
    engine = Engine(experiment.model.build().train())
    data = DeviceSplit(Split(images, labels), (0.5,), (0.25,), CPU)
    return Step(experiment, engine, make_optimizer(engine, experiment, CPU), data)


def steps(folder: Path) -> dict[str, object]:
    model = recipe("quick").model
    shape = (20_000, model.channels, model.height, model.width)
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    labels = torch.randint(0, model.classes, (len(images),), generator=torch.Generator().manual_seed(0))
    ways = {
        "in memory": make_step(torch.from_numpy(images), labels),
        "streamed": make_step(in_a_file(images, folder)[0], labels),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    processor: dict[str, list[float]] = {name: [] for name in ways}  # of all threads, readers included
    for round_ in range(ROUNDS + 1):
        order = epoch_order(len(images), BATCH, 0, round_)[:STEPS]
        for name, step in ways.items():
            batches = step.data.expect(order)
            torch.manual_seed(round_)  # the critics' noise
            started, used = time.perf_counter(), time.process_time()
            for index in batches:
                step(index)
            if round_:  # the first one warms up
                times[name].append(round((time.perf_counter() - started) / STEPS * 1000, 2))
                processor[name].append(round((time.process_time() - used) / STEPS * 1000, 2))
    one, other = (dict(step.engine.network.state_dict()) for step in ways.values())
    equal = all(torch.equal(one[name], other[name]) for name in one)
    return {
        **{
            name: {
                "ms_a_step": statistics.median(found),
                "rounds": found,
                "processor_ms_a_step": statistics.median(processor[name]),
                "processor_rounds": processor[name],
            }
            for name, found in times.items()
        },
        "weights_bit_equal_after_all_steps": equal,
    }


def reading(folder: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for shape, count in SHAPES.items():
        images = np.random.default_rng(0).integers(0, 256, (count, *shape), dtype=np.uint8)
        rows, path = in_a_file(images, folder)
        size = path.stat().st_size
        rates: dict[str, list[float]] = {"cold": [], "warm": []}
        reader = None
        for round_ in range(3):
            order = epoch_order(count, BATCH, 0, round_)
            for name in rates:
                if name == "cold":
                    del rows, reader  # pages that are still mapped would stay in the page cache
                    with path.open("rb") as file:
                        os.fsync(file.fileno())
                        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                    rows = Rows(np.load(path, mmap_mode="r"), np.arange(count))
                reader = Reader(rows, CPU)
                reader.expect(order)
                started = time.perf_counter()
                for index in order:
                    reader(index)
                rates[name].append(round(order.numel() / (time.perf_counter() - started)))
        found["×".join(map(str, shape))] = {
            "file_mb": round(size / 1e6),
            **{name: {"images_per_s": statistics.median(some), "rounds": some} for name, some in rates.items()},
        }
    return found


def main() -> None:
    keep_freed_memory()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        load = os.getloadavg()
        results = {"step": steps(Path(folder)), "reading": reading(Path(folder))}
    results["load_average"] = {"before": load, "after": os.getloadavg()}  # other programs on the same cores
    print(results)
    record.write("streaming_on_cpu", sys.argv[1], results)


if __name__ == "__main__":
    main()
