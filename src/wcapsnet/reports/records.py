"""The records of full-length runs, one file per run:

    results/table-II/DATASET/normalized/seed=N.json
    results/table-III/DATASET/squash/seed=N.json
    results/table-IV/DATASET/{ws,ce,random,uniform}/seed=N.json
    results/table-V/DATASET/wcapsnet/seed=N.json    the paper's network: also softmax of II, tilt of III, WS+CE of IV
    results/table-V/DATASET/SYSTEM/seed=N.json      the other systems: the recipe SYSTEM-DATASET of recipes/table_v.py
    results/plus/DATASET/ROW/seed=N.json            wcapsnet-plus and its comparisons: recipes/plus.py

A record holds the JSON files of its run folder by name: experiment, environment, test, and metrics as one list per
column. It has no weights and no paths; losses have six digits. records.json in this folder has the figures of all
records, for an installed package.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from ..data import DATASETS
from ..errors import InputError
from ..experiment import Experiment
from ..formatting import some
from ..objective import Objective
from ..recipes import PAPER, PLUS_ROWS, RECORDED
from ..recipes.ablations import PAPER_FIGURES, TABLE_OF
from ..recipes.published import PAPER_TABLES, SYSTEMS
from ..settings import flat, from_dict, to_dict
from ..training.environment import runs_at_a_time
from ..training.run_folder import Run, read_experiment, read_json

NETWORK = "wcapsnet"  # the row that all tables share
WITHOUT_LOSS = ("ce", "random", "uniform")  # rows with λ_WS = 0
BESIDE = {*SYSTEMS, *PLUS_ROWS} - {NETWORK}  # networks with recipes of their own
# Runs of one experiment may differ in these fields: their name, their seed, and how they are computed.
FREE = ("name", "training.seed", "training.precision", "training.kernels", "training.cuda_graph")


@dataclass(frozen=True)
class Record:
    """A finished run of a row, as long as the paper's."""

    dataset: str
    row: str
    seed: int
    epochs: int
    best_epoch: int
    validation_accuracy: float
    correct: int
    images: int
    seconds: float
    precision: str
    computed_by: str | None  # fused kernels or plain PyTorch; older runs do not say
    hardware: str
    at_a_time: int  # runs that shared it
    started: str
    resumed: tuple[int, ...] = ()  # after which epochs; older runs do not say
    summed: bool = False  # trained with the sum of L̃_WS over levels, before D7 made it the mean

    @property
    def accuracy(self) -> float:
        return self.correct / self.images

    @property
    def place(self) -> Path:
        folder = "plus" if self.row in PLUS_ROWS else f"table-{TABLE_OF.get(self.row, 'V')}"
        return Path(folder) / self.dataset / self.row / f"seed={self.seed}.json"


class RecordedRun(Run):
    """A run read from its record file; it cannot be trained."""

    def __init__(self, path: Path):
        super().__init__(path, read_experiment(path))
        self._content = read_json(path)

    def file(self, name: str) -> Path:
        """The record itself, or a path that does not exist if the record lacks that part of a run folder."""
        return self.path if Path(name).stem in self._content else self.path / name

    def facts(self, name: str) -> dict[str, Any]:
        found = self._content.get(name)
        if not isinstance(found, dict):
            raise InputError(f"{self.path} is damaged: its {name} is {found!r}.")
        return found

    def metrics(self) -> list[dict[str, Any]]:
        columns = self.facts("metrics")
        try:
            epochs = [zip(columns, epoch, strict=True) for epoch in zip(*columns.values(), strict=True)]
        except (TypeError, ValueError) as error:
            raise InputError(f"{self.path} is damaged: its metrics are not columns of one length.") from error
        return [{name: value for name, value in epoch if value is not None} for epoch in epochs]


def is_record(path: Path) -> bool:
    """Whether a file starts like one written by tools/records.py"""
    if path.suffix != ".json" or not path.is_file():
        return False
    with path.open("rb") as file:
        return re.match(rb'\s*\{\s*"experiment"\s*:', file.read(100)) is not None


