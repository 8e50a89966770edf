"""`wcapsnet.evaluate` and `wcapsnet.predict`. For ONNX files they need no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..console import tell_skipped
from ..errors import InputError
from ..exports.runtime import OnnxNetwork, check_device, is_onnx
from ..prediction import Prediction, check_finite
from .options import as_path

if TYPE_CHECKING:
    from ..classifier import Classifier, Picture
    from ..exports.evaluation import OnnxEvaluation
    from ..training.evaluate import Evaluation


def evaluate(
    source: str | Path,
    *,
    data: str | Path | None = None,
    split: str = "test",
    data_dir: str | Path | None = None,
    download: bool = False,
    device: str = "auto",
    precision: str = "fp32",
    quiet: bool = False,
) -> Evaluation | OnnxEvaluation:
    """Measure a run's best weights, a shipped network or an exported ONNX file on a part of its own dataset, or on a
    folder of pictures.

    `data` is such a folder, with one subfolder per class; for an ONNX file also the name of a dataset. Classes are
    matched by name: pictures of classes that the network does not know are left out, and named in `unknown`.
    """
    place = as_path(data_dir)
    if is_onnx(source):
        from ..exports.evaluation import evaluate_onnx

        check_device(device)
        if precision != "fp32":
            raise InputError(f"ONNX files are computed as they were exported, not in {precision}.")
        return evaluate_onnx(source, data, split, place, download, quiet)
    from ..data.device_data import DeviceSplit
    from ..data.folder import load_labelled
    from ..device import choose_device
    from ..experiment import PRECISIONS
    from ..hub import check_part, load, load_with_data
    from ..training.evaluate import evaluate as measure

    if precision not in PRECISIONS:
        raise InputError(f"--precision must be {' or '.join(PRECISIONS)}, not {precision!r}.")
    check_part(split)
    chosen = choose_device(device)
    unknown: tuple[str, ...] = ()
    if data is not None:
        classifier = load(source, device=str(chosen))
        labelled = load_labelled(Path(data), classifier.classes, classifier.shape, split, quiet)
        images, unknown = labelled.split, labelled.unknown
        if not quiet:
            tell_skipped(labelled.skipped)
    else:
        classifier, dataset = load_with_data(
            source, split, device=chosen, data_dir=place, download=download, quiet=quiet
        )
        images = getattr(dataset, split)
    part = DeviceSplit(images, *classifier.normalization, chosen)
    result = measure(classifier.network, part, precision)
    check_finite(result.probability)
    return replace(result, names=classifier.classes, unknown=unknown)


def predict(
    source: str | Path, pictures: Picture | Sequence[Picture], *, top: int = 3, device: str = "cpu"
) -> Prediction | list[Prediction]:
    """Class, probability and routing of one picture, or of each in a list, as predicted by a run, a shipped network, a
    .safetensors or an ONNX file. To predict often, call `load` once."""
    return network_for(source, device).predict(pictures, top)


def network_for(source: str | Path, device: str) -> Classifier | OnnxNetwork:
    if is_onnx(source):
        check_device(device)
        return OnnxNetwork(source)
    from ..device import choose_device
    from ..hub import load

    return load(source, device=str(choose_device(device)))
