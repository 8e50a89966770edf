"""`wcapsnet report`"""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from .. import api
from ..console import warn
from . import console
from .app import LOOK, app, examples
from .options import DataDir, Device, Download, Open, Plugin, Quiet


@app.command(
    rich_help_panel=LOOK,
    epilog=examples(
        "wcapsnet report runs/demo                         writes runs/demo/report.html",
        "wcapsnet report runs/demo --open --figures figures/",
        "wcapsnet report runs/a runs/b runs/c              overlaid curves, differences with their uncertainty",
        "wcapsnet report runs/demo-sweep                   the same for all runs of a sweep",
        "wcapsnet report wcapsnet-cifar10 --data-dir ~/data    a shipped network",
    ),
)
def report(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|SWEEP|NAME", help="Run folders, sweeps or shipped networks; several runs are compared."
        ),
    ],
    out_file: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="HTML file (default: RUN/report.html, NAME-report.html, or comparison.html next to the first run).",
        ),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write the figures to this folder, as PDF, PNG and SVG.")
    ] = None,
    opened: Open = False,
    data_dir: DataDir = None,
    download: Download = False,
    device: Device = "auto",
    plugin: Plugin = None,
    quiet: Quiet = False,
) -> None:
    """Write an HTML report of one run, or of several side by side: curves, mistakes, routing."""
    place = api.report(
        *runs, out=out_file, figures=figures, data_dir=data_dir, download=download, device=device, quiet=quiet
    )
    if figures:
        console.written("figures", figures)
    console.written("report", place)
    if opened and not open_page(place):
        warn("The report was not opened: there is no display.")


def open_page(page: Path) -> bool:
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False
    return webbrowser.open(page.resolve().as_uri())