def open_run(path: Path) -> Run:
    """A run folder or a record file."""
    return RecordedRun(path) if is_record(path) else Run.open(path)


def row_of(experiment: Experiment) -> tuple[str, str] | None:
    """Dataset and row that an experiment repeats, with any seed; L̃_WS may be summed over levels"""
    return _found(experiment)[0]


def _found(experiment: Experiment) -> tuple[tuple[str, str] | None, bool]:
    """The row that an experiment repeats, if any, and whether L̃_WS is summed over levels"""
    asked = _essence(experiment)
    matching = ((row, summed) for summed in (False, True) for row, wanted in _rows(summed) if wanted == asked)
    return next(matching, (None, False))


@functools.cache
def _rows(summed: bool = False) -> list[tuple[tuple[str, str], dict[str, Any]]]:
    """Dataset and row of every recipe that has records, with its essence"""
    recipes = {place: make for place, make in RECORDED.items() if not summed or place[1] not in BESIDE}
    return [(row, _essence(_with_sum(make()) if summed else make())) for row, make in recipes.items()]


def _with_sum(experiment: Experiment) -> Experiment:
    """The same λ_WS on the sum over levels, which was the objective before D7"""
    sums = {**experiment.objective, "wasserstein": experiment.objective["wasserstein"] * len(experiment.model.levels)}
    return replace(experiment, objective=Objective(sums))


def _essence(experiment: Experiment) -> dict[str, Any]:
    return {field: value for field, value in flat(to_dict(experiment)).items() if field not in FREE}


def nearest_row(experiment: Experiment) -> tuple[tuple[str, str], tuple[str, ...]]:
    """The most similar dataset and row of the tables, and how they differ, such as "training.epochs is 3, not 40"."""
    asked = _essence(experiment)

    def differences(wanted: dict[str, Any]) -> tuple[str, ...]:
        fields = [field for field in {**wanted, **asked} if wanted.get(field) != asked.get(field)]
        return tuple(f"{field} is {asked.get(field)}, not {wanted.get(field)}" for field in fields)

    row, wanted = min(_rows(), key=lambda item: len(differences(item[1])))
    return row, differences(wanted)


class PaperFigure(NamedTuple):
    accuracy: float  # between 0 and 1
    differences: tuple[str, ...]  # how the run differs from that experiment; may be empty
    source: str = "the paper"


def paper_figure(experiment: Experiment) -> PaperFigure | None:
    """The paper's test accuracy for this experiment, or for the closest one on the same dataset."""
    found = row_of(experiment)
    (dataset, row), differences = (found, ()) if found else nearest_row(experiment)
    if dataset != experiment.data.source or any(one.startswith("model.architecture ") for one in differences):
        return None
    if row in BESIDE:
        published = SYSTEMS[row].published(dataset) if row in SYSTEMS else None
        return PaperFigure(published[0] / 100, differences, published[1]) if published else None
    figures = PAPER_TABLES["IV"].rows["WS+CE"] if row == NETWORK else PAPER_FIGURES[row]
    return PaperFigure(figures[dataset] / 100, differences) if dataset in figures else None


