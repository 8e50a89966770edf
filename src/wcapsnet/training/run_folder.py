"""The run folder: configuration, environment, metrics and weights.

    data.json            the classes, and checksums of the training, validation and test images
    experiment.json      the whole configuration: enough to repeat the run
    environment.json     versions, commit, hardware, command, dataset directory; again for every time it was resumed
    metrics.jsonl        one line per epoch: every loss term, accuracies, learning rate, images/s
    best.safetensors     weights with the best validation accuracy, ready to load
    last.safetensors     weights of the last epoch
    start.safetensors    the network whose weights the run started from, if there is one
    state.safetensors    weights, momentum and random state: needed to resume
    test.json            test-set results of the best weights, with per-class accuracy and confusion matrix
    predictions.csv      one line per test image
    confusion.csv        rows: true class, columns: predicted class
    tensorboard/         events, if tensorboard is installed

The commands `train`, `demo` and `report` add report.html, a single-file report, and survey.safetensors, the network's
outputs for every test image, from which the report is drawn.

Every file is replaced atomically, so a run that crashes leaves no partial files. A failed run of a sweep has
failed.json with the reason; resuming it tries again.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from .. import __version__
from ..atomic import replacing, write_text
from ..console import warn
from ..data import Dataset
from ..errors import InputError
from ..experiment import Experiment, stored_experiment
from ..network import WCapsNetConfig
from ..plugins import Plugin, plugins, recorded_plugins, require
from ..settings import differing, to_dict

PARTS = ("train", "validation", "test")
PROGRESS = ("metrics.jsonl", "state.safetensors", "best.safetensors", "last.safetensors", "test.json")
STARTING = (".lock", "environment.json", "start.safetensors")  # what is written before experiment.json
LEFT = ("data.json", "failed.json", "report.html", "survey.safetensors")  # what a run without progress may leave
COUNTS, MEASURES = ("images", "errors", "epochs", "best_epoch"), ("accuracy", "validation_accuracy", "seconds")
LATER = ("balanced_accuracy", "majority")  # missing in earlier records


class Run:
    """A run and its folder. Making the object writes nothing."""

    def __init__(self, path: Path, experiment: Experiment, numbered: Path | None = None):
        self.path, self.experiment = path, experiment
        self.starts_from: Path | None = None  # weights file for `experiment.start`, copied when the run begins
        self._numbered = numbered  # begin in this folder, or in the next one with a number
        self._lock: FileLock | None = None

    # ── beginning, holding, resuming ─────────────────────────────────────────────────────────────────────────────────

    @staticmethod
    def create(path: Path, experiment: Experiment, environment: dict[str, Any]) -> Run:
        run = Run.at(path, experiment)
        run.begin(environment)
        run.release()
        return run

    @staticmethod
    def next_free(path: Path, experiment: Experiment) -> Run:
        """A run at `path`, or at the first of `path-2`, `path-3`, … that is free."""
        return Run(free_path(path), experiment, numbered=path)

    @staticmethod
    def at(path: Path, experiment: Experiment) -> Run:
        """A run that can start at `path`: a new or empty folder, or one whose run stopped before it saved anything."""
        run = Run(path, experiment)
        free = run._is_free()
        if free and path.exists() and any(path.iterdir()):
            free = run.hold()  # refused if another process trains it; without locks, nobody knows whether one does
            run.release()
        if not free:
            what = "already holds a run" if Run.is_run(path) else "already exists"
            resume = f" (or continue it: wcapsnet train --resume {path})" if Run.is_run(path) else ""
            raise InputError(f"{path} {what}; choose another folder with --out{resume}.")
        return run

    def _is_free(self) -> bool:
        """Whether there is nothing here, or only what is left of a run that was killed before its first epoch ended"""
        if not self.path.is_dir():
            return not os.path.lexists(self.path)
        if Run.is_run(self.path):
            return self.file("environment.json").exists() and not any(self.file(name).exists() for name in PROGRESS)
        return all(name in STARTING or name.endswith(".partial") for name in os.listdir(self.path))

    def begin(self, environment: dict[str, Any]) -> None:
        """Claim the folder (only one of several processes can) and write the experiment."""
        if self._numbered:
            self.path = make_free(self._numbered)
        self.path.mkdir(parents=True, exist_ok=True)
        self.hold()
        if not self._is_free():  # another process has begun since `at`
            self.release()
            raise InputError(f"Another run has just started in {self.path}; choose another folder with --out.")
        for name in LEFT:
            self.file(name).unlink(missing_ok=True)
        self.write_json("environment.json", environment)
        if self.starts_from:
            with replacing(self.file("start.safetensors")) as partial:
                shutil.copyfile(self.starts_from, partial)
        else:
            self.file("start.safetensors").unlink(missing_ok=True)
        self.write_experiment()

    def hold(self) -> bool:
        """Lock the run against training by other processes, until `release`. False if there are no locks here."""
        if self._lock:
            return True
        lock = FileLock(self.file(".lock"))
        try:
            lock.acquire(blocking=False)
        except Timeout:
            raise InputError(f"Another process is training {self.path}; wait for it to finish, or stop it.") from None
        except (NotImplementedError, OSError):  # the file system does not support locks
            return False
        self._lock = lock
        for left in self.path.glob(".*.partial"):  # by a process that was killed
            left.unlink(missing_ok=True)
        return True

    def release(self) -> None:
        if self._lock:
            self._lock.release()
        self._lock = None

    def start(self, environment: dict[str, Any], epoch: int) -> None:
        """Begin; or, if the run is held, record that it resumes after `epoch` epochs, possibly on another machine or
        with other code."""
        if not self._lock:
            self.begin(environment)
        elif self.file("state.safetensors").exists():  # else it starts again
            before = self.facts("environment") if self.file("environment.json").exists() else {}
            earlier = before["resumed"] if isinstance(before.get("resumed"), list) else []
            again = {"after_epoch": epoch, **{name: value for name, value in environment.items() if name != "data_dir"}}
            self.write_json("environment.json", {**before, "resumed": [*earlier, again]})

    # ── the experiment and its data ──────────────────────────────────────────────────────────────────────────────────

    @staticmethod
    def open(path: Path) -> Run:
        if not Run.is_run(path):
            inside = sum(1 for _ in path.glob("*/experiment.json")) if path.is_dir() else 0
            more = f", but {inside} of its subfolders are: name one or more of those" if inside else ""
            if not inside and Run.is_run(trained := Path("runs") / path.name):  # a folder of pictures and its run
                more = f"; use {trained}"
            raise InputError(f"{path} is not a run folder: it has no experiment.json{more}.")
        return Run(path, read_experiment(path / "experiment.json"))

    @staticmethod
    def is_run(path: Path) -> bool:
        return os.path.isfile(path / "experiment.json")  # False also for a folder that may not be read

    def write_experiment(self) -> None:
        asked = to_dict(self.experiment)
        used = [plugin._asdict() for plugin in plugins(asked)]
        self.write_json("experiment.json", {"version": __version__, **({"plugins": used} if used else {}), **asked})

    def record_data(self, dataset: Dataset) -> None:
        """Record which images the run was started with."""
        if not self.file("data.json").exists():
            images = {part: len(getattr(dataset, part).labels) for part in PARTS}
            facts = {"classes": dataset.classes, "images": images, "fingerprint": dataset.fingerprint(*PARTS)}
            self.write_json("data.json", facts)

    def recorded_data(self) -> dict[str, Any]:
        """data.json: the classes, and the number of images and a checksum for each part."""
        facts = self.facts("data")
        classes, fingerprint = facts.get("classes"), facts.get("fingerprint")
        images = facts.get("images", {})  # missing in earlier records
        named = isinstance(classes, list) and all(isinstance(name, str) for name in classes)
        counted = isinstance(images, dict) and all(type(count) is int for count in images.values())
        if not (named and counted and isinstance(fingerprint, dict) and set(PARTS) <= fingerprint.keys()):
            raise InputError(f"{self.file('data.json')} is damaged; restore it, or train again.")
        return facts

    def check_data(self, dataset: Dataset, *parts: str, instead: str | None = None) -> None:
        """Refuse images other than the recorded ones: a changed test set may hold training images.
        `instead`: what to do if the new images are intended."""
        if not self.file("data.json").exists():
            return
        facts = self.recorded_data()
        instead = instead or f"train again: wcapsnet train {self.path}"
        if tuple(facts["classes"]) != dataset.classes:
            was, now = ", ".join(facts["classes"]), ", ".join(dataset.classes)
            raise InputError(
                f"The classes of {dataset.name} have changed since {self.path} started ({was}; now {now}); restore "
                f"them, or {instead}."
            )
        for part, seen in dataset.fingerprint(*(parts or PARTS)).items():
            if facts["fingerprint"][part] != seen:
                raise InputError(
                    f"The {part} images of {dataset.name} are not those that {self.path} started with; restore them, "
                    f"or {instead}."
                )

    # ── weights and results ──────────────────────────────────────────────────────────────────────────────────────────

    def weights(self) -> Path:
        """The best weights so far."""
        path = self.file("best.safetensors")
        if not path.exists():
            if self.finished or self.metrics():
                raise InputError(
                    f"{self.path} has lost its weights: there is no best.safetensors; restore it, or train again."
                )
            raise InputError(f"{self.path} has no weights yet: its first epoch is not finished.")
        return path

    def check_weights(self, model: WCapsNetConfig, classes: tuple[str, ...]) -> None:
        """Refuse best weights that belong to another run: results reported for this run would be wrong."""
        fields = differing(model, self.experiment.model)
        other = [f"model.{field} is {found}, not {own}" for field, found, own in fields]
        if self.file("data.json").exists() and not other:
            names = tuple(self.recorded_data()["classes"])
            if names != classes:
                other = [f"its classes are {', '.join(classes)}, not {', '.join(names)}"]
        if other:
            place = self.file("best.safetensors")
            raise InputError(
                f"{place} belongs to another network ({other[0]}); restore the run's own file, or train again."
            )

    def starting_weights(self) -> Path:
        """The weights file that `experiment.start` names, or the run's own copy of it."""
        path = self.starts_from or self.file("start.safetensors")
        if not path.exists():
            raise InputError(f"{self.path} cannot start: {path} is missing; restore it, or train again.")
        return path

    @property
    def finished(self) -> bool:
        return self.file("test.json").exists()

    def results(self) -> dict[str, Any]:
        """The results of a finished run; refused if they are malformed or inconsistent."""
        figures = self.facts("test")
        if trouble := _trouble(figures):
            again = f", or delete it and test the run again: wcapsnet train --resume {self.path}"
            remedy = f"restore it{again if self.file('state.safetensors').exists() else ''}"
            raise InputError(f"{self.file('test.json')} is damaged: {trouble}; {remedy}.")
        return figures

    def fail(self, sentence: str) -> None:
        self.write_json("failed.json", {"failure": sentence})

    @property
    def failure(self) -> str | None:
        failed = self.file("failed.json").exists() and not self.finished
        return str(self.facts("failed").get("failure")) if failed else None

    def metrics(self) -> list[dict[str, Any]]:
        path = self.file("metrics.jsonl")
        lines = path.read_bytes().splitlines() if path.exists() else []
        try:
            records = [json.loads(line) for line in lines]
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path} is damaged ({error}); fix the line or delete the file.") from error
        for number, record in enumerate(records, 1):
            measured = record.get("validation_accuracy", -1) if isinstance(record, dict) else -1
            if type(measured) not in (int, float) or not 0 <= measured <= 1:
                raise InputError(f"{path} is damaged (line {number} has no validation_accuracy); restore the file.")
        return records

    def write_metrics(self, records: list[dict[str, Any]]) -> None:
        write_text(self.file("metrics.jsonl"), "".join(json.dumps(record) + "\n" for record in records))

    # ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def file(self, name: str) -> Path:
        return self.path / name

    def facts(self, name: str) -> dict[str, Any]:
        """The content of NAME.json."""
        return read_json(self.file(f"{name}.json"))

    def write_json(self, name: str, content: Any) -> None:
        write_json(self.file(name), content)


