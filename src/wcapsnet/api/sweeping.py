"""`wcapsnet.sweep`: one experiment with several seeds and settings."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from typing_extensions import Unpack

from ..device import choose_device
from ..experiment import Experiment
from ..recipes.ablations import rows_of
from ..sweeps import Sweep, product, train_all, with_seeds
from ..sweeps.on_ray import cluster, cluster_device
from .experiments import experiment_for, one_or_several, shows_options
from .options import ExperimentOptions, as_path


@shows_options
def sweep(
    target: str | Path | Experiment,
    *,
    seeds: str | int | None = None,
    grid: str | Sequence[str] = (),
    table: str | None = None,
    parallel: int | None = None,
    device: str = "auto",
    data_dir: str | Path | None = None,
    download: bool = False,
    out: Path | str | None = None,
    ray: str | None = None,
    quiet: bool = False,
    **options: Unpack[ExperimentOptions],
) -> Sweep:
    """Train with several seeds and settings, or every row of one of the paper's ablations (`table`). Returns all runs
    with their results; finished runs are not trained again.

    `grid` holds values to try: `grid=["training.lr=0.1,0.05"]`. `table` is weighting, nonlinearity or routing. `ray` is
    the address of a Ray cluster to train on, "auto" or "local"; `parallel` is then the number of runs per GPU.
    """
    with cluster(ray) if ray else nullcontext() as where:
        chosen = cluster_device(device) if ray else choose_device(device)
        # weights trained with one row's routing would favour that row
        experiment, place = experiment_for(
            target, device=chosen, data_dir=as_path(data_dir), default_start=table is None, **options
        )
        seeds = None if seeds is None else str(seeds)
        if table:
            rows = rows_of(table, experiment).items()
            planned = [one for row, variant in rows for one in with_seeds(variant, seeds or "3", {"row": row})]
        else:
            planned = product(experiment, one_or_several(grid), seeds)
        runs = Sweep(Path(out) if out else Path("runs") / f"{experiment.name}-{table or 'sweep'}", planned)
        runs.check_alone()
        runs.failures = train_all(
            runs,
            chosen,
            parallel=parallel,
            data_dir=place,
            download=download,
            quiet=quiet,
            table=table,
            cluster=where,
        )
        return runs
