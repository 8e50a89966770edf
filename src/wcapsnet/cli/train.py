"""`wcapsnet train`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from .. import api
from ..console import command
from ..training.run_folder import Run
from . import console
from .app import TRAIN, app, examples
from .options import (
    BatchSize,
    DataDir,
    Device,
    Download,
    Epochs,
    Kernels,
    LearningRate,
    Model,
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
        "wcapsnet train photos/                        one folder per class, or train/ val/ test/ of those",
        "wcapsnet train photos/ --minutes 10",
        "wcapsnet train photos/ --size 48 --epochs 60",
        "wcapsnet train mnist --download",
        "wcapsnet train cifar10 --data-dir ~/data --seed 1",
        "wcapsnet train cifar10-squash                 a row of the paper's tables",
        "wcapsnet train quick --set model.levels.0.capsules=4 --set objective.wasserstein=0.5",
        "wcapsnet train quick --plugin my_routing.py --set model.routing.weighting=sparsemax",
        "wcapsnet train --resume runs/mnist            continue a stopped run",
        "wcapsnet train runs/mnist --seed 1            repeat an experiment",
    ),
)
def train(
    target: Target = None,
    epochs: Epochs = None,
    minutes: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(help="Train as well as possible in this time, report included.", show_default=False),
    ] = None,
    batch_size: BatchSize = None,
    lr: LearningRate = None,
    seed: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=0, help="Random seed (initialisation, shuffling, noise).", show_default=False),
    ] = None,
    size: Size = None,
    model: Model = "auto",
    device: Device = "auto",
    precision: Precision = "auto",
    kernels: Kernels = "auto",
    data_dir: DataDir = None,
    download: Download = False,
    out_dir: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--out", help="Run folder (default: runs/NAME, or the next free one).", show_default=False),
    ] = None,
    resume: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="RUN", help="Continue this run.", show_default=False),
    ] = None,
    settings: Settings = None,
    plugin: Plugin = None,
    quiet: Quiet = False,
) -> None:
    """Train a network on your own pictures, with a recipe from the paper, or repeat an earlier experiment."""
    finished = resume is not None and Run.is_run(resume) and Run.open(resume).finished
    trained = api.train(
        target,
        epochs=epochs,
        minutes=minutes,
        batch_size=batch_size,
        lr=lr,
        seed=seed,
        size=size,
        model=model,
        device=device,
        precision=precision,
        kernels=kernels,
        data_dir=data_dir,
        download=download,
        out=out_dir,
        resume=resume,
        settings=settings or [],
        quiet=quiet,
    )
    if finished:
        command("The run is finished; measure it with: wcapsnet evaluate", str(resume))
    else:
        console.next_steps(trained, quiet)
