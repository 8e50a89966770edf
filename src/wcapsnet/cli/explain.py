"""`wcapsnet explain`"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Optional

import torch
import typer
from rich.progress import Progress as Bar

from ..api import PROBE_IMAGES, some_of, survey_of
from ..classifier import Classifier
from ..console import err
from ..data.device_data import DeviceSplit
from ..device import choose_device
from ..errors import InputError
from ..explanations import (
    critics,
    explain_capsule,
    explain_image,
    faithfulness,
    nearest,
    probe_levels,
    reroute,
    specialization,
    traverse_capsule,
)
from ..formatting import images_of
from ..hub import load, load_with_data
from ..parts import suggestion
from ..reports.survey_cache import aside
from . import explain_console as show_explained
from .app import LOOK, app, examples
from .options import AsJson, DataDir, Device, Download, Plugin, SplitName

MEAN_IMAGES = 1000  # images whose weights --reroute averages: the mean is known to 3 % of their spread


@app.command(
    rich_help_panel=LOOK,
    epilog=examples(
        "wcapsnet explain runs/demo digit.png              weights, contributions, the effect of switching blocks off",
        "wcapsnet explain runs/demo digit.png --class 8 --nearest 5",
        "wcapsnet explain runs/demo                        how far its blocks specialise, on its test set",
        "wcapsnet explain runs/demo --capsule 2.1          block 1 of level 2: its images, its classes",
        "wcapsnet explain runs/demo --faithfulness 32      does the routing point at what matters?",
        "wcapsnet explain runs/demo --reroute              does it matter that every image has its own routing?",
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
        Optional[str],  # noqa: UP045
        typer.Argument(
            metavar="IMAGE", help="A file, or - for standard input. Default: the dataset.", show_default=False
        ),
    ] = None,
    about: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--class", help="One image: the class to explain, if not the one predicted.", show_default=False),
    ] = None,
    near: Annotated[
        int, typer.Option("--nearest", min=0, help="One image: show this many nearest training images.")
    ] = 0,
    capsule: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="LEVEL.CAPSULE", help="Dataset: one block, such as 2.1.", show_default=False),
    ] = None,
    measured: Annotated[
        int, typer.Option("--faithfulness", min=0, help="Dataset: delete and insert regions of this many images.")
    ] = 0,
    rerouted: Annotated[
        bool,
        typer.Option(
            "--reroute",
            help="Dataset: predict again with mean weights, another image's weights, equal weights, and with the "
            "critics' dropout on.",
        ),
    ] = False,
    steep: Annotated[
        bool, typer.Option("--critics", help="Dataset: measure how steep and how saturated the critics are.")
    ] = False,
    split: Annotated[
        Optional[SplitName],  # noqa: UP045
        typer.Option(help="Dataset: which part.", show_default="test"),
    ] = None,
    images: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="Dataset: use only this many images, evenly spaced.", show_default=False),
    ] = None,
    data_dir: DataDir = None,
    download: Download = False,
    device: Device = "auto",
    plugin: Plugin = None,
    as_json: AsJson = False,
) -> None:
    """Look inside: the routing of one image, or of a run's dataset."""
    chosen = choose_device(device)
    if picture is None:
        for name, value in {"--class": about, "--nearest": near}.items():
            if value:
                raise InputError(f"{name} is for one image; give the image after the run.")
        if capsule and images:
            raise InputError(
                "--capsule names images by their place in the dataset, so it cannot be used with --images."
            )
        asked = {"--capsule": capsule, "--faithfulness": measured, "--reroute": rerouted, "--critics": steep}
        if len(several := [name for name, value in asked.items() if value]) > 1:
            raise InputError(f"Use only one of {' and '.join(several)}.")
        part = split or SplitName.test
        if rerouted:
            _reroute(run, part, images, data_dir, download, chosen, as_json)
        elif steep:
            _critics(run, part, images, data_dir, download, chosen, as_json)
        else:
            _explain_dataset(run, part, images, capsule, measured, data_dir, download, chosen, as_json)
        return
    for_data = {"--capsule": capsule, "--faithfulness": measured, "--reroute": rerouted, "--critics": steep}
    for_data |= {"--split": split, "--images": images}
    for name, value in for_data.items():
        if value:
            raise InputError(f"{name} is for a dataset; leave out the image.")
    _explain_image(run, picture, about, near, data_dir, download, chosen, as_json)


def _explain_image(
    run: str,
    picture: str,
    about: str | None,
    near: int,
    data_dir: Path | None,
    download: bool,
    device: torch.device,
    as_json: bool,
) -> None:
    classifier, dataset = (
        load_with_data(run, "train", device=device, data_dir=data_dir, download=download, quiet=as_json)
        if near
        else (load(run, device=str(device)), None)
    )
    if about is not None and about not in classifier.classes:
        raise InputError(f"There is no class {about!r}{suggestion(about, classifier.classes)}")
    image = classifier.preprocess([sys.stdin.buffer.read() if picture == "-" else picture])[0]
    one = explain_image(classifier.network, image)
    target = one.predicted if about is None else classifier.classes.index(about)
    facts = {"source": picture, **one.summary(classifier.classes, target)}
    if not as_json:
        show_explained.image(one, classifier.classes, target, picture)
    if dataset:
        seen = survey_of(classifier, dataset.train, device, as_json)
        found = nearest(seen, one.vector, near)
        facts["nearest"] = found.summary(seen, classifier.classes, dataset.train_files)
        if not as_json:
            show_explained.neighbours(found, seen, classifier.classes, dataset.train_files)
    if as_json:
        typer.echo(json.dumps(facts, ensure_ascii=False))


