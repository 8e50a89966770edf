"""Accuracy and loss of an ONNX file on labelled images. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..data.datasets import DATASETS, read_dataset
from ..data.folder import load_labelled
from ..data.formats import Arrays, checksum
from ..errors import InputError
from ..prediction import BATCH, check_finite
from ..scores import Scores
from .runtime import OnnxNetwork


@dataclass(frozen=True)
class OnnxEvaluation(Scores):
    """The figures of `training.evaluate.Evaluation`, from arrays"""

    labels: np.ndarray  # (m,)
    predicted: np.ndarray  # (m,)
    probability: np.ndarray  # (m,) of the predicted class, over the real classes
    loss: float  # cross entropy
    mean_weights: tuple[np.ndarray, ...]  # for each level (classes, n): mean b_n over the images of a class
    names: tuple[str, ...]
    unknown: tuple[str, ...] = ()  # classes of the images that the network does not know; they are left out
    skipped: tuple[str, ...] = ()  # files that could not be read

    @property
    def confusion(self) -> np.ndarray:
        """(true, predicted)"""
        classes = len(self.names)
        return np.bincount(self.labels * classes + self.predicted, minlength=classes**2).reshape(classes, classes)


def evaluate_onnx(
    path: str | Path,
    data: str | Path | None = None,
    split: str = "test",
    data_dir: Path | None = None,
    download: bool = False,
    quiet: bool = False,
) -> OnnxEvaluation:
    """Measure the network in an ONNX file on its dataset's test images, or on `data`: a dataset's name, or a folder of
    pictures with one subfolder per class. Classes are matched by name."""
    network = OnnxNetwork(path)
    if data is not None and (str(data) not in DATASETS or Path(data).is_dir()):
        found = load_labelled(Path(data), network.classes, network.shape, split, quiet)
        return measured(network, found.arrays, found.unknown, found.skipped)
    name = network.facts.get("data") if data is None else str(data)
    if name is None:
        raise InputError(f"{path} does not name a dataset; give a folder of labelled pictures.")
    if name not in DATASETS:
        raise InputError(f"There is no dataset {name!r}; give a folder of labelled pictures.")
    if split != "test":
        raise InputError(f"An ONNX file can be evaluated only on the test images of {name}; use --split test.")
    raw, classes = read_dataset(name, data_dir=data_dir, download=download, quiet=quiet)
    expected = network.facts.get("fingerprint")
    if data is None and expected and expected != checksum(raw.test.labels, [raw.test.images])[:32]:
        raise InputError(f"The test images of {name} differ from those recorded in {path}; restore the originals.")
    return measured(network, *_matched(raw.test, classes, network, name))


def measured(
    network: OnnxNetwork, images: Arrays, unknown: tuple[str, ...] = (), skipped: tuple[str, ...] = ()
) -> OnnxEvaluation:
    classes = len(network.classes)
    predicted, probability, losses = [], [], []
    counts = np.maximum(np.bincount(images.labels, minlength=classes), 1)
    sums: list[np.ndarray] = []
    for start in range(0, len(images.labels), BATCH):
        labels = images.labels[start : start + BATCH]
        answers = network.run(images.images[start : start + BATCH])
        predicted.append(answers["probabilities"].argmax(1))
        probability.append(answers["probabilities"].max(1))
        losses.append(_cross_entropy(answers["logits"], labels))
        weights = [answers[f"weights_{level}"] for level in range(1, network.levels + 1)]
        blocks = [b.reshape(*b.shape[:2], -1).sum(2) for b in weights]
        sums = sums or [np.zeros((classes, b.shape[1])) for b in blocks]
        for total, b in zip(sums, blocks, strict=True):
            np.add.at(total, labels, b)
    check_finite(probabilities := np.concatenate(probability))
    return OnnxEvaluation(
        labels=images.labels,
        predicted=np.concatenate(predicted),
        probability=probabilities,
        loss=float(np.concatenate(losses).mean()),
        mean_weights=tuple(total / counts[:, None] for total in sums),
        names=network.classes,
        unknown=unknown,
        skipped=skipped,
    )


def _cross_entropy(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    values = logits.astype(np.float64)
    values -= values.max(1, keepdims=True)
    return np.log(np.exp(values).sum(1)) - values[np.arange(len(labels)), labels]


def _matched(
    images: Arrays, classes: tuple[str, ...], network: OnnxNetwork, name: str
) -> tuple[Arrays, tuple[str, ...]]:
    """The images of the classes that the network knows, with its labels, and the other classes"""
    if images.images.shape[1:] != network.shape:
        sizes = ("×".join(map(str, shape)) for shape in (images.images.shape[1:], network.shape))
        raise InputError("The images of {} are {}, but the network takes {}.".format(name, *sizes))
    place = {one: at for at, one in enumerate(network.classes)}
    labels = np.array([place.get(one, -1) for one in classes])[images.labels]
    known = labels >= 0
    if not known.any():
        raise InputError(f"The network knows none of the classes of {name}.")
    unknown = tuple(one for one in classes if one not in place)
    return Arrays(images.images[known], labels[known]), unknown
