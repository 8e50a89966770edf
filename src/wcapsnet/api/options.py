"""Options that `train` and `sweep` share, by name. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypedDict


class ExperimentOptions(TypedDict, total=False):
    """Changes to an experiment: options of `experiment_for` that `train` and `sweep` share."""

    epochs: int | None
    batch_size: int | None
    lr: float | None
    size: str | int | None
    exclude: str | Sequence[str]
    model: str
    precision: str
    kernels: str
    settings: str | Iterable[str]
