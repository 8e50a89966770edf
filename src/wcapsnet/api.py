"""What the command line does, from Python: train, evaluate, predict, explain, report, sweep."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape
from rich.progress import Progress as Bar

from . import reports as report_page
from . import shipped
from .atomic import write_text
from .classifier import Classifier, Picture, Prediction
from .console import err, out, warn
from .data import DATASETS, MAX_SIDE, Dataset, Split, default_data_dir, scan_folder
from .data.device_data import DeviceSplit
from .device import choose_device
from .errors import InputError
from .experiment import Experiment
from .explanations import (
    ImageExplanation,
    Probe,
    Specialization,
    Survey,
    explain_image,
    probe_levels,
    specialization,
    survey,
)
from .formatting import percent, plural
from .hub import data_of_run, dataset_of, load, load_with_data, moved, remembered
from .kernels import compile as compile_kernels
from .network import MIN_SIDE
from .recipes import RECIPES, quick, recipe, suggest
from .recipes.ablations import rows_of
from .reports.survey_cache import aside, evenly
from .settings import with_setting
from .sweeps import Sweep, product, train_all, with_seeds
from .training.console import clock, make_progress
from .training.evaluate import Evaluation
from .training.evaluate import evaluate as measure
from .training.run_folder import Run, describe_environment, read_experiment
from .training.trainer import Diverged, Interrupted, Trainer

GLANCE = 500  # validation images in the report of a stopped run
PROBE_IMAGES = 2000  # images of another part that train the probes (D30)


# ── training ────────────────────────────────────────────────────────────────────────────────────────────────────────


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
        """Test-set results of the weights with the best validation accuracy"""
        return float(self.results["accuracy"])

    def load(self, device: str = "cpu") -> Classifier:
        return load(self.path, device=device)


def train(
    target: str | Path | Experiment | None = None,
    *,
    epochs: int | None = None,
    minutes: float | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    seed: int | None = None,
    size: str | int | None = None,
    model: str = "auto",
    device: str = "auto",
    precision: str = "auto",
    kernels: str = "auto",
    data_dir: Path | None = None,
    download: bool = False,
    out: Path | str | None = None,
    resume: Path | str | None = None,
    settings: Iterable[str] = (),
    report: bool = True,
    quiet: bool = False,
) -> Trained:
    """Train and test a network. Returns the finished run.

    `target` is a recipe's name, a folder of pictures, a run to repeat or an `Experiment`; `resume` is a run folder to
    continue instead. `settings` change any field: `settings=["model.dense_layers=4"]`. The other arguments match the
    options of `wcapsnet train`.
    """
    began = time.perf_counter()
    chosen = choose_device(device)
    if resume is not None:
        given: dict[str, Any] = {
            "--epochs": epochs,
            "--minutes": minutes,
            "--batch-size": batch_size,
            "--lr": lr,
            "--seed": seed,
        }
        given |= {"--size": size, "--model": model, "--precision": precision, "--kernels": kernels, "--out": out}
        for name, value in {str(target): target, **given, "--set": list(settings)}.items():
            if value not in (None, "auto", []):
                raise InputError(f"--resume continues a run as it was started, so it cannot be used with {name}.")
        run = Run.open(Path(resume))
        if run.finished:
            return Trained(run, run.results(), _existing(run.file("report.html")))
        trainer = _resumed(run, chosen, data_dir, download, quiet)
    else:
        if target is None:
            raise InputError(
                "Name what to train: a recipe (see `wcapsnet list`), a folder of pictures, or --resume RUN."
            )
        if epochs and minutes:
            raise InputError("--epochs and --minutes exclude each other; give one.")
        changes = {"batch_size": batch_size, "lr": lr, "seed": seed, "minutes": minutes}
        experiment, data_dir = experiment_for(
            target, size, model, chosen, data_dir, changes, epochs, precision, kernels, settings
        )
        trainer = _started(experiment, Path(out) if out else None, chosen, data_dir, download, quiet)
    if trainer.pace:
        trainer.pace.began = began
    try:
        _fit(trainer)
        test = trainer.finish()
    finally:
        trainer.run.release()
    _say_result(trainer, test)
    page = write_report(trainer) if report else None
    return Trained(trainer.run, trainer.run.results(), page)


def experiment_for(
    target: str | Path | Experiment,
    size: str | int | None = None,
    model: str = "auto",
    device: torch.device | None = None,
    data_dir: Path | None = None,
    changes: dict[str, Any] | None = None,
    epochs: int | None = None,
    precision: str = "auto",
    kernels: str = "auto",
    settings: Iterable[str] = (),
) -> tuple[Experiment, Path | None]:
    """The experiment described by a command's options, and its dataset directory."""
    device = device or choose_device("auto")
    experiment, record = _find_experiment(target, size, model, device)
    if record:
        experiment, data_dir = moved(experiment, data_dir), data_dir or remembered(record)
        # a repetition trains the recorded epochs, however long they take here
        experiment = replace(experiment, training=replace(experiment.training, minutes=None))
    training = replace(experiment.training, **{k: v for k, v in (changes or {}).items() if v is not None})
    if epochs:
        training = training.with_epochs(epochs)
    if precision != "auto":
        training = replace(training, precision=precision)
    elif record is None and not isinstance(target, Experiment):
        training = replace(training, precision="bf16" if device.type == "cuda" else "fp32")
    if kernels != "auto":
        training = replace(training, kernels=kernels)
    experiment = replace(experiment, training=training)
    for assignment in settings:
        experiment = with_setting(experiment, assignment)
    return experiment, data_dir


