"""The command that repeats an experiment."""

from __future__ import annotations

import json
import shlex
from typing import Any

from ..experiment import Experiment
from ..settings import to_dict
from . import RECIPES

OPTIONS = {
    "training.seed": "--seed",
    "training.precision": "--precision",
    "training.kernels": "--kernels",
    "start.source": "--from",
}
OWN = ("name", "start.checksum")  # of every run or file
AMOUNTS = ("objective.", "data.augment.")  # a recipe may have some that the experiment has not


def rebuild(experiment: Experiment) -> str:
    """The command that repeats a training run: the closest recipe, and the differences."""
    asked = _leaves(to_dict(experiment))

    def differences(name: str) -> dict[str, Any]:
        has = _leaves(to_dict(RECIPES[name]()))
        always = {field: asked[field] for field in ("training.seed", "training.precision")}
        changed = {field: value for field, value in asked.items() if has.get(field) != value and field not in OWN}
        left_out = dict.fromkeys(field for field in has if field not in asked and field.startswith(AMOUNTS))
        return {**always, **changed, **left_out}

    name = min(RECIPES, key=lambda name: len(differences(name)))
    words = ["wcapsnet", "train", name]
    for field, value in differences(name).items():
        words += [OPTIONS[field], str(value)] if field in OPTIONS else ["--set", f"{field}={_typed(value)}"]
    return shlex.join(words)


def _leaves(content: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Fields by their full names; a list counts as one value, because its length may differ."""
    found: dict[str, Any] = {}
    for key, value in content.items():
        found |= _leaves(value, f"{path}{key}.") if isinstance(value, dict) else {f"{path}{key}": value}
    return found


def _typed(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
