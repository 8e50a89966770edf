"""A dataset stored on the device as uint8: a batch is an indexing operation, so training never waits for data.

Images that do not fit are streamed (`stream.py`); nothing outside this file needs to know.
"""

from __future__ import annotations

import copy
from functools import cached_property

import torch
from torch import Tensor

from .datasets import statistics
from .reader import Reader, placed
from .stream import Images, Rows
from .types import Dataset, Split


class DeviceSplit:
    """One split on the device, and the conversion of its bytes to network input: (x/255 − mean) / std."""

    def __init__(
        self, split: Split, mean: tuple[float, ...], std: tuple[float, ...], device: torch.device, stream: str = "auto"
    ):
        self.images = placed(split.images, device, stream)
        self.reader = Reader(self.images, device) if isinstance(self.images, Rows) else None
        self.labels = split.labels.to(device)
        self.mean = torch.tensor(mean, device=device).view(1, -1, 1, 1)
        self.std = torch.tensor(std, device=device).view(1, -1, 1, 1)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor | slice) -> tuple[Tensor, Tensor]:
        images = self.reader(index) if self.reader else self.images[index]
        return normalize(images, self.mean, self.std), self.labels[index]

    def part(self, begin: int, end: int) -> DeviceSplit:
        """The images `begin` … `end` − 1"""
        images = self.images
        images = images.some(torch.arange(len(self))[begin:end]) if isinstance(images, Rows) else images[begin:end]
        return self._with(images, self.labels[begin:end])

    def _with(self, images: Images, labels: Tensor) -> DeviceSplit:
        other = copy.copy(self)
        other.images, other.labels = images, labels
        other.reader = Reader(images, labels.device) if isinstance(images, Rows) else None
        return other

    # ── training: batches in an order that is known in advance ──

    def own(self) -> DeviceSplit:
        """The same images for one run alone, with an order of its own"""
        return self._with(self.images, self.labels)

    def expect(self, order: Tensor, first: int = 0) -> Tensor:
        """The batches of an epoch, (steps, batch), on the device that `staged` needs them on; streamed images are read
        ahead, from step `first`."""
        if not self.reader:
            return order.to(self.labels.device)
        self.reader.expect(order[first:])
        return order

    def staged(self, index: Tensor) -> tuple[DeviceSplit, Tensor]:
        """Images on the device that contain this batch, and where it is in them"""
        if not self.reader:
            return self, index
        images, labels = self.reader(index), self.labels[index.to(self.labels.device)]
        return self._with(images, labels), torch.arange(len(index), device=labels.device)

    def window(self, count: int) -> DeviceSplit:
        """Memory on the device for the batch that a recorded step reads; images that are there already need none"""
        if not self.reader:
            return self
        device = self.labels.device
        images = torch.zeros((count, *self.images.shape[1:]), dtype=torch.uint8, device=device)
        return self._with(images, torch.zeros(count, dtype=torch.int64, device=device))

    def copy_to(self, window: DeviceSplit, index: Tensor) -> Tensor:
        """Put a batch into a `window`. Returns where it is there."""
        batch, places = self.staged(index)
        for name in ("images", "labels"):
            getattr(window, name).copy_(getattr(batch, name))
        return places


class DeviceData:
    """A dataset on the device, which several runs may share. The test images are loaded on first use."""

    def __init__(self, dataset: Dataset, normalization: str, device: torch.device, stream: str = "auto"):
        self.dataset, self.device, self.stream = dataset, device, stream
        self.normalization = statistics(dataset.train.images, normalization)
        self.train = self._split(dataset.train)
        self.validation = self._split(dataset.validation)

    @cached_property
    def test(self) -> DeviceSplit:
        return self._split(self.dataset.test)

    def _split(self, split: Split) -> DeviceSplit:
        return DeviceSplit(split, *self.normalization, self.device, self.stream)


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
