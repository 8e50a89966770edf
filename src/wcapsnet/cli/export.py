"""`wcapsnet export`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from .. import api
from . import console
from .app import USE, app, examples
from .options import DataDir, Download, Plugin, Weights


@app.command(
    rich_help_panel=USE,
    epilog=examples(
        "wcapsnet export wcapsnet-mnist --to onnx                 wcapsnet-mnist.onnx",
        "wcapsnet export runs/photos --to onnx --out photos.onnx",
        "wcapsnet export wcapsnet-cifar10 --int8 --data-dir ~/data",
        "wcapsnet export wcapsnet-mnist --to html                 one web page that runs the network",
        "wcapsnet predict wcapsnet-mnist.onnx digit.png           runs without PyTorch",
    ),
)
def export(
    run: Weights,
    to: Annotated[Literal["onnx", "torch-export", "html"], typer.Option(help="Output format.")] = "onnx",
    out: Annotated[Path | None, typer.Option(help="Output file (default: named after the network).")] = None,
    input: Annotated[
        Literal["uint8", "float"], typer.Option(help="Pixel type: uint8 (0 to 255) or float (0 to 1).")
    ] = "uint8",
    int8: Annotated[
        bool, typer.Option("--int8", help="ONNX: quantise to 8 bits, calibrated on training images.")
    ] = False,
    pictures: Annotated[
        Path | None, typer.Option(help="Pictures for the check and calibration (default: the network's dataset).")
    ] = None,
    runtime: Annotated[
        Path | None,
        typer.Option(
            envvar="WCAPSNET_ORT_WEB", help="HTML: onnxruntime-web, a folder or .tgz file (default: downloaded once)."
        ),
    ] = None,
    data_dir: DataDir = None,
    download: Download = False,
    plugin: Plugin = None,
) -> None:
    """Export a trained network to one file, and check it against the network."""
    done = api.export(
        run, to, out, input=input, int8=int8, pictures=pictures, data_dir=data_dir, download=download, runtime=runtime
    )
    console.say(f"Checked: {done.comparison}.")
    console.written("file", done.path)
