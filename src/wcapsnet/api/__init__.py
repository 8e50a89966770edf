"""What the command line does, from Python: train, sweep, evaluate, predict, explain, report, compare."""

from ..bench.compare import Comparison
from .comparing import compare
from .experiments import ExperimentOptions, experiment_for
from .explaining import DatasetExplanation, explain
from .prediction import evaluate, predict
from .reporting import report
from .sweeping import sweep
from .training import Trained, train

__all__ = [
    "Comparison",
    "DatasetExplanation",
    "ExperimentOptions",
    "Trained",
    "compare",
    "evaluate",
    "experiment_for",
    "explain",
    "predict",
    "report",
    "sweep",
    "train",
]
