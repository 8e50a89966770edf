"""Evaluation and explanations see the network as it answers: in evaluation mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Evaluation mode, and back. A network that is in it already is not touched, so threads may share it."""
    if not network.training:
        yield
        return
    network.eval()
    try:
        yield
    finally:
        network.train()
