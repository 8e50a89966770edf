"""Several runs on one page: their results, their settings, and which differences are larger than the noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ..explanations.probes import share_interval
from ..formatting import duration, listed, mean_and_deviation, percent, percentage
from ..network import WCapsNetConfig
from ..settings import flat, to_dict
from ..training.evaluate import beside_figures
from ..training.run_folder import Run
from .charts import Bar, bar_chart, beginning
from .facts import Facts, class_accuracies
from .page import curves, render
from .significance import Difference, Sample, compare, interval, spreads
from .subject import Subject
from .tables import LEGEND, verdict

SECTIONS = {name.lower(): name for name in ("Overview", "Differences", "Training", "Classes", "Routing", "Settings")}


class Group(NamedTuple):
    """Finished runs of one experiment that differ only in their seeds."""

    names: tuple[str, ...]
    sample: Sample
    difference: Difference | None  # from the first group; None for the first group itself

    @property
    def name(self) -> str:
        return listed(self.names)


def comparison_page(runs: Mapping[str, Facts]) -> str:
    """Runs by their names on the page"""
    bars, results = _results(runs)
    low = beginning(bar.interval for bar in bars if bar.interval) if bars else 0.0
    found, left_out = groups(runs)
    return render(
        "comparison.html.j2",
        title=f"{len(runs)} runs compared",
        sections=SECTIONS,
        runs=list(runs),
        bars=bar_chart("Test accuracy of every run", bars, low=low) if bars else None,
        low=low,
        results=results,
        groups=[
            [
                group.name,
                str(len(group.names)),
                mean_and_deviation(group.sample.accuracies),
                verdict(group.difference) if group.difference else "reference",
            ]
            for group in found
        ],
        left_out=left_out,
        legend=LEGEND[1:],
        curves=curves({name: facts.subject.metrics for name, facts in runs.items()}),
        classes=_classes(runs),
        routing=_routing(runs),
        settings=_settings(runs),
    )


def named(facts: Sequence[Facts]) -> dict[str, Facts]:
    """Named by folder, or by path if two folders have the same name."""
    names = [one.subject.name for one in facts]
    return {one.subject.name if names.count(one.subject.name) == 1 else one.subject.source: one for one in facts}


def groups(runs: Mapping[str, Facts]) -> tuple[list[Group], list[str]]:
    """Finished runs that were tested on the same images as the first, and why the others are left out."""
    found: dict[Any, list[str]] = {}
    left_out: list[str] = []
    first = next((one.subject for one in runs.values() if one.subject.results), None)
    for name, facts in runs.items():
        subject = facts.subject
        if first is None or subject.results is None:
            left_out.append(f"{name} is not finished, so it has not been tested.")
        elif _tested_on(subject) != _tested_on(first):
            left_out.append(f"{name} was not tested on the same images as {first.name}.")
        else:
            without_seed = replace(subject.experiment.training, seed=0)
            found.setdefault(replace(subject.experiment, name="-", training=without_seed), []).append(name)
    samples = []
    for names in found.values():
        results = [runs[name].subject.results or {} for name in names]
        samples.append((tuple(names), Sample(tuple(r["accuracy"] for r in results), results[0]["images"])))
    drawn = [names for names, _ in samples if _draws_weights(runs[names[0]].subject)]
    spread = spreads({names: sample.accuracies for names, sample in samples}, drawn)
    return [
        Group(names, sample, compare(sample, samples[0][1], spread[names], spread[samples[0][0]]) if number else None)
        for number, (names, sample) in enumerate(samples)
    ], left_out


def _draws_weights(subject: Subject) -> bool:
    model = subject.experiment.model
    return isinstance(model, WCapsNetConfig) and model.routing.fitness == "random"


def _tested_on(subject: Subject) -> Any:
    if subject.folder and (subject.folder / "data.json").exists():
        return Run(subject.folder, subject.experiment).recorded_data()["fingerprint"]["test"]
    return subject.experiment.data.source, (subject.results or {}).get("images")


def _results(runs: Mapping[str, Facts]) -> tuple[list[Bar], list[list[str]]]:
    """A bar for every tested run, a row for every run"""
    bars, rows = [], []
    for color, (name, facts) in enumerate(runs.items()):
        subject, results, metrics = facts.subject, facts.subject.results, facts.subject.metrics
        best = max((m["validation_accuracy"] for m in metrics), default=None)
        tested = ["not finished", "", ""]
        if results:
            accuracy, images = results["accuracy"], results["images"]
            best = results.get("validation_accuracy", best)
            said = percentage(accuracy)
            bars.append(Bar(name, accuracy, said, share_interval(accuracy, images), color))
            tested = [
                said + beside_figures(results, percentage),
                interval(accuracy, images),
                f"{results['errors']:,} of {images:,}",
            ]
        rows.append(
            [
                name,
                *tested,
                percentage(best) if best is not None else "",
                f"{len(metrics)} of {subject.experiment.training.epochs}" if metrics else "",
                duration(metrics[-1]["seconds"]) if metrics and "seconds" in metrics[-1] else "",
                f"{sum(facts.parameters.values()):,}",
                str(subject.experiment.training.seed),
            ]
        )
    return bars, rows


def _classes(runs: Mapping[str, Facts]) -> dict[str, Any] | None:
    """Accuracy of each class in runs with the same classes"""
    matrices = {name: (facts.subject.results or {}).get("confusion") for name, facts in runs.items()}
    names = next((runs[name].classes for name, matrix in matrices.items() if matrix), ())
    tested = {name: matrix for name, matrix in matrices.items() if matrix and runs[name].classes == names}
    if len(tested) < 2:
        return None
    accuracies = [class_accuracies(matrix) for matrix in tested.values()]
    rows = []
    for r, name in enumerate(names):
        known = [one[r][0] for one in accuracies if one[r][1]]
        shares = [percentage(one[r][0]) if one[r][1] else "" for one in accuracies]
        rows.append([name, *shares, percent(max(known) - min(known), sign="-") if known else ""])
    return {"head": ["class", *tested, "range in points"], "rows": rows}


def _routing(runs: Mapping[str, Facts]) -> dict[str, Any]:
    seen = {name: facts.specialization for name, facts in runs.items() if facts.specialization}
    without = [name for name, facts in runs.items() if name not in seen and "routing" not in facts.missing]
    depth = max((len(found.levels) for found in seen.values()), default=0)
    rows = []
    for name, found in seen.items():
        cells = [f"{one.information_chosen}, {one.effective_chosen:.1f} of {one.capsules}" for one in found.levels]
        rows.append([name, *cells, *[""] * (depth - len(cells))])
    head = ["run", *(f"level {level + 1}" for level in range(depth))]
    return {"head": head, "rows": rows, "without": listed(without) if without else ""}


def _settings(runs: Mapping[str, Facts]) -> list[list[str]]:
    """Fields that differ, with their values"""
    fields = [flat(to_dict(facts.subject.experiment)) for facts in runs.values()]
    rows = [
        [field, *("" if one.get(field) is None else str(one[field]) for one in fields)]
        for field in dict.fromkeys(field for one in fields for field in one)
    ]
    return [row for row in rows if len(set(row[1:])) > 1]
