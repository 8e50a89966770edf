"""`wcapsnet predict`"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import torch
import typer

from ..classifier import Classifier, Prediction
from ..console import err
from ..data import image_files
from ..data.decode import read_stream
from ..device import choose_device
from ..errors import InputError
from ..hub import load
from . import console
from .app import USE, app, examples
from .options import AsJson, Device, Plugin, Weights


@app.command(
    rich_help_panel=USE,
    epilog=examples(
        "wcapsnet predict runs/demo digit.png",
        "wcapsnet predict wcapsnet-cifar10 photo.jpg            a shipped network",
        "wcapsnet predict runs/photos holiday/ --csv > answers.csv",
        "cat cat.jpg | wcapsnet predict runs/photos - --json",
    ),
)
def predict(
    run: Weights,
    pictures: Annotated[list[str], typer.Argument(metavar="IMAGE", help="Files, folders, or - for standard input.")],
    top: Annotated[int, typer.Option(min=1, help="Number of classes to show.")] = 3,
    device: Device = "auto",
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: AsJson = False,
    plugin: Plugin = None,
) -> None:
    """Classify pictures: class, probability, and the winning blocks of each level."""
    if as_csv and as_json:
        raise InputError("Use either --csv or --json, not both.")
    classifier = load(run, device=str(choose_device(device)))
    sources, empty = _sources(pictures)
    answers, unreadable = _predict_all(classifier, sources, top)
    failures = empty + unreadable
    if as_json:
        typer.echo(json.dumps([console.as_json(a) for a in answers], ensure_ascii=False, indent=2))
    elif as_csv:
        console.predictions_csv(answers, classifier, top)
    elif answers:
        console.predictions(answers)
    for failure in failures:
        err.print(f"error: {failure}", style="red", soft_wrap=True, markup=False)
    if failures:
        raise typer.Exit(1)


def _sources(pictures: list[str]) -> tuple[list[str], list[str]]:
    """The files named or found in the named folders, and an error for each folder without pictures"""
    sources: list[str] = []
    empty: list[str] = []
    for picture in dict.fromkeys(pictures):  # standard input can be read only once
        found = list(map(str, image_files(Path(picture)))) if Path(picture).is_dir() else [picture]
        sources += found
        if not found:
            empty.append(f"There are no pictures in {picture}.")
    return sources, empty


def _predict_all(classifier: Classifier, sources: list[str], top: int) -> tuple[list[Prediction], list[str]]:
    """Predictions for every picture that can be read, and errors for the rest"""
    answers: list[Prediction] = []
    failures: list[str] = []
    for start in range(0, len(sources), 64):
        images, names = [], []
        for source in sources[start : start + 64]:
            try:
                images.append(classifier.preprocess([read_stream(sys.stdin.buffer, "-") if source == "-" else source]))
                names.append(source)
            except InputError as error:
                failures.append(str(error))
        if images:
            answers += classifier.answer(torch.cat(images), top, names)
    return answers, failures
