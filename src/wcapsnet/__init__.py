"""Wasserstein Routed Capsule Networks (Fuchs & Pernkopf, 2020)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .api import Exported, Trained, evaluate, explain, export, predict, report, sweep, train
    from .classifier import Classifier
    from .errors import InputError
    from .experiment import Experiment
    from .hub import load
    from .models import create, list_models
    from .network import Level, Output, Routing, RoutingConfig, WCapsNet, WCapsNetConfig
    from .plugins import load_plugin
    from .prediction import Prediction

_PLACES = {
    "Classifier": "classifier",
    "Experiment": "experiment",
    "Exported": "api",
    "InputError": "errors",
    "Level": "network",
    "Output": "network",
    "Prediction": "prediction",
    "Routing": "network",
    "RoutingConfig": "network",
    "Trained": "api",
    "WCapsNet": "network",
    "WCapsNetConfig": "network",
    "create": "models",
    "evaluate": "api",
    "explain": "api",
    "export": "api",
    "list_models": "models",
    "load": "hub",
    "load_plugin": "plugins",
    "predict": "api",
    "report": "api",
    "sweep": "api",
    "train": "api",
}
__all__ = [
    "Classifier",
    "Experiment",
    "Exported",
    "InputError",
    "Level",
    "Output",
    "Prediction",
    "Routing",
    "RoutingConfig",
    "Trained",
    "WCapsNet",
    "WCapsNetConfig",
    "create",
    "evaluate",
    "explain",
    "export",
    "list_models",
    "load",
    "load_plugin",
    "predict",
    "report",
    "sweep",
    "train",
]


def __getattr__(name: str) -> Any:
    """The public names, imported on first use: the command line must set options before torch is loaded."""
    if name not in _PLACES:
        raise AttributeError(f"module 'wcapsnet' has no attribute {name!r}")
    return getattr(import_module(f".{_PLACES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
