"""`wcapsnet.sweep`: one experiment with several seeds and settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from typing_extensions import Unpack

from ..device import choose_device
from ..experiment import Experiment
from ..recipes.ablations import rows_of
from ..sweeps import Sweep, product, train_all, with_seeds
from .experiments import experiment_for, one_or_several, shows_options
from .options import ExperimentOptions


@shows_options
def sweep(
    target: str | Path | Experiment,
    *,
    seeds: str | int | None = None,
    grid: str | Sequence[str] = (),
    table: str | None = None,
    parallel: int | None = None,
    device: str = "auto",
    data_dir: Path | None = None,
    download: bool = False,
    out: Path | str | None = None,
    quiet: bool = False,
    **options: Unpack[ExperimentOptions],
) -> Sweep:
    """Train with several seeds and settings, or every row of one of the paper's ablations (`table`). Returns all runs
    with their results; finished runs are not trained again.

    `grid` holds values to try: `grid=["training.lr=0.1,0.05"]`. `table` is weighting, nonlinearity or routing.
    """
    chosen = choose_device(device)
    experiment, data_dir = experiment_for(target, device=chosen, data_dir=data_dir, **options)
    seeds = None if seeds is None else str(seeds)
    if table:
        rows = rows_of(table, experiment).items()
        planned = [one for row, variant in rows for one in with_seeds(variant, seeds or "3", {"row": row})]
    else:
        planned = product(experiment, one_or_several(grid), seeds)
    runs = Sweep(Path(out) if out else Path("runs") / f"{experiment.name}-{table or 'sweep'}", planned)
    runs.check_alone()
    runs.failures = train_all(
        runs, chosen, parallel=parallel, data_dir=data_dir, download=download, quiet=quiet, table=table
    )
    return runs
