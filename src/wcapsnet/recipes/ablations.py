"""Tables II to IV: each row is the paper's recipe with a value or two replaced."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..experiment import Experiment
from .published import PAPER_TABLES


@dataclass(frozen=True)
class RoutingVariant:
    """One row of Table II, III or IV. The defaults are the paper's network."""

    fitness: str = "critic"
    weighting: str = "softmax"
    stop_gradient: bool = False
    lambda_ws: float = 0.2
    noise_share: float = 0.05
    nonlinearity: str = "tilt"

    def apply(self, experiment: Experiment, name: str) -> Experiment:
        routing = replace(
            experiment.model.routing,
            fitness=self.fitness,
            weighting=self.weighting,
            stop_gradient=self.stop_gradient,
            noise_share=self.noise_share,
        )
        return replace(
            experiment,
            name=name,
            model=replace(experiment.model, routing=routing, nonlinearity=self.nonlinearity),
            objective=replace(experiment.objective, lambda_ws=self.lambda_ws),
        )


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
