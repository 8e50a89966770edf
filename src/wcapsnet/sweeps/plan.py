"""A sweep: one experiment with several settings and seeds, each in its own run folder, and the results.

runs/NAME-sweep/
  lr=0.05,seed=0/    a run folder like any other
  …
  sweep.json         every run with its settings and results, including seeds from earlier sweeps; and means over seeds
  sweep.csv          the same, one line per run
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import InputError
from ..experiment import Experiment
from ..settings import differing, with_setting
from ..training.environment import command_line
from ..training.run_folder import Run, read_experiment, read_json, write_csv, write_json

MAX_NAME = 120
OVER = ("finished", "failed")
FIGURES = ("validation_accuracy", "test_accuracy", "balanced_accuracy", "best_epoch", "epochs", "seconds")


@dataclass(frozen=True)
class Planned:
    """A planned run: the settings that distinguish it, as typed, and its experiment."""

    settings: dict[str, str]
    experiment: Experiment


def product(experiment: Experiment, grids: list[str], seeds: str | None) -> list[Planned]:
    """Every combination of the values of `grids` ("training.lr=0.1,0.05") with every seed; seeds vary fastest."""
    fields = dict(_grid(text) for text in grids)
    if len(fields) < len(grids):
        raise InputError("--grid names a field twice; give all its values in one option: FIELD=VALUE,VALUE.")
    names = _short(list(fields))
    planned = []
    for values in itertools.product(*fields.values()):
        changed = experiment
        for field, value in zip(fields, values, strict=True):
            changed = with_setting(changed, f"{field}={value}")
        planned += with_seeds(changed, seeds, dict(zip(names, values, strict=True)))
    return planned


def with_seeds(experiment: Experiment, seeds: str | None, settings: dict[str, str]) -> list[Planned]:
    """One setting with every seed: "3" means seeds 0, 1, 2; "4,5" means 4 and 5; None is the experiment's own seed."""
    return [
        Planned({**settings, "seed": str(seed)}, replace(experiment, training=replace(experiment.training, seed=seed)))
        for seed in ([experiment.training.seed] if seeds is None else _seeds(seeds))
    ]


def _seeds(text: str) -> list[int]:
    numbers = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,18}", number) for number in numbers) or numbers == ["0"]:
        raise InputError(f"--seeds must be a number of seeds, such as 3, or a list, such as 0,1,2; not {text!r}.")
    seeds = [int(number) for number in numbers]
    if len(set(seeds)) < len(seeds):
        raise InputError(f"--seeds {text} names a seed twice; list each seed once.")
    if len(seeds) == 1 and seeds[0] > 1000:
        raise InputError(
            f"--seeds {text} would train {text} runs of every setting; list seeds with commas, such as 7,8."
        )
    return seeds if len(seeds) > 1 else list(range(seeds[0]))


def _grid(text: str) -> tuple[str, list[str]]:
    field, equals, values = text.partition("=")
    field = field.strip()
    parts = [part.strip() for part in _split(values)]
    if not equals or not field or "" in parts:
        raise InputError(f"--grid must be FIELD=VALUE,VALUE, for example training.lr=0.1,0.05, not {text!r}.")
    if field == "training.seed":
        raise InputError("Give seeds with --seeds, not with --grid.")
    return field, parts


def _split(text: str) -> Iterator[str]:
    """Split at commas, but not inside brackets: [1,2],[3] are two lists."""
    depth, part = 0, ""
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0:
            yield part
            part = ""
        else:
            part += letter
    yield part


def _short(fields: list[str]) -> list[str]:
    """The shortest unique end of each name: lr, levels.0.capsules."""
    names = []
    for field in fields:
        parts = field.split(".")
        ends = [".".join(parts[-n:]) for n in range(1, len(parts) + 1) if not parts[-n].isdecimal()]
        others = [f".{other}" for other in (*fields, "seed") if other != field]
        names.append(next((end for end in ends if not any(other.endswith(f".{end}") for other in others)), field))
    return names


def _label(settings: dict[str, str]) -> str:
    """The name of a run folder."""
    text = ",".join(f"{name}={value}" for name, value in settings.items())
    text = re.sub(r"[\[\]{}\"']", "", text)
    return re.sub(r"[^\w.,=+-]+", "-", text).strip("-.")[:MAX_NAME]


