"""Options that several commands share."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Optional

import typer

from ..data import MAX_SIDE
from ..network import MIN_SIDE
from ..plugins import load_plugin
from ..training.parallel import MAX_LANES


def _load_plugins(paths: list[Path] | None) -> list[Path] | None:
    for path in paths or []:
        load_plugin(path)
    return paths


# typer reads these annotations on Python 3.10, where `X | None` is not enough
DataDir = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(
        help="Dataset directory (default: $WCAPSNET_DATA or ./data). For a run on pictures that were moved: their "
        "folder.",
        show_default=False,
    ),
]
Target = Annotated[
    Optional[str],  # noqa: UP045
    typer.Argument(
        metavar="RECIPE|FOLDER|RUN",
        help="A recipe (see `wcapsnet list`), a folder of pictures, or a run to repeat.",
        show_default=False,
    ),
]
Epochs = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(min=1, help="Number of epochs; learning-rate milestones scale with it.", show_default=False),
]
BatchSize = Annotated[Optional[int], typer.Option(min=1, help="Batch size.", show_default=False)]  # noqa: UP045
LearningRate = Annotated[Optional[float], typer.Option(help="Learning rate.", show_default=False)]  # noqa: UP045
Size = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        help=f"Folders: resize pictures to this side or HEIGHTxWIDTH ({MIN_SIDE} to {MAX_SIDE}).", show_default=False
    ),
]
Model = Annotated[
    str, typer.Option(help="Folders: see `wcapsnet list models`; auto is wcapsnet on a GPU, wcapsnet-small on a CPU.")
]
Precision = Annotated[str, typer.Option(help="fp32 or bf16; auto is bf16 on a GPU and fp32 on a CPU.")]
Kernels = Annotated[str, typer.Option(help="fused or plain; auto uses the fused kernels where they run.")]
Download = Annotated[bool, typer.Option("--download", help="Download the dataset if it is missing.")]
Settings = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--set", metavar="FIELD=VALUE", help="Change any field of experiment.json.", show_default=False),
]
Plugin = Annotated[
    Optional[list[Path]],  # noqa: UP045
    typer.Option(
        "--plugin",
        metavar="FILE.py",
        help="Load a Python file that registers parts of your own.",
        is_eager=True,  # other options may name what it registers
        callback=_load_plugins,
        show_default=False,
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Open = Annotated[bool, typer.Option("--open", help="Open the report in a browser, if there is a display.")]
Parallel = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(min=1, max=MAX_LANES, help="Runs trained at the same time on a GPU (default: 4).", show_default=False),
]
RunOrName = Annotated[str, typer.Argument(metavar="RUN|NAME", help="A run folder or a shipped network.")]


class SplitName(str, Enum):
    train = "train"
    validation = "validation"
    test = "test"
