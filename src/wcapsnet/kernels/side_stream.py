"""Work on a second stream: weight gradients, which are not needed until the end of a backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class Aside:
    """Off by default. To enable it, read gradients only after the backward pass and start without existing ones:
    PyTorch adds to an existing gradient at once."""

    def __init__(self) -> None:
        self.enabled = False
        self.stream: torch.cuda.Stream | None = None
        self.kept: list[Tensor] = []

    @contextmanager
    def work(self, *read: Tensor) -> Iterator[None]:
        """Work launched here starts after everything launched so far. `read` is kept alive until it is done; results
        must be allocated before."""
        if not self.enabled:
            yield
            return
        if self.stream is None:
            self.stream = torch.cuda.Stream(priority=-1)  # small grids that use idle multiprocessors
        # Every time, because a failed backward pass may have left something in `kept`; a second `join` does nothing.
        torch.autograd.Variable._execution_engine.queue_callback(self.join)
        self.kept += read
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        if self.stream is not None and self.kept:
            torch.cuda.current_stream().wait_stream(self.stream)
            self.kept.clear()
