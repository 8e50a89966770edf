"""A data set and an experiment that train in a fraction of a second.

Not in conftest.py: several folders of tests have one, and they all import under the same name.
"""

from __future__ import annotations

import io
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors import safe_open

import wcapsnet.engine as engine_module
from twins.tiny import tiny
from wcapsnet.data import DataConfig, Dataset, Split
from wcapsnet.experiment import Experiment, TrainingConfig
from wcapsnet.training.console import Progress
from wcapsnet.training.run_folder import Run
from wcapsnet.training.trainer import Interrupted, Trainer

CPU = torch.device("cpu")
TIMINGS = {"seconds", "images_per_s"}


def rows_of_light(count: int, seed: int, size: int = 8) -> Split:
    """Three classes told apart by which rows are bright; mirroring does not change them."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    images = torch.randint(0, 100, (count, 1, size, size), generator=generator, dtype=torch.uint8)
    for r in range(3):
        images[labels == r, :, 3 * r : 3 * r + 2] += 150
    return Split(images, labels)


def toy_dataset(train: int = 50, validation: int = 13, test: int = 17) -> Dataset:
    parts = (rows_of_light(count, seed) for seed, count in enumerate((train, validation, test)))
    return Dataset("toy", ("top", "middle", "bottom"), *parts)


def toy_experiment(**training: Any) -> Experiment:
    """Three steps an epoch, with everything random on: noise, dropout, mirroring, shifting."""
    settings = {"epochs": 3, "batch_size": 16, "milestones": (2,), "lr": 0.05, **training}
    return Experiment(
        name="toy",
        data=DataConfig(source="toy", normalization="standardize", mirror=True, shift=1),
        model=tiny(channels=1),
        training=TrainingConfig(**settings),
    )


def begin(
    path: Path, experiment: Experiment, dataset: Dataset | None = None, progress: Progress | None = None
) -> Trainer:
    return Trainer(Run.create(path, experiment, {}), dataset or toy_dataset(), CPU, progress or Progress())


def go_on(path: Path, dataset: Dataset | None = None, progress: Progress | None = None) -> Trainer:
    return Trainer(Run.open(path), dataset or toy_dataset(), CPU, progress or Progress())


def trained(path: Path, experiment: Experiment, dataset: Dataset | None = None) -> Run:
    return to_the_end(begin(path, experiment, dataset))


def to_the_end(trainer: Trainer) -> Run:
    trainer.fit()
    trainer.finish()
    return trainer.run


class CtrlC(Progress):
    """Presses Ctrl-C at a step of an epoch (both from 0), or once an epoch is over."""

    interval = 0.0

    def __init__(self, epoch: int, step: int | None = None, number: int = signal.SIGINT):
        super().__init__()
        self.at, self.number = (epoch, step), number

    def batch(self, epoch: int, epochs: int, step: int, steps: int, batch_size: int, means: dict[str, float]) -> None:
        if (epoch, step) == self.at:
            signal.raise_signal(self.number)

    def epoch(self, record: dict[str, Any], epochs: int) -> None:
        if (record["epoch"] - 1, None) == self.at:
            signal.raise_signal(self.number)


def interrupted(trainer: Trainer) -> bool:
    try:
        trainer.fit()
    except Interrupted:
        return True
    return False


def tensors(path: Path) -> dict[str, torch.Tensor]:
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in sorted(file.keys())}


def same_tensors(one: Path, other: Path) -> bool:
    """Bit for bit."""
    a, b = tensors(one), tensors(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def without_timings(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in record.items() if name not in TIMINGS} for record in records]


def assert_same_run(run: Run, other: Run) -> None:
    """Bit for bit, apart from times."""
    for name in ("best.safetensors", "last.safetensors", "state.safetensors"):
        assert same_tensors(run.file(name), other.file(name)), name
    assert without_timings(run.metrics()) == without_timings(other.metrics())
    for name in ("predictions.csv", "confusion.csv"):
        assert run.file(name).read_bytes() == other.file(name).read_bytes()


def with_training(experiment: Experiment, **changes: Any) -> Experiment:
    return replace(experiment, training=replace(experiment.training, **changes))


def poison(patch: pytest.MonkeyPatch, when: Callable[[int, Any], bool]) -> list[int]:
    """The loss is not a number in the steps for which `when(number, weights)` holds. Returns the steps so far."""
    honest, steps = engine_module.objective, []

    def poisoned(*args: Any) -> Any:
        steps.append(len(steps))
        terms = honest(*args)
        return terms._replace(total=terms.total * (float("nan") if when(len(steps), args[-1]) else 1))

    patch.setattr(engine_module, "objective", poisoned)
    return steps


def after_each_step(trainer: Trainer, then: Callable[[], None]) -> None:
    plain = trainer.step

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(plain, name)

        def __call__(self, index: torch.Tensor) -> None:
            plain(index)
            then()

    trainer.step = Watched()


def console(terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=160, color_system=None, _environ={})


def shown(at: Console) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", at.file.getvalue())


def counting(function: Callable[..., Any], calls: list[tuple[Any, ...]]) -> Callable[..., Any]:
    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return function(*args, **kwargs)

    return counted
