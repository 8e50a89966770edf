"""Trained networks by name, run folder or file, and the data they were trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from . import shipped
from .classifier import Classifier
from .console import few, warn
from .data import DATASETS, Dataset, load_dataset
from .data.device_data import imbalanced
from .data.huggingface import is_hugging_face, moved_to
from .device import choose_device
from .errors import InputError
from .experiment import Experiment
from .formatting import plural
from .training.run_folder import Run, read_json

PARTS = ("train", "validation", "test")  # of a dataset


def load(source: str | Path, *, device: str = "cpu") -> Classifier:
    """A trained classifier, ready to predict: by the name of a shipped network (see `wcapsnet list weights`), from a
    run folder (its best weights) or a .safetensors file.

    `device` is cpu, cuda, cuda:N or auto.

    >>> load("wcapsnet-mnist").classes[:3]
    ('0', '1', '2')
    """
    if source in shipped.names():
        return shipped.load(str(source), choose_device(device))
    path = Path(source)
    if not path.exists():
        raise InputError(f"There is no run folder or weights file at {source}, {shipped.unknown(str(source))}")
    run = Run.open(path) if path.is_dir() else None
    classifier = Classifier.load(run.weights() if run else path, choose_device(device))
    if run:
        run.check_weights(classifier.config, classifier.classes)
    return classifier


def check_part(part: str) -> None:
    if part not in PARTS:
        raise InputError(f"A dataset has no part {part!r}; choose one of {', '.join(PARTS)}.")


class Loaded(NamedTuple):
    classifier: Classifier
    dataset: Dataset


def load_with_data(
    source: str | Path,
    *parts: str,
    device: torch.device,
    data_dir: Path | None = None,
    download: bool = False,
    quiet: bool = False,
) -> Loaded:
    """A trained network and its dataset. `parts` must hold the images used to create the network."""
    for part in parts:
        check_part(part)
    path = Path(source)
    if source not in shipped.names() and not path.is_file():
        if not path.exists():
            raise InputError(f"There is no run folder {source}, {shipped.unknown(str(source))}")
        run = Run.open(path)
        classifier = load(path, device=str(device))
        dataset = data_of_run(run, data_dir, download, quiet, tell=not quiet)
        run.check_data(dataset, *parts)
        return Loaded(classifier, dataset)
    classifier = load(source, device=str(device))
    experiment = moved(shipped.experiment_of(classifier, str(source)), data_dir)
    dataset = dataset_of(experiment, data_dir, download, quiet, tell=not quiet)
    shipped.check_data(classifier, dataset, str(source), *parts)
    return Loaded(classifier, dataset)


def dataset_of(
    experiment: Experiment, data_dir: Path | None, download: bool, quiet: bool, tell: bool = True
) -> Dataset:
    """The images of an experiment, if its network fits them. `quiet`: no progress bar; `tell`: list skipped files and
    whatever else is odd about a folder."""
    dataset = load_dataset(experiment.data, data_dir=data_dir, download=download, quiet=quiet)
    if tell:
        tell_skipped(dataset.skipped)
        for sentence in dataset.warnings:
            warn(sentence)
        if experiment.data.balance and imbalanced(counts := dataset.train.labels.bincount()):
            least, most = int(counts.min()), int(counts.max())
            warn(f"Classes have {least} to {most} training images; all are drawn equally often (data.balance).")
    check_fit(experiment, dataset)
    return dataset


def tell_skipped(files: Sequence[str]) -> None:
    if files:
        warn(f"{plural(len(files), 'file was', 'files were')} skipped:")
        few(files)


def check_fit(experiment: Experiment, dataset: Dataset) -> None:
    """Refuse a dataset that does not fit the experiment's network."""
    _, channels, height, width = dataset.train.images.shape
    has = {"classes": len(dataset.classes), "channels": channels, "height": height, "width": width}
    for name, value in has.items():
        asked = getattr(experiment.model, name)
        if asked != value:
            raise InputError(f"model.{name} is {asked}, but the dataset {dataset.name} has {value}.")


def data_of_run(run: Run, data_dir: Path | None, download: bool, quiet: bool, tell: bool = True) -> Dataset:
    """A run's own data; if its folder of pictures was moved, `data_dir` is the new path."""
    return dataset_of(moved(run.experiment, data_dir), data_dir or remembered(run.path), download, quiet, tell)


def remembered(folder: Path) -> Path | None:
    """The dataset directory used when the run started"""
    path = folder / "environment.json"
    place = read_json(path).get("data_dir") if path.exists() else None
    return Path(place) if place and isinstance(place, str) else None


def moved(experiment: Experiment, data_dir: Path | None) -> Experiment:
    """The same experiment with its folder of pictures at `data_dir`"""
    if data_dir is None or experiment.data.source in DATASETS:
        return experiment
    place = data_dir.expanduser().resolve()  # a folder, even if it has the name of a dataset
    if not place.exists():
        raise InputError(
            f"There is no folder {data_dir}; --data-dir must be the folder that now holds the run's pictures."
        )
    source = experiment.data.source
    source = moved_to(source, place) if is_hugging_face(source) else str(place)
    return replace(experiment, data=replace(experiment.data, source=source))
