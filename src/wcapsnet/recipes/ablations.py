"""Tables II to IV: each row is a recipe with a value or two replaced."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ..errors import InputError
from ..experiment import Experiment
from ..network import RoutingConfig, WCapsNetConfig
from ..objective import ObjectiveConfig
from ..settings import flat, to_dict
from .published import PAPER_TABLES

Config = TypeVar("Config", RoutingConfig, WCapsNetConfig, ObjectiveConfig)


@dataclass(frozen=True)
class RoutingVariant:
    """One row of Table II, III or IV: in what it differs from the reference row, which is the network itself."""

    fitness: str | None = None
    weighting: str | None = None
    stop_gradient: bool | None = None
    lambda_ws: float | None = None
    noise_share: float | None = None
    nonlinearity: str | None = None

    def apply(self, experiment: Experiment, name: str) -> Experiment:
        model, objective = experiment.model, experiment.objective
        routing = self._changed(model.routing, "fitness", "weighting", "stop_gradient", "noise_share")
        model = self._changed(replace(model, routing=routing), "nonlinearity")
        return replace(experiment, name=name, model=model, objective=self._changed(objective, "lambda_ws"))

    def _changed(self, config: Config, *fields: str) -> Config:
        given: dict[str, Any] = {field: getattr(self, field) for field in fields}
        return replace(config, **{field: value for field, value in given.items() if value is not None})


WEIGHTING_TABLE = {  # Table II
    "softmax": RoutingVariant(),
    "normalized": RoutingVariant(weighting="normalized"),
}
NONLINEARITY_TABLE = {  # Table III
    "squash": RoutingVariant(nonlinearity="squash"),
    "tilt": RoutingVariant(),
}
ROUTING_TABLE = {  # Table IV. Noise on weights that nobody learned would make Uniform not uniform.
    "WS+CE": RoutingVariant(),
    "WS": RoutingVariant(stop_gradient=True),
    "CE": RoutingVariant(lambda_ws=0.0),
    "Random": RoutingVariant(fitness="random", weighting="normalized", lambda_ws=0.0, noise_share=0.0),
    "Uniform": RoutingVariant(fitness="constant", lambda_ws=0.0, noise_share=0.0),
}
TABLES = {"weighting": WEIGHTING_TABLE, "nonlinearity": NONLINEARITY_TABLE, "routing": ROUTING_TABLE}

NUMERALS = {"II": "weighting", "III": "nonlinearity", "IV": "routing"}
TABLE_OF = {row.lower(): numeral for numeral, name in NUMERALS.items() for row in TABLES[name]}


def rows_of(table: str, experiment: Experiment) -> dict[str, Experiment]:
    """Every row of a table, asked of this experiment, which is the reference row itself."""
    numeral = next(numeral for numeral, name in NUMERALS.items() if name == table)
    for field, holds, needed in _needed(experiment)[table]:
        if not holds:
            raise InputError(
                f"{experiment.name} cannot be the row {PAPER_TABLES[numeral].reference} of Table {numeral}: {field} is "
                f"{str(flat(to_dict(experiment))[field]).lower()}, and it must be {needed}."
            )
    return {
        row: variant.apply(experiment, f"{experiment.name}-{row.lower()}") for row, variant in TABLES[table].items()
    }


def _needed(experiment: Experiment) -> dict[str, list[tuple[str, bool, str]]]:
    """What the reference row of each table is: a field, whether it is so, and how it must be"""
    routing, loss = experiment.model.routing, experiment.objective.lambda_ws
    return {
        "weighting": [
            ("model.routing.weighting", routing.weighting == "softmax", "softmax"),
            ("model.routing.fitness", routing.fitness != "constant", "critic or random"),
        ],
        "nonlinearity": [("model.nonlinearity", experiment.model.nonlinearity == "tilt", "tilt")],
        "routing": [
            ("model.routing.fitness", routing.fitness == "critic", "critic"),
            ("model.routing.stop_gradient", not routing.stop_gradient, "false"),
            ("objective.lambda_ws", loss > 0, "above zero"),
        ],
    }


# Rows that differ from the paper's network, by the names of their recipes: cifar10-squash, mnist-uniform, …
ROWS = {
    name.lower(): variant for table in TABLES.values() for name, variant in table.items() if variant != RoutingVariant()
}
# What the paper reports for them, in % on the test set.
PAPER_FIGURES = {
    row.lower(): figures
    for numeral in NUMERALS
    for row, figures in PAPER_TABLES[numeral].rows.items()
    if row.lower() in ROWS
}
