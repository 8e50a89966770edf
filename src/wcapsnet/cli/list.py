"""`wcapsnet list`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.markup import escape

from ..console import out
from ..errors import InputError
from ..formatting import percent
from ..plugins import MissingPluginError
from . import console
from .app import USE, app, examples
from .options import Plugin


@app.command("list", rich_help_panel=USE, epilog=examples("wcapsnet list", "wcapsnet list runs"))
def list_command(
    kind: Annotated[
        Literal["recipes", "models", "parts", "weights", "datasets", "runs"] | None,
        typer.Argument(metavar="KIND", help="List only these."),
    ] = None,
    runs: Annotated[Path, typer.Option(help="Folder of runs.")] = Path("runs"),
    plugin: Plugin = None,
) -> None:
    """List recipes, models, parts, shipped networks, datasets and runs."""
    shown = {
        "recipes": _recipes,
        "models": _models,
        "parts": _parts,
        "weights": _weights,
        "datasets": _datasets,
        "runs": lambda: _runs(runs),
    }
    for name, show in shown.items():
        if kind in (None, name):
            show()


def _recipes() -> None:
    from ..models import parameter_count
    from ..recipes import ABLATIONS, PAPER, PLUS, RECIPES, ROWS, SMALL, TABLE_V

    listed = {**PAPER, **SMALL, **PLUS, **TABLE_V}
    listed |= {name: RECIPES[name] for name in RECIPES if name not in {**listed, **ABLATIONS}}  # from plugins
    found = {name: (function(), function.__doc__ or "") for name, function in listed.items()}
    console.print_table(
        ["recipe", "epochs", "parameters", "description"],
        (
            [
                name,
                str(one.training.epochs),
                f"{parameter_count(one.model) / 1000:,.0f}k",
                (doc.strip().splitlines() or [""])[0],
            ]
            for name, (one, doc) in found.items()
        ),
        "Recipes (wcapsnet train RECIPE)",
    )
    out.print(f"Ablations of Tables II to IV: each with -{', -'.join(ROWS)}; for example cifar10-squash.\n")


def _parts() -> None:
    from .. import baselines, experiment  # noqa: F401 - registers them
    from ..parts import architecture, augmentation, fitness, loss_term, nonlinearity, weighting

    kinds = (weighting, fitness, nonlinearity, loss_term, augmentation, architecture)
    rows = ([kind.name, kind.field, ", ".join(kind)] for kind in kinds)
    console.print_table(["part", "field", "names"], rows, "Parts (docs/extending.md)")
    out.print("Models, datasets and recipes: wcapsnet list models, datasets or recipes.\n")


def _models() -> None:
    from ..models import list_models, parameter_count
    from ..parts import model

    def cells(name: str, text: str) -> list[str]:
        sizes = (parameter_count(model[name](10, *shape)) for shape in ((1, 28, 28), (3, 32, 32)))
        return [name, *(f"{size:,}" for size in sizes), text]

    columns = ["model", "parameters at 28×28×1", "at 32×32×3", "description"]
    console.print_table(columns, [cells(*one) for one in list_models().items()], "Models (wcapsnet.create(NAME))")


def _weights() -> None:
    from .. import shipped
    from ..data import DATASETS

    def cells(name: str) -> list[str]:
        try:
            facts = shipped.describe(name)
        except InputError as error:
            return [name, str(error)]
        test, experiment = facts["test"], facts["experiment"]
        source = experiment["data"]["source"]
        right = f"{percent(test['correct'] / test['images'])}% ({test['correct']:,} of {test['images']:,})"
        title = DATASETS[source].title if source in DATASETS else source
        return [name, title, right, str(experiment["training"]["epochs"])]

    columns = ["network", "data", "test accuracy", "epochs"]
    console.print_table(columns, map(cells, shipped.names()), "Shipped networks (wcapsnet.load(NAME))")


def _datasets() -> None:
    from ..data import DATASETS

    rows = (
        [
            name,
            info.title,
            f"{info.train_images:,} + {info.test_images:,}",
            str(len(info.classes)),
            f"{info.channels}×{info.height}×{info.width}",
        ]
        for name, info in DATASETS.items()
    )
    console.print_table(["dataset", "description", "images", "classes", "size"], rows, "Datasets")


def _runs(folder: Path) -> None:
    from ..training.evaluate import beside_figures
    from ..training.run_folder import Run

    sweeps = [path.parent for path in folder.glob("*/sweep.json")]
    found = sorted(path for place in (folder, *sweeps) for path in place.glob("[!.]*") if Run.is_run(path))
    if not found:
        out.print(f"Runs: none in {folder} yet.", markup=False)
        return

    def cells(path: Path) -> list[str]:
        try:
            run = Run.open(path)
            metrics = run.metrics()
            state = "failed" if run.failure else "not finished"
            results = run.results() if run.finished else None
            test = console.accuracy(results["accuracy"]) + beside_figures(results) if results else state
        except MissingPluginError as missing:
            return [str(path), f"needs --plugin {missing.path}"]
        except (InputError, OSError) as error:
            return [str(path), f"unreadable: {error}"]
        best = max((m["validation_accuracy"] for m in metrics), default=None)
        best = results["validation_accuracy"] if results else best
        epochs = f"{len(metrics)}/{run.experiment.training.epochs}"
        return [str(path), run.experiment.name, epochs, console.accuracy(best), test]

    console.print_table(
        ["run", "recipe", "epochs", "validation", "test"], map(cells, found), f"Runs (in {escape(str(folder))})"
    )
