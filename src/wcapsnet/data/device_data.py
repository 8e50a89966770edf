"""A dataset stored on the device as uint8: a batch is an indexing operation, so training never waits for data."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor

from .. import scores
from .datasets import statistics
from .types import Dataset, Split


class DeviceSplit:
    """One split on the device, and the conversion of its bytes to network input: (x/255 − mean) / std."""

    def __init__(self, split: Split, mean: tuple[float, ...], std: tuple[float, ...], device: torch.device):
        self.images = split.images.to(device).contiguous()  # the layout the kernels expect
        self.labels = split.labels.to(device)
        self.mean = torch.tensor(mean, device=device).view(1, -1, 1, 1)
        self.std = torch.tensor(std, device=device).view(1, -1, 1, 1)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor | slice) -> tuple[Tensor, Tensor]:
        return normalize(self.images[index], self.mean, self.std), self.labels[index]

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """All images once, in order, without augmentation: for evaluation."""
        for start in range(0, len(self), size):
            yield self.take(slice(start, start + size))


class DeviceData:
    """A dataset on the device, which several runs may share. The test images are loaded on first use."""

    def __init__(self, dataset: Dataset, normalization: str, device: torch.device):
        self.dataset, self.device = dataset, device
        self.normalization = statistics(dataset.train.images, normalization)
        self.train = self._split(dataset.train)
        self.validation = self._split(dataset.validation)

    @cached_property
    def test(self) -> DeviceSplit:
        return self._split(self.dataset.test)

    def _split(self, split: Split) -> DeviceSplit:
        return DeviceSplit(split, *self.normalization, self.device)


def normalize(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    return (images.float() / 255 - mean) / std


def epoch_order(images: int, batch_size: int, seed: int, epoch: int, labels: Tensor | None = None) -> Tensor:
    """(steps, batch): the images of each batch of an epoch. Depends only on seed and epoch, so a resumed run sees the
    same batches as an uninterrupted one. Images that do not fill a batch are left out of this epoch.

    With `labels` (m,), every class is drawn equally often: the epoch has as many steps, but repeats images of small
    classes and leaves out images of large ones. An image is drawn again only after all others of its class.
    """
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
    batch_size = min(batch_size, images)
    steps = images // batch_size
    order = torch.randperm(images, generator=generator)
    if labels is not None:
        classes = [order[labels[order] == label] for label in labels.unique()]  # shuffled
        share = -(-images // len(classes))
        drawn = torch.cat([of_class.repeat(-(-share // len(of_class)))[:share] for of_class in classes])
        order = drawn[torch.randperm(len(drawn), generator=generator)]
    return order[: steps * batch_size].view(steps, batch_size)


def imbalanced(counts: Tensor) -> bool:
    """Whether the largest class has more than 1.5 times as many images as the smallest"""
    return scores.imbalanced(counts.tolist())
