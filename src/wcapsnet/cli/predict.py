"""`wcapsnet predict`"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from ..api.prediction import network_for
from ..console import err
from ..data.decode import image_files, read_image, read_stream
from ..errors import InputError
from ..prediction import Prediction
from . import console
from .app import USE, app, examples
from .options import AsJson, Device, Network, Plugin

if TYPE_CHECKING:  # an ONNX file needs no torch
    from ..classifier import Classifier
    from ..exports.runtime import OnnxNetwork


@app.command(
    rich_help_panel=USE,
    epilog=examples(
        "wcapsnet predict runs/demo digit.png",
        "wcapsnet predict wcapsnet-cifar10 photo.jpg            a shipped network",
        "wcapsnet predict runs/photos holiday/ --csv > answers.csv",
        "wcapsnet predict photos.onnx holiday/                  an exported file; runs without PyTorch",
        "cat cat.jpg | wcapsnet predict runs/photos - --json",
    ),
)
def predict(
    run: Network,
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
    classifier = network_for(run, device)
    sources, empty = _sources(pictures)
    answers, unreadable = _predict_all(classifier, sources, top)
    failures = empty + unreadable
    if as_json:
        typer.echo(json.dumps([console.as_json(a) for a in answers], ensure_ascii=False, indent=2))
    elif as_csv:
        levels = len(answers[0].routing) if answers else 0
        console.predictions_csv(answers, len(classifier.classes), levels, top)
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


def _predict_all(
    classifier: Classifier | OnnxNetwork, sources: list[str], top: int
) -> tuple[list[Prediction], list[str]]:
    """Predictions for every picture that can be read, and errors for the rest"""
    answers: list[Prediction] = []
    failures: list[str] = []
    channels, height, width = classifier.shape
    for start in range(0, len(sources), 64):
        images, names = [], []
        for source in sources[start : start + 64]:
            try:
                picture = read_stream(sys.stdin.buffer, "-") if source == "-" else source
                images.append(read_image(picture, channels=channels, height=height, width=width))
                names.append(source)
            except InputError as error:
                failures.append(str(error))
        if images:
            answers += classifier.classify(np.stack(images), top, names)
    return answers, failures
