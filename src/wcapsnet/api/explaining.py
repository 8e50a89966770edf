"""`wcapsnet.explain`: the routing of one picture, or of a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, overload

from torch import Tensor

from .. import explanations
from ..classifier import Classifier, Picture
from ..console import counting
from ..data import Dataset, Split
from ..data.device_data import DeviceSplit
from ..device import choose_device
from ..errors import InputError
from ..explanations.faithfulness import Faithfulness
from ..explanations.survey import evenly
from ..hub import load, load_with_data
from ..network import WCapsNet
from ..reports.survey_cache import MOST_ROUTED, aside
from ..training.evaluate import Evaluation
from .options import as_path

PROBE_IMAGES = 2000  # images of another part that train the probes (D30)
MEAN_IMAGES = 1000  # images whose weights `rerouted` averages: the mean is known to 3 % of their spread


@dataclass(frozen=True)
class DatasetExplanation:
    """A trained network on one part of its dataset. Everything is measured on first use.

    A capsule is named as on the command line: "2.1" is capsule 1 (counted from 0) of level 2. For a network
    that is not a WCapsNet, only `survey`, `evaluation` and `summary()` are available.
    """

    classifier: Classifier
    dataset: Dataset
    split: str = "test"
    images: int | None = None  # only this many, evenly spaced
    quiet: bool = False

    def __repr__(self) -> str:  # without the network
        count = "all" if self.images is None else self.images
        return f"DatasetExplanation(dataset={self.dataset.name!r}, split={self.split!r}, images={count})"

    @property
    def classes(self) -> tuple[str, ...]:
        return self.classifier.classes

    @property
    def other(self) -> str:
        """The part that trains the probes and whose weights are averaged; never the test images"""
        return aside(self.split)

    @cached_property
    def part(self) -> Split:
        return some_of(self.dataset, self.split, self.images)[0]

    @cached_property
    def files(self) -> tuple[str, ...]:
        """The file of each image, if the dataset is a folder of pictures"""
        return some_of(self.dataset, self.split, self.images)[1]

    @cached_property
    def survey(self) -> explanations.Survey:
        """Predictions, weights and decoded vectors of every image"""
        return self._surveyed(self.part, routed=len(self.part.labels) <= MOST_ROUTED)

    @property
    def evaluation(self) -> Evaluation:
        """Accuracy, balanced accuracy, confusion matrix and calibration"""
        return self.survey.evaluation()

    @property
    def routed(self) -> bool:
        return explanations.has_routing(self.classifier.network)

    @property
    def network(self) -> WCapsNet:
        """The network, refused if it has no routing"""
        explanations.check_routing(self.classifier.network)
        return self.classifier.network

    @cached_property
    def specialization(self) -> explanations.Specialization:
        """How far the blocks of each level specialise in classes"""
        explanations.check_routing(self.classifier.network)
        return explanations.specialization(self.survey)

    @cached_property
    def probes(self) -> tuple[explanations.Probe, ...]:
        """How well a linear probe predicts the class from each level"""
        explanations.check_routing(self.classifier.network)
        taught = self._surveyed(some_of(self.dataset, self.other, PROBE_IMAGES)[0], routed=True)
        tested = self.survey if self.survey.routed else self._surveyed(self.part, routed=True)
        return explanations.probe_levels(taught, tested)

    def capsule(self, name: str, count: int = 16) -> explanations.CapsuleExplanation:
        """One block: the images it wins, its classes"""
        place = self._place(name)
        if self.images is not None:
            raise InputError(
                "--capsule names images by their place in the dataset, so it cannot be used with --images."
            )
        return explanations.explain_capsule(self.survey, self.specialization, *place, count)

    def traversal(self, name: str) -> explanations.Traversal:
        """What the elements of a block's vectors encode; for blocks of the last level"""
        level, capsule = self._place(name)
        if level < len(self.classifier.config.levels) - 1:
            raise InputError(f"Only vectors of the last level are decoded, not those of block {name}.")
        return explanations.traverse_capsule(self.network, self.survey, capsule)

    def nearest(self, vector: Tensor, count: int = 8) -> explanations.Neighbours:
        """The images whose decoded vectors are nearest to this one, which may be another picture's"""
        explanations.check_routing(self.classifier.network)
        return explanations.nearest(self.survey, vector, count)

    def faithfulness(self, images: int = 16, methods: Sequence[str] | None = None) -> dict[str, Faithfulness]:
        """Do the weights mark the regions that matter? Deletes and inserts regions of this many images."""
        taken, _ = self._on_device(some_of(self.dataset, self.split, images)[0]).take(slice(None))
        return explanations.faithfulness(self.network, taken, methods)

    def rerouted(self) -> explanations.Rerouted:
        """Does it matter that every image has its own routing? Predict again with mean weights, with those of another
        image, with equal weights, and with the critics' dropout on."""
        network, part, mean_of = self.network, self._on_device(self.part), self._on_device(self.averaged)
        with counting(self.quiet) as progress:
            return explanations.reroute(network, part, mean_of, progress=lambda done: progress(done, len(part)))

    @property
    def averaged(self) -> Split:
        """The images whose weights `rerouted` averages"""
        return some_of(self.dataset, self.other, MEAN_IMAGES)[0]

    def critics(self) -> explanations.Critics:
        """How steep and how saturated the critics are"""
        network, part = self.network, self._on_device(self.part)
        with counting(self.quiet) as progress:
            return explanations.critics(network, part, progress=lambda done: progress(done, len(part)))

    def summary(self) -> dict[str, Any]:
        """Plain values, ready for JSON"""
        if not self.routed:
            errors = self.survey.squared_error
            return {
                "classes": self.classes,
                **{k: v for k, v in self.evaluation.summary(self.classes).items() if k != "mean_weights"},
                "reconstruction_error": None if bool(errors.isnan().any()) else float(errors.double().mean()),
                "not_explained": explanations.without_routing(self.classifier.network),
            }
        return {
            "classes": self.classes,
            "accuracy": self.survey.accuracy,
            "calibration": self.evaluation.calibration.summary(),
            **self.specialization.summary(),
            "probes": [asdict(probe) for probe in self.probes],
            "probes_taught_by": self.other,
            "probe_images": min(PROBE_IMAGES, len(getattr(self.dataset, self.other).labels)),
        }

    def _on_device(self, part: Split) -> DeviceSplit:
        return DeviceSplit(part, *self.classifier.normalization, self.classifier.mean.device)

    def _surveyed(self, part: Split, routed: bool) -> explanations.Survey:
        network, split = self.classifier.network, self._on_device(part)
        with counting(self.quiet) as progress:
            return explanations.survey(network, split, routed=routed, progress=lambda done: progress(done, len(split)))

    def _place(self, name: str) -> tuple[int, int]:
        """ "2.1" → level 2 (index 1) and capsule 1 (capsules are always numbered from 0)"""
        level, dot, number = name.partition(".")
        if not dot or not level.isdecimal() or not number.isdecimal():
            raise InputError(f"--capsule must be LEVEL.CAPSULE, for example 2.1, not {name!r}.")
        place = int(level) - 1, int(number)
        explanations.check_capsule([row.capsules for row in self.network.config.levels], *place)
        return place


