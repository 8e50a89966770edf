"""What the command line does, from Python: train, sweep, evaluate, predict, explain, report, export."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .experiments import experiment_for
    from .explaining import DatasetExplanation, explain
    from .exporting import Exported, export
    from .options import ExperimentOptions
    from .prediction import evaluate, predict
    from .reporting import report
    from .sweeping import sweep
    from .training import Trained, train

_PLACES = {
    "DatasetExplanation": "explaining",
    "ExperimentOptions": "options",
    "Exported": "exporting",
    "Trained": "training",
    "evaluate": "prediction",
    "experiment_for": "experiments",
    "explain": "explaining",
    "export": "exporting",
    "predict": "prediction",
    "report": "reporting",
    "sweep": "sweeping",
    "train": "training",
}
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


def __getattr__(name: str) -> Any:
    """Names are imported on first use: not every command needs torch."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_PLACES[name]}", __name__), name)
