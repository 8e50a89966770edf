"""Several runs in one process on one card: images a second of all of them together, for 1, 2, 4 and 8 runs.

    python benchmarks/runs_on_one_card.py HARDWARE-NAME [--precision bf16] [--kernels auto] [--runs 1,2,4,8]
    python benchmarks/runs_on_one_card.py HARDWARE-NAME --tiny       # on any machine, to check the script

The network, batch and augmentation of the `cifar10` recipe on random images of its size. Every run goes through
`train_together`, the loop of `wcapsnet sweep`; what is counted is training steps that the device has finished. Each
number of runs is measured three times, in turns, so that what changes with time does not favour one of them; what is
reported is the median, and every single figure. Validation and start-up are not in it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import record
import torch
from torch import Tensor

from wcapsnet.data import Dataset, Split
from wcapsnet.data.device_data import DeviceData
from wcapsnet.experiment import Experiment
from wcapsnet.models import model_config
from wcapsnet.recipes import recipe
from wcapsnet.training.console import Board, Progress
from wcapsnet.training.parallel import train_together
from wcapsnet.training.run_folder import Run
from wcapsnet.training.trainer import Trainer

REPETITIONS = 3
WARM_UP, MEASURED = 20, 120  # steps of every run


class Enough(Exception):
    """As many steps as were to be measured."""


class Watch:
    """Counts the steps of all runs, and stops the clock when the last of them has done its share."""

    def __init__(self, runs: int, warm_up: int, measured: int, device: torch.device):
        self.runs, self.warm_up, self.measured, self.device = runs, warm_up, measured, device
        self.steps: dict[Run, int] = {}
        self.started: float | None = None
        self.seconds = 0.0
        self.counted = 0

    def count(self, run: Run) -> None:
        """Before every step of every run: it is not launched yet."""
        self.steps[run] = self.steps.get(run, 0) + 1
        if self.started is None:
            if len(self.steps) == self.runs and min(self.steps.values()) > self.warm_up:
                self._wait()
                self.started = time.perf_counter()
                self.before = sum(self.steps.values())
        elif min(self.steps.values()) > self.warm_up + self.measured:
            self._wait()  # for all that was launched: steps in flight when the clock started are not in, these are
            self.seconds = time.perf_counter() - self.started
            self.counted = sum(self.steps.values()) - self.before
            raise Enough

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class Silent(Progress):
    def due(self) -> bool:
        return False


def images(count: int, experiment: Experiment) -> Split:
    model = experiment.model
    shape = (count, model.channels, model.height, model.width)
    return Split(torch.randint(0, 256, shape, dtype=torch.uint8), torch.randint(0, model.classes, (count,)))


def measure(experiment: Experiment, data: DeviceData, runs: int, device: torch.device, steps: tuple[int, int]) -> dict:
    watch = Watch(runs, *steps, device)

    def make(run: Run, progress: Progress) -> Trainer:
        trainer = Trainer(run, data, device, Silent())
        run.begin({})
        step = trainer.step.__call__

        class Counted:
            sums = trainer.step.sums
            release = trainer.step.release

            def __call__(self, index: Tensor) -> None:
                watch.count(run)
                step(index)

        trainer.step = Counted()  # type: ignore[assignment]
        made.append(trainer.computed_by)
        return trainer

    made: list[str] = []
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    with tempfile.TemporaryDirectory() as folder:
        seeded = [replace(experiment, training=replace(experiment.training, seed=seed)) for seed in range(runs)]
        folders = [Run(Path(folder) / str(number), one) for number, one in enumerate(seeded)]
        together = train_together(folders, make, device, runs, Board())
        try:
            for outcome in together:
                raise RuntimeError(f"{outcome.run.path} ended before it was measured: {outcome.failure}")
        except Enough:
            pass
        finally:
            together.close()
    return {
        "images_per_s": round(watch.counted * experiment.training.batch_size / watch.seconds, 1),
        "steps": watch.counted,
        "seconds": round(watch.seconds, 3),
        "steps_of_each": sorted(watch.steps.values()),
        "peak_memory_gib": round(torch.cuda.max_memory_reserved(device) / 2**30, 2) if device.type == "cuda" else None,
        "computed_by": made[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hardware")
    parser.add_argument("--precision", default="bf16", choices=("bf16", "fp32"))
    parser.add_argument("--kernels", default="auto", choices=("auto", "fused", "plain"))
    parser.add_argument("--runs", default="1,2,4,8")
    parser.add_argument("--tiny", action="store_true", help="the quick network, few steps, nothing written")
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    experiment = recipe("cifar10")
    if given.tiny:
        experiment = replace(experiment, model=model_config("wcapsnet-quick", 10, 3, 32, 32))
    training = replace(experiment.training, precision=given.precision, kernels=given.kernels)
    experiment = replace(experiment, training=replace(training, batch_size=8 if given.tiny else training.batch_size))
    steps = (2, 4) if given.tiny else (WARM_UP, MEASURED)
    torch.manual_seed(0)
    size = experiment.training.batch_size * (4 * sum(steps) + 8)  # one epoch, with room for the quicker ones
    dataset = Dataset("random", tuple("0123456789"), *(images(n, experiment) for n in (size, 64, 64)))
    data = DeviceData(dataset, experiment.data.normalization, device)

    counts = [int(count) for count in given.runs.split(",")]
    singles: dict[int, list[dict]] = {count: [] for count in counts}
    for repetition in range(1 if given.tiny else REPETITIONS):
        for count in counts:
            singles[count].append(measure(experiment, data, count, device, steps))
            print(f"repetition {repetition + 1}, {count} runs: {singles[count][-1]}", flush=True)
    results = []
    for count in counts:
        median = statistics.median(single["images_per_s"] for single in singles[count])
        results.append({"runs": count, "images_per_s": median, "single": singles[count]})
        print(f"{count} runs: {median:,.0f} images/s together, {median / count:,.0f} each")
    facts = {"device": str(device), "precision": given.precision, "kernels": given.kernels, "tiny": given.tiny}
    if device.type == "cuda":
        facts["hardware"] = torch.cuda.get_device_name(device)
        facts["cuda"] = torch.version.cuda
    if not given.tiny:
        record.write("runs_on_one_card", given.hardware, {"what": facts, "results": results})


if __name__ == "__main__":
    main()
