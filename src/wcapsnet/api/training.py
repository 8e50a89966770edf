"""`wcapsnet.train`: train a network and test it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape
from typing_extensions import Unpack

from .. import console
from ..classifier import Classifier
from ..data import DATASETS, Dataset, default_data_dir
from ..data.device_data import DeviceSplit
from ..device import choose_device
from ..errors import Diverged, InputError, Interrupted
from ..experiment import Experiment
from ..explanations import Survey, has_routing, survey
from ..formatting import plural
from ..hub import data_of_run, dataset_of, load
from ..kernels import compile as compile_kernels
from ..network import WCapsNet
from ..plugins import plugin_options
from ..reports.survey_cache import MOST_ROUTED
from ..settings import from_dict, to_dict
from ..training.console import make_progress
from ..training.evaluate import Evaluation
from ..training.run_folder import Run, describe_environment
from ..training.trainer import Trainer
from .experiments import experiment_for, shows_options
from .options import ExperimentOptions
from .reporting import missing_report, report_of

GLANCE = 500  # validation images in the report of a stopped run


@dataclass(frozen=True)
class Trained:
    """A finished run."""

    run: Run
    results: dict[str, Any]  # test.json
    report: Path | None = None

    @property
    def path(self) -> Path:
        return self.run.path

    @property
    def accuracy(self) -> float:
        """Test accuracy of the weights with the best validation accuracy"""
        return float(self.results["accuracy"])

    def load(self, device: str = "cpu") -> Classifier:
        return load(self.path, device=device)


@shows_options
def train(
    target: str | Path | Experiment | None = None,
    *,
    seed: int | None = None,
    minutes: float | None = None,
    device: str = "auto",
    data_dir: Path | None = None,
    download: bool = False,
    out: Path | str | None = None,
    resume: Path | str | None = None,
    report: bool = True,
    quiet: bool = False,
    **options: Unpack[ExperimentOptions],
) -> Trained:
    """Train and test a network. Returns the finished run.

    `target` is a recipe's name, a folder of pictures, a run to repeat or an `Experiment`; `resume` is a run folder to
    continue instead. `settings` change any field: `settings=["model.dense_layers=4"]`. The other arguments match the
    options of `wcapsnet train`.
    """
    began = time.perf_counter()
    chosen = choose_device(device)
    if resume is not None:
        given = {str(target): target, "--seed": seed, "--minutes": minutes, "--out": out, **_as_typed(options)}
        for name, value in given.items():
            if value not in (None, "auto", [], ()):
                raise InputError(f"--resume continues a run as it was started, so it cannot be used with {name}.")
        run = Run.open(Path(resume))
        if run.finished:
            page = missing_report(run, chosen, data_dir, download, quiet) if report else None
            return Trained(run, run.results(), page)
        trainer = _resumed(run, chosen, data_dir, download, quiet)
    elif target is None:
        raise InputError("Name what to train: a recipe (see `wcapsnet list`), a folder of pictures, or --resume RUN.")
    else:
        experiment, data_dir = experiment_for(
            target, seed=seed, minutes=minutes, device=chosen, data_dir=data_dir, **options
        )
        trainer = _started(experiment, Path(out) if out else None, chosen, data_dir, download, quiet)
    if trainer.pace:
        trainer.pace.began = began
    seen: list[Survey] = []  # the final test looks at the test images once, for the report too

    def surveyed(network: WCapsNet, split: DeviceSplit) -> Evaluation:
        seen.append(survey(network, split, routed=len(split) <= MOST_ROUTED))
        return seen[0].evaluation()

    try:
        _fit(trainer)
        trainer.finish(surveyed if report and has_routing(trainer.network) else None)
    finally:
        trainer.run.release()
    found = seen[0] if seen else None
    page = report_of(trainer.run, trainer.dataset, chosen, found=found) if report else None
    return Trained(trainer.run, trainer.run.results(), page)


def _as_typed(options: ExperimentOptions) -> dict[str, Any]:
    """By the names of the command line's options"""
    return {"--set" if name == "settings" else f"--{name.replace('_', '-')}": value for name, value in options.items()}


def _started(
    experiment: Experiment,
    folder: Path | None,
    device: torch.device,
    data_dir: Path | None,
    download: bool,
    quiet: bool,
) -> Trainer:
    from_dict(Experiment, to_dict(experiment))  # refuse a configuration that could not be read back
    run = Run.at(folder, experiment) if folder else Run.next_free(Path("runs") / experiment.name, experiment)
    trainer = _trainer(run, dataset_of(experiment, data_dir, download, quiet), device, quiet)
    place = (data_dir or default_data_dir()) if experiment.data.source in DATASETS else None
    run.start(describe_environment(device, place, 1, trainer.computed_by), 0)  # last: bad input leaves no files behind
    return trainer


def _resumed(run: Run, device: torch.device, data_dir: Path | None, download: bool, quiet: bool) -> Trainer:
    run.hold()  # before its state is read
    try:
        trainer = _trainer(run, data_of_run(run, data_dir, download, quiet), device, quiet)
        run.start(describe_environment(device, None, 1, trainer.computed_by), trainer.state.epoch)
        run.file("failed.json").unlink(missing_ok=True)
    except BaseException:
        run.release()
        raise
    return trainer


def _trainer(run: Run, dataset: Dataset, device: torch.device, quiet: bool) -> Trainer:
    trainer = Trainer(run, dataset, device, make_progress(console.out, quiet))
    compile_kernels.tell = None if quiet else console.out.print
    if not quiet:
        _announce(trainer)
    return trainer


def _announce(trainer: Trainer) -> None:
    training, dataset, state = trainer.settings, trainer.dataset, trainer.state
    _, channels, height, width = dataset.train.images.shape
    parameters = sum(p.numel() for p in trainer.network.parameters())
    name = torch.cuda.get_device_name(trainer.device) if trainer.device.type == "cuda" else "CPU"
    console.out.print(
        f"[bold]{escape(trainer.experiment.name)}[/]: {len(dataset.classes)} classes, {len(dataset.train.labels):,} "
        f"training, {len(dataset.validation.labels):,} validation, {len(dataset.test.labels):,} test images "
        f"({channels}×{height}×{width})",
        soft_wrap=True,
    )
    minutes = f"{training.minutes:g} minute{'' if training.minutes == 1 else 's'}" if training.minutes else None
    length = minutes or plural(training.epochs, "epoch")
    resumed = f", resumed after epoch {state.epoch}" if state.epoch or state.step else ""
    console.out.print(
        f"{type(trainer.network).__name__}, {parameters:,} parameters; {training.precision} on {name} with "
        f"{trainer.computed_by}, batch size {training.batch_size}, {length}{resumed}",
        soft_wrap=True,
    )


def _fit(trainer: Trainer) -> None:
    """A run that stops early leaves a report of what there is."""
    try:
        trainer.fit()
    except Interrupted:
        stopped = Interrupted("train", "--resume", str(trainer.run.path), *plugin_options(to_dict(trainer.experiment)))
        stopped.report = report_of(trainer.run, trainer.dataset, trainer.device, GLANCE)
        raise stopped from None
    except Diverged as error:
        kept = " The last good checkpoint is kept." if trainer.run.file("last.safetensors").exists() else ""
        diverged = Diverged(f"{error}{kept}")
        diverged.report = report_of(trainer.run, trainer.dataset, trainer.device, GLANCE)
        raise diverged from None
