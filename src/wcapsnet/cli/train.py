"""`wcapsnet train`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typing_extensions import Unpack

from .. import api
from ..console import command
from ..launched import follows
from ..plugins import plugin_options
from ..settings import to_dict
from . import console
from .app import TRAIN, app, examples
from .options import Target, TrainingOptions, takes_training_options


@app.command(
    rich_help_panel=TRAIN,
    epilog=examples(
        "wcapsnet train photos/                        one folder per class, optionally in train/ val/ test/",
        "wcapsnet train photos/ --minutes 10",
        "wcapsnet train photos/ --size 48 --epochs 60",
        "wcapsnet train photos/ --from runs/animals    fine-tune your own network",
        "wcapsnet train mnist --download",
        "wcapsnet train cifar10 --data-dir ~/data --seed 1",
        "wcapsnet train cifar10-squash                 a row of the paper's tables",
        "wcapsnet train quick --set model.levels.0.capsules=4 --set objective.wasserstein=0.5",
        "wcapsnet train quick --plugin my_routing.py --set model.routing.weighting=sparsemax",
        "wcapsnet train --resume runs/mnist            continue a stopped run",
        "wcapsnet train runs/mnist --seed 1            repeat an experiment",
    ),
)
@takes_training_options
def train(
    target: Target = None,
    minutes: Annotated[float | None, typer.Option(help="Fit training, test and report into this many minutes.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Random seed (initialisation, shuffling, noise).")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Run folder (default: runs/NAME, or the next free one).")
    ] = None,
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="Run to continue.")] = None,
    **options: Unpack[TrainingOptions],
) -> None:
    """Train a network on your own pictures, from a recipe, or by repeating an earlier run."""
    trained = api.train(target, seed=seed, minutes=minutes, out=out, resume=resume, **options)
    if follows():
        return
    if trained.again:
        command(
            "The run is finished; measure it with: wcapsnet evaluate",
            str(resume),
            *plugin_options(to_dict(trained.run.experiment)),
        )
        if trained.report:
            console.written("report", trained.report)
    else:
        console.trained(trained, options["quiet"])
