"""`wcapsnet explain`"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Annotated, Any

import typer
from rich.markup import escape

from .. import api
from ..classifier import Classifier
from ..console import out
from ..device import choose_device
from ..errors import InputError
from ..explanations import has_routing, without_routing
from ..formatting import images_of
from ..hub import load
from ..parts import suggestion
from . import console
from . import explain_console as show
from .app import LOOK, app, examples
from .options import AsJson, DataDir, Device, Download, Plugin, SplitName


@app.command(
    rich_help_panel=LOOK,
    epilog=examples(
        "wcapsnet explain runs/demo digit.png              weights, contributions, the effect of each block",
        "wcapsnet explain runs/demo digit.png --class 8 --nearest 5",
        "wcapsnet explain runs/demo                        how far its blocks specialise, on the test set",
        "wcapsnet explain runs/demo --capsule 2.1          block 1 of level 2: its images and classes",
        "wcapsnet explain runs/demo --faithfulness 32      do the weights mark the regions that matter?",
        "wcapsnet explain runs/demo --reroute              does an image's own routing matter?",
        "wcapsnet explain runs/demo --critics              how steep and how saturated its critics are",
    ),
)
def explain(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN|NAME", help="A run folder or a shipped network; for one image also a .safetensors file."
        ),
    ],
    picture: Annotated[
        str | None, typer.Argument(metavar="IMAGE", help="A file, or - for standard input. Default: the dataset.")
    ] = None,
    about: Annotated[
        str | None, typer.Option("--class", help="One image: class to explain (default: the predicted one).")
    ] = None,
    near: Annotated[
        int, typer.Option("--nearest", min=0, help="One image: show this many nearest training images.")
    ] = 0,
    capsule: Annotated[
        str | None, typer.Option(metavar="LEVEL.CAPSULE", help="Dataset: explain one block, such as 2.1.")
    ] = None,
    measured: Annotated[
        int, typer.Option("--faithfulness", min=0, help="Dataset: delete and insert regions of this many images.")
    ] = 0,
    rerouted: Annotated[
        bool, typer.Option("--reroute", help="Dataset: predict again with mean, exchanged and equal weights.")
    ] = False,
    steep: Annotated[bool, typer.Option("--critics", help="Dataset: slope and saturation of the critics.")] = False,
    split: Annotated[SplitName | None, typer.Option(help="Dataset: split to use (default: test).")] = None,
    images: Annotated[
        int | None, typer.Option(min=1, help="Dataset: use only this many images, evenly spaced.")
    ] = None,
    data_dir: DataDir = None,
    download: Download = False,
    device: Device = "auto",
    plugin: Plugin = None,
    as_json: AsJson = False,
) -> None:
    """Show the routing of one image, or of a run's dataset."""
    asked = {"--capsule": capsule, "--faithfulness": measured, "--reroute": rerouted, "--critics": steep}
    if picture is None:
        _refuse({"--class": about, "--nearest": near}, "is for one image; give the image after the run.")
        if len(several := [name for name, value in asked.items() if value]) > 1:
            raise InputError(f"Use only one of {' and '.join(several)}.")
    else:
        _refuse({**asked, "--split": split, "--images": images}, "is for a dataset; leave out the image.")
    given: dict[str, Any] = {"data_dir": data_dir, "download": download, "device": device, "quiet": as_json}
    out.quiet = as_json  # then only the numbers are wanted
    try:
        if picture is not None:
            facts = _image(run, picture, about, near, given)
        else:
            inside = api.explain(run, split=split or "test", images=images, **given)
            facts = {"run": run, "split": inside.split, "images": len(inside.part.labels)}
            facts |= _dataset(inside, capsule, measured, rerouted, steep)
    finally:
        out.quiet = False
    if as_json:
        typer.echo(json.dumps(facts, ensure_ascii=False))


def _refuse(options: dict[str, Any], why: str) -> None:
    for name, value in options.items():
        if value:
            raise InputError(f"{name} {why}")


def _image(run: str, picture: str, about: str | None, near: int, given: dict[str, Any]) -> dict[str, Any]:
    classifier = load(run, device=str(choose_device(given["device"])))
    names = classifier.classes
    if about is not None and about not in names:
        raise InputError(f"There is no class {about!r}{suggestion(about, names)}")
    if not has_routing(classifier.network) and not near:
        return _plain_image(classifier, picture)
    training = api.explain(run, split="train", **given) if near else None
    one = api.explain(classifier, sys.stdin.buffer.read() if picture == "-" else picture)
    target = one.predicted if about is None else names.index(about)
    facts = {"source": picture, **one.summary(names, target)}
    show.image(one, names, target, picture)
    if training:
        facts["nearest"] = training.nearest(one.vector, near).summary(training.survey, names, training.files)
        show.neighbours(facts["nearest"])
    return facts


def _plain_image(classifier: Classifier, picture: str) -> dict[str, Any]:
    """For a network without routing: its prediction, and what cannot be explained"""
    data: Any = sys.stdin.buffer.read() if picture == "-" else picture
    answer = classifier.predict(data, top=len(classifier.classes))
    why = without_routing(classifier.network)
    console.predictions([replace(answer, source=picture)])
    console.say(escape(why))
    facts = {name: value for name, value in console.as_json(answer).items() if name not in ("winners", "routing")}
    return {**facts, "source": picture, "not_explained": why}


def _dataset(
    inside: api.DatasetExplanation, capsule: str | None, measured: int, rerouted: bool, steep: bool
) -> dict[str, Any]:
    """Answer the question that was asked, or say how far the blocks specialise."""
    called = images_of(inside.split, len(inside.part.labels))
    if capsule:
        return _capsule(inside, capsule)
    if measured:
        curves = inside.faithfulness(measured)
        show.faithfulness(curves, "replaced by the blurred image")
        count = len(next(iter(curves.values())).deletion)
        return {"images": count, "baseline": "blur", "methods": {name: one.summary() for name, one in curves.items()}}
    if rerouted:
        exchanged, count = inside.rerouted(), len(inside.averaged.labels)
        show.rerouted(exchanged, called, f"{count:,} {images_of(inside.other, count)}")
        mean = {"mean_of": inside.other, "mean_images": count} if "mean" in exchanged.by else {}
        return {**mean, **exchanged.summary()}
    if steep:
        critics = inside.critics()
        show.critics(critics, called)
        return critics.summary()
    facts = inside.summary()
    if inside.routed:
        show.dataset(inside.specialization, inside.probes, inside.survey, inside.classes, called)
    else:
        show.without_routing(inside.evaluation, inside.classes, called, facts)
    return facts


def _capsule(inside: api.DatasetExplanation, name: str) -> dict[str, Any]:
    one = inside.capsule(name)
    facts = one.summary(inside.survey, inside.classes, inside.files)
    show.capsule(one, inside.survey, inside.classes, inside.files)
    if one.decoded:  # a block of the last level
        walk = inside.traversal(name)
        ends = {"low": walk.values[:, 0].tolist(), "high": walk.values[:, -1].tolist()}
        facts["traversal"] = {**ends, "change": walk.change.tolist()}
        show.traversal(walk, one.decoded)
    return facts
