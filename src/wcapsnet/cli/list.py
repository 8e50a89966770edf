"""`wcapsnet list`"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Optional

import typer

from . import console
from .app import USE, app, examples
from .options import Plugin


class Listed(str, Enum):
    recipes = "recipes"
    models = "models"
    parts = "parts"
    weights = "weights"
    datasets = "datasets"
    runs = "runs"


@app.command("list", rich_help_panel=USE, epilog=examples("wcapsnet list", "wcapsnet list runs"))
def list_command(
    kind: Annotated[Optional[Listed], typer.Argument(help="List only these.", show_default=False)] = None,  # noqa: UP045
    runs: Annotated[Path, typer.Option(help="Folder of runs.")] = Path("runs"),
    plugin: Plugin = None,
) -> None:
    """List recipes, models, exchangeable parts, shipped networks, datasets and runs."""
    shown = {
        Listed.recipes: console.recipes,
        Listed.models: console.models,
        Listed.parts: console.parts,
        Listed.weights: console.weights,
        Listed.datasets: console.datasets,
        Listed.runs: lambda: console.runs(runs),
    }
    for name, show in shown.items():
        if kind in (None, name):
            show()