def _find_experiment(
    target: str | Path | Experiment, size: str | int | None, model: str, device: torch.device
) -> tuple[Experiment, Path | None]:
    """From a recipe's name, a run folder or its experiment.json (then with the folder), or a folder of pictures"""
    if isinstance(target, Experiment):
        return target, None
    path, name = Path(target).expanduser(), str(target)
    record = path if Run.is_run(path) else path.parent if path.suffix == ".json" else None
    if (name in RECIPES or record) and (size is not None or model != "auto"):
        raise InputError("--size and --model are for folders of pictures; a recipe's dataset has its own size.")
    if name in RECIPES:
        return recipe(name), None
    if record:
        return read_experiment(path if path.suffix == ".json" else path / "experiment.json"), record
    if not path.exists() and not {"/", "\\"} & set(name):
        raise InputError(f"{name!r} is neither a recipe nor a folder{suggest(name)}")
    summary = scan_folder(path)
    if model == "auto":
        model = "wcapsnet" if device.type == "cuda" else "wcapsnet-small"
    return quick.folder(path, summary, _sides(str(size)) if size else None, model), None


def _sides(text: str) -> tuple[int, int]:
    sides = text.lower().replace("×", "x").split("x")
    if len(sides) > 2 or not all(side.isdecimal() for side in sides):
        raise InputError(f"--size must be a side such as 48, or HEIGHTxWIDTH such as 32x64, not {text!r}.")
    height, width = int(sides[0]), int(sides[-1])
    if not MIN_SIDE <= min(height, width) <= max(height, width) <= MAX_SIDE:
        raise InputError(f"--size is {text}, but a side must be between {MIN_SIDE} and {MAX_SIDE} pixels.")
    return height, width


def _started(
    experiment: Experiment,
    folder: Path | None,
    device: torch.device,
    data_dir: Path | None,
    download: bool,
    quiet: bool,
) -> Trainer:
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
    trainer = Trainer(run, dataset, device, make_progress(out, quiet))
    compile_kernels.tell = None if quiet else out.print
    if quiet:
        return trainer
    experiment, (_, channels, height, width) = run.experiment, dataset.train.images.shape
    parameters = sum(p.numel() for p in trainer.network.parameters())
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    out.print(
        f"[bold]{escape(experiment.name)}[/]: {len(dataset.classes)} classes, {len(dataset.train.labels):,} training, "
        f"{len(dataset.validation.labels):,} validation, {len(dataset.test.labels):,} test images "
        f"({channels}×{height}×{width})",
        soft_wrap=True,
    )
    resumed = f", resumed after epoch {trainer.state.epoch}" if trainer.state.epoch or trainer.state.step else ""
    out.print(
        f"{type(trainer.network).__name__}, {parameters:,} parameters; {experiment.training.precision} on {name} with "
        f"{trainer.computed_by}, batch size {experiment.training.batch_size}, "
        f"{_length(experiment)}{resumed}",
        soft_wrap=True,
    )
    return trainer


def _length(experiment: Experiment) -> str:
    training = experiment.training
    return f"{training.minutes:g} minutes" if training.minutes else plural(training.epochs, "epoch")


def _fit(trainer: Trainer) -> None:
    try:
        trainer.fit()
    except Interrupted:
        _say_report(write_report(trainer, GLANCE))
        raise Interrupted("train", "--resume", str(trainer.run.path)) from None
    except Diverged as error:
        _say_report(write_report(trainer, GLANCE))
        kept = " The last good checkpoint is kept." if trainer.run.file("last.safetensors").exists() else ""
        raise Diverged(f"{error}{kept}") from None
    if trainer.stopped_early and (patience := trainer.settings.patience):
        out.print(f"Stopped early: validation has not improved for {plural(patience, 'epoch')}.")


