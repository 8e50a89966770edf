"""`wcapsnet evaluate`"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .. import api, shipped
from ..console import out
from ..formatting import percent
from ..training.run_folder import Run
from . import console
from .app import USE, app, examples
from .options import AsJson, DataDir, Device, Download, Plugin, RunOrName, SplitName


@app.command(
    rich_help_panel=USE,
    epilog=examples(
        "wcapsnet evaluate runs/demo",
        "wcapsnet evaluate runs/demo --split validation --json",
        "wcapsnet evaluate wcapsnet-cifar10 --data-dir ~/data     reproduces its model card exactly",
    ),
)
def evaluate(
    run: RunOrName,
    split: Annotated[SplitName, typer.Option(help="Part of the dataset.")] = SplitName.test,
    data_dir: DataDir = None,
    download: Download = False,
    device: Device = "auto",
    precision: Annotated[str, typer.Option(help="fp32 or bf16.")] = "fp32",
    plugin: Plugin = None,
    as_json: AsJson = False,
) -> None:
    """Test a run's best weights, or a shipped network, on its own dataset."""
    result = api.evaluate(
        run,
        split=split.value,
        data_dir=data_dir,
        download=download,
        device=device,
        precision=precision,
        quiet=as_json,
    )
    if as_json:
        facts = {"run": run, "split": split.value, **result.summary(result.names)}
        typer.echo(json.dumps(facts, ensure_ascii=False))
        return
    out.print(
        f"{split.value} accuracy [bold]{percent(result.accuracy)}%[/] on {len(result.labels):,} images, "
        f"cross entropy {result.loss:.4f}"
    )
    if Run.is_run(Path(run)) and not (begun := Run.open(Path(run))).finished:
        done, epochs = len(begun.metrics()), begun.experiment.training.epochs
        out.print(f"The run is not finished: these are the best weights after {done} of {epochs} epochs.")
    if split == SplitName.test and precision == "fp32" and run in shipped.names():
        right, said = int(result.confusion.diag().sum()), shipped.describe(run)["test"]["correct"]
        out.print(f"{right:,} images correct; its model card says {said:,}.")
    console.accuracy_by_class(result, result.names)
