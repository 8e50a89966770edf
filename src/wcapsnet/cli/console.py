"""What the commands print: tables, sentences, CSV, JSON."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Column, Table

from .. import shipped
from ..api import Trained
from ..classifier import Classifier, Prediction
from ..console import command, err, out
from ..data import DATASETS
from ..errors import InputError
from ..experiment import Experiment
from ..formatting import mean_and_deviation, percent
from ..models import parameter_count
from ..network.routing import EQUAL
from ..parts import Kind, augmentation, fitness, loss_term, model, nonlinearity, weighting
from ..recipes import PAPER, ROWS, SMALL, TABLE_V
from ..recipes.published import PAPER_TABLES
from ..reports import ablation as report_ablation
from ..reports import tables as report
from ..sweeps import Sweep
from ..training.console import clock
from ..training.evaluate import Evaluation
from ..training.run_folder import Run


def next_steps(trained: Trained, quiet: bool) -> None:
    path = str(trained.path)
    out.print(f"The run folder is [bold]{escape(path)}[/].{'' if quiet else ' Next:'}", soft_wrap=True)
    if quiet:
        return
    command("  wcapsnet evaluate", path)
    command("  wcapsnet explore", path)
    command("  wcapsnet predict", path, "PICTURE.png")
    if trained.report:
        report_written(trained.report)


def report_written(page: Path) -> None:
    out.print(f"The report is [bold]{escape(str(page))}[/].", soft_wrap=True)


def sweep(sweep: Sweep, table_name: str | None = None) -> None:
    """One row per run; means over seeds below. The rows of an ablation are compared with each other."""
    results, means = sweep.results(), sweep.means()
    names = [escape(name) for name in results[0]["settings"]]
    table = Table(*names, "best validation", "test", "best epoch", "time")
    for result in results:
        figures = [""] * 4
        if result["state"] == "finished":
            figures = [_percent(result["validation_accuracy"]), _percent(result["test_accuracy"])]
            figures += [f"{result['best_epoch']} of {result['epochs']}", clock(result["seconds"])]
        else:
            figures[1] = result["state"]
        table.add_row(*map(escape, result["settings"].values()), *figures)
    out.print(table)
    if table_name:
        ablation(sweep, table_name)
    elif any(mean["runs"] > 1 for mean in means):
        table = Table(*(name for name in names if name != "seed"), "seeds", "best validation", "test")
        for mean in means:
            cells = [
                _percent(mean[name], mean[f"{name}_std"]) if mean["finished"] else ""
                for name in ("validation_accuracy", "test_accuracy")
            ]
            seeds = (
                f"{mean['finished']}" if mean["finished"] == mean["runs"] else f"{mean['finished']} of {mean['runs']}"
            )
            table.add_row(*map(escape, mean["settings"].values()), seeds, *cells)
        out.print("Means and standard deviations over seeds")
        out.print(table)
    out.print(f"The figures are in [bold]{escape(str(sweep.folder / 'sweep.csv'))}[/] and sweep.json.", soft_wrap=True)
    for run, sentence in sweep.failures.items():
        err.print(f"error: {run.path.name}: {sentence}", style="red", soft_wrap=True, markup=False)


def ablation(sweep: Sweep, table_name: str) -> None:
    """Means over seeds, the paper's figures if this is its experiment, and whether the differences are significant."""
    rows, numeral = report_ablation.rows(sweep, table_name), report_ablation.numeral_of(table_name)
    reference = PAPER_TABLES[numeral].reference
    fair = any(row.paper for row in rows)
    columns = ["row", "seeds", "epochs", "test", *(["paper", "from the paper"] if fair else []), f"from {reference}"]
    table = Table(*columns, title=f"Table {numeral}: {PAPER_TABLES[numeral].title}", title_justify="left")
    for row in rows:
        s = row.sample
        test = f"{mean_and_deviation(s.accuracies)} %" if s else ""
        seeds = f"{len(s.accuracies) if s else 0}{f', {row.failed} failed' if row.failed else ''}"
        cells = [row.name, seeds, str(row.epochs), test]
        if fair:
            cells += ["" if row.paper is None else f"{row.paper:.2f} %"]
            cells += [report.verdict(row.from_paper) if row.from_paper else ""]
        table.add_row(*map(escape, cells), report.verdict(row.from_reference) if row.from_reference else "")
    out.print(table)
    for line in report.LEGEND[1:]:
        out.print(line, markup=False, soft_wrap=True)


