"""Tables II to IV: each row is a recipe with one or two values replaced."""

from __future__ import annotations

from ..errors import InputError
from ..experiment import Experiment
from ..settings import flat, to_dict, with_setting
from .published import PAPER_TABLES

# Every row as changes to the reference row, which is the unmodified network.
Row = tuple[str, ...]
WEIGHTING_TABLE: dict[str, Row] = {  # Table II
    "softmax": (),
    "normalized": ("model.routing.weighting=normalized",),
}
NONLINEARITY_TABLE: dict[str, Row] = {  # Table III
    "squash": ("model.nonlinearity=squash",),
    "tilt": (),
}
_WITHOUT_CRITICS = ("objective.wasserstein=0", "model.routing.noise_share=0")  # else Uniform is not uniform
ROUTING_TABLE: dict[str, Row] = {  # Table IV
    "WS+CE": (),
    "WS": ("model.routing.stop_gradient=true",),
    "CE": ("objective.wasserstein=0",),
    "Random": ("model.routing.fitness=random", "model.routing.weighting=normalized", *_WITHOUT_CRITICS),
    "Uniform": ("model.routing.fitness=constant", *_WITHOUT_CRITICS),
}


def variant(experiment: Experiment, row: Row, name: str) -> Experiment:
    for setting in (*row, f"name={name}"):
        experiment = with_setting(experiment, setting)
    return experiment


TABLES = {"weighting": WEIGHTING_TABLE, "nonlinearity": NONLINEARITY_TABLE, "routing": ROUTING_TABLE}

NUMERALS = {"II": "weighting", "III": "nonlinearity", "IV": "routing"}
TABLE_OF = {row.lower(): numeral for numeral, name in NUMERALS.items() for row in TABLES[name]}


def rows_of(table: str, experiment: Experiment) -> dict[str, Experiment]:
    """Every row of a table for this experiment, which is the reference row."""
    rows, numeral = TABLES[table], next(numeral for numeral, name in NUMERALS.items() if name == table)
    for field, holds, needed in _needed(experiment)[table]:
        if not holds:
            raise InputError(
                f"{experiment.name} cannot be the row {PAPER_TABLES[numeral].reference} of Table {numeral}: {field} is "
                f"{str(flat(to_dict(experiment))[field]).lower()}, but it must be {needed}."
            )
    return {row: variant(experiment, settings, f"{experiment.name}-{row.lower()}") for row, settings in rows.items()}


def _needed(experiment: Experiment) -> dict[str, list[tuple[str, bool, str]]]:
    """Requirements for the reference row of each table: a field, whether it is satisfied, and the required value"""
    routing, loss = experiment.model.routing, experiment.objective.get("wasserstein", 0.0)
    return {
        "weighting": [
            ("model.routing.weighting", routing.weighting == "softmax", "softmax"),
            ("model.routing.fitness", routing.fitness != "constant", "critic, joint or random"),
        ],
        "nonlinearity": [("model.nonlinearity", experiment.model.nonlinearity == "tilt", "tilt")],
        "routing": [
            ("model.routing.fitness", routing.fitness == "critic", "critic"),
            ("model.routing.stop_gradient", not routing.stop_gradient, "false"),
            ("objective.wasserstein", loss > 0, "above zero"),
        ],
    }


# Rows that differ from the paper's network, by the names of their recipes: cifar10-squash, mnist-uniform, …
ROWS = {name.lower(): settings for table in TABLES.values() for name, settings in table.items() if settings}
# The paper's results for them, in % on the test set.
PAPER_FIGURES = {
    row.lower(): figures
    for numeral in NUMERALS
    for row, figures in PAPER_TABLES[numeral].rows.items()
    if row.lower() in ROWS
}
