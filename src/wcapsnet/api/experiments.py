"""Build an `Experiment` from a recipe, a folder of pictures or an earlier run, with changes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from ..data import MAX_SIDE, FolderSummary, scan_folder
from ..data.huggingface import is_hugging_face, scan_hugging_face
from ..device import choose_device
from ..errors import InputError
from ..experiment import Experiment
from ..hub import moved, remembered, repeated_start, starting_network
from ..limits import MIN_SIDE
from ..recipes import RECIPES, quick, recipe, suggest
from ..settings import with_setting
from ..training.run_folder import Run, read_experiment
from .options import ExperimentOptions

F = TypeVar("F", bound=Callable[..., Any])
SCRATCH = "none"  # --from none: random weights
DEFAULT_START = "wcapsnet-small-cifar100"  # default start for folders of colour pictures without CUDA


def experiment_for(
    target: str | Path | Experiment,
    *,
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    seed: int | None = None,
    minutes: float | None = None,
    size: str | int | None = None,
    exclude: str | Sequence[str] = (),
    model: str = "auto",
    start_from: str | Path | None = None,
    precision: str = "auto",
    kernels: str = "auto",
    settings: str | Iterable[str] = (),
    device: torch.device | None = None,
    data_dir: Path | None = None,
    default_start: bool = True,
) -> tuple[Experiment, Path | None]:
    """The experiment that a command's options describe, and its dataset directory. Without `default_start`, only
    `start_from` makes a folder of pictures start from trained weights."""
    if epochs is not None and minutes is not None:
        raise InputError("Use either --epochs or --minutes, not both.")
    device = device or choose_device("auto")
    scratch = start_from is not None and str(start_from) == SCRATCH
    start = None if start_from is None or scratch else starting_network(start_from)

    @_named_as_typed(*(["size"] if size else []))
    def of_pictures(path: Path, summary: FolderSummary) -> Experiment:
        sides, auto, cuda = _sides(str(size)) if size else None, model == "auto", device.type == "cuda"
        by_default = auto and default_start and not scratch and not cuda and summary.proposed_channels == 3
        if found := start or (starting_network(DEFAULT_START) if by_default else None):
            trained = found[1]
            experiment = quick.folder(path, summary, sides, trained.config if auto else model)
            return replace(quick.fine_tuned(experiment, trained.normalization), start=found[0])
        by_device = "wcapsnet" if cuda else "wcapsnet-small"
        return quick.folder(path, summary, sides, by_device if auto else model)

    for_pictures = size is not None or model != "auto" or bool(exclude)
    experiment, record = _find_experiment(target, one_or_several(exclude), for_pictures, of_pictures)
    if record:
        experiment, data_dir = moved(experiment, data_dir), data_dir or remembered(record)
        experiment = repeated_start(experiment, record)
        # a repetition trains the recorded epochs, however long they take here
        experiment = replace(experiment, training=replace(experiment.training, minutes=None))
    elif precision == "auto" and not isinstance(target, Experiment):
        precision = "bf16" if device.type == "cuda" else "fp32"
    if start or scratch:
        experiment = replace(experiment, start=start[0] if start else None)
    changes: dict[str, Any] = {"batch_size": batch_size, "lr": lr, "seed": seed, "minutes": minutes}
    changes |= {"precision": precision, "kernels": kernels}
    given = {name: value for name, value in changes.items() if value not in (None, "auto")}
    with _named_as_typed(*given, "epochs"):
        training = replace(experiment.training, **given)
        training = training if epochs is None else training.with_epochs(epochs)
    experiment = replace(experiment, training=training)
    for assignment in one_or_several(settings):
        experiment = with_setting(experiment, assignment)
    return experiment, data_dir


@contextmanager
def _named_as_typed(*options: str) -> Iterator[None]:
    """An error calls a field by the option that was given for it: --lr, not training.lr."""
    try:
        yield
    except InputError as error:
        sentence = str(error)
        for name in options:
            sentence = sentence.replace(f"training.{name} ", f"--{name.replace('_', '-')} ")
        if "size" in options:
            for side in ("height", "width"):
                sentence = sentence.replace(f"model.{side} is", f"--size: the {side} is")
        raise InputError(sentence) from error


def one_or_several(words: str | Iterable[str]) -> list[str]:
    return [words] if isinstance(words, str) else list(words)


def shows_options(function: F) -> F:
    """`help(function)` lists the shared options instead of `**options`."""
    first, *rest = inspect.signature(function).parameters.values()
    known = inspect.signature(experiment_for).parameters
    shared = [known[name] for name in ExperimentOptions.__annotations__]
    own = [parameter for parameter in rest if parameter.kind is not parameter.VAR_KEYWORD]
    shown = inspect.signature(function).replace(parameters=[first, *shared, *own])
    function.__signature__ = shown  # type: ignore[attr-defined]
    return function


def _find_experiment(
    target: str | Path | Experiment,
    exclude: Sequence[str],
    for_pictures: bool,
    of_pictures: Callable[[Path, FolderSummary], Experiment],
) -> tuple[Experiment, Path | None]:
    """From a recipe's name, a run folder or its experiment.json (then with the folder), a folder of pictures, or a
    Hugging Face dataset. `for_pictures`: whether there are options that apply to pictures only"""
    refused = InputError("--size, --model and --exclude are for folders of pictures; an experiment has its own.")
    if isinstance(target, Experiment):
        if for_pictures:
            raise refused
        return target, None
    path, name = Path(target).expanduser(), str(target)
    if is_hugging_face(name):
        source, title, summary = scan_hugging_face(name, exclude)
        experiment = of_pictures(summary.path, summary)
        return replace(experiment, name=title, data=replace(experiment.data, source=source)), None
    record = path if Run.is_run(path) else path.parent if path.suffix == ".json" else None
    if for_pictures and (name in RECIPES or record):
        raise refused
    if name in RECIPES:
        return recipe(name), None
    if record:
        return read_experiment(path if path.suffix == ".json" else path / "experiment.json"), record
    if not path.exists() and not {"/", "\\"} & set(name):
        raise InputError(f"{name!r} is neither a recipe nor a folder{suggest(name)}")
    return of_pictures(path, scan_folder(path, exclude)), None


def _sides(text: str) -> tuple[int, int]:
    sides = text.lower().replace("×", "x").split("x")
    if len(sides) > 2 or not all(side.isdecimal() for side in sides):
        raise InputError(f"--size must be a side such as 48, or HEIGHTxWIDTH such as 32x64, not {text!r}.")
    height, width = int(sides[0]), int(sides[-1])
    if not MIN_SIDE <= min(height, width) <= max(height, width) <= MAX_SIDE:
        raise InputError(f"--size is {text}, but a side must be between {MIN_SIDE} and {MAX_SIDE} pixels.")
    return height, width
