"""Train all runs of a sweep, several at a time on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from rich.markup import escape

from .. import console
from ..data import DataConfig, Dataset
from ..device import device_name
from ..errors import InputError
from ..formatting import plural
from ..hub import check_fit, data_place, dataset_of, start_file
from ..kernels import choose as choose_engine
from ..kernels import compile as compile_kernels
from ..limits import MAX_LANES
from ..memory import built
from ..training.console import Progress, make_board
from ..training.parallel import SharedData, train_together, without_augmentation
from ..training.run_folder import Run
from ..training.trainer import Trainer, check_memory
from .on_ray import train_on_ray
from .plan import Sweep, adopt, finished_twin

AT_ONCE = 4  # highest total throughput of a GPU (benchmarks/records, runs-on-one-card)


def train_all(
    sweep: Sweep,
    device: torch.device,
    *,
    parallel: int | None = None,
    data_dir: Path | None = None,
    download: bool = False,
    quiet: bool = False,
    table: str | None = None,
    cluster: str | None = None,
    measured: str = "test",
) -> dict[Run, str]:
    """Train every unfinished run. Returns the failed ones, with the reason. `cluster`: the description of a Ray cluster
    that this process is connected to, to train there. `measured`: the accuracy that is printed, "test" or
    "validation"."""
    if parallel is not None and not 1 <= parallel <= MAX_LANES:
        raise InputError(f"--parallel is {parallel}; 1 to {MAX_LANES} runs can be trained at a time.")
    runs = sweep.unfinished
    load = _checked(sweep, data_dir, download, quiet)  # report input errors before anything is written
    if table:  # the paper's network is a row of every table
        runs = _not_elsewhere(sweep, runs, load, quiet)
    for run in runs:
        if not Run.is_run(run.path):
            run.starts_from = start_file(run.experiment)
    if cluster is None:  # workers have another device and memory of their own
        _check_device(runs, load, device)
    shared = SharedData(load, device)
    at_a_time = parallel or AT_ONCE if device.type == "cuda" else 1

    def make(run: Run, progress: Progress) -> Trainer | None:
        if Run.is_run(run.path):
            run.hold()  # before its state is read
            if run.finished:  # by another process in the meantime
                return None
        trainer = Trainer(run, shared.of(run.experiment.data), device, progress)
        trainer.start(data_place(run.experiment, data_dir), min(at_a_time, len(runs)))
        return trainer

    if not quiet:
        _announce(sweep, runs, parallel or at_a_time, device, cluster)
    compile_kernels.tell = None if quiet else console.out.print
    failures: dict[Run, str] = {}
    board = make_board(console.out, sweep.runs, quiet)
    board.measured = measured
    if cluster is None:
        outcomes = train_together(runs, make, device, at_a_time, board)
    else:
        outcomes = train_on_ray(
            runs,
            lambda run: load(run.experiment.data),
            device,
            at_a_time,
            board,
            data_dir=data_dir,
            download=download,
        )
    try:
        for run, failure in outcomes:
            if failure:
                failures[run] = failure
            sweep.write()
    finally:
        if sweep.folder.exists():
            sweep.write()
    return {run: failures.get(run) or run.failure or "not finished" for run in sweep.runs if not run.finished}


def _check_device(runs: list[Run], load: Callable[[DataConfig], Dataset], device: torch.device) -> None:
    """Refuse what this device cannot train, before anything is written."""
    for run in runs:
        dataset = load(run.experiment.data)
        check_memory(run.experiment, device, len(dataset.train.labels), len(dataset.validation.labels))
    for experiment in {(e.model, e.training.kernels): e for e in (run.experiment for run in runs)}.values():
        choose_engine(built(experiment.model), experiment, device)


def _announce(
    sweep: Sweep, unfinished: list[Run], parallel: int, device: torch.device, cluster: str | None = None
) -> None:
    done = len(sweep.runs) - len(unfinished)
    where = cluster or device_name(device)
    at_once = f", {parallel} at a time" if parallel > 1 and device.type == "cuda" else ""
    at_once += " on each GPU" if at_once and cluster else ""
    before = f", {done} of them already finished" if done else ""
    runs = plural(len(sweep.runs), "run")
    console.out.print(f"{runs} in [bold]{escape(str(sweep.folder))}[/]{before}; on {where}{at_once}", soft_wrap=True)
    if parallel > 1 and device.type != "cuda" and not cluster:
        here = "a CPU" if device.type == "cpu" else "this device"
        console.out.print(f"On {here}, runs are trained one after another; --parallel applies to CUDA GPUs.")


def _checked(sweep: Sweep, data_dir: Path | None, download: bool, quiet: bool) -> Callable[[DataConfig], Dataset]:
    """A loader for the images of each run; first checks that all runs in the table belong together."""
    datasets: dict[DataConfig, Dataset] = {}

    def load(config: DataConfig) -> Dataset:
        return datasets[_images(config)]

    for run in sweep.unfinished:
        if _images(run.experiment.data) not in datasets:
            datasets[_images(run.experiment.data)] = dataset_of(run.experiment, data_dir, download, quiet)
        check_fit(run.experiment, load(run.experiment.data))
    for _, run in sweep.table:
        if run.finished:
            run.results()
        # Runs on other images do not belong in the same table.
        if _images(run.experiment.data) in datasets:
            run.check_data(load(run.experiment.data), instead="choose another folder with --out")
    return load


def _not_elsewhere(sweep: Sweep, runs: list[Run], load: Callable[[DataConfig], Dataset], quiet: bool) -> list[Run]:
    """Skip runs that another sweep has already finished on the same images; they are copied from there."""
    beside = [path.parent for path in sweep.folder.parent.glob("*/sweep.json") if path.parent != sweep.folder]
    left = []
    for run in runs:
        twin = None if Run.is_run(run.path) else finished_twin(run, beside)
        try:
            if twin:
                twin.check_data(load(run.experiment.data))
        except InputError:
            twin = None
        if twin is None:
            left.append(run)
            continue
        adopt(run, twin)
        if not quiet:
            console.out.print(f"{run.path.name} was already trained as {twin.path}; that run is used.", markup=False)
    return left


def _images(config: DataConfig) -> DataConfig:
    """A key shared by all configurations that use the same images, however these are augmented and normalised."""
    return replace(without_augmentation(config), normalization="unit")
