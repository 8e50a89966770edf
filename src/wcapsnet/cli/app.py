"""The application that every command registers with."""

from __future__ import annotations

from typing import Annotated

import torch
import typer

from .. import __version__
from ..errors import InputError
from ..training.distributed import started

app = typer.Typer(
    name="wcapsnet",
    help="Wasserstein Routed Capsule Networks: train, evaluate, look inside.",
    epilog="Start with [bold]wcapsnet demo[/], or with your own pictures: [bold]wcapsnet train FOLDER[/].",
    rich_markup_mode="rich",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
TRAIN, USE, LOOK, PROJECT = "Train", "Use", "Look inside", "Tables and benchmarks"  # panels of --help


def examples(*lines: str) -> str:
    return "[bold]Examples[/]\n\n" + "\n\n".join(lines)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    if started() and context.invoked_subcommand != "train":
        raise InputError(f"torchrun is for `wcapsnet train`; start `wcapsnet {context.invoked_subcommand}` without it.")
    if version:
        typer.echo(f"wcapsnet {__version__} (torch {torch.__version__})")
        raise typer.Exit
