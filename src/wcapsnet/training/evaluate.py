"""What a network makes of a split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..classifier import winning_capsules
from ..data.loader import DeviceSplit
from ..network import WCapsNet
from .precision import arithmetic


@dataclass(frozen=True)
class Evaluation:
    labels: Tensor  # (m,)
    predicted: Tensor  # (m,)
    probability: Tensor  # (m,) of the predicted class, over the real classes
    capsules: Tensor  # (m, levels): winning capsules
    loss: float  # cross entropy
    mean_weights: tuple[Tensor, ...]  # for each level (classes, n): mean b_n over the images of a class
    classes: int

    @property
    def accuracy(self) -> float:
        return float((self.labels == self.predicted).double().mean())

    @property
    def confusion(self) -> Tensor:
        """(true, predicted)"""
        cells = self.labels * self.classes + self.predicted
        return cells.bincount(minlength=self.classes**2).view(self.classes, self.classes)

    def summary(self, names: tuple[str, ...]) -> dict[str, Any]:
        confusion = self.confusion
        right, total = confusion.diag(), confusion.sum(1)
        return {
            "images": len(self.labels),
            "accuracy": self.accuracy,
            "errors": int((self.labels != self.predicted).sum()),
            "cross_entropy": self.loss,
            "per_class": {
                name: {"accuracy": (right[r] / total[r]).item() if total[r] else None, "images": int(total[r])}
                for r, name in enumerate(names)
            },
            "confusion": confusion.tolist(),
            "mean_weights": [[[round(w, 6) for w in row] for row in level.tolist()] for level in self.mean_weights],
        }


@torch.no_grad()
def evaluate(
    network: WCapsNet, split: DeviceSplit, precision: str = "fp32", batch_size: int | None = None
) -> Evaluation:
    """The whole split, once, in order; the network is left in the mode it was in."""
    # As much memory as 500 images of CIFAR's size take, whatever the size.
    batch_size = batch_size or max(1, min(500, 500 * 32 * 32 // (network.config.height * network.config.width)))
    was_training = network.training
    network.eval()
    device, classes = split.labels.device, network.config.classes
    labels, predicted, probability, capsules = [], [], [], []
    loss = torch.zeros((), dtype=torch.float64, device=device)
    weights = [torch.zeros(classes, level.capsules, device=device) for level in network.config.levels]
    for images, target in split.batches(batch_size):
        with arithmetic(precision, device):
            output = network(images)
        loss += F.cross_entropy(output.logits.float(), target, reduction="sum")
        best = network.class_logits(output).float().softmax(1).max(1)
        labels.append(target)
        predicted.append(best.indices)
        probability.append(best.values)
        capsules.append(winning_capsules(output))
        for total, routing in zip(weights, output.routings, strict=True):
            per_capsule = routing.weights.float().flatten(2).sum(2) if routing.weights.dim() > 2 else routing.weights
            total.index_add_(0, target, per_capsule.float())
    network.train(was_training)
    counts = torch.cat(labels).bincount(minlength=classes).clamp_min(1)
    return Evaluation(
        labels=torch.cat(labels).cpu(),
        predicted=torch.cat(predicted).cpu(),
        probability=torch.cat(probability).cpu(),
        capsules=torch.cat(capsules).cpu(),
        loss=float(loss) / len(split),
        mean_weights=tuple((total / counts[:, None]).cpu() for total in weights),
        classes=classes,
    )
