"""`wcapsnet demo`"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from .. import api
from ..device import choose_device
from ..recipes import recipe
from . import console
from .app import TRAIN, app, examples
from .options import Device, Open, Quiet
from .report import open_page


@app.command(rich_help_panel=TRAIN, epilog=examples("wcapsnet demo", "wcapsnet demo --out runs/first"))
def demo(
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="Run folder (default: runs/demo, or the next free one).")
    ] = None,
    device: Device = "auto",
    epochs: Annotated[int | None, typer.Option(min=1, help="Number of epochs.")] = None,
    opened: Open = False,
    quiet: Quiet = False,
) -> None:
    """Train a small WCapsNet on the included digits and show the result."""
    experiment = recipe("demo")
    if choose_device(device).type == "cuda":
        experiment = replace(experiment, training=replace(experiment.training, precision="bf16"))
    trained = api.train(experiment, epochs=epochs, device=device, out=out_dir, quiet=quiet)
    console.mean_weights(trained)
    console.trained(trained, quiet)
    if opened and trained.report:
        open_page(trained.report)