def _percent(value: float, deviation: float | None = None) -> str:
    return f"{percent(value)}%" if deviation is None else f"{percent(value)} ± {percent(deviation)} %"


def paper_tables(tables: list[report.Table]) -> None:
    for table in tables:
        shown = Table(*report.header(table), title=table.title, title_justify="left", show_lines=True)
        for row in report.body(table):
            shown.add_row(*(escape("\n".join(cell)) for cell in row))
        out.print(shown)
        for note in table.notes:
            out.print(note, markup=False, soft_wrap=True)
    for line in report.LEGEND:
        out.print(line, markup=False, soft_wrap=True)


def mean_weights(trained: Trained) -> None:
    """A small version of the paper's figure: which capsule of the deepest feature level acts for which class"""
    levels = trained.results["mean_weights"]
    level = max(len(levels) - 2, 0)
    equal = 1 / len(levels[level][0])
    out.print(
        f"\nMean routing weights of level {level + 1}, the deepest feature level: which block acts for which class "
        f"(equal shares would be {equal:.3f}; the largest are marked)",
        soft_wrap=True,
    )
    table = Table("class", *(f"block {n}" for n in range(len(levels[level][0]))))
    for name, row in zip(trained.results["per_class"], levels[level], strict=True):
        marked = (
            f"[bold]{w:.3f} ◀[/]" if w >= EQUAL * max(row) and min(row) < EQUAL * max(row) else f"{w:.3f}" for w in row
        )
        table.add_row(escape(name), *marked)
    out.print(table)


def accuracy_by_class(result: Evaluation, classes: tuple[str, ...]) -> None:
    confusion = result.confusion
    table = Table("class", "images", "accuracy", "most often taken for")
    for r, name in enumerate(classes):
        total, right = int(confusion[r].sum()), int(confusion[r, r])
        others = confusion[r].clone()
        others[r] = 0
        worst = f"{escape(classes[int(others.argmax())])} ({int(others.max())})" if others.max() > 0 else ""
        table.add_row(escape(name), str(total), f"{percent(right / total)}%" if total else "", worst)
    out.print(table)


def predictions(answers: list[Prediction]) -> None:
    table = Table(Column("picture", overflow="fold"), "class", "probability", "then", "winning capsules")
    for answer in answers:
        then = ", ".join(f"{name} {percent(p, 1)}%" for name, p in answer.top[1:])
        winners = " → ".join(map(_ranges, answer.winners))
        cells = (answer.source or "", answer.label, f"{percent(answer.probability, 1)}%", then, winners)
        table.add_row(*map(escape, cells))
    out.print(table)


def _ranges(numbers: Sequence[int]) -> str:
    """0, 1, 2, 5 → 0–2 5"""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return " ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def predictions_csv(answers: list[Prediction], classifier: Classifier, top: int) -> None:
    rows = csv.writer(sys.stdout, lineterminator="\n")
    ranks = range(1, min(top, len(classifier.classes)) + 1)
    levels = range(1, len(classifier.config.levels) + 1)
    ranked = [column for rank in ranks for column in (f"class_{rank}", f"probability_{rank}")]
    rows.writerow(["source", *ranked, *(f"capsule_{level}" for level in levels)])
    for answer in answers:
        cells = [cell for name, p in answer.top for cell in (name, f"{p:.6f}")]
        rows.writerow([answer.source, *cells, *(" ".join(map(str, winners)) for winners in answer.winners)])


