"""`wcapsnet bench`"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.markup import escape

from ..atomic import check_place, write_text
from ..bench.contenders import FORMULATIONS, parse
from ..bench.plots import plot
from ..bench.suite import SCALINGS, Request, run
from ..console import err
from ..device import choose_device
from ..errors import InputError
from ..experiment import PRECISIONS
from ..recipes import recipe
from . import bench_console, console
from .app import PROJECT, app, examples
from .options import AsJson, Device, Plugin, Precision

EXAMPLES = (
    "wcapsnet bench                                        a training step, every implementation that can run here",
    "wcapsnet bench train --model quick --against plain,loop --batch 64,128",
    "wcapsnet bench infer --batch 1 --json",
    "wcapsnet bench level --against fused,plain,loop       each level alone, forward and backward",
    "wcapsnet bench train --parts                          what loading and augmentation cost",
    "wcapsnet bench train --scaling capsules --out capsules.json",
    "wcapsnet bench plot capsules.json --out capsules.svg",
)


@app.command(rich_help_panel=PROJECT, epilog=examples(*EXAMPLES))
def bench(
    what: Annotated[
        Literal["train", "infer", "level", "plot"],
        typer.Argument(metavar="WHAT", help="What to time: a training step, inference, each level; or plot records."),
    ] = "train",
    records: Annotated[
        list[Path] | None, typer.Argument(metavar="RECORD", help="plot: records written by --out.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help=f"Implementations: any of {', '.join(FORMULATIONS)}, optionally with a precision, as in loop:fp32 "
            "(default: all that can run here)."
        ),
    ] = None,
    batch: Annotated[
        str | None, typer.Option(help="Batch size, or several, such as 64,512. Default: the recipe's.")
    ] = None,
    model: Annotated[str, typer.Option(help="Recipe that defines network, losses and augmentation.")] = "cifar10",
    precision: Precision = "auto",
    device: Device = "auto",
    repeats: Annotated[
        int, typer.Option(min=1, help="Timed windows for each measurement; the median is reported.")
    ] = 9,
    window: Annotated[float, typer.Option(min=0.0, help="Minimum length of a window in seconds.")] = 0.2,
    scaling: Annotated[
        Literal["batch", "capsules", "levels"] | None,
        typer.Option(help="Vary the batch size, the number of capsules or the number of levels."),
    ] = None,
    parts: Annotated[
        bool, typer.Option("--parts", help="train: time the step with and without augmentation and loading.")
    ] = False,
    plugin: Plugin = None,
    as_json: AsJson = False,
    out_file: Annotated[
        Path | None, typer.Option("--out", help="Write the record, or the figure, to this file.")
    ] = None,
) -> None:
    """Compare the speed of implementations: median times of interleaved runs on random images, after warm-up."""
    if out_file is not None:
        _check_place(out_file)
    if what == "plot":
        _plot(records or [], out_file)
        return
    if records:
        raise InputError(f"bench {what} takes no files; to plot records, use: wcapsnet bench plot RECORD.")
    if parts and what != "train":
        raise InputError("--parts splits a training step; use it with bench train.")
    if scaling and parts:
        raise InputError("Use either --scaling or --parts, not both.")
    if precision not in ("auto", *PRECISIONS):
        raise InputError(f"--precision must be auto, {' or '.join(PRECISIONS)}, not {precision!r}.")
    chosen, experiment = choose_device(device), recipe(model)
    if precision == "auto":
        precision = "bf16" if chosen.type == "cuda" else "fp32"
    batches = _batches(batch) if batch is not None else [experiment.training.batch_size]
    if scaling == "batch" and batch is None:
        batches = list(SCALINGS["batch"])
    with err.status("starting") as status:
        request = Request(
            what,
            experiment,
            parse(against or ("fused,plain" if scaling or parts else None), precision, what),
            batches,
            chosen,
            repeats,
            window,
            scaling,
            parts,
            say=lambda sentence: status.update(escape(sentence)),
        )
        record = run(request)
    if out_file is not None:
        write_text(out_file, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    if as_json:
        typer.echo(json.dumps(record, ensure_ascii=False))
        bench_console.warnings(record)
        return
    bench_console.tables(record)
    if out_file is not None:
        console.written("record", out_file)


def _plot(records: list[Path], out_file: Path | None) -> None:
    if out_file is None or not records:
        raise InputError("Name the records to draw and the figure: wcapsnet bench plot RECORD --out FIGURE.svg.")
    plot(records, out_file)
    console.written("figure", out_file)


def _check_place(path: Path) -> None:
    if not path.absolute().parent.is_dir():
        raise InputError(f"There is no folder {path.absolute().parent} to write {path.name} to.")
    check_place(path)


def _batches(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and part.isascii() and int(part) >= 1 for part in parts):
        raise InputError(f"--batch must be a batch size such as 64, or several such as 64,512, not {text!r}.")
    return list(dict.fromkeys(map(int, parts)))
