"""Records of the recipes deciding-DATASET and deciding-DATASET-uniform (D44), and what docs/results.md shows of them.

    python tools/deciding.py [RUN …] [--data-dir DIR]

A record holds the run's record and, in `inside`, the predictions of all test images with other weights than their own,
and the information and mean weights of every level. Without RUN, only the page and the figures are updated.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import wcapsnet
from records import mean_and_spread, write_run
from update_docs import Panel, filled, weight_maps
from wcapsnet.atomic import write_text
from wcapsnet.cli.exit import in_a_sentence
from wcapsnet.data import DATASETS
from wcapsnet.errors import InputError
from wcapsnet.formatting import signed
from wcapsnet.models import parameter_count
from wcapsnet.recipes import recipe
from wcapsnet.recipes.deciding import DECIDING
from wcapsnet.reports.significance import Sample, compare
from wcapsnet.reports.tables import markdown_table
from wcapsnet.settings import differing
from wcapsnet.training.run_folder import Run, read_json

ROOT = Path(__file__).parents[1]
RECORDS, PAGE, IMAGES = Path("results/deciding"), Path("docs/results.md"), Path("docs/images")
NAMES = {  # by dataset: the recipe, and the same with equal weights
    dataset: (f"deciding-{dataset}", f"deciding-{dataset}-uniform")
    for dataset in DATASETS
    if f"deciding-{dataset}" in DECIDING
}
OTHERS = {"mean": "with the mean weights", "other": "with another image's weights", "equal": "with equal weights"}
LEVEL = 2  # the last feature level


def keep(path: Path, root: Path, data_dir: Path | None) -> Path:
    run = Run.open(path)
    experiment = run.experiment
    name = experiment.name
    if name not in DECIDING or {field for field, *_ in differing(recipe(name), experiment)} - {"training.seed"}:
        raise InputError(f"{path} is not a run of {', '.join(DECIDING)}.")
    if not run.finished:
        raise InputError(f"{path} is not finished; continue it with: wcapsnet train --resume {path}")
    inside = wcapsnet.explain(run.path, data_dir=data_dir, quiet=True)
    levels = [level.summary() for level in inside.specialization.levels]
    found = {"levels": [{name: level[name] for name in ("level", "information", "mean")} for level in levels]}
    if experiment.model.routing.fitness != "constant":
        found |= inside.rerouted().summary()
    place = root / RECORDS / name / f"seed={experiment.training.seed}.json"
    write_run(place, run, inside=found)
    return place


def records(root: Path, name: str) -> list[dict[str, Any]]:
    found = [read_json(path) for path in sorted((root / RECORDS / name).glob("seed=*.json"))]
    if not found:
        raise InputError(f"There are no records in {RECORDS / name}; name finished runs of {name}.")
    return found


def table(root: Path) -> str:
    """Mean ± standard deviation over seeds"""
    columns = [column for dataset in NAMES for column in _columns(root, dataset)]
    return markdown_table([[name, *(column.get(name, "") for column in columns)] for name in columns[0]])


def _columns(root: Path, dataset: str) -> tuple[dict[str, str], dict[str, str]]:
    """By name of the row: the network, and the same with equal weights"""
    names = NAMES[dataset]
    both = [records(root, name) for name in names]
    titles = [DATASETS[dataset].title, "equal weights"]
    columns = [{"": f"{title} ({len(runs)})"} for title, runs in zip(titles, both, strict=True)]
    accuracies = [[100 * run["test"]["accuracy"] for run in runs] for runs in both]
    images = both[0][0]["test"]["images"]
    difference = compare(*(Sample(tuple(value / 100 for value in each), images) for each in accuracies))
    low, high = (100 * (difference.difference + sign * difference.margin) for sign in (-1, 1))
    for column, name, runs, accuracy in zip(columns, names, both, accuracies, strict=True):
        column["test accuracy, %"] = mean_and_spread(accuracy, ".2f")
        if runs is both[0]:
            column["difference, points"] = (
                f"{signed(100 * difference.difference, 2)} [{signed(low, 2)}, {signed(high, 2)}]"
            )
            for kind, title in OTHERS.items():
                points = [100 * run["inside"]["rerouted"][kind]["all_levels"]["difference"] for run in runs]
                column[f"{title}, points"] = mean_and_spread(points, "+.1f")
        for level in range(len(runs[0]["inside"]["levels"])):
            told = [run["inside"]["levels"][level]["information"] for run in runs]
            column[f"information about the class, level {level + 1}"] = mean_and_spread(told, ".3f")
        column["parameters"] = f"{parameter_count(recipe(name).model):,}"
    return columns[0], columns[1]


def pages(root: Path) -> dict[Path, str]:
    """The generated part of the page, and a figure for each dataset"""
    made = {PAGE: filled(root / PAGE, {"deciding": table(root)}, by="deciding")}
    for dataset, (name, _) in NAMES.items():
        panels = {
            f"seed {run['experiment']['training']['seed']}": Panel(
                DATASETS[dataset].classes, run["inside"]["levels"][LEVEL - 1]["mean"]
            )
            for run in records(root, name)
        }
        title = f"{DATASETS[dataset].title}, level {LEVEL}: mean routing weights of every class"
        made[IMAGES / f"weights-{name}.svg"] = weight_maps(title, panels).file()
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--data-dir", type=Path)
    asked = parser.parse_args()
    with in_a_sentence():
        for path in asked.runs:
            print(f"{path} → {keep(path, ROOT, asked.data_dir).relative_to(ROOT)}", flush=True)
        for path, text in pages(ROOT).items():
            write_text(ROOT / path, text)


if __name__ == "__main__":
    main()