@overload
def explain(
    source: str | Path,
    picture: None = None,
    *,
    split: str = "test",
    images: int | None = None,
    data_dir: str | Path | None = None,
    download: bool = False,
    device: str = "auto",
    quiet: bool = False,
) -> DatasetExplanation: ...
@overload
def explain(
    source: str | Path | Classifier, picture: Picture, *, device: str = "auto"
) -> explanations.ImageExplanation: ...
def explain(
    source: str | Path | Classifier,
    picture: Picture | None = None,
    *,
    split: str = "test",
    images: int | None = None,
    data_dir: str | Path | None = None,
    download: bool = False,
    device: str = "auto",
    quiet: bool = False,
) -> explanations.ImageExplanation | DatasetExplanation:
    """Explain the routing of one picture, or of a part of the network's dataset (`images`: use only this many).

    `source` is a run folder or a shipped network; for one picture also a .safetensors file or a loaded `Classifier`.
    For a network without WCapsNet's routing, only a dataset can be described: accuracy, confusions, calibration.

    wcapsnet.explain("runs/photos", "one.png").winners
    inside = wcapsnet.explain("runs/photos")
    inside.specialization, inside.probes, inside.capsule("2.1"), inside.rerouted(), inside.critics()
    """
    chosen = choose_device(device)
    if picture is not None:
        classifier = source if isinstance(source, Classifier) else load(source, device=str(chosen))
        explanations.check_routing(classifier.network)
        return explanations.explain_image(classifier.network, classifier.preprocess([picture])[0])
    if isinstance(source, Classifier):
        raise InputError("A classifier alone does not know its dataset; name its run folder, or give a picture.")
    classifier, dataset = load_with_data(
        source, split, aside(split), device=chosen, data_dir=as_path(data_dir), download=download, quiet=quiet
    )
    return DatasetExplanation(classifier, dataset, split, images, quiet)


def some_of(dataset: Dataset, part: str, images: int | None) -> tuple[Split, tuple[str, ...]]:
    """A part, or this many images of it; for a folder, also which picture each of them is"""
    split: Split = getattr(dataset, part)
    files: tuple[str, ...] = getattr(dataset, f"{part}_files")
    if images is None or images >= len(split.labels):
        return split, files
    places = evenly(len(split.labels), images)
    some = tuple(files[place] for place in places) if files else ()
    return split.some(places), some
