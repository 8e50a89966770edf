"""From a recipe, a folder of pictures or an earlier run, plus changes, to an `Experiment`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from ..data import MAX_SIDE, scan_folder
from ..device import choose_device
from ..errors import InputError
from ..experiment import Experiment
from ..hub import moved, remembered
from ..limits import MIN_SIDE
from ..recipes import RECIPES, quick, recipe, suggest
from ..settings import with_setting
from ..training.run_folder import Run, read_experiment
from .options import ExperimentOptions

F = TypeVar("F", bound=Callable[..., Any])


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
    precision: str = "auto",
    kernels: str = "auto",
    settings: str | Iterable[str] = (),
    device: torch.device | None = None,
    data_dir: Path | None = None,
) -> tuple[Experiment, Path | None]:
    """The experiment that a command's options describe, and its dataset directory."""
    if epochs is not None and minutes is not None:
        raise InputError("Use either --epochs or --minutes, not both.")
    device = device or choose_device("auto")
    experiment, record = _find_experiment(target, size, one_or_several(exclude), model, device)
    if record:
        experiment, data_dir = moved(experiment, data_dir), data_dir or remembered(record)
        # a repetition trains the recorded epochs, however long they take here
        experiment = replace(experiment, training=replace(experiment.training, minutes=None))
    elif precision == "auto" and not isinstance(target, Experiment):
        precision = "bf16" if device.type == "cuda" else "fp32"
    changes: dict[str, Any] = {"batch_size": batch_size, "lr": lr, "seed": seed, "minutes": minutes}
    changes |= {"precision": precision, "kernels": kernels}
    given = {name: value for name, value in changes.items() if value not in (None, "auto")}
    training = replace(experiment.training, **given)
    experiment = replace(experiment, training=training if epochs is None else training.with_epochs(epochs))
    for assignment in one_or_several(settings):
        experiment = with_setting(experiment, assignment)
    return experiment, data_dir


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
    target: str | Path | Experiment, size: str | int | None, exclude: Sequence[str], model: str, device: torch.device
) -> tuple[Experiment, Path | None]:
    """From a recipe's name, a run folder or its experiment.json (then with the folder), or a folder of pictures"""
    foreign = size is not None or model != "auto" or exclude
    only = "--size, --model and --exclude are for folders of pictures; an experiment has its own."
    if isinstance(target, Experiment):
        if foreign:
            raise InputError(only)
        return target, None
    path, name = Path(target).expanduser(), str(target)
    record = path if Run.is_run(path) else path.parent if path.suffix == ".json" else None
    if (name in RECIPES or record) and foreign:
        raise InputError(only)
    if name in RECIPES:
        return recipe(name), None
    if record:
        return read_experiment(path if path.suffix == ".json" else path / "experiment.json"), record
    if not path.exists() and not {"/", "\\"} & set(name):
        raise InputError(f"{name!r} is neither a recipe nor a folder{suggest(name)}")
    summary = scan_folder(path, exclude)
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
