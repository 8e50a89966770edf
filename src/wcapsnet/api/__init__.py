"""What the command line does, from Python: train, sweep, evaluate, predict, explain, report, export."""

from .experiments import ExperimentOptions, experiment_for
from .explaining import DatasetExplanation, explain
from .exporting import Exported, export
from .prediction import evaluate, predict
from .reporting import report
from .sweeping import sweep
from .training import Trained, train

__all__ = [
    "DatasetExplanation",
    "ExperimentOptions",
    "Exported",
    "Trained",
    "evaluate",
    "experiment_for",
    "explain",
    "export",
    "predict",
    "report",
    "sweep",
    "train",
]
