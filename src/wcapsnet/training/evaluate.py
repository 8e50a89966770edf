"""Accuracy, loss and routing of a network on a split."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import scores
from ..data import Dataset
from ..data.device_data import DeviceSplit
from ..device import arithmetic, exact
from ..formatting import percent
from ..network import WCapsNet
from ..network.routing import block_weights, heaviest
from ..prediction import check_finite

S = TypeVar("S")
T = TypeVar("T")
BINS = 15  # of the reliability diagram, of equal width


@dataclass(frozen=True)
class Calibration:
    """Are predictions with a probability of 80 % right in 80 % of the cases?"""

    error: float  # expected calibration error: the mean gap between probability and accuracy, over images
    bins: tuple[tuple[int, float, float], ...]  # images, mean probability and accuracy of each bin that has images

    def summary(self) -> dict[str, Any]:
        named = ("images", "probability", "accuracy")
        return {"error": self.error, "bins": [dict(zip(named, one, strict=True)) for one in self.bins]}


def calibration(probability: Tensor, right: Tensor) -> Calibration:
    """From the probability of each predicted class and whether it was right, both (m,)"""
    check_finite(probability)
    place = (probability.double() * BINS).long().clamp_max(BINS - 1)
    counts = place.bincount(minlength=BINS)
    sums = [torch.zeros(BINS, dtype=torch.float64).index_add_(0, place, x.double()) for x in (probability, right)]
    bins = [(int(n), float(p / n), float(a / n)) for n, p, a in zip(counts, *sums, strict=True) if n]
    error = sum(n * abs(p - a) for n, p, a in bins) / max(len(probability), 1)
    return Calibration(error, tuple(bins))


@dataclass(frozen=True)
class Evaluation(scores.Scores):
    labels: Tensor  # (m,)
    predicted: Tensor  # (m,)
    probability: Tensor  # (m,) probability of the predicted class, over the real classes
    winners: tuple[Tensor, ...]  # for each level (m, n): whether a block has one of the image's largest weights (D31)
    loss: float  # cross entropy
    mean_weights: tuple[Tensor, ...]  # for each level (classes, n): mean b_n over the images of a class
    classes: int
    names: tuple[str, ...] = ()  # class names, if known
    unknown: tuple[str, ...] = ()  # classes of a folder that the network does not know; they are left out

    @staticmethod
    def of(
        labels: Tensor, predicted: Tensor, probability: Tensor, losses: Tensor, weights: Sequence[Tensor], classes: int
    ) -> Evaluation:
        """From the results of every image, each (m,); `weights` for each level (m, n)"""
        counts = labels.bincount(minlength=classes).clamp_min(1)[:, None]
        means = (b.new_zeros(classes, b.shape[1]).index_add_(0, labels, b) / counts for b in weights)
        return Evaluation(
            labels=labels.cpu(),
            predicted=predicted.cpu(),
            probability=probability.cpu(),
            winners=tuple(heaviest(b).cpu() for b in weights),
            loss=float(exact(losses).mean()),
            mean_weights=tuple(mean.cpu() for mean in means),
            classes=classes,
        )

    def __repr__(self) -> str:  # without the tensors
        return f"Evaluation(accuracy={percent(self.accuracy)} %, loss={self.loss:.4f}, images={len(self.labels):,})"

    @property
    def calibration(self) -> Calibration:
        return calibration(self.probability, self.labels == self.predicted)

    @property
    def confusion(self) -> Tensor:
        """(true, predicted)"""
        cells = self.labels * self.classes + self.predicted
        return cells.bincount(minlength=self.classes**2).view(self.classes, self.classes)

    def summary(self, names: Sequence[str]) -> dict[str, Any]:
        return {**super().summary(names), "calibration": self.calibration.summary()}


def beside_figures(figures: Mapping[str, Any], show: Callable[[float], str] = scores.in_percent) -> str:
    """The same for the figures of test.json; runs of earlier versions have none."""
    if "balanced_accuracy" not in figures:
        return ""
    counts = [one["images"] for one in figures["per_class"].values()]
    return scores.beside(figures["balanced_accuracy"], figures["majority"], counts, show)


def evaluate(
    network: WCapsNet,
    split: DeviceSplit,
    precision: str = "fp32",
    forward: Callable[[Tensor], Any] | None = None,
) -> Evaluation:
    """Evaluate the whole split once, in order; the network keeps its mode. `forward` may be a faster implementation."""
    device, classes = split.labels.device, network.config.classes
    size = good_batch(network, device, 1000 if forward else 500)  # kernels need a tenth of the memory
    answer = forward or network

    @torch.no_grad()  # set here because the mode is per thread
    def look(start: int) -> list[Tensor]:
        images, target = split.take(slice(start, start + size))
        with arithmetic(precision, device):
            output = answer(images)
        best = output.logits[:, :classes].float().softmax(1).max(1)
        loss = F.cross_entropy(output.logits.float(), target, reduction="none")
        per_capsule = [block_weights(routing.weights) for routing in getattr(output, "routings", ())]
        return [target, best.indices, best.values, loss, *per_capsule]

    with evaluating(network):
        parts = list(on_every_core(look, range(0, len(split), size), device))
    labels, predicted, probability, losses, *weights = (torch.cat(column) for column in zip(*parts, strict=True))
    return Evaluation.of(labels, predicted, probability, losses, weights, classes)


def prediction_rows(evaluation: Evaluation, dataset: Dataset) -> Iterator[list[Any]]:
    """predictions.csv: a header, and one row per test image"""
    levels = range(1, len(evaluation.winners) + 1)
    yield ["picture", "label", "predicted", "probability", *(f"capsule_{level}" for level in levels)]
    pictures = dataset.test_files or range(len(evaluation.labels))
    columns = (c.tolist() for c in (evaluation.labels, evaluation.predicted, evaluation.probability))
    winners = map(listed_winners, evaluation.winners)
    for picture, label, predicted, p, *capsules in zip(pictures, *columns, *winners, strict=True):
        yield [picture, dataset.classes[label], dataset.classes[predicted], f"{p:.6f}", *capsules]


def confusion_rows(evaluation: Evaluation, classes: tuple[str, ...]) -> Iterator[list[Any]]:
    yield ["true \\ predicted", *classes]
    for name, counts in zip(classes, evaluation.confusion.tolist(), strict=True):
        yield [name, *counts]


def listed_winners(mask: Tensor) -> list[str]:
    """(m, n) → the winners of each image, separated by spaces: "0 3 5" """
    return [" ".join(map(str, row.nonzero().flatten().tolist())) for row in mask]


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode and back. A network already in it is left alone, so threads may share it."""
    if not network.training:
        yield
        return
    network.eval()
    try:
        yield
    finally:
        network.train()


def good_batch(network: WCapsNet, device: torch.device, on_gpu: int = 500) -> int:
    """Small batches stay in the CPU's caches. `on_gpu` assumes CIFAR-sized images; larger ones need more memory."""
    return good_batch_for(network.config.height * network.config.width, device, on_gpu)


def good_batch_for(pixels: int, device: torch.device, on_gpu: int = 500) -> int:
    most = 16 if device.type == "cpu" else on_gpu
    return max(1, min(most, most * 32 * 32 // pixels))


def on_every_core(work: Callable[[S], T], items: Iterable[S], device: torch.device) -> Generator[T, None, None]:
    """The results of `work`, in order. On a CPU each core processes its own items: nearly twice as fast as using all
    cores for one large batch after another (benchmarks/records, evaluation-on-cpu). Autograd and autocast modes are per
    thread, so `work` must set them itself."""
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:
        yield from map(work, items)
        return
    torch.set_num_threads(1)
    pool = ThreadPoolExecutor(threads)
    try:
        yield from pool.map(work, items)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)
