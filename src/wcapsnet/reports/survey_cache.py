"""The network's outputs for its images: one pass, stored in the run folder next to the weights it belongs to."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from .. import formatting as text
from ..classifier import Classifier
from ..data import Dataset, Split
from ..data.device_data import DeviceSplit
from ..errors import InputError
from ..explanations import Probe, Survey, probe_levels, survey
from ..explanations.survey import evenly
from .subject import Subject

SURVEY = "survey.safetensors"
MOST_ROUTED = 20_000  # the probes' inputs are kept for at most this many images: about 7 kB each
MOST_TEACHING = 1000  # images of another part that train the probes (D30)

Progress = Callable[[int, int], None]  # images done, images in total


@dataclass(frozen=True)
class Seen:
    """The network's outputs for one part of its data."""

    part: str
    survey: Survey
    probes: tuple[Probe, ...] = ()
    of: int = 0  # size of the part, if only a sample was used
    taught: int = 0  # images of the other part available to train the probes


def look(
    subject: Subject,
    classifier: Classifier,
    dataset: Dataset,
    device: torch.device,
    sample: int | None,
    progress: Progress | None,
    found: Survey | None = None,
) -> Seen:
    """Every image of the part once, or `sample` of them; a full pass over a run is saved in its folder.

    `found` is the survey of the whole part, if there already is one."""
    split, other = (getattr(dataset, part) for part in (subject.part, aside(subject.part)))
    total = len(split.labels)
    whole = sample is None or sample >= total
    places = evenly(total, total if sample is None else sample)
    lesson = evenly(len(other.labels), MOST_TEACHING if sample is None else sample // 5)  # a sample must stay quick

    def seen_of(part: Split, chosen: Tensor, before: int = 0, routed: bool = True) -> Survey:
        if len(chosen) < len(part.labels):
            part = part.some(chosen)
        return survey(
            classifier.network,
            DeviceSplit(part, *classifier.normalization, device),
            routed=routed,
            progress=(lambda done: progress(before + done, len(places) + len(lesson))) if progress else None,
        )

    found = found or seen_of(split, places, routed=len(places) <= MOST_ROUTED)
    probes: tuple[Probe, ...] = ()
    if found.routed and len(lesson) >= least_taught(found):
        probes = probe_levels(seen_of(other, lesson, before=len(places)), found)
    seen = Seen(subject.part, found, probes, of=0 if whole else total, taught=len(lesson))
    if whole and subject.folder:
        with suppress(OSError):  # if the run is read-only, every report makes its own pass
            save_survey(subject.folder, seen)
    return seen


def aside(part: str) -> str:
    """Images of a different part, never test images: to train probes, or to average weights over."""
    return "train" if part == "validation" else "validation"


def least_taught(found: Survey) -> int:
    return 2 * found.probabilities.shape[1]


def why_no_probes(seen: Seen) -> str:
    other, least = text.images_of(aside(seen.part)), least_taught(seen.survey)
    if seen.taught < least:
        return f"Probes need at least {least:,} {other} for training, two per class, but there were {seen.taught}."
    part = text.images_of(seen.part)
    return f"A report has probes for at most {MOST_ROUTED:,} {part} and {other}; use wcapsnet explain for more."


def save_survey(folder: Path, seen: Seen) -> None:
    """Without the probes' inputs, which are most of it."""
    facts = {"part": seen.part, "weights": _digest(folder / "best.safetensors"), "taught": seen.taught}
    facts["probes"] = [*map(asdict, seen.probes)]
    replace(seen.survey, routed=()).save(folder / SURVEY, **facts)


def saved_survey(subject: Subject) -> Seen | None:
    """The saved survey, if it belongs to the weights and the part that a report would use."""
    if subject.folder is None or subject.weights is None or not (subject.folder / SURVEY).exists():
        return None
    try:
        found, facts = Survey.load(subject.folder / SURVEY)
        if facts["part"] != subject.part or facts["weights"] != _digest(subject.weights):
            return None
        return Seen(facts["part"], found, tuple(Probe(**probe) for probe in facts["probes"]), taught=facts["taught"])
    except (InputError, KeyError, TypeError):  # from another version, or damaged: make it again
        return None


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
