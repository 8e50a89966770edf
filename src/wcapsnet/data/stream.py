"""Images that stay in a file or in main memory and are read batch by batch, ahead of their use."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..memory import CPU, fits

STREAMING = ("auto", "always", "never")
READERS = 4  # threads: a disk answers several requests at a time
AHEAD = 8  # batches
CHUNK = 2**24  # bytes


class Rows:
    """Some images of an array, usually of a memory-mapped file: indexed like a tensor (m, ch, h, w), and read then."""

    def __init__(self, array: np.ndarray, places: np.ndarray):
        self.array = np.asarray(array)  # a plain view of the same memory: faster to index than np.memmap
        self.places = places
        self.shape = torch.Size((len(places), *array.shape[1:]))

    def __len__(self) -> int:
        return len(self.places)

    def numel(self) -> int:
        return self.shape.numel()

    def __getitem__(self, index: int | slice | Tensor) -> Tensor:
        places = self.places[index.cpu().numpy() if isinstance(index, Tensor) else index]
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


Images: TypeAlias = Tensor | Rows


def chunks(images: Images) -> Iterator[Tensor]:
    """All images in order, a few megabytes at a time"""
    size = max(1, CHUNK // max(1, images.shape[1:].numel()))
    yield from images.split(size)


def picked(array: np.ndarray, places: np.ndarray, stream: bool) -> Images:
    """These images of the array: unread, or copied to memory of their own"""
    return Rows(array, places) if stream else torch.from_numpy(array[places])


def streams(setting: str, size: int) -> bool:
    """Whether `size` bytes of images stay where they are: as set by data.stream, or if they do not fit into memory"""
    return setting == "always" or (setting == "auto" and not fits(size, CPU))


def placed(images: Images, device: torch.device, setting: str) -> Images:
    """On the device; or unread, if that is set or if they do not fit there"""
    if isinstance(images, Rows):
        return images
    too_large = device.type != "cpu" and images.device != device and not fits(images.nbytes, device)
    if setting == "always" or (setting == "auto" and too_large):
        return Rows(images.cpu().numpy(), np.arange(len(images)))
    return images.to(device).contiguous()  # the layout the kernels expect


class Reader:
    """Batches on the device. Those that were announced by `expect` are read by threads while earlier ones are used.

    The threads only touch main memory: other threads must not call CUDA while a graph is recorded. Copies to a GPU are
    asynchronous, from pinned memory, on a stream of their own.
    """

    def __init__(self, rows: Rows, device: torch.device):
        self.rows, self.device = rows, device
        self._to_come: Iterator[Tensor] = iter(())
        self._under_way: deque[tuple[Tensor, Future[Tensor]]] = deque()
        self._pool: ThreadPoolExecutor | None = None
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None

    def expect(self, order: Tensor) -> None:
        """Announce the next batches, (steps, batch)."""
        while self._under_way:
            self._under_way.popleft()[1].cancel()
        self._pool = self._pool or ThreadPoolExecutor(READERS, "images")
        self._to_come = iter(order)
        for _ in range(AHEAD):
            self._begin_next()

    def _begin_next(self) -> None:
        index = next(self._to_come, None)
        if index is not None and self._pool:
            future = self._pool.submit(self.rows.read, index, self._memory(len(index)))
            self._under_way.append((index, future))

    def _memory(self, count: int) -> Tensor:
        # PyTorch's allocator for pinned memory hands it out again only after its copy to the GPU has ended
        return torch.empty((count, *self.rows.shape[1:]), dtype=torch.uint8, pin_memory=self._copies is not None)

    def __call__(self, index: Tensor | slice) -> Tensor:
        """uint8 (m, ch, h, w)"""
        if isinstance(index, Tensor):
            index = index.cpu()
            if self._under_way and torch.equal(self._under_way[0][0], index):
                images = self._under_way.popleft()[1].result()
                self._begin_next()
                return self._moved(images)
        count = len(range(*index.indices(len(self.rows)))) if isinstance(index, slice) else len(index)
        return self._moved(self.rows.read(index, self._memory(count)))

    def _moved(self, images: Tensor) -> Tensor:
        if self._copies is None:
            return images.to(self.device)
        with torch.cuda.stream(self._copies):
            moved = images.to(self.device, non_blocking=True)
        using = torch.cuda.current_stream(self.device)
        using.wait_stream(self._copies)
        moved.record_stream(using)
        return moved
