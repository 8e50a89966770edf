"""Options that `train` and `sweep` share, by name. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypedDict


def as_path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path).expanduser()


class ExperimentOptions(TypedDict, total=False):
    """Changes to an experiment: options of `experiment_for` that `train` and `sweep` share."""

    epochs: int | None
    batch_size: int | None
    lr: float | None
    size: str | int | None
    exclude: str | Sequence[str]
    model: str
    start_from: str | Path | None
    precision: str
    kernels: str
    settings: str | Iterable[str]
