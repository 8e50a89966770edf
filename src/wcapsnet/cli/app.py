"""The application that every command registers with."""

from __future__ import annotations

import importlib
import pkgutil
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .. import __version__
from ..errors import InputError
from ..launched import started


class Commands(TyperGroup):
    """Imports the file of a command when it is called: most load torch, which takes seconds and may be missing."""

    def get_command(self, ctx: Any, name: str) -> Any:
        load_commands(name)
        self.commands = typer.main.get_group(app).commands
        if name not in self.commands:  # in a file with another name, or a typo: typer suggests from all
            self.list_commands(ctx)
        return super().get_command(ctx, name)

    def list_commands(self, ctx: Any) -> list[str]:
        load_commands()
        self.commands = typer.main.get_group(app).commands
        panels = {name: getattr(command, "rich_help_panel", None) for name, command in self.commands.items()}
        return sorted(panels, key=lambda name: (*PANELS, panels[name]).index(panels[name]))


def load_commands(name: str | None = None) -> None:
    """Import the file of this command, or all files in this folder."""
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if name in (None, module.name):
            try:
                importlib.import_module(f"{package}.{module.name}")
            except ModuleNotFoundError as error:
                if name or error.name != "torch":
                    raise  # without torch, --help lists the other commands


app = typer.Typer(
    cls=Commands,
    name="wcapsnet",
    help="Wasserstein Routed Capsule Networks: train, evaluate, look inside.",
    epilog="Start with [bold]wcapsnet demo[/], or with your own pictures: [bold]wcapsnet train FOLDER[/].",
    rich_markup_mode="rich",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
PANELS = TRAIN, USE, LOOK, PROJECT = "Train", "Use", "Look inside", "Tables and benchmarks"  # of --help, in order


def examples(*lines: str) -> str:
    return "[bold]Examples[/]\n\n" + "\n\n".join(lines)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    if started() and context.invoked_subcommand != "train":
        raise InputError(f"torchrun is for `wcapsnet train`; run `wcapsnet {context.invoked_subcommand}` without it.")
    if version:
        try:
            torch = f"torch {version_of('torch')}"
        except PackageNotFoundError:
            torch = "without torch"
        typer.echo(f"wcapsnet {__version__} ({torch})")
        raise typer.Exit
