"""What the command line does, from Python: train, sweep, evaluate, predict, explain, report, compare, export."""

from typing import TYPE_CHECKING

from ..lazy import lazy

if TYPE_CHECKING:
    from ..bench.compare import Comparison
    from .comparing import compare
    from .experiments import experiment_for
    from .explaining import DatasetExplanation, explain
    from .exporting import Exported, export
    from .options import ExperimentOptions
    from .prediction import evaluate, predict
    from .reporting import report
    from .sweeping import sweep
    from .training import Trained, train

__all__ = [
    "Comparison",
    "DatasetExplanation",
    "ExperimentOptions",
    "Exported",
    "Trained",
    "compare",
    "evaluate",
    "experiment_for",
    "explain",
    "export",
    "predict",
    "report",
    "sweep",
    "train",
]


__getattr__ = lazy(
    __name__,
    {
        "comparing": ["Comparison", "compare"],
        "experiments": ["experiment_for"],
        "explaining": ["DatasetExplanation", "explain"],
        "exporting": ["Exported", "export"],
        "options": ["ExperimentOptions"],
        "prediction": ["evaluate", "predict"],
        "reporting": ["report"],
        "sweeping": ["sweep"],
        "training": ["Trained", "train"],
    },
)
