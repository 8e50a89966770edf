"""Experiments as functions. No computation happens here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..errors import InputError
from ..experiment import Experiment
from ..parts import recipe as recipes
from ..parts import suggestion
from . import paper, quick
from .ablations import ROWS, variant
from .deciding import DECIDING
from .plus import PLUS, PLUS_ROWS
from .published import SYSTEMS
from .table_v import TABLE_V

__all__ = [
    "ABLATIONS",
    "PAPER",
    "PLUS",
    "PLUS_ROWS",
    "RECIPES",
    "RECORDED",
    "ROWS",
    "SMALL",
    "TABLE_V",
    "recipe",
    "suggest",
]

PAPER: dict[str, Callable[[], Experiment]] = {
    "mnist": paper.mnist,
    "fashion-mnist": paper.fashion_mnist,
    "cifar10": paper.cifar10,
    "cifar100": paper.cifar100,
    "svhn": paper.svhn,
}
SMALL: dict[str, Callable[[], Experiment]] = {
    "quick": quick.quick,
    "demo": quick.demo,
    "small-cifar100": quick.small_cifar100,
    **DECIDING,
}


def _ablation(dataset: str, row: str) -> Experiment:
    return variant(PAPER[dataset](), ROWS[row], f"{dataset}-{row}")


ABLATIONS = {f"{dataset}-{row}": partial(_ablation, dataset, row) for dataset in PAPER for row in ROWS}
# The recipes whose full-length runs are kept in results/, by dataset and row
RECORDED: dict[tuple[str, str], Callable[[], Experiment]] = {
    **{(dataset, "wcapsnet"): base for dataset, base in PAPER.items()},
    **{(dataset, row): ABLATIONS[f"{dataset}-{row}"] for dataset in PAPER for row in ROWS},
    **{
        (dataset, row): TABLE_V[f"{row}-{dataset}"]
        for dataset in PAPER
        for row in SYSTEMS
        if f"{row}-{dataset}" in TABLE_V
    },
    **{
        (dataset, row): PLUS[f"{dataset}-{ending}"]
        for dataset in PAPER
        for row, (ending, _) in PLUS_ROWS.items()
        if f"{dataset}-{ending}" in PLUS
    },
}
for _name, _function in {**PAPER, **SMALL, **PLUS, **ABLATIONS, **TABLE_V}.items():
    recipes(_name)(_function)
RECIPES = recipes


def suggest(name: str) -> str:
    """The closest recipe, or all recipes without ablations and other systems."""
    near = suggestion(name, RECIPES)
    return near if "did you mean" in near else suggestion(name, [*PAPER, *SMALL])


def recipe(name: str) -> Experiment:
    if name not in RECIPES:
        raise InputError(f"There is no recipe {name!r}{suggest(name)}")
    return RECIPES[name]()
