"""`wcapsnet sweep`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typing_extensions import Unpack

from .. import api
from ..errors import InputError
from . import console
from .app import TRAIN, app, examples
from .options import Parallel, Ray, RayCommand, Seeds, Target, TrainingOptions, takes_training_options


@app.command(
    cls=RayCommand,
    rich_help_panel=TRAIN,
    epilog=examples(
        "wcapsnet sweep cifar10 --seeds 3     seeds 0, 1 and 2, at the same time on one GPU",
        "wcapsnet sweep mnist --grid training.lr=0.1,0.05 --grid model.nonlinearity=tilt,squash",
        "wcapsnet sweep photos/ --seeds 4,5 --grid training.batch_size=16,32 --epochs 40",
        "wcapsnet sweep runs/photos --seeds 5 --out runs/photos-seeds",
        "wcapsnet sweep cifar10 --seeds 8 --ray     on all machines of a Ray cluster",
    ),
)
@takes_training_options
def sweep(
    target: Target = None,
    seeds: Seeds = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=VALUE,…",
            help="Values of a field of experiment.json to try; repeat for other fields, to try all combinations.",
        ),
    ] = None,
    parallel: Parallel = None,
    ray: Ray = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for all runs (default: runs/NAME-sweep).")] = None,
    **options: Unpack[TrainingOptions],
) -> None:
    """Train with several seeds and settings. Repeat the command to continue a stopped sweep."""
    if target is None:
        raise InputError("Name what to train: a recipe (see `wcapsnet list`), a folder of pictures, or a run.")
    runs = api.sweep(target, seeds=seeds, grid=grid or [], parallel=parallel, out=out, ray=ray, **options)
    console.sweep(runs)
    if runs.failures:
        raise typer.Exit(1)