def _say_result(trainer: Trainer, test: Evaluation) -> None:
    state = trainer.state
    out.print(
        f"Test accuracy [bold]{percent(test.accuracy)}%[/] ({len(test.labels):,} images) with the weights of epoch "
        f"{state.best_epoch} (best of {state.epoch} on validation: {percent(state.best_accuracy)}%), "
        f"after {clock(state.seconds)}",
        soft_wrap=True,
    )


def write_report(trainer: Trainer, sample: int | None = None) -> Path | None:
    """The report of a run that has just finished or stopped; None if it could not be written."""
    place = trainer.run.file("report.html")
    try:
        subject = report_page.subject_of_run(trainer.run.path)
        facts = report_page.gather(subject, trainer.dataset, "", trainer.device, sample)
        write_text(place, report_page.run_page(facts))
    except KeyboardInterrupt:  # the run is saved; the report can be written later
        return None
    except (InputError, OSError) as error:
        warn(f"The report could not be written: {error}")
        return None
    return place


def _say_report(page: Path | None) -> None:
    if page:
        out.print(f"The report is [bold]{escape(str(page))}[/].", soft_wrap=True)


def _existing(path: Path) -> Path | None:
    return path if path.exists() else None


def sweep(
    target: str | Path | Experiment,
    *,
    seeds: str | int | None = None,
    grid: Sequence[str] = (),
    table: str | None = None,
    parallel: int | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    size: str | int | None = None,
    model: str = "auto",
    device: str = "auto",
    precision: str = "auto",
    kernels: str = "auto",
    data_dir: Path | None = None,
    download: bool = False,
    out: Path | str | None = None,
    settings: Iterable[str] = (),
    quiet: bool = False,
) -> Sweep:
    """Train with several seeds and settings, or every row of one of the paper's ablations (`table`). Returns all runs
    with their results; finished runs are not trained again.

    `grid` holds values to try: `grid=["training.lr=0.1,0.05"]`. `table` is weighting, nonlinearity or routing.
    """
    chosen = choose_device(device)
    changes = {"batch_size": batch_size, "lr": lr}
    experiment, data_dir = experiment_for(
        target, size, model, chosen, data_dir, changes, epochs, precision, kernels, settings
    )
    seeds = None if seeds is None else str(seeds)
    if table:
        rows = rows_of(table, experiment).items()
        planned = [one for row, variant in rows for one in with_seeds(variant, seeds or "3", {"row": row})]
    else:
        planned = product(experiment, list(grid), seeds)
    folder = Path(out) if out else Path("runs") / f"{experiment.name}-{table or 'sweep'}"
    runs = Sweep(folder, planned)
    runs.failures = train_all(
        runs, chosen, parallel=parallel, data_dir=data_dir, download=download, quiet=quiet, table=table
    )
    return runs


# ── trained networks ────────────────────────────────────────────────────────────────────────────────────────────────


def evaluate(
    source: str | Path,
    *,
    split: str = "test",
    data_dir: Path | None = None,
    download: bool = False,
    device: str = "auto",
    precision: str = "fp32",
    quiet: bool = True,
) -> Evaluation:
    """Measure a run's best weights, or a shipped network, on a part of its own dataset."""
    if precision not in ("fp32", "bf16"):
        raise InputError(f"--precision must be fp32 or bf16, not {precision!r}.")
    chosen = choose_device(device)
    classifier, dataset = load_with_data(
        source, split, device=chosen, data_dir=data_dir, download=download, quiet=quiet
    )
    part = DeviceSplit(getattr(dataset, split), *classifier.normalization, chosen)
    return replace(measure(classifier.network, part, precision), names=classifier.classes)


def predict(
    source: str | Path, pictures: Picture | Sequence[Picture], *, top: int = 3, device: str = "cpu"
) -> Prediction | list[Prediction]:
    """Class, probability and routing of one picture, or of each in a list. To predict often, call `load` once."""
    return load(source, device=device).predict(pictures, top)


@dataclass(frozen=True)
class DatasetExplanation:
    """What the routing of a trained network does on one part of its dataset."""

    classes: tuple[str, ...]
    split: str
    survey: Survey
    specialization: Specialization
    probes: tuple[Probe, ...]
    probes_taught_by: str
    probe_images: int


