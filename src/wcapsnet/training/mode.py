"""Evaluation mode, for evaluation and explanations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


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
