"""`wcapsnet.evaluate` and `wcapsnet.predict`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..classifier import Picture, Prediction
from ..data import load_labelled
from ..data.device_data import DeviceSplit
from ..device import choose_device
from ..errors import InputError
from ..experiment import PRECISIONS
from ..hub import check_part, load, load_with_data, tell_skipped
from ..training.evaluate import Evaluation
from ..training.evaluate import evaluate as measure


def evaluate(
    source: str | Path,
    *,
    data: str | Path | None = None,
    split: str = "test",
    data_dir: Path | None = None,
    download: bool = False,
    device: str = "auto",
    precision: str = "fp32",
    quiet: bool = False,
) -> Evaluation:
    """Measure a run's best weights, or a shipped network, on a part of its own dataset, or on a folder of pictures.

    `data` is such a folder, with one subfolder per class. Classes are matched by name: pictures of classes that the
    network does not know are left out, and named in `Evaluation.unknown`.
    """
    if precision not in PRECISIONS:
        raise InputError(f"--precision must be {' or '.join(PRECISIONS)}, not {precision!r}.")
    check_part(split)
    chosen = choose_device(device)
    unknown: tuple[str, ...] = ()
    if data is not None:
        classifier = load(source, device=str(chosen))
        config = classifier.config
        shape = (config.channels, config.height, config.width)
        images, unknown, skipped = load_labelled(Path(data), classifier.classes, shape, split, quiet)
        if not quiet:
            tell_skipped(skipped)
    else:
        classifier, dataset = load_with_data(
            source, split, device=chosen, data_dir=data_dir, download=download, quiet=quiet
        )
        images = getattr(dataset, split)
    part = DeviceSplit(images, *classifier.normalization, chosen)
    return replace(measure(classifier.network, part, precision), names=classifier.classes, unknown=unknown)


def predict(
    source: str | Path, pictures: Picture | Sequence[Picture], *, top: int = 3, device: str = "cpu"
) -> Prediction | list[Prediction]:
    """Class, probability and routing of one picture, or of each in a list. To predict often, call `load` once."""
    return load(source, device=device).predict(pictures, top)