def _explain_dataset(
    run: str,
    split: SplitName,
    images: int | None,
    capsule: str | None,
    measured: int,
    data_dir: Path | None,
    download: bool,
    device: torch.device,
    as_json: bool,
) -> None:
    other = SplitName(aside(split.value))  # used to train the probes
    parts = (split,) if measured or capsule else (split, other)
    classifier, dataset = load_with_data(
        run, *(one.value for one in parts), device=device, data_dir=data_dir, download=download, quiet=as_json
    )
    part, files = some_of(dataset, split.value, measured or images)
    place = _parse_capsule(capsule, classifier) if capsule else None
    names = classifier.classes
    facts: dict[str, Any] = {"run": run, "split": split.value, "images": len(part.labels)}
    if measured:
        taken, _ = DeviceSplit(part, *classifier.normalization, device).take(slice(None))
        curves = faithfulness(classifier.network, taken)
        facts["baseline"], facts["methods"] = "blur", {name: curve.summary() for name, curve in curves.items()}
        if not as_json:
            show_explained.faithfulness(curves, "the image blurred")
    else:
        seen = survey_of(classifier, part, device, as_json, routed=place is None)
        found = specialization(seen)
        if place is not None:
            one = explain_capsule(seen, found, *place)
            facts |= one.summary(seen, names, files)
            if not as_json:
                show_explained.capsule(one, seen, names, files)
            if one.decoded:  # a block of the last level
                walk = traverse_capsule(classifier.network, seen, place[1])
                facts["traversal"] = {"low": walk.values[:, 0].tolist(), "high": walk.values[:, -1].tolist()}
                facts["traversal"]["change"] = walk.change.tolist()
                if not as_json:
                    show_explained.traversal(walk, one.decoded)
        else:
            taught, _ = some_of(dataset, other.value, PROBE_IMAGES)
            probes = probe_levels(survey_of(classifier, taught, device, as_json, routed=True), seen)
            facts |= {"classes": names, "accuracy": seen.accuracy, **found.summary()}
            facts["probes"] = [asdict(probe) for probe in probes]
            facts |= {"probes_taught_by": other.value, "probe_images": len(taught.labels)}
            if not as_json:
                show_explained.dataset(found, probes, seen, names, images_of(split.value, len(seen)))
    if as_json:
        typer.echo(json.dumps(facts, ensure_ascii=False))


def _reroute(
    run: str,
    split: SplitName,
    images: int | None,
    data_dir: Path | None,
    download: bool,
    device: torch.device,
    as_json: bool,
) -> None:
    of = SplitName(aside(split.value))  # the part that is averaged
    classifier, dataset = load_with_data(
        run, split.value, of.value, device=device, data_dir=data_dir, download=download, quiet=as_json
    )
    part, mean_of = (
        DeviceSplit(some_of(dataset, one.value, count)[0], *classifier.normalization, device)
        for one, count in ((split, images), (of, MEAN_IMAGES))
    )
    with Bar(console=err, transient=True, disable=as_json or not err.is_terminal) as bar:
        task = bar.add_task("images", total=len(part))
        found = reroute(classifier.network, part, mean_of, progress=lambda done: bar.update(task, completed=done))
    if as_json:
        facts: dict[str, Any] = {"run": run, "split": split.value, "images": len(part)}
        if "mean" in found.by:
            facts |= {"mean_of": of.value, "mean_images": len(mean_of)}
        typer.echo(json.dumps(facts | found.summary(), ensure_ascii=False))
    else:
        mean = f"{len(mean_of):,} {images_of(of.value, len(mean_of))}"
        show_explained.rerouted(found, images_of(split.value, len(part)), mean)


def _critics(
    run: str,
    split: SplitName,
    images: int | None,
    data_dir: Path | None,
    download: bool,
    device: torch.device,
    as_json: bool,
) -> None:
    classifier, dataset = load_with_data(
        run, split.value, device=device, data_dir=data_dir, download=download, quiet=as_json
    )
    part = DeviceSplit(some_of(dataset, split.value, images)[0], *classifier.normalization, device)
    with Bar(console=err, transient=True, disable=as_json or not err.is_terminal) as bar:
        task = bar.add_task("images", total=len(part))
        found = critics(classifier.network, part, progress=lambda done: bar.update(task, completed=done))
    if as_json:
        facts = {"run": run, "split": split.value, "images": len(part), **found.summary()}
        typer.echo(json.dumps(facts, ensure_ascii=False))
    else:
        show_explained.critics(found, images_of(split.value, len(part)))


def _parse_capsule(text: str, classifier: Classifier) -> tuple[int, int]:
    """ "2.1" → level 2 (index 1) and capsule 1 (capsules are always numbered from 0)"""
    level, dot, number = text.partition(".")
    if not dot or not level.isdecimal() or not number.isdecimal():
        raise InputError(f"--capsule must be LEVEL.CAPSULE, for example 2.1, not {text!r}.")
    levels = classifier.config.levels
    if not 1 <= int(level) <= len(levels):
        raise InputError(f"The network has levels 1 to {len(levels)}, not {level}.")
    if int(number) >= levels[int(level) - 1].capsules:
        raise InputError(f"Level {level} has capsules 0 to {levels[int(level) - 1].capsules - 1}, not {number}.")
    return int(level) - 1, int(number)
