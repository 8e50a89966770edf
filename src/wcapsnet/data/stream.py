"""Images that stay in a file or in main memory and are read when they are used. Can be imported without torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ..host_memory import fits

if TYPE_CHECKING:
    from torch import Tensor

STREAMING = ("auto", "always", "never")
CHUNK = 2**24  # bytes


class Rows:
    """Some images of an array, usually of a memory-mapped file: indexed like a tensor (m, ch, h, w), and read then."""

    def __init__(self, array: np.ndarray, places: np.ndarray):
        self.array = np.asarray(array)  # a plain view of the same memory: faster to index than np.memmap
        self.places = places
        self.shape = (len(places), *array.shape[1:])

    def __len__(self) -> int:
        return len(self.places)

    def numel(self) -> int:
        return math.prod(self.shape)

    def __getitem__(self, index: int | slice | Tensor) -> Tensor:
        import torch

        places = self.places[index.cpu().numpy() if isinstance(index, torch.Tensor) else index]
        return torch.from_numpy(np.array(self.array[places]) if places.ndim == 0 else self.array[places])

    def some(self, index: Tensor) -> Rows:
        """These images, still unread"""
        return Rows(self.array, self.places[index.numpy()])

    def split(self, size: int) -> Iterator[Tensor]:
        return (self[start : start + size] for start in range(0, len(self), size))

    def read(self, index: Tensor | slice, out: Tensor) -> Tensor:
        """Into `out`; other threads can run meanwhile."""
        places = self.places[index if isinstance(index, slice) else index.numpy()]
        np.take(self.array, places, axis=0, out=out.numpy(), mode="clip")  # any other mode copies twice
        return out


Images: TypeAlias = "Tensor | Rows"


def chunks(images: Images) -> Iterator[Tensor]:
    """All images in order, a few megabytes at a time"""
    size = max(1, CHUNK // max(1, math.prod(images.shape[1:])))
    yield from images.split(size)


def picked(array: np.ndarray, places: np.ndarray, stream: bool) -> Images:
    """These images of the array: unread, or copied to memory of their own"""
    if stream:
        return Rows(array, places)
    import torch

    return torch.from_numpy(array[places])


def streams(setting: str, size: int) -> bool:
    """Whether `size` bytes of images stay where they are: as set by data.stream, or if they do not fit into memory"""
    return setting == "always" or (setting == "auto" and not fits(size))
