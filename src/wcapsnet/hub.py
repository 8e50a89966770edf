"""Trained networks by name, run folder or file, and the data they were trained on."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from . import shipped
from .classifier import Classifier, weights_checksum
from .console import tell_skipped, warn
from .data import DATASETS, Dataset, default_data_dir, load_dataset
from .data.huggingface import is_hugging_face, moved_to
from .device import choose_device
from .errors import InputError
from .experiment import Experiment, Start, published
from .pretrained import WEIGHTS, is_pretrained
from .scores import imbalanced
from .training.run_folder import PARTS, Run, read_json


def load(source: str | Path, *, device: str = "cpu") -> Classifier:
    """Load a trained classifier: a shipped network by name (see `wcapsnet list weights`), the best weights of a run
    folder, a folder written by `save_pretrained`, or a .safetensors file.

    `device` is cpu, cuda, cuda:N, mps or auto.

    >>> load("wcapsnet-mnist").classes[:3]
    ('0', '1', '2')
    """
    if source in shipped.names():
        return shipped.load(str(source), choose_device(device))
    path = Path(source)
    if not path.exists():
        raise InputError(f"There is no run folder or weights file at {source}, {shipped.unknown(str(source))}")
    if path.suffix.lower() == ".onnx":
        raise InputError(f"{source} is an exported file, for predict and evaluate only; name the network it came from.")
    if is_pretrained(path) and not Run.is_run(path):
        return Classifier.from_pretrained(path, device=device)
    if not path.is_dir():
        return Classifier.load(path, choose_device(device))
    run = Run.open(path)
    classifier = Classifier.load(run.weights(), choose_device(device))
    run.check_weights(classifier.config, classifier.classes)
    classifier.facts |= _facts_of(run)
    return classifier


def _facts_of(run: Run) -> dict[str, Any]:
    """What a model card says about a network of this run, as far as it is known"""
    facts: dict[str, Any] = {"experiment": published(run.experiment)}
    with suppress(InputError):  # not finished, or damaged
        results, data = run.results(), run.recorded_data()
        facts["test"] = {"correct": results["images"] - results["errors"], "images": results["images"]}
        facts["fingerprint"] = data["fingerprint"]
        if images := data.get("images", {}).get("validation"):
            facts["validation"] = {"correct": round(results["validation_accuracy"] * images), "images": images}
    return facts


def starting_network(source: str | Path) -> tuple[Start, Classifier]:
    """A trained network to start from, and how an experiment records it"""
    classifier = load(source)
    name = str(source) if source in shipped.names() else str(Path(source).expanduser().resolve())
    return Start(name, classifier.facts["checksum"]), classifier


def start_file(experiment: Experiment) -> Path | None:
    """The weights file that an experiment starts from; None if it starts from random weights."""
    if experiment.start is None:
        return None
    source, path = experiment.start.source, Path(experiment.start.source)
    if source in shipped.names():
        return shipped.path_of(source)
    if not path.exists():
        raise InputError(f"{source}, the network to start from, is missing; restore it, or name one with --from.")
    if is_pretrained(path) and not Run.is_run(path):
        return path / WEIGHTS
    return Run.open(path).weights() if path.is_dir() else path


def repeated_start(experiment: Experiment, run: Path) -> Experiment:
    """The experiment of a run folder, starting from the copy kept there if its source is gone or has changed"""
    start, copy = experiment.start, run / "start.safetensors"
    if start is None or not copy.exists():
        return experiment
    try:
        path = start_file(experiment)
        same = path is not None and weights_checksum(path) == start.checksum
    except InputError:
        same = False
    return experiment if same else replace(experiment, start=replace(start, source=str(copy.resolve())))


def check_part(part: str) -> None:
    if part not in PARTS:
        raise InputError(f"A dataset has no part {part!r}; choose one of {', '.join(PARTS)}.")


def load_with_data(
    source: str | Path,
    *parts: str,
    device: torch.device,
    data_dir: Path | None = None,
    download: bool = False,
    quiet: bool = False,
) -> tuple[Classifier, Dataset]:
    """A trained network and its dataset. `parts` must hold the images used to create the network."""
    for part in parts:
        check_part(part)
    path = Path(source)
    if source not in shipped.names() and not path.is_file() and not is_pretrained(path):
        if not path.exists():
            raise InputError(f"There is no run folder {source}, {shipped.unknown(str(source))}")
        run = Run.open(path)
        classifier = load(path, device=str(device))
        dataset = data_of_run(run, data_dir, download, quiet)
        run.check_data(dataset, *parts)
        return classifier, dataset
    classifier = load(source, device=str(device))
    experiment = moved(shipped.experiment_of(classifier, str(source)), data_dir)
    dataset = dataset_of(experiment, data_dir, download, quiet, tell=False)
    shipped.check_data(classifier, dataset, str(source), *parts)
    return classifier, dataset


def dataset_of(
    experiment: Experiment, data_dir: Path | None, download: bool, quiet: bool, tell: bool = True
) -> Dataset:
    """The images of an experiment, if its network fits them. `quiet`: no progress bar; `tell`: list skipped files and
    print warnings about a folder."""
    dataset = load_dataset(experiment.data, data_dir=data_dir, download=download, quiet=quiet)
    if tell:
        tell_skipped(dataset.skipped)
        for sentence in dataset.warnings:
            warn(sentence)
        if experiment.data.balance and imbalanced(counts := dataset.train.labels.bincount().tolist()):
            least, most = min(counts), max(counts)
            warn(f"Classes have {least} to {most} training images; all are drawn equally often (data.balance).")
    check_fit(experiment, dataset)
    return dataset


def check_fit(experiment: Experiment, dataset: Dataset) -> None:
    """Refuse a dataset that does not fit the experiment's network."""
    _, channels, height, width = dataset.train.images.shape
    has = {"classes": len(dataset.classes), "channels": channels, "height": height, "width": width}
    for name, value in has.items():
        asked = getattr(experiment.model, name)
        if asked != value:
            raise InputError(f"model.{name} is {asked}, but the dataset {dataset.name} has {value}.")


def data_of_run(run: Run, data_dir: Path | None, download: bool, quiet: bool) -> Dataset:
    """A run's own data; if its folder of pictures was moved, `data_dir` is the new path. Warnings were printed when
    the run started."""
    return dataset_of(moved(run.experiment, data_dir), data_dir or remembered(run.path), download, quiet, tell=False)


def remembered(folder: Path) -> Path | None:
    """The dataset directory used when the run started"""
    path = folder / "environment.json"
    place = read_json(path).get("data_dir") if path.exists() else None
    return Path(place) if place and isinstance(place, str) else None


def data_place(experiment: Experiment, data_dir: Path | None) -> Path | None:
    """The directory of a dataset that is known by name, for a run to remember; None for other data"""
    return (data_dir or default_data_dir()) if experiment.data.source in DATASETS else None


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
