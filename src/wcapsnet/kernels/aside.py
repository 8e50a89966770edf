"""Work on a second stream: gradients of weights, which nothing waits for until the end of a backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class Aside:
    """Off unless somebody promises to read gradients only after the backward pass and to keep none from before: what
    PyTorch adds to a gradient that is already there, it adds at once."""

    def __init__(self) -> None:
        self.enabled = False
        self.stream: torch.cuda.Stream | None = None
        self.kept: list[Tensor] = []

    @contextmanager
    def work(self, *read: Tensor) -> Iterator[None]:
        """What is launched here starts after all that was launched so far. `read` is kept until it is done; results
        must be allocated before."""
        if not self.enabled:
            yield
            return
        if self.stream is None:
            self.stream = torch.cuda.Stream(priority=-1)  # small grids that fill what the others leave free
        # Every time, for a backward pass that broke may have left something in `kept`; the second `join` finds nothing.
        torch.autograd.Variable._execution_engine.queue_callback(self.join)
        self.kept += read
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        if self.stream is not None and self.kept:
            torch.cuda.current_stream().wait_stream(self.stream)
            self.kept.clear()
