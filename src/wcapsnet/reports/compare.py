"""Several runs on one page: their results, their settings, and which differences are larger than the noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from .. import formatting as text
from ..explanations import specialization
from ..explanations.probes import share_interval
from ..formatting import mean_and_deviation, percent
from ..settings import flat, to_dict
from ..training.run_folder import Run
from .confusion import class_accuracies
from .curves import accuracy_chart, loss_charts
from .document import document
from .facts import Facts
from .html import Html, figure, h, table
from .section import section, unable
from .significance import Difference, Sample, compare, interval, spreads
from .subject import Subject
from .svg import Bar, bar_chart, beginning
from .tables import LEGEND, verdict


class Group(NamedTuple):
    """Finished runs of one experiment that differ only in their seeds."""

    names: tuple[str, ...]
    sample: Sample
    difference: Difference | None  # from the first group; None for the first group itself

    @property
    def name(self) -> str:
        return text.listed(self.names)


def comparison_page(runs: Mapping[str, Facts]) -> str:
    """Runs by their names on the page"""
    made = [
        ("overview", "Overview", _overview(runs)),
        ("differences", "Differences", _differences(runs)),
        ("training", "Training", _training(runs)),
        ("classes", "Classes", _classes(runs)),
        ("routing", "Routing", _routing(runs)),
        ("settings", "Settings", _settings(runs)),
    ]
    links = [(key, title) for key, title, _ in made]
    return document(f"{len(runs)} runs compared", "wcapsnet report", links, [content for _, _, content in made])


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
            found.setdefault(_without_seed(subject), []).append(name)
    samples = []
    for names in found.values():
        results = [runs[name].subject.results or {} for name in names]
        samples.append((tuple(names), Sample(tuple(r["accuracy"] for r in results), results[0]["images"])))
    drawn = [names for names, _ in samples if runs[names[0]].subject.experiment.model.routing.fitness == "random"]
    spread = spreads({names: sample.accuracies for names, sample in samples}, drawn)
    return [
        Group(names, sample, compare(sample, samples[0][1], spread[names], spread[samples[0][0]]) if number else None)
        for number, (names, sample) in enumerate(samples)
    ], left_out


def _without_seed(subject: Subject) -> Any:
    experiment = subject.experiment
    return replace(experiment, name="-", training=replace(experiment.training, seed=0))


def _tested_on(subject: Subject) -> Any:
    if subject.folder and (subject.folder / "data.json").exists():
        return Run(subject.folder, subject.experiment).recorded_data()["fingerprint"]["test"]
    return subject.experiment.data.source, (subject.results or {}).get("images")


def _overview(runs: Mapping[str, Facts]) -> Html:
    lead = "The results of every run, with its best weights on validation."
    bars, intervals, rows = [], [], []
    for color, (name, facts) in enumerate(runs.items()):
        subject, results = facts.subject, facts.subject.results
        metrics = subject.metrics
        best = max((m["validation_accuracy"] for m in metrics), default=None)
        if results:
            accuracy = results["accuracy"]
            intervals.append(share_interval(accuracy, results["images"]))
            bars.append(Bar(name, accuracy, text.percentage(accuracy), intervals[-1], color))
        rows.append(
            [
                name,
                text.percentage(results["accuracy"]) if results else "not finished",
                interval(results["accuracy"], results["images"]) if results else "",
                f"{results['errors']:,} of {results['images']:,}" if results else "",
                text.percentage(best) if best is not None else "",
                f"{len(metrics)} of {subject.experiment.training.epochs}" if metrics else "",
                text.duration(metrics[-1]["seconds"]) if metrics and "seconds" in metrics[-1] else "",
                f"{sum(facts.parameters.values()):,}",
                str(subject.experiment.training.seed),
            ]
        )
    head = ["run", "test accuracy", "95 % interval", "wrong", "best validation", "epochs", "time", "parameters", "seed"]
    numbers = table(head, rows, "A run a row", sortable=True)
    if not bars:
        return section("overview", "Overview", lead, numbers)
    low = beginning(intervals)
    caption = (
        f"Test accuracy with its 95{text.NARROW}% confidence interval for a test set of this size; the bars run from "
        f"{text.percentage(low, 0)} to 100{text.NARROW}%."
    )
    return section(
        "overview",
        "Overview",
        lead,
        figure("Test accuracy", bar_chart("Test accuracy of every run", bars, low=low, width=440), caption),
        numbers,
    )


def _differences(runs: Mapping[str, Facts]) -> Html:
    title, lead = (
        "Differences and noise",
        "Is a difference larger than chance? Runs that differ only in their seed form one group.",
    )
    found, left_out = groups(runs)
    notes = [h("p", sentence, class_="note") for sentence in left_out]
    if not found:
        return section("differences", title, lead, notes)
    rows = []
    for group in found:
        sample = group.sample
        said = verdict(group.difference) if group.difference else "the others are compared with this"
        rows.append([group.name, str(len(sample.accuracies)), mean_and_deviation(sample.accuracies), said])
    shown = table(["run", "seeds", "test accuracy in %", "difference in points"], rows, f"Relative to {found[0].name}")
    if len(found) == 1:
        said = "All tested runs are repeats of the same experiment: they show its noise, but no difference."
        if len(found[0].names) == 1:
            said = f"There is no other run to compare {found[0].name} with."
        notes.append(h("p", said, class_="note"))
    return section(
        "differences", title, lead, shown, notes, h("ul", [h("li", line) for line in LEGEND[1:]], class_="soft")
    )


def _training(runs: Mapping[str, Facts]) -> Html:
    curves = {name: facts.subject.metrics for name, facts in runs.items()}
    lead = "Each run has the same colour in every figure."
    if not any(curves.values()):
        return section("training", "Training", lead, unable("No run has training metrics."))
    return section("training", "Training", lead, accuracy_chart(curves), h("div", loss_charts(curves), class_="panels"))


def _classes(runs: Mapping[str, Facts]) -> Html:
    lead = "Accuracy of each class on the test images."
    tested = {
        name: facts for name, facts in runs.items() if facts.subject.results and "confusion" in facts.subject.results
    }
    names = next((facts.classes for facts in tested.values()), ())
    tested = {name: facts for name, facts in tested.items() if facts.classes == names}
    if len(tested) < 2:
        return section("classes", "Classes", lead, unable("Fewer than two tested runs have the same classes."))
    accuracies = [class_accuracies(facts.subject.results or {}) for facts in tested.values()]
    rows = []
    for r, name in enumerate(names):
        shares = [one[r][0] for one in accuracies]
        known = [share for share in shares if share == share]
        rows.append(
            [
                name,
                *(text.percentage(share) if share == share else "" for share in shares),
                percent(max(known) - min(known)) if known else "",
            ]
        )
    return section(
        "classes", "Classes", lead, table(["class", *tested, "range in points"], rows, "By class", sortable=True)
    )


def _routing(runs: Mapping[str, Facts]) -> Html:
    lead = (
        "Information of the winning capsule of each level about the class, with chance in brackets, and the effective "
        "number of capsules that win. 0 says nothing about the class; 1 is the most that one of the level's capsules "
        "can say."
    )
    seen = {name: specialization(facts.seen.survey) for name, facts in runs.items() if facts.seen}
    without = [name for name in runs if name not in seen]
    notes = (
        [
            h(
                "p",
                f"The routing of {text.listed(without)} has not been measured yet; run wcapsnet report on it.",
                class_="note",
            )
        ]
        if without
        else []
    )
    if not seen:
        return section("routing", "Routing", lead, notes)
    depth = max(len(found.levels) for found in seen.values())
    rows = []
    for name, found in seen.items():
        cells = [
            f"{level.information_chosen:.3f} ({level.information_chosen_by_chance:.3f}), "
            f"{level.effective_chosen:.1f} of {level.capsules}"
            for level in found.levels
        ]
        rows.append([name, *cells, *[""] * (depth - len(cells))])
    head = ["run", *(f"level {level + 1}" for level in range(depth))]
    return section("routing", "Routing", lead, table(head, rows, "A run a row"), notes)


def _settings(runs: Mapping[str, Facts]) -> Html:
    lead = "Configuration fields in which the runs differ."
    fields = {name: flat(to_dict(facts.subject.experiment)) for name, facts in runs.items()}
    every = list(dict.fromkeys(field for one in fields.values() for field in one))
    rows = [
        [field, *(_plain(one.get(field)) for one in fields.values())]
        for field in every
        if len({_plain(one.get(field)) for one in fields.values()}) > 1
    ]
    if not rows:
        return section("settings", "Settings", lead, unable("The configurations are identical."))
    return section("settings", "Settings", lead, table(["field", *fields], rows, "A field a row", numbers_from=99))


def _plain(value: Any) -> str:
    return "" if value is None else str(value)
