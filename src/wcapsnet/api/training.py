"""`wcapsnet.train`: train a network and test it."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.markup import escape
from typing_extensions import Unpack

from .. import console, shipped
from ..classifier import Classifier
from ..data.device_data import DeviceSplit
from ..device import device_name
from ..errors import Diverged, InputError, Interrupted, Lost
from ..experiment import Experiment
from ..explanations import Survey, survey
from ..formatting import percent, plural
from ..hub import data_place, dataset_of, load, moved, remembered, start_file
from ..kernels import compile as compile_kernels
from ..launched import launcher
from ..network import WCapsNet
from ..plugins import plugin_options, unused
from ..reports.survey_cache import MOST_ROUTED
from ..settings import from_dict, to_dict
from ..training.console import Progress, make_progress
from ..training.distributed import Ranks, joined
from ..training.evaluate import Evaluation
from ..training.run_folder import Run
from ..training.trainer import Trainer
from .experiments import experiment_for, shows_options
from .options import ExperimentOptions, as_path
from .reporting import missing_report, report_of

GLANCE = 500  # validation images in the report of a stopped run


@dataclass(frozen=True)
class Trained:
    """A finished run."""

    run: Run
    results: dict[str, Any]  # test.json
    report: Path | None = None
    again: bool = False  # whether the run was already finished

    def __repr__(self) -> str:  # without the confusion matrix
        return f"Trained({str(self.path)!r}, accuracy={percent(self.accuracy)} %, epochs={self.results['epochs']})"

    @property
    def path(self) -> Path:
        return self.run.path

    @property
    def accuracy(self) -> float:
        """Test accuracy of the weights chosen by validation accuracy"""
        return float(self.results["accuracy"])

    def load(self, device: str = "cpu") -> Classifier:
        return load(self.path, device=device)


class Plan(NamedTuple):
    """What rank 0 tells the others"""

    run: Path
    experiment: Experiment
    of: Experiment  # names the data
    place: Path | None  # their directory


@shows_options
def train(
    target: str | Path | Experiment | None = None,
    *,
    seed: int | None = None,
    minutes: float | None = None,
    device: str = "auto",
    data_dir: str | Path | None = None,
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
    with joined(device) as ranks:
        if not ranks.first:
            return _follow(ranks, download)
        if resume is not None:
            given = {str(target): target, "--seed": seed, "--minutes": minutes, "--out": out, **_as_typed(options)}
            for name, value in given.items():
                if value not in (None, "auto", [], ()):
                    raise InputError(f"--resume continues a run as it was started, so it cannot be used with {name}.")
            run = Run.open(Path(resume))
            if run.finished:
                ranks.same(None)
                page = missing_report(run, ranks.device, as_path(data_dir), download, quiet) if report else None
                return ranks.finish(Trained(run, run.results(), page, again=True))
            trainer = _resumed(run, ranks, as_path(data_dir), download, quiet)
        elif target is None:
            raise InputError(
                "Name what to train: a recipe (see `wcapsnet list`), a folder of pictures, or --resume RUN."
            )
        else:
            experiment, place = experiment_for(
                target, seed=seed, minutes=minutes, device=ranks.device, data_dir=as_path(data_dir), **options
            )
            trainer = _started(experiment, Path(out) if out else None, ranks, place, download, quiet)
        if trainer.pace:
            trainer.pace.began = began
        seen: list[Survey] = []  # the final test looks at the test images once, for the report too

        def surveyed(network: WCapsNet, split: DeviceSplit) -> Evaluation:
            seen.append(survey(network, split, routed=len(split) <= MOST_ROUTED))
            return seen[0].evaluation()

        try:
            _fit(trainer)
            trainer.finish(surveyed if report else None)
        finally:
            trainer.run.release()
        found = seen[0] if seen else None
        page = report_of(trainer.run, trainer.dataset, ranks.device, found=found) if report else None
        return ranks.finish(Trained(trainer.run, trainer.run.results(), page))


def _follow(ranks: Ranks, download: bool) -> Trained:
    """`train` in the other processes: what rank 0 trains, without the run folder, which may be on another machine"""
    plan: Plan | None = ranks.same(None)
    if plan:
        dataset = ranks.load(lambda: dataset_of(plan.of, plan.place, download, quiet=True))
        Trainer(Run(plan.run, plan.experiment), dataset, ranks.device, Progress(), ranks).fit()
    result: Any = None  # rank 0 has it
    return ranks.finish(result)


def _as_typed(options: ExperimentOptions) -> dict[str, Any]:
    """By the names of the command line's options"""
    named = {"settings": "--set", "start_from": "--from"}
    return {named.get(name, f"--{name.replace('_', '-')}"): value for name, value in options.items()}


