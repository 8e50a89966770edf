"""Candidates for `wcapsnet-plus` (D41), most promising first, and their results on validation images.

    python tools/campaign.py plus-search --out runs/plus-search --data-dir data     train, several at a time; resumable
    python tools/plus_search.py runs/plus-search                                    validation accuracies, best first
    python tools/plus_search.py runs/plus-search --routing --data-dir data          also how much routing matters
    python tools/plus_search.py runs/plus-search --keep                             records in results/plus-search

Every candidate is `cifar10-plus` with some settings changed, for EPOCHS epochs: 2.7 million images, one to two minutes
per run on an H200. With one seed and 5,000 images, differences below 0.7 points are noise, so repeat the best with
other seeds (`campaign.py plus-search-NAME:1,2`). --routing predicts the validation images again with the mean weights
and with another image's weights, and measures the information about the class (D29). --keep leaves out test results.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import wcapsnet
from records import environment_of, history_of, rounded, write_record
from wcapsnet.cli.exit import in_a_sentence
from wcapsnet.errors import InputError
from wcapsnet.experiment import Experiment
from wcapsnet.models import parameter_count
from wcapsnet.recipes import recipe
from wcapsnet.recipes.ablations import variant
from wcapsnet.reports.tables import markdown_table
from wcapsnet.training.run_folder import Run

RECORDS = Path(__file__).parents[1] / "results/plus-search"
EPOCHS = 60
PREFIX = "plus-search"

_EQUAL = ("model.routing.fitness=constant", "objective.centred_wasserstein=null")
_DEEPER = "model.routing.sharpness=[1,1,3,5]"
_SINGLE = ("model.routing.per_position=true", "model.routing.sharpness=[6]")
_NO_WS = "objective.centred_wasserstein=null"


def _levels(*rows: tuple[int, int, int, int]) -> str:
    names = ("capsules", "growth", "dimension", "stride")
    return "model.levels=" + json.dumps([dict(zip(names, row, strict=True)) for row in rows])


SETTINGS: dict[str, tuple[str, ...]] = {
    # the recipe, equal weights, and routing that depends more on the image
    "recipe": (),
    "uniform": _EQUAL,
    "position-class-information": (*_SINGLE, _NO_WS, "objective.class_information=0.3"),
    "class-information": ("model.routing.sharpness=[1,1,8,1]", _NO_WS, "objective.class_information=0.3"),
    "position": (*_SINGLE, _NO_WS),
    "joint": (
        *_SINGLE,
        _NO_WS,
        "model.routing.fitness=joint",
        "model.critic_channels=32",
        f"training.sharpening={EPOCHS}",
    ),
    "deeper-sharper": (_DEEPER,),
    "position-centred": _SINGLE,
    "deeper-sharper-information": (_DEEPER, "objective.information=0.1"),
    "position-information": (*_SINGLE, _NO_WS, "objective.information=0.1"),
    "growing": ("model.routing.sharpness=[5]", "training.sharpening=30"),
    # networks that have at most 1.0M parameters if critics of 8 channels are added
    "uniform-wider-first": (*_EQUAL, _levels((2, 32, 48, 1), (2, 16, 64, 2), (2, 16, 80, 2), (2, 8, 64, 1))),
    "uniform-wide-first-two": (*_EQUAL, _levels((2, 24, 48, 1), (2, 24, 64, 2), (2, 16, 64, 2), (2, 8, 64, 1))),
    "uniform-three-blocks": (*_EQUAL, _levels((3, 16, 48, 1), (3, 16, 64, 2), (2, 16, 80, 2), (2, 8, 64, 1))),
    # training
    "uniform-cutmix-always": (*_EQUAL, "data.augment.cutmix=1"),
    "uniform-without-cutmix": (*_EQUAL, "data.augment.cutmix=null"),
    "uniform-lr-0.2": (*_EQUAL, "training.lr=0.2"),
    "uniform-decay-1e-3": (*_EQUAL, "training.weight_decay=1e-3"),
    "uniform-without-smoothing": (*_EQUAL, "objective.label_smoothing=null"),
    "uniform-without-decoding": (*_EQUAL, "objective.reconstruction=null"),
    "uniform-without-average": (*_EQUAL, "training.averaging=0"),
    # more routing
    "sharp": ("model.routing.sharpness=[5]",),
    "sharp-information": ("model.routing.sharpness=[5]", "objective.information=0.1"),
    "deeper-sharper-without-cutmix": (_DEEPER, "data.augment.cutmix=null"),
    "deeper-sharper-information-alone": (_DEEPER, _NO_WS, "objective.information=0.3"),
    "position-sharper": ("model.routing.per_position=true", "model.routing.sharpness=[12]", _NO_WS),
}


def _candidate(name: str) -> Experiment:
    one = recipe("cifar10-plus")
    one = replace(one, training=one.training.with_epochs(EPOCHS))
    return variant(one, SETTINGS[name], f"{PREFIX}-{name}")


CANDIDATES = {f"{PREFIX}-{name}": partial(_candidate, name) for name in SETTINGS}


def facts(run: Run) -> dict[str, Any]:
    """From the epochs so far; the best epoch is the one that the run keeps"""
    metrics = run.metrics()
    best = next((one for one in reversed(metrics) if one["best"]), None)
    return {
        "run": run.path.name,
        "epochs": f"{len(metrics)}/{run.experiment.training.epochs}",
        "parameters": f"{parameter_count(run.experiment.model) / 1000:.0f}k",
        "validation": 100 * best["validation_accuracy"] if best else float("nan"),
        "training": 100 * metrics[-1]["train_accuracy"] if best else float("nan"),
        "images/s": metrics[-1]["images_per_s"] if best else float("nan"),
    }


def routing_facts(run: Run, data_dir: Path | None, images: int | None) -> dict[str, float]:
    """On validation images: the change in accuracy with other weights, and the information of each level"""
    inside = wcapsnet.explain(run.path, split="validation", images=images, data_dir=data_dir, quiet=True)
    found = {}
    if run.experiment.model.routing.fitness != "constant":
        rerouted = inside.rerouted()
        for kind in ("mean", "other"):
            found[kind] = 100 * rerouted.difference(rerouted.by[kind][0])[0]
    for level in inside.specialization.levels:
        found[f"I{level.level + 1}"] = level.information.value
    return found


def keep(run: Run, routing: dict[str, float]) -> None:
    """Write the record of a finished run, with validation results only"""
    experiment, metrics = run.experiment, history_of(run)
    best = next(one for one in reversed(metrics) if one["best"])
    validation = {"epoch": best["epoch"], "accuracy": best["validation_accuracy"], **rounded(routing)}
    parts = {"experiment": run.facts("experiment"), "environment": environment_of(run), "validation": validation}
    name = experiment.name.removeprefix(f"{PREFIX}-")
    write_record(RECORDS / name / f"seed={experiment.training.seed}.json", parts, metrics)


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown, best validation accuracy first"""
    rows = sorted(rows, key=lambda row: -row["validation"] if row["validation"] == row["validation"] else 0.0)
    columns = list(dict.fromkeys(name for row in rows for name in row))

    def cell(value: Any) -> str:
        return "" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)

    return markdown_table([columns, *([cell(row.get(name)) for name in columns] for row in rows)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--routing", action="store_true", help="also measure how much the routing matters")
    parser.add_argument("--images", type=int, help="validation images for --routing (default: all)")
    parser.add_argument("--keep", action="store_true", help="write the record of every finished run")
    parser.add_argument("--data-dir", type=Path)
    asked = parser.parse_args()
    with in_a_sentence():
        runs = [Run.open(path.parent) for path in sorted(asked.folder.glob("[!.]*/experiment.json"))]
        if not runs:
            raise InputError(f"There are no runs in {asked.folder}.")
        rows = []
        for run in runs:
            routed = asked.routing and run.metrics() and hasattr(run.experiment.model, "routing")
            routing = routing_facts(run, asked.data_dir, asked.images) if routed else {}
            rows.append(facts(run) | routing)
            if asked.keep and len(run.metrics()) == run.experiment.training.epochs:
                keep(run, routing)
        print(table(rows), end="")


if __name__ == "__main__":
    main()
