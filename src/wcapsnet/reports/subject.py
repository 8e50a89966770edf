"""The subject of a page: a run folder or a shipped network, without its images."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import shipped
from ..data import DATASETS
from ..experiment import Experiment, stored_experiment
from ..plugins import plugin_options
from ..settings import to_dict
from ..training.run_folder import Run, read_json


@dataclass(frozen=True)
class Subject:
    name: str
    source: str  # as given to the commands
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

    def command(self, *words: str) -> str:
        """A command about this run, to be pasted into a shell; it loads the plugins that the run needs"""
        return shlex.join(["wcapsnet", *words, self.source, *plugin_options(to_dict(self.experiment))])

    @property
    def part(self) -> str:
        """The part to show. The test set is only used for finished runs."""
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
    test, seen = dict(facts["test"]), facts["validation"]
    test.setdefault("accuracy", test["correct"] / test["images"])
    test.setdefault("errors", test["images"] - test["correct"])
    return Subject(
        name=name,
        source=name,
        experiment=stored_experiment(facts["experiment"]),
        environment=facts["environment"],
        metrics=facts["history"],
        results={**test, "best_epoch": facts["epoch"], "validation_accuracy": seen["correct"] / seen["images"]},
        weights=shipped.path_of(name),
        folder=None,
    )