def as_json(answer: Prediction) -> dict[str, Any]:
    return {
        "source": answer.source,
        "class": answer.label,
        "probability": answer.probability,
        "top": [{"class": name, "probability": p} for name, p in answer.top],
        "winners": answer.winners,
        "routing": [b.tolist() for b in answer.routing],
    }


def recipes() -> None:
    title = "Recipes (wcapsnet train RECIPE)"
    table = Table("recipe", "epochs", "parameters", "what", title=title, title_justify="left")
    for name, function in {**PAPER, **SMALL, **TABLE_V}.items():
        experiment = function()
        what = (function.__doc__ or "").strip().splitlines()[0]
        table.add_row(name, str(experiment.training.epochs), _size_of(experiment), what)
    out.print(table)
    out.print(f"Ablations of Tables II to IV: each with -{', -'.join(ROWS)}; for example cifar10-squash.\n")


def parts() -> None:
    table = Table("part", "field", "names", title="Exchangeable parts (docs/extending.md)", title_justify="left")
    for kind in Kind.every:
        if kind in (weighting, fitness, nonlinearity, loss_term, augmentation):
            table.add_row(kind.name, kind.field, ", ".join(kind))
    out.print(table)


def models() -> None:
    columns = ("model", "parameters at 28×28×1", "at 32×32×3", "description")
    table = Table(*columns, title="Models (wcapsnet.create(NAME))", title_justify="left")
    for name, config in model.items():
        sizes = [parameter_count(config(10, *shape)) for shape in ((1, 28, 28), (3, 32, 32))]
        table.add_row(name, *(f"{size:,}" for size in sizes), " ".join((config.__doc__ or "").split()))
    out.print(table)


def weights() -> None:
    found = shipped.names()
    if not found:
        out.print("Shipped networks: none in this version.")
        return
    table = Table(
        "network",
        "data",
        "test accuracy",
        "epochs",
        title="Shipped networks (wcapsnet.load(NAME))",
        title_justify="left",
    )
    for name in found:
        try:
            facts = shipped.describe(name)
        except InputError as error:
            table.add_row(name, escape(str(error)))
            continue
        test, experiment = facts["test"], facts["experiment"]
        source = experiment["data"]["source"]
        title = DATASETS[source].title if source in DATASETS else escape(source)
        right = f"{percent(test['correct'] / test['images'])}% ({test['correct']:,} of {test['images']:,})"
        table.add_row(name, title, right, str(experiment["training"]["epochs"]))
    out.print(table)


def datasets() -> None:
    table = Table("data set", "what", "images", "classes", "size", title="Data sets", title_justify="left")
    for name, info in DATASETS.items():
        images = f"{info.train_images:,} + {info.test_images:,}"
        size = f"{info.channels}×{info.height}×{info.width}"
        table.add_row(name, info.title, images, str(len(info.classes)), size)
    out.print(table)


def runs(folder: Path) -> None:
    sweeps = [path.parent for path in folder.glob("*/sweep.json")]
    found = sorted(path for place in (folder, *sweeps) for path in place.glob("*") if Run.is_run(path))
    if not found:
        out.print(f"Runs: none in {folder} yet.", markup=False)
        return
    table = Table(
        "run", "recipe", "epochs", "validation", "test", title=f"Runs (in {escape(str(folder))})", title_justify="left"
    )
    for path in found:
        try:
            run = Run.open(path)
            metrics = run.metrics()
            best = max((m["validation_accuracy"] for m in metrics), default=None)
            test = run.results()["accuracy"] if run.finished else None
            state = "failed" if run.failure else "not finished"
        except InputError as error:
            table.add_row(escape(str(path)), escape(f"unreadable: {error}"))
            continue
        shown = [_percent(value) if value is not None else "" for value in (best, test)]
        epochs = f"{len(metrics)}/{run.experiment.training.epochs}"
        table.add_row(
            escape(str(path)),
            escape(run.experiment.name),
            epochs,
            shown[0],
            shown[1] or state,
        )
    out.print(table)


def _size_of(experiment: Experiment) -> str:
    return f"{parameter_count(experiment.model) / 1000:,.0f}k"
