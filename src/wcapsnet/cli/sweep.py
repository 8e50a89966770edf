"""`wcapsnet sweep`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from .. import api
from ..errors import InputError
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
    Target,
)


@app.command(
    rich_help_panel=TRAIN,
    epilog=examples(
        "wcapsnet sweep cifar10 --seeds 3     seeds 0, 1 and 2, at the same time on one GPU",
        "wcapsnet sweep mnist --grid training.lr=0.1,0.05 --grid model.nonlinearity=tilt,squash",
        "wcapsnet sweep photos/ --seeds 4,5 --grid training.batch_size=16,32 --epochs 40",
        "wcapsnet sweep runs/photos --seeds 5 --out runs/photos-seeds",
    ),
)
def sweep(
    target: Target = None,
    seeds: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="N|LIST", help="Number of seeds, such as 3, or a list, such as 4,5.", show_default=False),
    ] = None,
    grid: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            metavar="FIELD=VALUE,…",
            help="Values to try for a field of experiment.json; several options give every combination.",
            show_default=False,
        ),
    ] = None,
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
        typer.Option("--out", help="Folder for all runs (default: runs/NAME-sweep).", show_default=False),
    ] = None,
    settings: Settings = None,
    plugin: Plugin = None,
    quiet: Quiet = False,
) -> None:
    """Train with several seeds and settings. Repeat the command to continue a stopped sweep."""
    if target is None:
        raise InputError("Name what to train: a recipe (see `wcapsnet list`), a folder of pictures, or a run.")
    runs = api.sweep(
        target,
        seeds=seeds,
        grid=grid or [],
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
    console.sweep(runs)
    if runs.failures:
        raise typer.Exit(1)
