"""Trained networks by name. Each is a safetensors file in weights/ whose metadata describe it completely: network,
class names, preprocessing, experiment, environment, metrics of every epoch, checksums of the images it was evaluated
on, results, and a checksum over weights and metadata.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ..classifier import Classifier, load_tensors
from ..data import Dataset
from ..errors import InputError
from ..experiment import Experiment, stored_experiment
from ..parts import suggestion
from ..training.run_folder import Run

WEIGHTS = Path(__file__).parent / "weights"


def names() -> list[str]:
    return sorted(path.stem for path in WEIGHTS.glob("*.safetensors"))


def path_of(name: str) -> Path:
    return WEIGHTS / f"{name}.safetensors"


def load(name: str, device: torch.device) -> Classifier:
    with _intact(name):
        return Classifier.load(path_of(name), device)


def describe(name: str) -> dict[str, Any]:
    """The metadata, if the file is intact."""
    with _intact(name):
        return load_tensors(path_of(name))[1]


@contextmanager
def _intact(name: str) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        reason = str(error).removesuffix(".")
        raise InputError(f"The shipped network {name} cannot be used ({reason}); install wcapsnet again.") from error


def unknown(source: str) -> str:
    """The end of an error message about a name that is neither a run folder nor a file."""
    runs = {path.name: str(path) for path in sorted(Path("runs").glob("*")) if Run.is_run(path)}
    near = difflib.get_close_matches(Path(source).name, [*runs, *names()], 1, 0.5)
    if near and near[0] in runs:
        return f"nor a shipped network of that name; did you mean {runs[near[0]]!r}?"
    return f"nor a shipped network of that name{suggestion(source, names())}"


def experiment_of(classifier: Classifier, source: str) -> Experiment:
    """The experiment the network was trained with; only files made by `ship` contain it."""
    if "experiment" not in classifier.facts:
        raise InputError(f"{source} does not say what it was trained on; use the run folder it came from.")
    return stored_experiment(classifier.facts["experiment"])


def check_data(classifier: Classifier, dataset: Dataset, source: str, *parts: str) -> None:
    """Results are comparable only on the images of the model card."""
    for part, seen in dataset.fingerprint(*parts).items():
        if classifier.facts["fingerprint"][part] != seen:
            raise InputError(
                f"The {part} images of {dataset.name} are not those of {source}; restore the original images."
            )
