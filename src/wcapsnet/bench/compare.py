"""Networks side by side on one dataset: size, work, accuracy, speed, memory. What `wcapsnet compare` prints."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

import torch

from ..data import DATASETS, DataConfig
from ..errors import InputError
from ..experiment import Experiment, TrainingConfig
from ..formatting import listed, mean_and_deviation
from ..kernels import FusedEngine, choose
from ..models import parameter_count
from ..objective import Objective
from ..parts import model, suggestion
from ..recipes import PAPER, RECORDED
from ..recipes.published import SYSTEMS, System
from ..reports.charts import Point, scatter
from ..reports.records import Record, comparable, shipped_records
from ..reports.svg import Drawing, arranged, titled
from ..reports.tables import DASH, markdown_table
from . import suite, tasks
from .contenders import Contender
from .measure import in_turns
from .work import kept_for_gradient, multiply_adds

PACKAGED = "comparison.json"  # costs and speeds of the committed records, by dataset; tools/update_docs.py writes it
NOT_RUN = "no full-length run"
BATCHES = (64, 512)  # of the estimated memory
SMALL = 1_100_000  # parameters: about as many as WCapsNet


@dataclass(frozen=True)
class Costs:
    """What a network needs wherever it runs; per image where it says so."""

    parameters: int
    multiply_adds: int  # forward, per image
    kept: int  # bytes per image that training keeps for the gradient: estimated, float32, plain PyTorch


@dataclass(frozen=True)
class Speed:
    training: float  # images/s
    inference: float  # images/s
    latency: float  # ms, one image
    peak_mib: float | None  # of a training step on a GPU


@dataclass(frozen=True)
class Row:
    name: str
    title: str
    model: str
    costs: Costs
    accuracies: tuple[float, ...]  # of full-length runs
    epochs: int | None
    minutes: float | None  # of training, mean over runs
    at_a_time: int | None  # the most runs that shared the device
    published: float | None  # in %
    source: str
    speed: Speed | None = None


@dataclass(frozen=True)
class Comparison:
    """Rows side by side. `measured` is the environment of the speeds, with batch size and precision, or None."""

    dataset: str
    rows: tuple[Row, ...]
    measured: dict[str, Any] | None = None
    cannot: dict[str, str] | None = None  # networks whose speed was not measured, and why

    @property
    def title(self) -> str:
        return f"Networks on {DATASETS[self.dataset].title}"

    def grid(self, short: bool = False) -> list[list[str]]:
        """Sizes and accuracies, with a header; `short`: of the smallest networks, without sources and times"""
        columns: dict[str, Callable[[Row], str]] = {
            "network": lambda row: row.title,
            "parameters": lambda row: f"{row.costs.parameters:,}",
            "multiply-adds": lambda row: f"{row.costs.multiply_adds / 1e6:,.0f}M",
            "test accuracy, %": _ours,
            "published, %": lambda row: DASH if row.published is None else f"{row.published:.2f}",
        }
        if not short:
            columns["source"] = lambda row: row.source
            columns["minutes"] = lambda row: DASH if row.minutes is None else f"{row.minutes:.0f}"
            columns["runs at a time"] = lambda row: str(row.at_a_time or DASH)
        return _lines(columns, [row for row in self.rows if not short or row.costs.parameters < SMALL])

    def speed_grid(self) -> list[list[str]]:
        """Memory and, where measured, speeds, with a header"""
        columns: dict[str, Callable[[Row], str]] = {"network": lambda row: row.title}
        if self.measured:
            columns["training images/s"] = lambda row: _speed(row, "training", ",.0f")
            columns["inference images/s"] = lambda row: _speed(row, "inference", ",.0f")
            columns["latency, ms"] = lambda row: _speed(row, "latency", ".3g")
            if any(row.speed and row.speed.peak_mib for row in self.rows):
                columns["peak MiB"] = lambda row: _speed(row, "peak_mib", ",.0f")
        for batch in BATCHES:
            columns[f"estimated GiB at {batch}"] = lambda row, batch=batch: f"{row.costs.kept * batch / 2**30:.2f}"  # type: ignore[misc]
        return _lines(columns, self.rows)

    def notes(self) -> list[str]:
        """What the columns mean, and where the speeds come from"""
        said = [
            "Test accuracy: mean ± standard deviation (number of seeds) of full-length runs of this project.",
            "Second-hand: quoted by others; we have not checked the paper itself.",
            "Parameters include decoders. Multiply-adds: convolutions and matrix products for one image. Minutes of "
            "training: mean over runs, which share the device if there are several at a time.",
            f"Estimated GiB at {' and '.join(map(str, BATCHES))}: activations that a training step of that batch "
            "size keeps for the backward pass, in plain PyTorch and float32.",
        ]
        if facts := self.measured:
            said.append(
                f"Speeds were measured in turns on {facts['hardware']} with PyTorch {facts['torch']}: "
                f"{facts['precision']}, batch size {facts['batch']} ({facts['started'][:10]})."
            )
            if facts.get("disturbed"):
                said.append(f"Other processes were busy during {facts['disturbed']} of {facts['windows']} windows.")
        else:
            said.append(without_speeds([self]))
        return said + [f"{name}: not measured. {why}" for name, why in (self.cannot or {}).items()]

    def markdown(self, short: bool = False) -> str:
        grids = [self.grid(short)] if short else [self.grid(), self.speed_grid()]
        return "\n".join(map(markdown_table, grids))

    def as_json(self) -> dict[str, Any]:
        """Plain values, with the mean and deviation of the accuracies in %"""
        return {
            "dataset": self.dataset,
            "environment": self.measured,
            "cannot": self.cannot or {},
            "rows": [{**asdict(row), "accuracy": _summary(row)} for row in self.rows],
        }

    def figure(self) -> Drawing | None:
        """Accuracy against parameters and against training time; None if there is nothing to draw"""
        sizes, times = [], []
        for color, row in enumerate(self.rows):
            if row.published is not None:
                spot = row.costs.parameters / 1e6, row.published
                sizes.append(Point(row.title, *spot, f"{row.published:.2f} % ({row.source})", color, hollow=True))
            if row.accuracies:
                mean = 100 * statistics.mean(row.accuracies)
                sizes.append(Point(row.title, row.costs.parameters / 1e6, mean, f"{_ours(row)} %", color))
                assert row.minutes is not None
                several = f", {row.at_a_time} at a time" if (row.at_a_time or 1) > 1 else ""
                times.append(Point(row.title + several, row.minutes, mean, f"{_ours(row)} %", color))
        axes = (("million parameters", sizes), ("minutes of training", times))
        above = "test accuracy, %"
        panels = [scatter(f"Accuracy over {x}", spots, x_name=x, y_name=above) for x, spots in axes if len(spots) > 1]
        note = "Filled: full-length runs of this project; circles: published. At a time: runs that shared the device."
        return titled(self.title, arranged(panels, 2), note=note) if panels else None


def without_speeds(comparisons: Sequence[Comparison]) -> str:
    """The note on comparisons that have no speeds"""
    titles = listed([DATASETS[one.dataset].title for one in comparisons])
    return f"No speeds are recorded for {titles}; --speed measures them."


def _ours(row: Row) -> str:
    return f"{mean_and_deviation(row.accuracies)} ({len(row.accuracies)})" if row.accuracies else NOT_RUN


def _lines(columns: Mapping[str, Callable[[Row], str]], rows: Sequence[Row]) -> list[list[str]]:
    return [list(columns), *([cell(row) for cell in columns.values()] for row in rows)]


def _speed(row: Row, name: str, form: str) -> str:
    value = getattr(row.speed, name, None)
    return DASH if value is None else format(value, form)


def _summary(row: Row) -> dict[str, Any] | None:
    if not row.accuracies:
        return None
    shares = [100 * one for one in row.accuracies]
    spread = statistics.stdev(shares) if len(shares) > 1 else None
    return {"mean": statistics.mean(shares), "deviation": spread, "runs": len(shares)}


def names_for(dataset: str, asked: Sequence[str] | None = None) -> dict[str, System]:
    """The rows: those asked for, or all with a recipe or a published accuracy on this dataset."""
    if dataset not in PAPER:
        raise InputError(f"There is no dataset {dataset!r} to compare on{suggestion(dataset, PAPER)}")
    if asked is None:
        return {name: one for name, one in SYSTEMS.items() if (dataset, name) in RECORDED or one.published(dataset)}
    for name in asked:
        if name not in SYSTEMS and name not in model:
            raise InputError(f"There is no model {name!r}{suggestion(name, {**SYSTEMS, **model})}")
    if not asked:
        raise InputError("--models needs at least one name; see wcapsnet list models.")
    return {name: SYSTEMS.get(name) or System(name, name) for name in dict.fromkeys(asked)}


def experiment_of(name: str, system: System, dataset: str) -> Experiment:
    """Its recipe on this dataset; without one, the network of this shape with its own loss and optimizer"""
    if (dataset, name) in RECORDED:
        return RECORDED[dataset, name]()
    config = system.config(dataset)
    terms: Any = getattr(config, "terms", None)
    training = TrainingConfig(**getattr(config, "training", {}))
    return Experiment(name, DataConfig(source=dataset), config, Objective(terms) if terms else None, training)  # type: ignore[arg-type]


def build(
    dataset: str,
    models: Sequence[str] | None = None,
    records: Sequence[Record] | None = None,
    packaged: Mapping[str, Any] | None = None,
) -> Comparison:
    """From records: those given or those in the package. Costs that the package does not know are computed."""
    known = (packaged_facts() if packaged is None else packaged).get(dataset, {})
    costs, speeds = known.get("costs", {}), known.get("speeds", {})
    found = comparable(shipped_records() if records is None else records)
    rows = []
    for name, system in names_for(dataset, models).items():
        config = experiment_of(name, system, dataset).model
        runs = [r for r in found if (r.dataset, r.row) == (dataset, name)]
        published, source = system.published(dataset) or (None, "")
        speed = speeds.get("rows", {}).get(name)
        rows.append(
            Row(
                name=name,
                title=system.title,
                model=system.model_for(DATASETS[dataset].channels),
                costs=_costs(config, costs.get(name)),
                accuracies=tuple(r.accuracy for r in runs),
                epochs=runs[0].epochs if runs else None,
                minutes=statistics.mean(r.seconds for r in runs) / 60 if runs else None,
                at_a_time=max(r.at_a_time for r in runs) if runs else None,
                published=published,
                source=source,
                speed=Speed(**speed) if speed else None,
            )
        )
    measured = speeds.get("environment") if any(row.speed for row in rows) else None
    return Comparison(dataset, tuple(rows), measured)


def _costs(config: Any, known: dict[str, int] | None) -> Costs:
    count = parameter_count(config)
    if known and known["parameters"] == count:
        return Costs(**known)
    network = config.build()
    return Costs(count, multiply_adds(network), kept_for_gradient(network))


@cache
def packaged_facts() -> dict[str, Any]:
    place = resources.files("wcapsnet.reports") / PACKAGED
    facts: dict[str, Any] = json.loads(place.read_text(encoding="utf-8")) if place.is_file() else {}
    return facts


def _as_trained(name: str, experiment: Experiment, precision: str, device: torch.device) -> Contender:
    """The implementation that training chooses"""
    training = replace(experiment.training, precision=precision, kernels="auto")
    engine = choose(experiment.model.build(), replace(experiment, training=training), device)
    return Contender("fused" if isinstance(engine, FusedEngine) else "plain", precision, name)


def measure(
    experiments: Mapping[str, Experiment],
    device: torch.device,
    *,
    batch: int,
    precision: str,
    repeats: int,
    window: float,
    say: Callable[[str], None] = lambda sentence: None,
) -> tuple[dict[str, Speed], dict[str, Any], dict[str, str]]:
    """The speeds of all networks in turns, the environment, and why some could not be measured."""
    cannot: dict[str, str] = {}
    times: dict[tuple[str, str], dict[str, Any]] = {}
    peaks: dict[str, float | None] = {}
    data: Any = None
    for what, size in (("training", batch), ("inference", batch), ("latency", 1)):
        prepared: dict[str, tasks.Job] = {}
        for name, experiment in experiments.items():
            if name in cannot:
                continue
            say(f"{name}: {what}")
            contender = _as_trained(name, experiment, precision, device)
            data = data if data is not None or what != "training" else tasks.synthetic(experiment, device)
            asked = suite.Request("train" if what == "training" else "infer", experiment, [], [size], device)
            try:
                (job,) = suite.prepare(asked, contender, suite.Case(experiment, size, None), data).values()
            except InputError as error:
                cannot[name] = str(error)
                continue
            except torch.OutOfMemoryError:
                cannot[name] = "The device has too little memory left."
                continue
            prepared[name] = job
            if what == "training":
                peaks[name] = None if job.peak is None else round(job.peak / 2**20, 1)
        say(f"{what}, in turns")
        found = in_turns({name: job.call for name, job in prepared.items()}, device, repeats, window)
        times |= {(what, name): one for name, one in found.items()}
        prepared.clear()
        suite.forget(device, False)
    speeds = {
        name: Speed(
            training=round(batch / times["training", name]["ms"] * 1000, 1),
            inference=round(batch / times["inference", name]["ms"] * 1000, 1),
            latency=times["latency", name]["ms"],
            peak_mib=peaks[name],
        )
        for name in experiments
        if name not in cannot
    }
    environment = {
        **suite.environment(device),
        "batch": batch,
        "precision": precision,
        "disturbed": sum(one["disturbed_windows"] for one in times.values()),
        "windows": sum(len(one["windows_ms"]) for one in times.values()),
    }
    return speeds, environment, cannot