class Sweep:
    """The run folders of a sweep. Nothing is written before the first run starts.

    `runs` are the requested runs. `table` also contains finished or failed runs of the same settings with other seeds
    from an earlier sweep in the same folder: all seeds of a setting are one sample.
    """

    def __init__(self, folder: Path, planned: list[Planned]):
        self.folder = folder
        self.failures: dict[Run, str] = {}  # trained runs without a result, and the reason
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is a file; choose a folder with --out.")
        if Run.is_run(folder):
            raise InputError(f"{folder} is the folder of a single run; choose another one with --out.")
        for number, one in enumerate(planned):
            if any(one.experiment == other.experiment for other in planned[:number]):
                raise InputError(f"{_label(one.settings)} is given twice; give each run or value once.")
        names: list[str] = []
        for one in planned:
            name = _label(one.settings)
            names.append(f"{name}-{len(names) + 1}" if name in names else name)
        self.runs = [run_at(folder / name, one.experiment) for name, one in zip(names, planned, strict=True)]
        self.table = self._with_other_seeds(planned)

    def _with_other_seeds(self, planned: list[Planned]) -> list[tuple[Planned, Run]]:
        """By setting, in the given order, then by seed."""
        settings = {_with_any_seed(one.experiment): one.settings for one in planned}
        lines = {one.experiment: (one, run) for one, run in zip(planned, self.runs, strict=True)}
        for path in sorted(self.folder.glob("[!.]*/experiment.json")):
            try:
                run = Run.open(path.parent)
                over = run.finished or run.failure  # diverged runs too: the table says how many the mean covers
            except InputError:  # not part of this sweep
                continue
            same = settings.get(_with_any_seed(run.experiment))
            if same and over:
                own = {**same, "seed": str(run.experiment.training.seed)}
                lines.setdefault(run.experiment, (Planned(own, run.experiment), run))
        order = list(settings)
        return sorted(
            lines.values(),
            key=lambda line: (order.index(_with_any_seed(line[0].experiment)), line[0].experiment.training.seed),
        )

    def check_alone(self) -> None:
        """Refuse a folder with the table of another sweep, which this one would replace."""
        try:
            listed = {str(run["run"]) for run in read_json(self.folder / "sweep.json")["runs"] if run["state"] in OVER}
        except (InputError, KeyError, TypeError):  # none, or damaged
            return
        settings = {_with_any_seed(run.experiment) for run in self.runs}
        for name in sorted(listed):
            try:
                other = _with_any_seed(Run.open(self.folder / name).experiment) not in settings
            except InputError:  # removed or damaged: nothing is lost
                continue
            if other:
                raise InputError(
                    f"{self.folder} holds another sweep, with the run {name}; choose another folder with --out."
                )

    @property
    def unfinished(self) -> list[Run]:
        """Runs to start or resume; failed runs are not tried again."""
        return [run for run in self.runs if not run.finished and run.failure is None]

    def results(self) -> list[dict[str, Any]]:
        """One entry per run: its settings, and its results if there are any."""
        return [_result(run, one) for one, run in self.table]

    def means(self) -> list[dict[str, Any]]:
        """One entry per setting: means over its finished seeds, with standard deviations if there are several."""
        groups: dict[tuple[tuple[str, str], ...], list[dict[str, Any]]] = {}
        for result in self.results():
            setting = tuple((name, value) for name, value in result["settings"].items() if name != "seed")
            groups.setdefault(setting, []).append(result)
        return [{"settings": dict(setting), **_mean(results)} for setting, results in groups.items()]

    def write(self) -> None:
        results = self.results()
        command = command_line()
        content = {"version": __version__, "command": command, "runs": results, "means": self.means()}
        write_json(self.folder / "sweep.json", content)
        figures = ("state", *FIGURES, "failure")
        rows = ([one["run"], *one["settings"].values(), *(one[name] for name in figures)] for one in results)
        write_csv(self.folder / "sweep.csv", [["run", *results[0]["settings"], *figures], *rows])


def runs_of(folder: Path) -> list[Path]:
    """The run folders of a sweep that have begun, in the order of its table; empty if this is not a sweep."""
    if not (folder / "sweep.json").exists():
        return []
    try:
        named = [folder / str(one["run"]) for one in read_json(folder / "sweep.json")["runs"]]
    except (KeyError, TypeError) as error:
        raise InputError(f"{folder / 'sweep.json'} is damaged; name the runs in {folder} instead.") from error
    if not (begun := [path for path in named if Run.is_run(path)]):
        raise InputError(f"No run of the sweep in {folder} has begun; repeat the command of the sweep first.")
    return begun


def _with_any_seed(experiment: Experiment) -> Experiment:
    return replace(experiment, training=replace(experiment.training, seed=0))


def run_at(path: Path, experiment: Experiment) -> Run:
    """A run to start or to resume; refused if it was started as another experiment."""
    if not Run.is_run(path):
        return Run.at(path, experiment)
    for field, begun, asked in differing(read_experiment(path / "experiment.json"), experiment):
        raise InputError(
            f"{path} was started with another {field} ({begun}, not {asked}); choose another folder with --out."
        )
    return Run(path, experiment)


def finished_twin(run: Run, folders: list[Path]) -> Run | None:
    """A finished run of the same experiment, under any name, in one of these sweep folders."""
    for path in (path for folder in folders for path in sorted(folder.iterdir()) if Run.is_run(path)):
        try:
            twin = Run.open(path)
        except InputError:  # a damaged run of another sweep
            continue
        if twin.finished and replace(twin.experiment, name=run.experiment.name) == run.experiment:
            return twin
    return None


def adopt(run: Run, twin: Run) -> None:
    """Copy a finished run of the same experiment to a run that has not started."""
    partial = Run(run.path.with_name(f".{run.path.name}.{os.getpid()}.partial"), run.experiment)
    try:
        shutil.copytree(twin.path, partial.path)
        partial.write_experiment()  # with its own name
        if run.path.exists():
            run.path.rmdir()  # it is empty, or the run could not have been planned
        os.replace(partial.path, run.path)
    finally:
        shutil.rmtree(partial.path, ignore_errors=True)


def _result(run: Run, one: Planned) -> dict[str, Any]:
    figures: dict[str, Any] = dict.fromkeys(FIGURES)
    failure = run.failure
    if run.finished:
        found = run.results()
        figures = {**{name: found.get(name) for name in FIGURES}, "test_accuracy": found["accuracy"]}
    state = "finished" if run.finished else "failed" if failure else "begun" if Run.is_run(run.path) else "not begun"
    return {"run": run.path.name, "settings": one.settings, "state": state, **figures, "failure": failure}


def _mean(results: list[dict[str, Any]]) -> dict[str, Any]:
    finished = [result for result in results if result["state"] == "finished"]
    facts: dict[str, Any] = {"runs": len(results), "finished": len(finished)}
    for name in ("validation_accuracy", "test_accuracy"):
        values = [result[name] for result in finished]
        facts[name] = statistics.mean(values) if values else None
        facts[f"{name}_std"] = statistics.stdev(values) if len(values) > 1 else None
    return facts
