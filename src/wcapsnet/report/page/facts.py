"""What a page says of one run, gathered from its folder and, where they are at hand, from its weights and its images.

What cannot be had is None, and the reason is kept as a sentence: the page shows that instead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...classifier import Classifier
from ...data import DATASETS, Dataset, Split
from ...data.loader import DeviceSplit
from ...deploy import shipped
from ...errors import InputError
from ...experiment import Experiment
from ...explain import ImageExplanation, Probe, Survey, explain_images, probe_levels, survey
from ...network import WCapsNet
from ...recipes.ablations import PAPER_FIGURES
from ...recipes.published import PAPER_TABLES
from ...settings import from_dict
from ...training.evaluate import Evaluation
from ...training.run import Run, read_json
from ..records import NETWORK, nearest_row, row_of

SURVEY = "survey.safetensors"
PROBE_IMAGES = 1000  # as many validation images teach the probes
MOST_ROUTED = 20_000  # what probes read is kept of so many images at most: some 7 kB each
MISTAKES, EXAMPLES, RECONSTRUCTIONS = 24, 8, 20

Progress = Callable[[int, int], None]  # images done, images in all


@dataclass(frozen=True)
class Subject:
    """A run folder, or a shipped network, without looking at images."""

    name: str
    source: str  # as the commands take it
    experiment: Experiment
    environment: dict[str, Any]
    metrics: list[dict[str, Any]]
    results: dict[str, Any] | None  # test.json
    weights: Path | None
    folder: Path | None
    failure: str | None = None

    @property
    def finished(self) -> bool:
        return self.results is not None

    @property
    def part(self) -> str:
        """The images to look at. The test set is for a run that is finished."""
        return "test" if self.finished else "validation"

    @property
    def data_title(self) -> str:
        source = self.experiment.data.source
        return DATASETS[source].title if source in DATASETS else Path(source).name


def subject_of_run(path: Path) -> Subject:
    run = Run.open(path)
    environment, weights = run.file("environment.json"), run.file("best.safetensors")
    return Subject(
        name=path.resolve().name,
        source=str(path),
        experiment=run.experiment,
        environment=read_json(environment) if environment.exists() else {},
        metrics=run.metrics(),
        results=run.results() if run.finished else None,
        weights=weights if weights.exists() else None,
        folder=path,
        failure=run.failure,
    )


def subject_of_shipped(name: str) -> Subject:
    facts = shipped.describe(name)
    test = dict(facts["test"])
    test.setdefault("accuracy", test["correct"] / test["images"])
    test.setdefault("errors", test["images"] - test["correct"])
    return Subject(
        name=name,
        source=name,
        experiment=from_dict(Experiment, facts["experiment"]),
        environment={},
        metrics=[],
        results=test,
        weights=shipped.path_of(name),
        folder=None,
    )


@dataclass(frozen=True)
class PaperFigure:
    accuracy: float  # a share
    row: str
    differences: tuple[str, ...]  # why the run is not that experiment; empty if it is


def paper_figure(experiment: Experiment) -> PaperFigure | None:
    """The paper's test accuracy for this experiment, or for the one on the same data set that it is nearest to."""
    found = row_of(experiment)
    dataset, row = found or (experiment.data.source, NETWORK)
    differences: tuple[str, ...] = ()
    if not found:
        nearest = nearest_row(experiment)
        if nearest.dataset != dataset:
            return None
        row, differences = nearest.row, nearest.differences
    figures = PAPER_TABLES["IV"].rows["WS+CE"] if row == NETWORK else PAPER_FIGURES[row]
    return PaperFigure(figures[dataset] / 100, row, differences) if dataset in figures else None


@dataclass(frozen=True)
class Seen:
    """What the network made of one part of its data."""

    part: str
    survey: Survey
    probes: tuple[Probe, ...] = ()
    of: int = 0  # images the part has, if only some were looked at


@dataclass(frozen=True)
class Shown:
    """An image on the page, and what was said of it."""

    index: int
    name: str  # of the file, or its number
    pixels: Tensor  # (ch, h, w) uint8
    label: int
    predicted: int
    probability: float  # of what was predicted
    squared_error: float  # of its reconstruction

    @property
    def right(self) -> bool:
        return self.label == self.predicted


@dataclass(frozen=True)
class Example:
    shown: Shown
    explained: ImageExplanation
    reconstruction: Tensor  # (ch, h, w) in [0, 1]


@dataclass(frozen=True)
class Pictures:
    mistakes: list[Shown]
    examples: list[Example]
    reconstructions: list[Example]