def explain(
    source: str | Path,
    picture: Picture | None = None,
    *,
    split: str = "test",
    images: int | None = None,
    data_dir: Path | None = None,
    download: bool = False,
    device: str = "auto",
    quiet: bool = True,
) -> ImageExplanation | DatasetExplanation:
    """Look inside: the routing of one picture, or of a run's dataset (optionally only `images` of them)."""
    chosen = choose_device(device)
    if picture is not None:
        classifier = load(source, device=str(chosen))
        return explain_image(classifier.network, classifier.preprocess([picture])[0])
    other = aside(split)
    classifier, dataset = load_with_data(
        source, split, other, device=chosen, data_dir=data_dir, download=download, quiet=quiet
    )
    part, _ = some_of(dataset, split, images)
    taught, _ = some_of(dataset, other, PROBE_IMAGES)
    seen = survey_of(classifier, part, chosen, quiet, routed=True)
    probes = probe_levels(survey_of(classifier, taught, chosen, quiet, routed=True), seen)
    return DatasetExplanation(
        classifier.classes, split, seen, specialization(seen), tuple(probes), other, len(taught.labels)
    )


def some_of(dataset: Dataset, part: str, images: int | None) -> tuple[Split, tuple[str, ...]]:
    """A part, or this many images of it; for a folder, also which picture each of them is"""
    split: Split = getattr(dataset, part)
    files: tuple[str, ...] = getattr(dataset, f"{part}_files")
    if images is None or images >= len(split.labels):
        return split, files
    places = evenly(len(split.labels), images)
    some = tuple(files[place] for place in places) if files else ()
    return Split(split.images[places], split.labels[places]), some


def survey_of(classifier: Classifier, part: Split, device: torch.device, quiet: bool, routed: bool = False) -> Survey:
    split = DeviceSplit(part, *classifier.normalization, device)
    with Bar(console=err, transient=True, disable=quiet or not err.is_terminal) as bar:
        task = bar.add_task("images", total=len(split))
        return survey(classifier.network, split, routed=routed, progress=lambda done: bar.update(task, completed=done))


# ── reports ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def report(
    *sources: str | Path,
    out: Path | str | None = None,
    figures: Path | str | None = None,
    data_dir: Path | None = None,
    download: bool = False,
    device: str = "auto",
    quiet: bool = True,
) -> Path:
    """Write one HTML page about a run or a shipped network, or about several side by side. Returns the file.

    `figures` is a folder for the figures as PDF, PNG and SVG.
    """
    from .reports import figures as drawing

    chosen = choose_device(device)
    folder = Path(figures) if figures else None
    if folder:
        drawing.check()
        if folder.exists() and not folder.is_dir():
            raise InputError(f"--figures must be a folder, but {folder} is a file.")
    if out and Path(out).is_dir():
        raise InputError(f"--out must be a file, but {out} is a folder.")
    subjects = [_subject(str(source)) for source in dict.fromkeys(sources)]
    first = subjects[0]
    if len(subjects) == 1:
        facts = _facts(first, chosen, data_dir, download, quiet)
        place = first.folder / "report.html" if first.folder else Path(f"{first.name}-report.html")
        if "pictures" in facts.missing and first.weights and place.exists() and not out:
            raise InputError(
                f"{place} was not replaced by a page without pictures; use --out to write that page elsewhere."
            )
        page, drawn = report_page.run_page(facts), drawing.run_figures(facts)
    else:
        gathered = [report_page.gather(one, None, "", torch.device("cpu")) for one in subjects]
        compared = report_page.named(gathered)
        place = (first.folder.parent if first.folder else Path()) / "comparison.html"
        page, drawn = report_page.comparison_page(compared), drawing.comparison_figures(compared)
    place = Path(out) if out else place
    write_text(place, page)
    if folder:
        drawing.write_figures(drawn, folder)
    return place


def _subject(source: str) -> report_page.Subject:
    if source in shipped.names():
        return report_page.subject_of_shipped(source)
    path = Path(source)
    if not path.exists():
        raise InputError(f"There is no run folder {source}, {shipped.unknown(source)}")
    return report_page.subject_of_run(path)


def _facts(
    subject: report_page.Subject, device: torch.device, data_dir: Path | None, download: bool, quiet: bool
) -> report_page.Facts:
    """A report without the dataset is better than no report: it says what is missing."""
    dataset, why = None, ""
    parts = (subject.part, aside(subject.part))
    try:
        if subject.folder:
            run = Run.open(subject.folder)
            dataset = data_of_run(run, data_dir, download, True)
            run.check_data(dataset, *parts)
        else:
            _, dataset = load_with_data(
                subject.source, *parts, device=device, data_dir=data_dir, download=download, quiet=True
            )
    except (InputError, OSError) as error:
        dataset, why = None, str(error)
    with Bar(console=err, transient=True, disable=quiet or not err.is_terminal) as bar:
        task = bar.add_task("images", total=None)
        facts = report_page.gather(
            subject, dataset, why, device, progress=lambda done, total: bar.update(task, completed=done, total=total)
        )
    if "pictures" in facts.missing and not quiet:
        warn(f"No pictures: {facts.missing['pictures']}")
    return facts
