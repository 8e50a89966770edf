"""`wcapsnet evaluate`"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from .. import api
from ..console import out, tell_skipped, warn
from ..errors import InputError
from ..exports.runtime import is_onnx
from ..formatting import percent, plural, some
from . import console
from .app import USE, app, examples
from .options import AsJson, DataDir, Device, Download, Network, Plugin, SplitName


@app.command(
    rich_help_panel=USE,
    epilog=examples(
        "wcapsnet evaluate runs/demo",
        "wcapsnet evaluate runs/photos new-photos/                classes are matched by name",
        "wcapsnet evaluate runs/demo --split validation --json",
        "wcapsnet evaluate photos.onnx new-photos/                an exported file; runs without PyTorch",
        "wcapsnet evaluate wcapsnet-cifar10 --data-dir ~/data     reproduces its model card exactly",
    ),
)
def evaluate(
    run: Network,
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="FOLDER",
            help="Other labelled pictures, one folder per class; for an ONNX file, also a dataset's name.",
        ),
    ] = None,
    split: Annotated[SplitName, typer.Option(help="Split to use.")] = "test",
    data_dir: DataDir = None,
    download: Download = False,
    device: Device = "auto",
    precision: Annotated[str, typer.Option(help="fp32 or bf16.")] = "fp32",
    plugin: Plugin = None,
    as_json: AsJson = False,
) -> None:
    """Test a run's best weights, or a shipped network, on its own data or on a folder of labelled pictures."""
    if folder and (data_dir or download) and not is_onnx(run):
        raise InputError(f"--data-dir and --download find a network's own data; {folder} is evaluated instead.")
    result = api.evaluate(
        run,
        data=folder,
        split=split,
        data_dir=data_dir,
        download=download,
        device=device,
        precision=precision,
        quiet=as_json,
    )
    missing = [name for name, n in zip(result.names, result.confusion.sum(1).tolist(), strict=True) if not n]
    if as_json:
        where = {"data": str(folder), "unknown": result.unknown, "missing": missing} if folder else {}
        facts = {"run": run, "split": split, **where, **result.summary(result.names)}
        typer.echo(json.dumps(facts, ensure_ascii=False))
        return
    if folder:
        unknown = f"the network does not know {some(map(repr, result.unknown))}" if result.unknown else ""
        lacking = f"there are no pictures of {some(map(repr, missing))}" if missing else ""
        if sentence := "; ".join(filter(None, (unknown, lacking))):
            warn(f"Not evaluated: {sentence}.")
    tell_skipped(getattr(result, "skipped", ()))
    what = escape(str(folder)) if folder else split
    out.print(
        f"{what} accuracy [bold]{percent(result.accuracy)}%[/] on {plural(len(result.labels), 'image')}"
        f"{result.beside()}, cross entropy {result.loss:.4f}",
        soft_wrap=True,
    )
    if not is_onnx(run):
        _say_more(run, result, own_test=folder is None and split == "test" and precision == "fp32")
    console.accuracy_by_class(result.confusion.tolist(), result.names)


def _say_more(run: str, result: Any, own_test: bool) -> None:
    """Whether the run is finished; whether a shipped network is as good as its model card says"""
    from .. import shipped
    from ..training.run_folder import Run

    if Run.is_run(Path(run)) and not (begun := Run.open(Path(run))).finished:
        done, epochs = len(begun.metrics()), begun.experiment.training.epochs
        out.print(f"The run is not finished: these are the best weights after {done} of {epochs} epochs.")
    if own_test and run in shipped.names():
        right, said = int(result.confusion.diag().sum()), shipped.describe(run)["test"]["correct"]
        out.print(f"{right:,} images correct; its model card says {said:,}.")