def read_experiment(path: Path) -> Experiment:
    """From the experiment.json of a run folder, or from the record of a run."""
    data = read_json(path)
    if isinstance(data.get("experiment"), dict):
        data = data["experiment"]
    data.pop("version", None)
    _check_plugins(data.pop("plugins", []), path.parent)
    try:
        return stored_experiment(data)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


_mentioned: set[Plugin] = set()


def _check_plugins(recorded: Any, what: Path) -> None:
    """Refuse a run that needs parts that are not loaded; warn once about plugins that have changed since."""
    for plugin in require(recorded_plugins(recorded, what), what):
        if plugin not in _mentioned:
            _mentioned.add(plugin)
            warn(f"{plugin.path} has changed since {what} was made.")


def _trouble(figures: dict[str, Any]) -> str | None:
    """What is wrong with the content of a test.json"""
    for name in (*COUNTS, *MEASURES, *LATER):
        if name not in figures and name not in LATER:
            return f"it has no {name}"
        value = figures.get(name, 0)
        if type(value) not in ((int,) if name in COUNTS else (int, float)) or not 0 <= value < math.inf:
            return f"{name} is {value!r}"
    classes, matrix = figures.get("per_class", {}), figures.get("confusion")
    if not isinstance(classes, dict) or not all(
        isinstance(one, dict) and type(one.get("images")) is int for one in classes.values()
    ):
        return "its per-class figures are malformed"
    images, wrong = figures["images"], [figures["errors"]]
    if "confusion" in figures:
        if not isinstance(matrix, list) or not all(
            isinstance(row, list) and len(row) == len(matrix) and all(type(n) is int for n in row) for row in matrix
        ):
            return "its confusion matrix is malformed"
        wrong.append(images - sum(row[i] for i, row in enumerate(matrix)))
    if not images or any(abs(images - n - figures["accuracy"] * images) > 0.01 for n in wrong):
        return "its images, errors, accuracy and confusion matrix contradict one another"
    return None


def free_path(path: Path) -> Path:
    """`path`, or the first of `path-2`, `path-3`, … that is free."""
    free, number = path, 2
    while os.path.lexists(free):
        free, number = path.with_name(f"{path.name}-{number}"), number + 1
    return free


def make_free(path: Path) -> Path:
    """Make that folder, and return it; each of several processes makes its own."""
    path.parent.mkdir(parents=True, exist_ok=True)  # fails if it is a link to nowhere
    while True:
        with suppress(FileExistsError):
            (free := free_path(path)).mkdir()
            return free


def write_csv(path: Path, rows: Iterable[Sequence[object]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_text(path, text.getvalue())


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"There is no file {path}.") from error
    except RecursionError as error:
        raise InputError(f"{path} is nested too deeply.") from error
    except ValueError as error:  # also bytes that are not UTF-8, and integers of thousands of digits
        raise InputError(f"{path} is not valid JSON ({error}); correct or restore it.") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} must hold a JSON object.")
    return content
