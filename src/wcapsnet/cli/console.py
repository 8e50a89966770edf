"""What the commands print: tables, sentences, CSV, JSON."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Column, Table

from ..console import command, err, out
from ..formatting import percent, plural, printable
from ..limits import EQUAL

if TYPE_CHECKING:  # what needs torch is imported where it is used: predict and evaluate work without
    from ..api import Comparison, Trained
    from ..prediction import Prediction
    from ..reports import tables as report
    from ..sweeps import Sweep


def say(text: str) -> None:
    """A paragraph: wrapped in a terminal, one line if piped."""
    out.print(text, soft_wrap=not out.is_terminal)


def bold(text: str) -> str:
    return f"[bold]{text}[/]"


def table(*columns: str | Column, title: str = "") -> Table:
    return Table(*columns, title=title or None, title_justify="left")


def print_table(columns: Sequence[str | Column], rows: Iterable[Sequence[str]], title: str = "") -> None:
    """Cells are shown as they are, without markup."""
    shown = table(*columns, title=title)
    for row in rows:
        shown.add_row(*map(escape, row))
    out.print(shown)


def trained(run: Trained, quiet: bool) -> None:
    """The result of a run, and what to do with it"""
    from ..network import WCapsNetConfig
    from ..plugins import plugin_options
    from ..settings import to_dict
    from ..training.console import clock
    from ..training.evaluate import beside_figures

    found, patience = run.results, run.run.experiment.training.patience
    if found["epochs"] < run.run.experiment.training.epochs and patience:
        say(f"Stopped early: validation has not improved for {plural(patience, 'epoch')}.")
    say(
        f"Test accuracy [bold]{percent(found['accuracy'])}%[/] ({found['images']:,} images{beside_figures(found)}) "
        f"with the weights of epoch {found['best_epoch']} of {found['epochs']}, chosen by validation accuracy "
        f"({percent(found['validation_accuracy'])}%), after {clock(found['seconds'])}"
    )
    path = str(run.path)
    out.print(f"The run folder is [bold]{escape(path)}[/].{'' if quiet else ' Next:'}", soft_wrap=True)
    if quiet:
        return
    options = plugin_options(to_dict(run.run.experiment))
    command("  wcapsnet evaluate", path, *options)
    if isinstance(run.run.experiment.model, WCapsNetConfig):
        command("  wcapsnet explore", path, *options)
    command("  wcapsnet predict", path, "PICTURE.png", *options)
    if run.report:
        written("report", run.report)


def written(what: str, place: Path) -> None:
    """The path is not wrapped, so that it can be copied."""
    out.print(f"The {what} {'are in' if what.endswith('s') else 'is'} [bold]{escape(str(place))}[/].", soft_wrap=True)


def sweep(sweep: Sweep, table_name: str | None = None) -> None:
    """One row per run; means over seeds below. The rows of an ablation are compared with each other."""
    results, means = sweep.results(), sweep.means()
    names = list(results[0]["settings"])
    columns = ["validation", "test", "epoch", "time"]
    print_table([*map(escape, names), *columns], ([*one["settings"].values(), *_figures(one)] for one in results))
    if table_name:
        ablation(sweep, table_name)
    elif any(mean["runs"] > 1 for mean in means):
        out.print("Mean ± standard deviation over seeds")
        others = [escape(name) for name in names if name != "seed"]
        rows = ([*mean["settings"].values(), *_means(mean)] for mean in means)
        print_table([*others, "seeds", "validation", "test"], rows)
    say(f"The results are in [bold]{escape(str(sweep.folder / 'sweep.csv'))}[/] and sweep.json.")
    for run, sentence in sweep.failures.items():
        err.print(f"error: {run.path.name}: {sentence}", style="red", soft_wrap=True, markup=False)


def _figures(result: dict[str, Any]) -> list[str]:
    from ..training.console import clock

    if result["state"] != "finished":
        return ["", result["state"], "", ""]
    accuracies = (accuracy(result[name]) for name in ("validation_accuracy", "test_accuracy"))
    return [*accuracies, f"{result['best_epoch']} of {result['epochs']}", clock(result["seconds"])]


def _means(mean: dict[str, Any]) -> list[str]:
    seeds = f"{mean['finished']}" if mean["finished"] == mean["runs"] else f"{mean['finished']} of {mean['runs']}"
    figures = ("validation_accuracy", "test_accuracy")
    return [seeds, *(accuracy(mean[name], mean[f"{name}_std"]) if mean["finished"] else "" for name in figures)]


def ablation(sweep: Sweep, table_name: str) -> None:
    from ..reports import tables as report

    title, lines = report.ablation(sweep, table_name)
    _grid(lines, title)
    _notes(report.LEGEND[1:])


def _notes(lines: Sequence[str]) -> None:
    for line in lines:
        say(escape(line))


def accuracy(value: float | None, deviation: float | None = None) -> str:
    if value is None:
        return ""
    return f"{percent(value)}%" if deviation is None else f"{percent(value)} ± {percent(deviation, sign='-')} %"


def paper_tables(tables: list[report.Table]) -> None:
    from ..reports import tables as report

    for one in tables:
        _grid(report.grid(one), one.title)
        _notes(one.paper.notes)
    if compared := report.differences(tables):
        _grid(compared, "Differences")
    lines = report.explained(tables)
    if re.search(r"\bD\d", " ".join([*lines, *(note for one in tables for note in one.paper.notes)])):
        lines.append("D7 and other numbers of this form are decisions: see docs/decisions.md.")
    _notes(lines)


def comparison(found: Comparison) -> None:
    _grid(found.grid(), found.title)
    _grid(found.speed_grid(), "Speed and memory")
    _notes(found.notes())


def _grid(lines: list[list[str]], title: str) -> None:
    shown = table(*lines[0], title=title)
    for line in lines[1:]:
        shown.add_row(*(re.sub(r"\*\*(.+?)\*\*", r"[bold]\1[/]", escape(text)) for text in line))
    out.print(shown)


def mean_weights(run: Trained) -> None:
    """A small version of the paper's figure: the weights of the deepest feature level's blocks for each class"""
    levels = run.results["mean_weights"]
    level = max(len(levels) - 2, 0)
    capsules = len(levels[level][0])
    say(
        f"\nMean routing weights for each class in level {level + 1}, the deepest feature level (equal share: "
        f"{1 / capsules:.3f}; ◀ marks the largest)"
    )
    shown = table("class", *(f"block {n}" for n in range(capsules)))
    for name, row in zip(run.results["per_class"], levels[level], strict=True):
        most, all_alike = EQUAL * max(row), min(row) >= EQUAL * max(row)
        marked = (bold(f"{w:.3f} ◀") if w >= most and not all_alike else f"{w:.3f}" for w in row)
        shown.add_row(escape(name), *marked)
    out.print(shown)


def accuracy_by_class(confusion: list[list[int]], classes: tuple[str, ...]) -> None:
    def cells(r: int) -> list[str]:
        counts = confusion[r]
        total, right, others = sum(counts), counts[r], [*counts[:r], 0, *counts[r + 1 :]]
        worst = f"{classes[others.index(max(others))]} ({max(others)})" if max(others) else ""
        return [classes[r], str(total), accuracy(right / total) if total else "", worst]

    print_table(["class", "images", "accuracy", "most often mistaken for"], map(cells, range(len(classes))))


def predictions(answers: list[Prediction]) -> None:
    routed = any(answer.winners for answer in answers)

    def cells(answer: Prediction) -> list[str]:
        then = ", ".join(f"{name} {percent(p, 1)}%" for name, p in answer.top[1:])
        winners = " → ".join(map(_ranges, answer.winners))
        return [
            printable(answer.source or ""),
            printable(answer.label),
            f"{percent(answer.probability, 1)}%",
            then,
            *([winners] if routed else []),
        ]

    columns: list[str | Column] = [Column("picture", overflow="fold"), "class", "probability", "then"]
    print_table([*columns, *(["winning blocks"] if routed else [])], map(cells, answers))
    if out.is_terminal and routed:
        say("Winning blocks: arrows separate levels; blocks are numbered from 0; several blocks in a level are tied.")


def _ranges(numbers: Sequence[int]) -> str:
    """0, 1, 2, 5 → 0–2 5"""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return " ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def predictions_csv(answers: list[Prediction], classes: int, levels: int, top: int) -> None:
    rows = csv.writer(sys.stdout, lineterminator="\n")
    ranks = range(1, min(top, classes) + 1)
    ranked = [column for rank in ranks for column in (f"class_{rank}", f"probability_{rank}")]
    rows.writerow(["source", *ranked, *(f"capsule_{level}" for level in range(1, levels + 1))])
    for answer in answers:
        cells = [cell for name, p in answer.top for cell in (name, f"{p:.6f}")]
        row = [answer.source or "", *cells, *(" ".join(map(str, winners)) for winners in answer.winners)]
        rows.writerow(map(printable, row) if sys.stdout.isatty() else row)


def as_json(answer: Prediction) -> dict[str, Any]:
    return {
        "source": answer.source,
        "class": answer.label,
        "probability": answer.probability,
        "top": [{"class": name, "probability": p} for name, p in answer.top],
        "winners": answer.winners,
        "routing": [b.tolist() for b in answer.routing],
    }
