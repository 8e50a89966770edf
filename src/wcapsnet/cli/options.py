"""Options shared by several commands."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer
from typer.core import TyperCommand

from ..api.options import ExperimentOptions
from ..data.types import MAX_SIDE
from ..limits import MAX_LANES, MIN_SIDE
from ..plugins import load_plugin

SplitName = Literal["train", "validation", "test"]
F = TypeVar("F", bound=Callable[..., Any])


def _load_plugins(paths: list[Path] | None) -> list[Path] | None:
    for path in paths or []:
        load_plugin(path)
    return paths


DataDir = Annotated[
    Path | None,
    typer.Option(
        help="Dataset directory (default: $WCAPSNET_DATA or ./data), or the new folder of a run's moved pictures."
    ),
]
Target = Annotated[
    str | None,
    typer.Argument(
        metavar="RECIPE|FOLDER|hf:DATASET|RUN",
        help="A recipe (see `wcapsnet list`), a folder of pictures, a Hugging Face dataset, or a run to repeat.",
    ),
]
Seeds = Annotated[
    str | None, typer.Option(metavar="N|LIST", help="Number of seeds, such as 3, or a list, such as 4,5.")
]
Precision = Annotated[str, typer.Option(help="fp32 or bf16; auto: bf16 on a GPU, fp32 on a CPU.")]
Download = Annotated[bool, typer.Option("--download", help="Download the dataset if it is missing.")]
Plugin = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        metavar="FILE.py",
        help="Load a Python file that registers your own parts; repeatable.",
        is_eager=True,  # other options may name what it registers
        callback=_load_plugins,
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only warnings and the result.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Open = Annotated[bool, typer.Option("--open", help="Open the report in a browser, if there is a display.")]
Parallel = Annotated[
    int | None, typer.Option(min=1, max=MAX_LANES, help="Runs to train at a time on each GPU (default: 4).")
]
Ray = Annotated[
    str | None,
    typer.Option(
        metavar="[ADDRESS]",
        help="Train on a Ray cluster: HOST:PORT, local (start one here) or auto (join one, or start one here).",
    ),
]
Weights = Annotated[
    str, typer.Argument(metavar="RUN|NAME", help="A run folder, a shipped network or a .safetensors file.")
]
Network = Annotated[
    str, typer.Argument(metavar="RUN|NAME|FILE", help="A run folder, a shipped network, a .safetensors or .onnx file.")
]


class RayCommand(TyperCommand):
    """A command whose --ray may stand alone, which means --ray auto."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_address(args))


def with_address(words: list[str]) -> list[str]:
    """Insert the address that --ray leaves out; a word after it is an address if it is auto, local or has a port."""
    full = []
    for word, after in zip(words, [*words[1:], ""], strict=False):
        address = after in ("auto", "local") or re.fullmatch(r"[^/]+:[0-9]+|ray://.*", after)
        full += [word, "auto"] if word == "--ray" and not address else [word]
    return full


class TrainingOptions(ExperimentOptions, total=False):
    """Options that train, sweep and ablate pass to the API"""

    device: str
    data_dir: Path | None
    download: bool
    quiet: bool


def _shared(
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Number of epochs; learning-rate milestones scale with it.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Batch size.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    size: Annotated[
        str | None,
        typer.Option(help=f"Folders: picture size, SIDE or HEIGHTxWIDTH ({MIN_SIDE} to {MAX_SIDE})."),
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Folders: leave out this class or subfolder; repeatable.")
    ] = (),  # type: ignore[assignment]
    model: Annotated[
        str,
        typer.Option(
            help="Folders: network to train (`wcapsnet list models`); auto: wcapsnet on a GPU, wcapsnet-small on a CPU."
        ),
    ] = "auto",
    start_from: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="NAME|RUN|FILE",
            help="Network to fine-tune: its weights are loaded where they fit; none: from scratch. Default for colour "
            "pictures on a CPU: wcapsnet-small-cifar100.",
        ),
    ] = None,
    device: Device = "auto",
    precision: Precision = "auto",
    kernels: Annotated[
        str, typer.Option(help="fused, plain, or compiled by torch.compile; auto: fused where supported, else plain.")
    ] = "auto",
    data_dir: DataDir = None,
    download: Download = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Change any field of experiment.json; repeatable."),
    ] = (),  # type: ignore[assignment]
    plugin: Plugin = None,
    quiet: Quiet = False,
) -> None:
    """Options that train, sweep and ablate share; all but `plugin` are arguments of `api.train` and `api.sweep`."""


def takes_training_options(command: F) -> F:
    """Replace the `**options` of a command with those that train, sweep and ablate share."""
    own, shared = (inspect.signature(function, eval_str=True).parameters.values() for function in (command, _shared))
    options = [one.replace(kind=one.KEYWORD_ONLY) for one in shared]
    parameters = [*(one for one in own if one.name != "options"), *options]

    @functools.wraps(command)
    def called(plugin: Any = None, **given: Any) -> Any:  # typer has already loaded the plugins
        return command(**given)

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in parameters}
    return called  # type: ignore[return-value]
