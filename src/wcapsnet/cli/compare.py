"""`wcapsnet compare`"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .. import api
from ..atomic import check_place, write_text
from ..errors import InputError
from ..reports.export import FORMATS, write_figure
from . import console
from .app import PROJECT, app, examples
from .options import AsJson, Device, Plugin


@app.command(
    rich_help_panel=PROJECT,
    epilog=examples(
        "wcapsnet compare cifar10                                    every network, from this project's records",
        "wcapsnet compare mnist --models wcapsnet,capsnet --speed    measure speeds on this machine",
        "wcapsnet compare cifar10 --plot compare.svg                 accuracy against parameters and training time",
    ),
)
def compare(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="mnist, fashion-mnist, cifar10, cifar100 or svhn.")],
    models: Annotated[str | None, typer.Option(help="Networks to compare, separated by commas (default: all).")] = None,
    speed: Annotated[bool, typer.Option("--speed/--no-speed", help="Measure speeds on this machine.")] = False,
    batch: Annotated[
        int | None, typer.Option(min=1, help="--speed: batch size (default: 64 on a GPU, 8 on a CPU).")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="--speed: timed windows; the median is reported.")] = 5,
    window: Annotated[float, typer.Option(min=0.0, help="--speed: minimum length of a window in seconds.")] = 0.2,
    records: Annotated[Path | None, typer.Option(help="Folder of runs or records (default: the package's).")] = None,
    plot: Annotated[Path | None, typer.Option(help=f"Write plots to this file ({', '.join(FORMATS)}).")] = None,
    out_file: Annotated[Path | None, typer.Option("--out", help="Write JSON to this file.")] = None,
    device: Device = "auto",
    plugin: Plugin = None,
    as_json: AsJson = False,
) -> None:
    """Compare networks on a dataset: parameters, multiply-adds, accuracy, speed and memory."""
    if plot and plot.suffix not in FORMATS:
        raise InputError(f"--plot must end with {', '.join(FORMATS)}, not {plot.name!r}.")
    for place in filter(None, (plot, out_file)):
        check_place(place)
    names = None if models is None else [name.strip() for name in models.split(",") if name.strip()]
    given = {"device": device, "batch": batch, "repeats": repeats, "window": window, "records": records}
    found = api.compare(dataset, names, speed=speed, quiet=as_json, **given)  # type: ignore[arg-type]
    text = json.dumps(found.as_json(), ensure_ascii=False)
    if out_file:
        write_text(out_file, f"{text}\n")
    if plot:
        drawing = found.figure()
        if drawing is None:
            raise InputError(f"There is no measured or published accuracy on {dataset} to plot.")
        write_figure(drawing, plot)
    if as_json:
        typer.echo(text)
        return
    console.comparison(found)
    for what, written in (("comparison", out_file), ("plots", plot)):
        if written:
            console.written(what, written)