@dataclass(frozen=True)
class Facts:
    subject: Subject
    classes: tuple[str, ...]
    parameters: dict[str, int]
    seen: Seen | None
    pictures: Pictures | None
    missing: dict[str, str]  # "seen", "pictures", "probes" → why they are not there

    @property
    def figures(self) -> dict[str, Any] | None:
        """Accuracy, confusion matrix and so on: those of test.json, or of what was seen."""
        if self.subject.results and "confusion" in self.subject.results:
            return self.subject.results
        if self.seen:
            return self.seen.survey.evaluation().summary(self.classes)
        return self.subject.results


def gather(
    subject: Subject,
    dataset: Dataset | None,
    why_no_data: str,
    device: torch.device,
    sample: int | None = None,
    progress: Progress | None = None,
) -> Facts:
    """`dataset` is the run's own, or None and the reason. `sample` is for those in a hurry: only so many images."""
    missing: dict[str, str] = {}
    classifier, why = _classifier(subject, device)
    seen = saved_survey(subject)
    if seen is None and classifier and dataset:
        try:
            seen = look(subject, classifier, dataset, device, sample, progress)
        except InputError as error:
            why = str(error)
    pictures = None
    if seen and classifier and dataset:
        pictures = choose(classifier, dataset, seen, device)
    else:
        missing["pictures"] = why or why_no_data
    if seen is None:
        missing["seen"] = why or why_no_data
    elif not seen.probes:
        missing["probes"] = (
            "Probes learn from validation images and are measured on test images, which are for finished runs."
            if seen.part != "test"
            else "There were too many or too few images for probes; `wcapsnet explain` makes them."
        )
    classes = classifier.classes if classifier else _classes(subject, dataset)
    network = classifier.network if classifier else WCapsNet(subject.experiment.model)
    return Facts(subject, classes, network.parameter_counts(), seen, pictures, missing)


def _classifier(subject: Subject, device: torch.device) -> tuple[Classifier | None, str]:
    if subject.weights is None:
        what = "first epoch was not finished" if not subject.finished else "folder has no best.safetensors"
        return None, f"There are no weights: the run's {what}."
    try:
        return Classifier.load(subject.weights, device), ""
    except InputError as error:
        return None, str(error)


def _classes(subject: Subject, dataset: Dataset | None) -> tuple[str, ...]:
    """Their names, from wherever they are known."""
    if dataset:
        return dataset.classes
    record = subject.folder / "data.json" if subject.folder else None
    if record and record.exists():
        return tuple(read_json(record)["classes"])
    if subject.results and "per_class" in subject.results:
        return tuple(subject.results["per_class"])
    source, count = subject.experiment.data.source, subject.experiment.model.classes
    return DATASETS[source].classes if source in DATASETS else tuple(map(str, range(count)))


# ── surveys ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Surveyor:
    """Measures in place of `evaluate` at the end of training and keeps what it saw: no image is seen twice."""

    def __init__(self) -> None:
        self.seen: list[Survey] = []

    def __call__(self, network: WCapsNet, split: DeviceSplit) -> Evaluation:
        self.seen.append(survey(network, split, routed=len(split) <= MOST_ROUTED))
        return self.seen[-1].evaluation()

    def keep(self, run: Run) -> None:
        """In the run folder; what was seen was validation, then test."""
        validation, test = self.seen
        save_survey(run.path, Seen("test", test, _probes(_spread(validation, PROBE_IMAGES), test)))


def look(
    subject: Subject,
    classifier: Classifier,
    dataset: Dataset,
    device: torch.device,
    sample: int | None,
    progress: Progress | None,
) -> Seen:
    """Every image of the part once; a whole look at a run is kept in its folder."""

    def surveyed(split: Split, routed: bool, before: int, total: int) -> Survey:
        on_device = DeviceSplit(split, *classifier.normalization, device)
        told = (lambda done: progress(before + done, total)) if progress else None
        return survey(classifier.network, on_device, routed=routed, progress=told)

    split: Split = getattr(dataset, subject.part)
    whole = sample is None or sample >= len(split.labels)
    chosen = split if whole else _spread_split(split, sample or 1)
    if not (subject.part == "test" and whole and len(dataset.validation.labels) >= 2):
        found = surveyed(chosen, False, 0, len(chosen.labels))
        seen = Seen(subject.part, found, of=0 if whole else len(split.labels))
    else:
        taught = _spread_split(dataset.validation, PROBE_IMAGES)
        total = len(taught.labels) + len(chosen.labels)
        routed = len(chosen.labels) <= MOST_ROUTED
        fit = surveyed(taught, True, 0, total) if routed else None
        found = surveyed(chosen, routed, len(taught.labels), total)
        seen = Seen(subject.part, found, _probes(fit, found) if fit else ())
    if whole and subject.folder:
        save_survey(subject.folder, seen)
    return seen


