"""Experiments as functions. Nothing here computes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..errors import InputError
from ..experiment import Experiment
from ..settings import suggestion
from . import paper, quick
from .ablations import ROWS, RoutingVariant

__all__ = ["ABLATIONS", "PAPER", "RECIPES", "ROWS", "SMALL", "recipe"]

PAPER: dict[str, Callable[[], Experiment]] = {
    "mnist": paper.mnist,
    "fashion-mnist": paper.fashion_mnist,
    "cifar10": paper.cifar10,
    "cifar100": paper.cifar100,
    "svhn": paper.svhn,
}
SMALL: dict[str, Callable[[], Experiment]] = {"quick": quick.quick, "demo": quick.demo}


def _ablation(base: Callable[[], Experiment], variant: RoutingVariant, name: str) -> Experiment:
    return variant.apply(base(), name)


ABLATIONS: dict[str, Callable[[], Experiment]] = {
    f"{dataset}-{row}": partial(_ablation, base, variant, f"{dataset}-{row}")
    for dataset, base in PAPER.items()
    for row, variant in ROWS.items()
}
RECIPES = {**PAPER, **SMALL, **ABLATIONS}


def recipe(name: str) -> Experiment:
    if name not in RECIPES:
        raise InputError(f"There is no recipe {name!r}{suggestion(name, RECIPES)}.")
    return RECIPES[name]()
