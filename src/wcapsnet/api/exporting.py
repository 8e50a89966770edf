"""`wcapsnet.export`"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from .. import shipped
from ..atomic import replacing
from ..classifier import Classifier
from ..console import warn
from ..data import DATASETS, Split, image_files
from ..data.formats import read_sample
from ..errors import InputError
from ..explanations import has_routing
from ..exports.check import Comparison, Images, compared
from ..exports.graph import Graph
from ..exports.html import Page, html_page
from ..exports.html.onnxruntime_web import onnxruntime_web
from ..exports.int8 import CALIBRATION, quantized
from ..exports.onnx_model import facts_of, onnx_bytes
from ..exports.runtime import OnnxNetwork
from ..exports.torch_program import Program, save_program
from ..formatting import plural
from ..hub import load, load_with_data
from ..prediction import read_images
from ..training.run_folder import Run
from .options import as_path

SUFFIXES = {"onnx": ".onnx", "torch-export": ".pt2", "html": ".html"}
COMPARED = 100  # images
SAMPLE = (1, 28, 28)  # the shape of the images in the package


@dataclass(frozen=True)
class Exported:
    """A file that was written, and how it compares with the network."""

    path: Path
    comparison: Comparison


def export(
    source: str | Path,
    to: str = "onnx",
    out: str | Path | None = None,
    *,
    input: str = "uint8",
    int8: bool = False,
    extras: Sequence[str] = (),
    switches: bool = False,
    pictures: str | Path | None = None,
    data_dir: str | Path | None = None,
    download: bool = False,
    runtime: str | Path | None = None,
) -> Exported:
    """Write a trained network (a run folder, a shipped network or a .safetensors file) as an ONNX file or a
    `torch.export` program, then run that file and compare it with the network. If they differ, the file is removed.

    The file takes `images` (m, ch, h, w), "uint8" from 0 to 255 or "float" from 0 to 1, and has the outputs of
    `exports.graph.Graph`; `extras` and `switches` add some. It is compared on test images of the network's dataset, or
    on `pictures`, a file or folder. With `int8`, convolutions are computed in 8 bits, calibrated with training images
    or `pictures`; then the predicted class may differ for up to a tenth of the images.

    To "html" it writes the live page of `wcapsnet explore` with the network inside: one file, with a sample of the
    test images. `runtime` is a folder or the .tgz file of onnxruntime-web, by default $WCAPSNET_ORT_WEB or
    downloaded.
    """
    if to not in SUFFIXES:
        raise InputError(f"Cannot export to {to!r}; choose one of {', '.join(SUFFIXES)}.")
    if int8 and to != "onnx":
        raise InputError("int8 works only for ONNX files; leave it out, or export to onnx.")
    if to == "html" and (input != "uint8" or extras or switches):
        raise InputError("An HTML page has fixed inputs and outputs; leave out these options, or export to onnx.")
    classifier, place = load(source), as_path(data_dir)
    name = Path(source).resolve().name if Path(source).exists() else str(source)
    path = Path(out) if out else Path(f"{name.removesuffix('.safetensors')}{'-int8' if int8 else ''}{SUFFIXES[to]}")
    if to == "html":
        page, images = _page(source, classifier, name, as_path(runtime), place, download)
        if images is None or pictures is not None:
            images = images_of(source, classifier, "test", COMPARED, pictures, place, download)
        with replacing(path) as partial, TemporaryDirectory() as folder:
            partial.write_text(page.text, encoding="utf-8")
            network = Path(folder, "network.onnx")
            network.write_bytes(page.network)
            return Exported(path, compared(classifier, OnnxNetwork(network).run, images))
    graph = Graph(classifier, input=input, extras=extras, switches=switches)
    facts = {**facts_of(classifier, graph, name), **_data_facts(source, classifier)}
    images = images_of(source, classifier, "test", COMPARED, pictures, place, download)
    calibration = (
        images_of(source, classifier, "train", CALIBRATION, pictures, place, download, real=True) if int8 else None
    )
    with replacing(path) as partial:  # which removes the file if the comparison fails
        if to == "onnx":
            content = onnx_bytes(graph, facts)
            partial.write_bytes(quantized(content, calibration.pixels, facts) if calibration else content)
            run = OnnxNetwork(partial).run
        else:
            save_program(graph, facts, partial)
            run = Program(partial).run
        comparison = compared(classifier, run, images, int8)
    return Exported(path, comparison)


def _page(
    source: str | Path,
    classifier: Classifier,
    name: str,
    runtime: str | Path | None,
    data_dir: Path | None,
    download: bool,
) -> tuple[Page, Images | None]:
    """The page, and the sample of the test images in it if they are available"""
    if not has_routing(classifier.network):
        raise InputError(
            f"The web page shows the weights of blocks, which {type(classifier.network).__name__} does not have; "
            "export to onnx, or use wcapsnet explore."
        )
    files = onnxruntime_web(runtime)
    test, dataset = None, ""
    try:
        _, found = load_with_data(source, "test", device=classifier.mean.device, data_dir=data_dir, download=download)
        test, dataset = found.test, found.name
    except InputError as error:
        if data_dir or download:
            raise
        warn(f"The page has no test images: {error}")
    page = html_page(classifier, name, files, test, source=dataset)
    if page.images is None:
        return page, None
    return page, Images(
        page.images.images[:].numpy(), f"the {plural(len(page.images.labels), 'test image')} in the page"
    )


def _data_facts(source: str | Path, classifier: Classifier) -> dict[str, Any]:
    """The dataset by name and the checksum of its test images; nothing about a folder, whose path is private"""
    if source not in shipped.names() and Run.is_run(Path(source)):
        run = Run.open(Path(source))
        name, digests = run.experiment.data.source, run.recorded_data() if run.file("data.json").exists() else {}
    else:
        name = classifier.facts.get("experiment", {}).get("data", {}).get("source")
        digests = classifier.facts
    if name not in DATASETS:
        return {}
    return {"data": name, "fingerprint": digests.get("fingerprint", {}).get("test")}


def images_of(
    source: str | Path,
    classifier: Classifier,
    part: str,
    count: int,
    pictures: str | Path | None = None,
    data_dir: Path | None = None,
    download: bool = False,
    real: bool = False,
) -> Images:
    """Up to `count` images for a network: the given pictures, or a part of its dataset, spread over it. Where there is
    no dataset, images of the embedded sample if the network is for MNIST, or else random ones, with a warning; if they
    must be `real`, an error."""
    shape = classifier.shape
    if pictures is not None:
        files = image_files(Path(pictures))[:count]
        if not files:
            raise InputError(f"There are no pictures in {pictures}.")
        return Images(read_images(files, shape), f"{plural(len(files), 'picture')} of {pictures}")
    try:
        _, dataset = load_with_data(
            source, part, device=classifier.mean.device, data_dir=data_dir, download=download, quiet=True
        )
    except InputError as error:
        if data_dir or download:
            raise
        reason = str(error).removesuffix(".")
    else:
        split: Split = getattr(dataset, part)
        chosen = np.linspace(0, len(split.labels) - 1, min(count, len(split.labels))).astype(int)
        what = f"{plural(len(chosen), 'image')} of {dataset.name} ({'training' if part == 'train' else part})"
        return Images(split.images[torch.from_numpy(chosen)].numpy(), what)
    if shape == SAMPLE and classifier.classes == DATASETS["sample"].classes:
        arrays = getattr(read_sample(), "train" if part == "train" else "test").images
        return Images(arrays[:: max(1, len(arrays) // count)][:count], f"{count} images of the MNIST sample")
    if real:
        raise InputError(f"int8 needs real images to calibrate with ({reason}); give some with --pictures.")
    warn(f"{reason}. The file is checked with random images instead.")
    random = np.random.default_rng(0).integers(0, 256, (count, *shape), np.uint8)
    return Images(random, f"{count} random images")