def save_survey(folder: Path, seen: Seen) -> None:
    """Beside the weights that it is of; without what the probes read, which is most of it."""
    without = Survey(**{**vars(seen.survey), "routed": ()})
    facts = {"part": seen.part, "weights": _digest(folder / "best.safetensors"), "probes": [*map(asdict, seen.probes)]}
    without.save(folder / SURVEY, **facts)


def saved_survey(subject: Subject) -> Seen | None:
    """If it is of the weights and the part that a report would look at."""
    if subject.folder is None or subject.weights is None or not (subject.folder / SURVEY).exists():
        return None
    try:
        found, facts = Survey.load(subject.folder / SURVEY)
        if facts["part"] != subject.part or facts["weights"] != _digest(subject.weights):
            return None
        return Seen(facts["part"], found, tuple(Probe(**probe) for probe in facts["probes"]))
    except (InputError, KeyError, TypeError):  # another version's, or damaged: it is made anew
        return None


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _probes(fit: Survey, test: Survey) -> tuple[Probe, ...]:
    if not fit.routed or not test.routed or len(fit) < 10:
        return ()
    return probe_levels(fit, test)


def _spread(found: Survey, count: int) -> Survey:
    """Some of the images; only what probes read is cut down."""
    chosen = _evenly(len(found), count)
    return Survey(
        **{
            **vars(found),
            "labels": found.labels[chosen],
            "probabilities": found.probabilities[chosen],
            "routed": tuple(x[chosen] for x in found.routed),
        }
    )


def _spread_split(split: Split, count: int) -> Split:
    chosen = _evenly(len(split.labels), count)
    return Split(split.images[chosen], split.labels[chosen])


def _evenly(total: int, count: int) -> Tensor:
    """Folders are sorted by class, so the first images would not do."""
    return torch.arange(min(count, total)) * total // min(count, total)


# ── pictures ────────────────────────────────────────────────────────────────────────────────────────────────────────


def choose(classifier: Classifier, dataset: Dataset, seen: Seen, device: torch.device) -> Pictures:
    """The surest mistakes; for classes spread over all, the image of median probability that is right, and the two
    worst mistakes; for classes spread over all, the reconstruction of median error."""
    found, split = seen.survey, getattr(dataset, seen.part)
    places = _evenly(len(split.labels), len(found))  # of the survey's images in the split
    right, sure = found.labels == found.predicted, found.probabilities.max(1).values
    wrong = (~right).nonzero().flatten()
    mistakes = wrong[sure[wrong].argsort(descending=True, stable=True)][:MISTAKES].tolist()
    few = mistakes[:2]
    typical = _medians(sure, [right & (found.labels == r) for r in _present(found, EXAMPLES - len(few))])
    rebuilt = _medians(found.squared_error, [found.labels == r for r in _present(found, RECONSTRUCTIONS)])

    def shown(one: int) -> Shown:
        index = int(places[one])
        named = dataset.test_files[index] if seen.part == "test" and dataset.test_files else f"image {index}"
        return Shown(
            index,
            named,
            split.images[index],
            int(found.labels[one]),
            int(found.predicted[one]),
            float(sure[one]),
            float(found.squared_error[one]),
        )

    def explained(chosen: Sequence[int], without: bool) -> list[Example]:
        if not chosen:
            return []
        images = Split(split.images[places[list(chosen)]], split.labels[places[list(chosen)]])
        normalized, _ = DeviceSplit(images, *classifier.normalization, device).take(slice(None))
        answers = explain_images(classifier.network, normalized, without=without)
        return [
            Example(shown(one), answer, classifier.pixels(answer.reconstruction).cpu())
            for one, answer in zip(chosen, answers, strict=True)
        ]

    return Pictures(
        [shown(one) for one in mistakes],
        explained(typical + few, without=True),
        explained(rebuilt, without=False),
    )


def _present(found: Survey, count: int) -> list[int]:
    """So many classes that have images, spread over all of them"""
    classes = found.counts.nonzero().flatten()
    return classes[_evenly(len(classes), count)].tolist()


def _medians(values: Tensor, masks: Sequence[Tensor]) -> list[int]:
    """For each mask that chooses any the place of the median"""
    chosen = [mask.nonzero().flatten() for mask in masks if mask.any()]
    return [int(places[values[places].argsort(stable=True)[(len(places) - 1) // 2]]) for places in chosen]
