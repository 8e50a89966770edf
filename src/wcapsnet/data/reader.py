"""Batches of images on the device, read ahead of their use."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from ..host_memory import IMAGES
from ..memory import available
from .stream import Images, Rows

READERS = 4  # threads: a disk answers several requests at a time
AHEAD = 8  # batches


def placed(images: Images, device: torch.device, setting: str) -> Images:
    """On the device; or unread, if that is set or if they do not fit there"""
    if isinstance(images, Rows):
        return images
    too_large = device.type != "cpu" and images.device != device and images.nbytes > IMAGES * available(device)
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
