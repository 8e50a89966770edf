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


class Input(str, Enum):
    uint8 = "uint8"
    float = "float"


@app.command(
    rich_help_panel=USE,
    epilog=examples(
        "wcapsnet export wcapsnet-mnist --to onnx                 wcapsnet-mnist.onnx",
        "wcapsnet export runs/photos --to onnx --out photos.onnx",
        "wcapsnet export wcapsnet-cifar10 --int8 --data-dir ~/data",
        "wcapsnet predict wcapsnet-mnist.onnx digit.png           needs no torch",
    ),
)
def export(
    run: Weights,
    to: Annotated[To, typer.Option(help="Format of the file.")] = To.onnx,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="File to write (default: named after the network, here).", show_default=False),
    ] = None,
    input: Annotated[Input, typer.Option(help="Pixels as uint8 (0 to 255) or float (0 to 1).")] = Input.uint8,
    int8: Annotated[bool, typer.Option("--int8", help="Compute in 8 bits, calibrated with training images.")] = False,
    pictures: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Pictures to check the file on (default: test images of the network).", show_default=False),
    ] = None,
    data_dir: DataDir = None,
    download: Download = False,
    plugin: Plugin = None,
) -> None:
    """Write a trained network as one file for other programs, checked against the network."""
    done = api.export(
        run,
        to.value,
        out,
        input=input.value,
        int8=int8,
        pictures=pictures,
        data_dir=data_dir,
        download=download,
    )
    console.say(f"Checked: {done.comparison}.")
    console.written("file", done.path)
