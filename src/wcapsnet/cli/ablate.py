"""`wcapsnet ablate`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typing_extensions import Unpack

from .. import api
from ..recipes.ablations import NUMERALS, TABLES
from . import console
from .app import TRAIN, app, examples
from .options import Parallel, Ray, RayCommand, Seeds, TrainingOptions, takes_training_options


def _table(name: str) -> str:
    table = NUMERALS.get(name.upper(), name.lower())
    if table not in TABLES:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(TABLES)} (or {', '.join(NUMERALS)}).")
    return table


@app.command(
    cls=RayCommand,
    rich_help_panel=TRAIN,
    epilog=examples(
        "wcapsnet ablate routing cifar10      Table IV with three seeds; or: wcapsnet ablate IV cifar10",
        "wcapsnet ablate nonlinearity mnist --seeds 1 --epochs 10",
        "wcapsnet ablate weighting photos/    the same comparison on your own pictures",
    ),
)
@takes_training_options
def ablate(
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="weighting (II), nonlinearity (III) or routing (IV).", parser=_table)
    ],
    dataset: Annotated[
        str,
        typer.Argument(metavar="RECIPE|FOLDER|RUN", help="A recipe such as cifar10, a folder of pictures, or a run."),
    ],
    seeds: Seeds = "3",
    parallel: Parallel = None,
    ray: Ray = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for all runs (default: runs/NAME-TABLE).")] = None,
    **options: Unpack[TrainingOptions],
) -> None:
    """Train every row of one of the paper's ablations. Repeat the command to continue."""
    runs = api.sweep(dataset, seeds=seeds, table=table, parallel=parallel, out=out, ray=ray, **options)
    console.sweep(runs, table)
    if runs.failures:
        raise typer.Exit(1)
