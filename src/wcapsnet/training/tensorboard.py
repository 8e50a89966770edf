"""TensorBoard events, if tensorboard is installed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def event_writer(path: Path | None, first_epoch: int) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A function that takes an epoch's record; without a path, it does nothing. For a resumed run, events after
    `first_epoch` are dropped."""
    if path is None:
        yield lambda record: None
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        yield lambda record: None
        return
    writer = SummaryWriter(str(path), purge_step=first_epoch + 1)

    def write(record: dict[str, Any]) -> None:
        for name, value in record.items():
            if name != "epoch":
                writer.add_scalar(name, float(value), record["epoch"])
        writer.flush()

    try:
        yield write
    finally:
        writer.close()
