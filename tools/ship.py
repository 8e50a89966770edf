"""`python tools/ship.py NAME RUN …`: make a shipped network and its model card.

RUN … are finished runs of one experiment with different seeds, or folders of them. The one with the best validation
accuracy is taken, whatever its test accuracy. Its weights are stored in half precision if that changes no prediction
on the validation and test images, else in single precision; there, rounded to 16 bits under the same condition. The
file is loaded again and must give the same prediction on every test image before it replaces the old one.
"""

from __future__ import annotations

import argparse
import copy
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

import update_docs
from model_card import card
from records import environment_of, history_of
from wcapsnet import __version__
from wcapsnet.atomic import replacing, write_text
from wcapsnet.classifier import Classifier, save_tensors
from wcapsnet.cli.exit import in_a_sentence
from wcapsnet.data import DATASETS, Dataset, load_dataset
from wcapsnet.data.device_data import DeviceSplit
from wcapsnet.device import arithmetic, choose_device
from wcapsnet.errors import InputError
from wcapsnet.experiment import published
from wcapsnet.parts import model as MODELS
from wcapsnet.recipes import RECIPES
from wcapsnet.reports.export import accuracy_figure, write_figure
from wcapsnet.reports.records import FREE, open_run, runs_in
from wcapsnet.settings import differing
from wcapsnet.training.evaluate import Evaluation, evaluate, good_batch, on_every_core
from wcapsnet.training.run_folder import PARTS, Run

PLACE = Path("src/wcapsnet/shipped/weights")
CARDS = Path("docs/model-cards")

Rounder: TypeAlias = Callable[[Tensor], Tensor]


class Half(NamedTuple):
    """What storing the weights in half precision would do."""

    flips: int  # validation and test images that are answered differently
    correct: int  # test images answered rightly


class Rounding(NamedTuple):
    """How far the answers are from changing with the order in which a machine adds numbers."""

    error: float  # the largest difference between a logit in single and in double precision
    margin: float  # the smallest lead of an answer over the next one, in logits
    flips: int  # test images that double precision answers differently


@dataclass(frozen=True)
class Measured:
    """All that a model card says."""

    name: str
    run: Run
    candidates: list[Run]
    facts: dict[str, Any]
    test: Evaluation
    half: Half
    rounding: Rounding
    classes: tuple[str, ...]
    images: dict[str, int]  # how many in each part
    bytes: int


def ship(name: str, folders: list[Path], root: Path, data_dir: Path | None, device: torch.device) -> Measured:
    _check_name(name)
    update_docs.pages(root)  # a checkout, in order
    candidates = _candidates(folders)
    run = best_on_validation(candidates)
    dataset = _data(run, data_dir)
    classifier = Classifier.load(run.weights(), device)
    run.check_weights(classifier.config, classifier.classes)
    test, validation = (_evaluate(classifier, dataset, part) for part in ("test", "validation"))

    def with_weights(rounding: Rounder) -> Half:
        network = _rounded(classifier, rounding)
        rounded = [_evaluate(network, dataset, part) for part in ("test", "validation")]
        pairs = zip((test, validation), rounded, strict=True)
        flips = sum(int((one.predicted != other.predicted).sum()) for one, other in pairs)
        return Half(flips, _counts(rounded[0])["correct"])

    half = with_weights(_halved)
    rounding = _halved if not half.flips else shortened if not with_weights(shortened).flips else _exact
    facts = {
        "name": name,
        "version": __version__,
        "experiment": published(run.experiment),
        "epoch": run.results()["best_epoch"],
        "stored": "float32" if half.flips else "float16",
        "fingerprint": dataset.fingerprint(*PARTS),
        "validation": _counts(validation),
        "test": _counts(test),
        "environment": environment_of(run),
        "history": history_of(run),
    }
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "weights.safetensors"
        save_tensors(path, _weights(classifier, rounding), {**classifier.description(), **facts})
        again = Classifier.load(path, device)
        if not torch.equal(_evaluate(again, dataset, "test").predicted, test.predicted):
            raise RuntimeError(f"{name} answers differently after reloading; nothing was written.")
        content = path.read_bytes()
    measured = Measured(
        name=name,
        run=run,
        candidates=candidates,
        facts=again.facts,
        test=test,
        half=half,
        rounding=_rounding(again, dataset),
        classes=dataset.classes,
        images={part: len(getattr(dataset, part).labels) for part in PARTS},
        bytes=len(content),
    )
    with replacing(root / PLACE / f"{name}.safetensors") as partial:
        partial.write_bytes(content)
    curves = accuracy_figure(f"{name}: accuracy by epoch", {f"seed {_seed(run)}": run.metrics()})
    write_figure(curves, root / CARDS / f"{name}.svg")
    write_text(root / CARDS / f"{name}.md", card(measured))
    return measured


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) or name in MODELS or name in RECIPES:
        raise InputError(f"{name!r} cannot name a shipped network; choose one such as wcapsnet-cifar10.")


