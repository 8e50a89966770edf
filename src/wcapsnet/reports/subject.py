"""The subject of a page: a run folder or a shipped network, without its images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import shipped
from ..data import DATASETS
from ..errors import InputError
from ..experiment import Experiment
from ..recipes.ablations import PAPER_FIGURES
from ..recipes.published import PAPER_TABLES, SYSTEMS
from ..settings import from_dict
from ..training.run_folder import Run, read_json
from .records import NETWORK, nearest_row, row_of


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
    results = run.results() if run.finished else None
    for name in ("accuracy", "errors", "images"):
        if results is not None and name not in results:
            raise InputError(f"{run.file('test.json')} is damaged: it has no field {name!r}.")
    return Subject(
        name=path.resolve().name,
        source=str(path),
        experiment=run.experiment,
        environment=read_json(environment) if environment.exists() else {},
        metrics=run.metrics(),
        results=results,
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
        experiment=from_dict(Experiment, facts["experiment"]),
        environment=facts["environment"],
        metrics=facts["history"],
        results={**test, "best_epoch": facts["epoch"], "validation_accuracy": seen["correct"] / seen["images"]},
        weights=shipped.path_of(name),
        folder=None,
    )


@dataclass(frozen=True)
class PaperFigure:
    accuracy: float  # between 0 and 1
    row: str
    differences: tuple[str, ...]  # how the run differs from that experiment; may be empty
    source: str = "the paper"


def paper_figure(experiment: Experiment) -> PaperFigure | None:
    """The paper's test accuracy for this experiment, or for the closest one on the same dataset."""
    found = row_of(experiment)
    dataset, row = found or (experiment.data.source, NETWORK)
    differences: tuple[str, ...] = ()
    if not found:
        nearest = nearest_row(experiment)
        if nearest.dataset != dataset or any(one.startswith("model.architecture ") for one in nearest.differences):
            return None
        row, differences = nearest.row, nearest.differences
    if row != NETWORK and row in SYSTEMS:
        published = SYSTEMS[row].published(dataset)
        return PaperFigure(published[0] / 100, row, differences, published[1]) if published else None
    figures = PAPER_TABLES["IV"].rows["WS+CE"] if row == NETWORK else PAPER_FIGURES[row]
    return PaperFigure(figures[dataset] / 100, row, differences) if dataset in figures else None