def _started(
    experiment: Experiment, folder: Path | None, ranks: Ranks, data_dir: Path | None, download: bool, quiet: bool
) -> Trainer:
    plain = to_dict(experiment)
    from_dict(Experiment, plain)  # refuse a configuration that could not be read back
    for sentence in unused(plain):
        console.warn(sentence)
    run = Run.at(folder, experiment) if folder else Run.next_free(Path("runs") / experiment.name, experiment)
    run.starts_from = start_file(experiment)
    trainer = _trainer(run, experiment, data_dir, ranks, download, quiet)
    trainer.start(data_place(experiment, data_dir))  # last: bad input leaves no files behind
    return trainer


def _resumed(run: Run, ranks: Ranks, data_dir: Path | None, download: bool, quiet: bool) -> Trainer:
    run.hold()  # before its state is read
    try:
        of, place = moved(run.experiment, data_dir), data_dir or remembered(run.path)
        trainer = _trainer(run, of, place, ranks, download, quiet)
        trainer.start(None)
        run.file("failed.json").unlink(missing_ok=True)
    except BaseException:
        run.release()
        raise
    return trainer


def _trainer(run: Run, of: Experiment, place: Path | None, ranks: Ranks, download: bool, quiet: bool) -> Trainer:
    """`of` names the data, in the directory `place`."""
    ranks.same(Plan(run.path, run.experiment, of, place))
    dataset = ranks.load(lambda: dataset_of(of, place, download, quiet))
    trainer = Trainer(run, dataset, ranks.device, make_progress(console.out, quiet), ranks)
    compile_kernels.tell = None if quiet else console.out.print
    if not quiet:
        _announce(trainer)
    return trainer


def _announce(trainer: Trainer) -> None:
    training, dataset, state = trainer.settings, trainer.dataset, trainer.state
    _, channels, height, width = dataset.train.images.shape
    parameters = sum(p.numel() for p in trainer.network.parameters())
    console.out.print(
        f"[bold]{escape(trainer.experiment.name)}[/]: {len(dataset.classes)} classes, {len(dataset.train.labels):,} "
        f"training, {len(dataset.validation.labels):,} validation, {len(dataset.test.labels):,} test images "
        f"({channels}×{height}×{width})",
        soft_wrap=True,
    )
    if trainer.taken_over and (start := trainer.experiment.start):
        name = start.source if start.source in shipped.names() else Path(start.source).name
        console.out.print(escape(trainer.taken_over.sentence(name)), soft_wrap=True)
    minutes = f"{training.minutes:g} minute{'' if training.minutes == 1 else 's'}" if training.minutes else None
    length = minutes or plural(training.epochs, "epoch")
    resumed = f", resumed after epoch {state.epoch}" if state.epoch or state.step else ""
    console.out.print(
        f"{type(trainer.network).__name__}, {parameters:,} parameters; {training.precision} on "
        f"{device_name(trainer.device)} with {trainer.computed_by}, "
        f"batch size {training.batch_size}, {length}{resumed}",
        soft_wrap=True,
    )


def _fit(trainer: Trainer) -> None:
    """A run that stops early leaves a report of what there is."""
    resume = ["train", "--resume", str(trainer.run.path), *plugin_options(to_dict(trainer.experiment))]
    try:
        trainer.fit()
    except Interrupted:
        stopped = Interrupted(*resume)
        if trainer.ranks.world == 1:  # torchrun leaves 30 seconds
            stopped.report = report_of(trainer.run, trainer.dataset, trainer.device, GLANCE)
        raise stopped from None
    except Lost as error:
        raise Lost(
            f"{error}. Everything up to the last step is saved. Resume with: {shlex.join([*launcher(), *resume])}"
        ) from None
    except Diverged as error:
        kept = " The last good checkpoint is kept." if trainer.run.file("last.safetensors").exists() else ""
        diverged = Diverged(f"{error}{kept}")
        diverged.report = report_of(trainer.run, trainer.dataset, trainer.device, GLANCE)
        raise diverged from None