def _candidates(folders: list[Path]) -> list[Run]:
    runs = [open_run(path) for folder in folders for path in runs_in(folder)]
    if not runs:
        raise InputError("Name finished runs, or folders of them.")
    for run in runs:
        if not run.finished:
            raise InputError(f"{run.path} is not finished, so it cannot be shipped.")
        for field, own, first in differing(run.experiment, runs[0].experiment):
            if field not in FREE:
                raise InputError(
                    f"{run.path} and {runs[0].path} are different experiments: {field} is {own} and {first}."
                )
    return sorted(runs, key=_seed)


def _seed(run: Run) -> int:
    return run.experiment.training.seed


def best_on_validation(runs: list[Run]) -> Run:
    """By validation accuracy; of equal ones the lower validation loss, then the smaller seed."""

    def merit(run: Run) -> tuple[float, float, int]:
        facts = run.results()
        return facts["validation_accuracy"], -run.metrics()[facts["best_epoch"] - 1]["validation_loss"], -_seed(run)

    return max(runs, key=merit)


def _data(run: Run, data_dir: Path | None) -> Dataset:
    config = run.experiment.data
    if data_dir and config.source not in DATASETS:
        config = replace(config, source=str(data_dir))
    dataset = load_dataset(config, data_dir=data_dir)
    run.check_data(dataset)
    return dataset


def _split(classifier: Classifier, dataset: Dataset, part: str) -> DeviceSplit:
    return DeviceSplit(getattr(dataset, part), *classifier.normalization, classifier.mean.device)


def _evaluate(classifier: Classifier, dataset: Dataset, part: str) -> Evaluation:
    return evaluate(classifier.network, _split(classifier, dataset, part))


def _counts(evaluation: Evaluation) -> dict[str, int]:
    right = int((evaluation.predicted == evaluation.labels).sum())
    return {"correct": right, "images": len(evaluation.labels)}


def _halved(tensor: Tensor) -> Tensor:
    return tensor.half() if tensor.is_floating_point() else tensor


def _exact(tensor: Tensor) -> Tensor:
    return tensor


def _rounded(classifier: Classifier, rounding: Rounder) -> Classifier:
    """The network as it would be after storing rounded weights; it computes in single precision."""
    rounded = copy.deepcopy(classifier)
    rounded.network.load_state_dict(_weights(classifier, rounding))
    return rounded


def _weights(classifier: Classifier, rounding: Rounder) -> dict[str, Tensor]:
    return {name: rounding(tensor) for name, tensor in classifier.network.state_dict().items()}


def shortened(tensor: Tensor) -> Tensor:
    """float32 rounded to 16 significant bits: the zeros behind them make the wheel a fifth smaller"""
    if tensor.dtype != torch.float32:
        return tensor
    mantissa, exponent = torch.frexp(tensor)  # 0.5 ≤ |mantissa| < 1
    return torch.ldexp((mantissa * 2**16).round() / 2**16, exponent)


def _rounding(classifier: Classifier, dataset: Dataset) -> Rounding:
    network, exact = classifier.network, copy.deepcopy(classifier.network).double()
    split = _split(classifier, dataset, "test")
    device = split.labels.device
    size = good_batch(network, device)

    @torch.no_grad()
    def look(start: int) -> Rounding:
        images, _ = split.take(slice(start, start + size))
        with arithmetic("fp32", device):
            logits = network.class_logits(network(images))
        double = exact.class_logits(exact(images.double()))
        first, second = logits.topk(2).values.unbind(1)
        flips = int((logits.argmax(1) != double.argmax(1)).sum())
        return Rounding(float((logits - double).abs().max()), float((first - second).min()), flips)

    errors, margins, flips = zip(*on_every_core(look, range(0, len(split), size), device), strict=True)
    return Rounding(max(errors), min(margins), sum(flips))


def main(arguments: list[str], root: Path) -> None:
    parser = argparse.ArgumentParser("python tools/ship.py", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("name", help="such as wcapsnet-cifar10")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="finished runs, or folders of them")
    parser.add_argument("--data-dir", type=Path, help="directory of the dataset or the pictures")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    given = parser.parse_args(arguments)
    with in_a_sentence():
        measured = ship(given.name, given.runs, root, given.data_dir, choose_device(given.device))
        stale = update_docs.write(root)
    counts = measured.facts["test"]
    print(f"{given.name}: {measured.run.path}, {counts['correct']:,} of {counts['images']:,} test images right")
    half = f"half precision answers {measured.half.flips} validation and test images differently"
    print(f"stored as {measured.facts['stored']}, {measured.bytes / 1e6:.2f} MB: {half}")
    for path in (PLACE / f"{given.name}.safetensors", CARDS / f"{given.name}.md", CARDS / f"{given.name}.svg", *stale):
        print(f"wrote {path}")


if __name__ == "__main__":
    main(sys.argv[1:], Path())
