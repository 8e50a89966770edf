"""The contents of a page about one run, gathered from its folder and, if available, its weights and images.

What is not available is None, and the reason is stored as a sentence for the page to show instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from ..classifier import Classifier
from ..data import DATASETS, Dataset
from ..errors import InputError
from ..explanations import Specialization, Survey, has_routing, specialization, without_routing
from ..training.evaluate import Calibration
from ..training.run_folder import Run
from .pictures import Pictures, choose
from .subject import Subject
from .survey_cache import Progress, Seen, look, saved_survey, why_no_probes


@dataclass(frozen=True)
class Facts:
    subject: Subject
    classes: tuple[str, ...]
    parameters: dict[str, int]
    seen: Seen | None
    pictures: Pictures | None
    missing: dict[str, str]  # "seen", "pictures", "probes", "routing" → why they are missing

    @cached_property
    def figures(self) -> dict[str, Any] | None:
        """Accuracy, confusion matrix and so on: from test.json, or from the survey."""
        if self.subject.results and "confusion" in self.subject.results:
            return self.subject.results
        if self.seen:
            return self.seen.survey.evaluation().summary(self.classes)
        return self.subject.results

    @property
    def calibration(self) -> Calibration | None:
        """From the survey, or from test.json; runs of earlier versions have none there."""
        if self.seen:
            return self.seen.survey.evaluation().calibration
        known = (self.subject.results or {}).get("calibration")
        return Calibration(known["error"], tuple(tuple(one.values()) for one in known["bins"])) if known else None

    @cached_property
    def specialization(self) -> Specialization | None:
        """None if the network has no routing, or its images were not seen"""
        return specialization(self.seen.survey) if self.seen and self.seen.survey.weights else None


def gather(
    subject: Subject,
    dataset: Dataset | None,
    why_no_data: str,
    device: torch.device,
    sample: int | None = None,
    progress: Progress | None = None,
    found: Survey | None = None,
) -> Facts:
    """`dataset` is the run's own, or None and the reason. `sample`: look at only this many images. `found`: the survey
    of all of them, if there already is one."""
    missing: dict[str, str] = {}
    classifier, why = _classifier(subject, device)
    seen = saved_survey(subject)
    if seen is None and classifier and dataset:
        try:
            seen = look(subject, classifier, dataset, device, sample, progress, found)
        except InputError as error:
            why = str(error)
    pictures = None
    if seen and classifier and dataset:
        pictures = choose(classifier, dataset, seen, device)
    else:
        missing["pictures"] = why or why_no_data
    if seen is None:
        missing["seen"] = why or why_no_data
    elif not seen.probes and seen.survey.weights:
        missing["probes"] = why_no_probes(seen)
    classes = classifier.classes if classifier else _classes(subject, dataset)
    network = classifier.network if classifier else subject.experiment.model.build()
    if not has_routing(network):
        missing["routing"] = without_routing(network)
    whole = {"network": sum(p.numel() for p in network.parameters())}
    counts = network.parameter_counts() if has_routing(network) else whole
    return Facts(subject, classes, counts, seen, pictures, missing)


def _classifier(subject: Subject, device: torch.device) -> tuple[Classifier | None, str]:
    if subject.weights is None:
        begun = subject.finished or subject.metrics
        what = "folder has no best.safetensors" if begun else "first epoch is not finished"
        return None, f"There are no weights: the run's {what}."
    try:
        classifier = Classifier.load(subject.weights, device)
        if subject.folder:
            Run(subject.folder, subject.experiment).check_weights(classifier.config, classifier.classes)
        return classifier, ""
    except InputError as error:
        return None, str(error)


def confusions(matrix: Sequence[Sequence[int]]) -> list[tuple[int, int, int, int]]:
    """(times, images of the true class, true, predicted), most frequent first"""
    found = [(n, sum(row), i, j) for i, row in enumerate(matrix) for j, n in enumerate(row) if i != j and n > 0]
    return sorted(found, key=lambda one: (-one[0], -one[0] / one[1], one[2], one[3]))


def class_accuracies(matrix: Sequence[Sequence[int]]) -> list[tuple[float, int]]:
    """(accuracy, images) of each class; nan without images"""
    counts = [(row[r], sum(row)) for r, row in enumerate(matrix)]
    return [(right / images if images else math.nan, images) for right, images in counts]


def _classes(subject: Subject, dataset: Dataset | None) -> tuple[str, ...]:
    """Class names, from wherever they are known."""
    if dataset:
        return dataset.classes
    if subject.folder and (subject.folder / "data.json").exists():
        return tuple(Run(subject.folder, subject.experiment).recorded_data()["classes"])
    if subject.results and "per_class" in subject.results:
        return tuple(subject.results["per_class"])
    source, count = subject.experiment.data.source, subject.experiment.model.classes
    return DATASETS[source].classes if source in DATASETS else tuple(map(str, range(count)))