def read_record(path: Path) -> Record:
    """From a run folder or a record file; raises an error if the run does not belong in a table."""
    run = open_run(path)
    row, summed = _found(run.experiment)
    if row is None:
        if run.experiment.data.source not in DATASETS:
            raise InputError(f"{path} was trained on a dataset that is not in the paper.")
        (dataset, name), differences = nearest_row(run.experiment)
        why = f"nearest is {name} on {dataset}, but {some(differences, 3)}"
        raise InputError(f"{path} is not a row of the tables: {why}.")
    epochs = run.experiment.training.epochs
    if not run.finished:
        raise InputError(
            f"{path} is not finished: {len(run.metrics())} of {epochs} epochs are done, and it has not been tested."
        )
    test, environment = run.results(), run.facts("environment")
    done = min(test["epochs"], len(run.metrics()))
    if done != epochs:
        raise InputError(f"{path} ended after {done} of {epochs} epochs, so it belongs in no table.")
    if test["images"] != DATASETS[row[0]].test_images:
        raise InputError(f"{path} was tested on {test['images']} images, not on all of {row[0]}.")
    again = environment.get("resumed", [])
    valid = {name: isinstance(environment.get(name), str) for name in ("hardware", "started")}
    valid["resumed"] = isinstance(again, list) and all(
        isinstance(one, dict) and isinstance(one.get("after_epoch"), int) for one in again
    )
    for name in (name for name, fits in valid.items() if not fits):
        damaged = f"its field {name!r} is {environment.get(name)!r}"
        raise InputError(f"{run.file('environment.json')} is damaged: {damaged}.")
    return Record(
        dataset=row[0],
        row=row[1],
        seed=run.experiment.training.seed,
        epochs=epochs,
        best_epoch=test["best_epoch"],
        validation_accuracy=test["validation_accuracy"],
        correct=test["images"] - test["errors"],
        images=test["images"],
        seconds=test["seconds"],
        precision=run.experiment.training.precision,
        computed_by=in_all(environment, "computed_by"),
        hardware=in_all(environment, "hardware") or "",
        at_a_time=runs_at_a_time(environment),
        started=environment["started"],
        resumed=tuple(one["after_epoch"] for one in again),
        summed=summed,
    )


def in_all(environment: dict[str, Any], name: str) -> str | None:
    """The value of a field; if the run was resumed with other values, all of them"""
    said = [one.get(name) for one in (environment, *environment.get("resumed", ()))]
    return " and ".join(dict.fromkeys(word for word in said if word)) or None


def runs_in(path: Path) -> list[Path]:
    """A run folder or a record file itself, or all below a folder of them."""
    if is_record(path) or Run.is_run(path):
        return [path]
    if not path.is_dir():
        raise InputError(f"There is no folder {path}.")
    folders = {found.parent for found in path.rglob("experiment.json")}
    return sorted([*folders, *(found for found in path.rglob("*.json") if is_record(found))])


def read_records(folder: Path) -> tuple[list[Record], list[str]]:
    """All runs below a folder that belong in a table, and for each of the others a sentence that says why not"""
    found: dict[tuple[Path, bool], tuple[Path, Record]] = {}  # by the record's place: where it was read from
    left_out: list[str] = []
    paths = runs_in(folder)
    if not paths:
        raise InputError(f"There are no runs in {folder}.")
    for path in paths:
        try:
            record = read_record(path)
        except InputError as error:
            left_out.append(str(error))
            continue
        first, _ = found.setdefault((record.place, record.summed), (path, record))
        if first != path:
            left_out.append(f"{path} has the same row and seed as {first}, which is used instead.")
    records = comparable([record for _, record in found.values()])
    left_out += [f"{path} {OTHER_OBJECTIVE[one.summed]}" for path, one in found.values() if one not in records]
    return in_order(records), left_out


OTHER_OBJECTIVE = {
    True: "was trained with the sum of the Wasserstein loss over levels, the other runs with its mean (D7).",
    False: "was trained with the mean of the Wasserstein loss over levels, the reference row with its sum (D7).",
}


def comparable(records: Sequence[Record]) -> list[Record]:
    """For each dataset, the records with one objective: L̃_WS as a mean over levels or, if the network has only such
    runs, as a sum (D7). Rows without that loss fit either."""
    free = {*WITHOUT_LOSS, *BESIDE}

    def sums(dataset: str) -> bool:
        networks = {r.summed for r in records if (r.dataset, r.row) == (dataset, NETWORK)}
        others = {r.summed for r in records if r.dataset == dataset and r.row not in free}
        return False not in (networks or others)

    return [r for r in records if r.row in free or r.summed == sums(r.dataset)]


def in_order(records: Iterable[Record]) -> list[Record]:
    datasets, rows = list(PAPER), [NETWORK, *TABLE_OF, *SYSTEMS, *PLUS_ROWS]
    return sorted(records, key=lambda r: (datasets.index(r.dataset), rows.index(r.row), r.seed))


def shipped_records() -> list[Record]:
    """The records in the package"""
    content = (resources.files(__package__) / "records.json").read_text(encoding="utf-8")
    return [from_dict(Record, record) for record in json.loads(content)]
