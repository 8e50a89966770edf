"""`wcapsnet export`"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Optional

import typer

from .. import api
from . import console
from .app import USE, app, examples
from .options import DataDir, Download, Plugin, Weights


class To(str, Enum):
    onnx = "onnx"
    torch_export = "torch-export"
    html = "html"


class Input(str, Enum):
    uint8 = "uint8"
    float = "float"


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
    to: Annotated[To, typer.Option(help="Output format.")] = To.onnx,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Output file (default: named after the network).", show_default=False),
    ] = None,
    input: Annotated[Input, typer.Option(help="Pixel type: uint8 (0 to 255) or float (0 to 1).")] = Input.uint8,
    int8: Annotated[bool, typer.Option("--int8", help="ONNX: 8 bits, calibrated on training images.")] = False,
    pictures: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Pictures for check and calibration (default: the network's dataset).", show_default=False),
    ] = None,
    runtime: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            envvar="WCAPSNET_ORT_WEB",
            help="HTML: onnxruntime-web, a folder or .tgz file (default: downloaded once).",
            show_default=False,
        ),
    ] = None,
    data_dir: DataDir = None,
    download: Download = False,
    plugin: Plugin = None,
) -> None:
    """Export a trained network to one file, and check it against the network."""
    done = api.export(
        run,
        to.value,
        out,
        input=input.value,
        int8=int8,
        pictures=pictures,
        data_dir=data_dir,
        download=download,
        runtime=runtime,
    )
    console.say(f"Checked: {done.comparison}.")
    console.written("file", done.path)
