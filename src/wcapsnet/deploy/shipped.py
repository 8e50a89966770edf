"""Trained networks by name. Each is a safetensors file in weights/, whose metadata hold all there is to know of it:
network, class names, preprocessing, the experiment, where and how it was trained epoch by epoch, the images it was
measured on, its figures, and a checksum over weights and metadata.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ..classifier import Classifier, load_tensors
from ..data import Dataset
from ..errors import InputError
from ..experiment import Experiment, stored_experiment
from ..parts import suggestion

WEIGHTS = Path(__file__).parent / "weights"


def names() -> list[str]:
    return sorted(path.stem for path in WEIGHTS.glob("*.safetensors"))


def path_of(name: str) -> Path:
    return WEIGHTS / f"{name}.safetensors"


def load(name: str, device: torch.device) -> Classifier:
    describe(name)
    return Classifier.load(path_of(name), device)


def describe(name: str) -> dict[str, Any]:
    """The metadata, if the file is as it was shipped."""
    try:
        _, facts = load_tensors(path_of(name))
        if "checksum" not in facts:
            raise InputError(f"{path_of(name)} has no checksum.")
    except InputError as error:
        reason = str(error).removesuffix(".")
        raise InputError(f"The shipped network {name} cannot be used, install wcapsnet again: {reason}.") from error
    return facts


def unknown(source: str) -> str:
    """The end of a sentence about something that is no run folder and no file."""
    return f"nor a shipped network of that name{suggestion(source, names()) if names() else ': none is shipped yet.'}"


def experiment_of(classifier: Classifier, source: str) -> Experiment:
    """What the network was trained by; only files made by `ship` know."""
    if "experiment" not in classifier.facts:
        raise InputError(f"{source} does not say what it was trained on; name the run folder that it came from.")
    return stored_experiment(classifier.facts["experiment"])


def check_data(classifier: Classifier, dataset: Dataset, source: str, *parts: str) -> None:
    """A figure is comparable only on the images of the model card."""
    for part, seen in dataset.fingerprint(*parts).items():
        if classifier.facts["fingerprint"][part] != seen:
            raise InputError(f"The {part} images of {dataset.name} are not those that {source} was made with.")
