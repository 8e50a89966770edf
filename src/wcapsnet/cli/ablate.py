"""`wcapsnet ablate`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from .. import api
from ..recipes.ablations import NUMERALS, TABLES
from . import console
from .app import TRAIN, app, examples
from .options import (
    BatchSize,
    DataDir,
    Device,
    Download,
    Epochs,
    Exclude,
    Kernels,
    LearningRate,
    Model,
    Parallel,
    Plugin,
    Precision,
    Quiet,
    Settings,
    Size,
)


def _table(name: str) -> str:
    table = NUMERALS.get(name.upper(), name.lower())
    if table not in TABLES:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(TABLES)} (or {', '.join(NUMERALS)}).")
    return table


@app.command(
    rich_help_panel=TRAIN,
    epilog=examples(
        "wcapsnet ablate routing cifar10      Table IV with three seeds; or: wcapsnet ablate IV cifar10",
        "wcapsnet ablate nonlinearity mnist --seeds 1 --epochs 10",
        "wcapsnet ablate weighting photos/    the same question for your own pictures",
    ),
)
def ablate(
    table: Annotated[
        str,
        typer.Argument(metavar="TABLE", help="weighting (II), nonlinearity (III) or routing (IV).", parser=_table),
    ],
    dataset: Annotated[
        str,
        typer.Argument(metavar="RECIPE|FOLDER|RUN", help="A recipe such as cifar10, a folder of pictures, or a run."),
    ],
    seeds: Annotated[
        str, typer.Option(metavar="N|LIST", help="Number of seeds, such as 3, or a list, such as 4,5.")
    ] = "3",
    parallel: Parallel = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    lr: LearningRate = None,
    size: Size = None,
    exclude: Exclude = None,
    model: Model = "auto",
    device: Device = "auto",
    precision: Precision = "auto",
    kernels: Kernels = "auto",
    data_dir: DataDir = None,
    download: Download = False,
    out_dir: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--out", help="Folder for all runs (default: runs/NAME-TABLE).", show_default=False),
    ] = None,
    settings: Settings = None,
    plugin: Plugin = None,
    quiet: Quiet = False,
) -> None:
    """Train every row of one of the paper's ablations. Repeat the command to continue."""
    runs = api.sweep(
        dataset,
        seeds=seeds,
        table=table,
        parallel=parallel,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        size=size,
        exclude=exclude or [],
        model=model,
        device=device,
        precision=precision,
        kernels=kernels,
        data_dir=data_dir,
        download=download,
        out=out_dir,
        settings=settings or [],
        quiet=quiet,
    )
    console.sweep(runs, table)
    if runs.failures:
        raise typer.Exit(1)
