"""`wcapsnet.compare`: networks side by side on one dataset."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from ..bench import compare as side_by_side
from ..bench.compare import Comparison
from ..console import err
from ..device import choose_device
from ..errors import InputError
from ..reports.records import read_records
from .experiments import one_or_several


def compare(
    dataset: str,
    models: str | Sequence[str] | None = None,
    *,
    speed: bool = False,
    device: str = "auto",
    batch: int | None = None,
    repeats: int = 5,
    window: float = 0.2,
    records: Path | str | None = None,
    quiet: bool = False,
) -> Comparison:
    """Compare networks on one dataset: parameters, multiply-adds, recorded and published accuracy, time, memory.
    Returns a `Comparison` with `rows`, `markdown()`, `as_json()` and `figure()`.

    `models` are names of rows, such as "densenet-bc-100", or of models; default: all with a recipe or a published
    accuracy. `speed` measures training, inference and latency on this machine; otherwise speeds come from the record in
    the package, if there is one. `records` is a folder of your own runs.
    """
    asked = None if models is None else one_or_several(models)
    systems = side_by_side.names_for(dataset, asked)  # refuses unknown names before any work
    if batch is not None and batch < 1:
        raise InputError(f"batch is {batch}, but it must be at least 1.")
    chosen = choose_device(device)
    found = read_records(Path(records))[0] if records else None
    built = side_by_side.build(dataset, asked, found)
    if not speed:
        return built
    cuda = chosen.type == "cuda"
    experiments = {name: side_by_side.experiment_of(name, one, dataset) for name, one in systems.items()}
    with nullcontext() if quiet else err.status("starting") as status:
        speeds, environment, cannot = side_by_side.measure(
            experiments,
            chosen,
            batch=batch or (64 if cuda else 8),
            precision="bf16" if cuda else "fp32",
            repeats=repeats,
            window=window,
            say=(lambda sentence: None) if status is None else status.update,
        )
    rows = tuple(replace(row, speed=speeds.get(row.name)) for row in built.rows)
    return replace(built, rows=rows, measured=environment, cannot=cannot)
