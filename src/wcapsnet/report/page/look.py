"""What the network makes of its images: one pass, kept in the run folder beside the weights that it is of."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ...classifier import Classifier
from ...data import Dataset, Split
from ...data.loader import DeviceSplit
from ...errors import InputError
from ...explain import Probe, Survey, probe_levels, survey
from ...network import WCapsNet
from ...training.evaluate import Evaluation
from ...training.run import Run
from .subject import Subject

SURVEY = "survey.safetensors"
MOST_ROUTED = 20_000  # what probes read is kept of so many images at most: some 7 kB each
# Every fifth image teaches the probes, or fewer, and the others measure them: no image needs a second pass (D30).
TEACHING, MOST_TEACHING = 5, 1000

Progress = Callable[[int, int], None]  # images done, images in all


@dataclass(frozen=True)
class Seen:
    """What the network made of one part of its data."""

    part: str
    survey: Survey
    probes: tuple[Probe, ...] = ()
    of: int = 0  # images the part has, if only some were looked at


class Surveyor:
    """Measures in place of `evaluate` at the end of training, and keeps what it saw last: the test images."""

    seen: Survey

    def __call__(self, network: WCapsNet, split: DeviceSplit) -> Evaluation:
        self.seen = survey(network, split, routed=len(split) <= MOST_ROUTED)
        return self.seen.evaluation()

    def keep(self, run: Run) -> None:
        save_survey(run.path, Seen("test", self.seen, probes_of(self.seen)))


def look(
    subject: Subject,
    classifier: Classifier,
    dataset: Dataset,
    device: torch.device,
    sample: int | None,
    progress: Progress | None,
) -> Seen:
    """Every image of the part once, or `sample` of them; a whole look at a run is kept in its folder."""
    split: Split = getattr(dataset, subject.part)
    total = len(split.labels)
    whole = sample is None or sample >= total
    places = evenly(total, total if sample is None else sample)
    chosen = split if whole else Split(split.images[places], split.labels[places])
    found = survey(
        classifier.network,
        DeviceSplit(chosen, *classifier.normalization, device),
        routed=len(places) <= MOST_ROUTED,
        progress=(lambda done: progress(done, len(places))) if progress else None,
    )
    seen = Seen(subject.part, found, probes_of(found), of=0 if whole else total)
    if whole and subject.folder:
        with suppress(OSError):  # whoever may only read the run looks anew each time
            save_survey(subject.folder, seen)
    return seen


def probes_of(found: Survey) -> tuple[Probe, ...]:
    """None where there are too few images, or too many to have kept what probes read"""
    every, step = torch.arange(len(found)), max(TEACHING, -(-len(found) // MOST_TEACHING))
    taught, measured = every[every % step == 0], every[every % step != 0]
    if not found.routed or len(taught) < 2 * found.probabilities.shape[1]:
        return ()
    return probe_levels(_some(found, taught), _some(found, measured))


def _some(found: Survey, places: Tensor) -> Survey:
    """Of these images what probes look at"""
    routed = tuple(x[places] for x in found.routed)
    return replace(found, labels=found.labels[places], probabilities=found.probabilities[places], routed=routed)


def save_survey(folder: Path, seen: Seen) -> None:
    """Without what the probes read, which is most of it."""
    facts = {"part": seen.part, "weights": _digest(folder / "best.safetensors"), "probes": [*map(asdict, seen.probes)]}
    replace(seen.survey, routed=()).save(folder / SURVEY, **facts)


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


def evenly(total: int, count: int) -> Tensor:
    """Folders are sorted by class, so the first images would not do."""
    count = min(count, total)
    return torch.arange(count) * total // max(count, 1)
