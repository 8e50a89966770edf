"""Options that several commands share, each with its text in one place."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Optional, TypeVar

import typer

from ..api.options import ExperimentOptions
from ..data.types import MAX_SIDE
from ..limits import MAX_LANES, MIN_SIDE
from ..plugins import load_plugin

F = TypeVar("F", bound=Callable[..., Any])


def _load_plugins(paths: list[Path] | None) -> list[Path] | None:
    for path in paths or []:
        load_plugin(path)
    return paths


# typer reads these annotations on Python 3.10, where `X | None` is not enough
DataDir = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(
        help="Dataset directory (default: $WCAPSNET_DATA or ./data); for a run on moved pictures, their folder.",
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
Seeds = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(metavar="N|LIST", help="Number of seeds, such as 3, or a list, such as 4,5."),
]
Size = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        help=f"Folders: resize pictures to this side or HEIGHTxWIDTH ({MIN_SIDE} to {MAX_SIDE}).", show_default=False
    ),
]
Exclude = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(metavar="NAME", help="Folders: leave out this class or subfolder; repeatable.", show_default=False),
]
Model = Annotated[
    str,
    typer.Option(help="Folders: a model of `wcapsnet list models`; auto: wcapsnet on a GPU, wcapsnet-small on a CPU."),
]
Precision = Annotated[str, typer.Option(help="fp32 or bf16; auto: bf16 on a GPU, fp32 on a CPU.")]
Kernels = Annotated[str, typer.Option(help="fused or plain; auto: fused where supported.")]
Download = Annotated[bool, typer.Option("--download", help="Download the dataset if it is missing.")]
Settings = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "--set", metavar="FIELD=VALUE", help="Change any field of experiment.json; repeatable.", show_default=False
    ),
]
Plugin = Annotated[
    Optional[list[Path]],  # noqa: UP045
    typer.Option(
        "--plugin",
        metavar="FILE.py",
        help="Load a Python file that registers your own parts; repeatable.",
        is_eager=True,  # other options may name what it registers
        callback=_load_plugins,
        show_default=False,
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only warnings and the result.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Open = Annotated[bool, typer.Option("--open", help="Open the report in a browser, if there is a display.")]
Parallel = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(min=1, max=MAX_LANES, help="Runs to train at a time on a GPU (default: 4).", show_default=False),
]
RunOrName = Annotated[str, typer.Argument(metavar="RUN|NAME", help="A run folder or a shipped network.")]
Weights = Annotated[
    str, typer.Argument(metavar="RUN|NAME", help="A run folder, a shipped network or a .safetensors file.")
]
Network = Annotated[
    str, typer.Argument(metavar="RUN|NAME|FILE", help="A run folder, a shipped network, a .safetensors or .onnx file.")
]


class SplitName(str, Enum):
    train = "train"
    validation = "validation"
    test = "test"


class TrainingOptions(ExperimentOptions, total=False):
    """What train, sweep and ablate hand on to the API"""

    device: str
    data_dir: Path | None
    download: bool
    quiet: bool


# The order of --help; each name is an argument of `api.train` and `api.sweep`.
_TRAINING: dict[str, tuple[Any, Any]] = {
    "epochs": (Epochs, None),
    "batch_size": (BatchSize, None),
    "lr": (LearningRate, None),
    "size": (Size, None),
    "exclude": (Exclude, ()),
    "model": (Model, "auto"),
    "device": (Device, "auto"),
    "precision": (Precision, "auto"),
    "kernels": (Kernels, "auto"),
    "data_dir": (DataDir, None),
    "download": (Download, False),
    "settings": (Settings, ()),
    "plugin": (Plugin, None),
    "quiet": (Quiet, False),
}


def takes_training_options(command: F) -> F:
    """Replace the `**options` of a command by those that train, sweep and ablate share."""
    own = [one for one in inspect.signature(command, eval_str=True).parameters.values() if one.name != "options"]
    kind = inspect.Parameter.KEYWORD_ONLY
    shared = [inspect.Parameter(n, kind, default=d, annotation=a) for n, (a, d) in _TRAINING.items()]

    def called(plugin: Any = None, **given: Any) -> Any:  # typer has already loaded the plugins
        return command(**given)

    called.__name__, called.__doc__, called.__module__ = command.__name__, command.__doc__, command.__module__
    called.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in (*own, *shared)}
    return called  # type: ignore[return-value]
