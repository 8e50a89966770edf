"""Wasserstein Routed Capsule Networks (Fuchs & Pernkopf, 2020)."""

from typing import TYPE_CHECKING

from .lazy import lazy

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .api import Comparison, Exported, Trained, compare, evaluate, explain, export, predict, report, sweep, train
    from .classifier import Classifier
    from .errors import InputError
    from .experiment import Experiment
    from .hub import load
    from .models import create, list_models
    from .network import Level, Output, Routing, RoutingConfig, WCapsNet, WCapsNetConfig
    from .plugins import load_plugin
    from .prediction import Prediction

__all__ = [
    "Classifier",
    "Comparison",
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
    "compare",
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


__getattr__ = lazy(
    __name__,
    {
        "api": [
            *("Comparison", "Exported", "Trained"),
            *("compare", "evaluate", "explain", "export", "predict", "report", "sweep", "train"),
        ],
        "classifier": ["Classifier"],
        "errors": ["InputError"],
        "experiment": ["Experiment"],
        "hub": ["load"],
        "models": ["create", "list_models"],
        "network": ["Level", "Output", "Routing", "RoutingConfig", "WCapsNet", "WCapsNetConfig"],
        "plugins": ["load_plugin"],
        "prediction": ["Prediction"],
    },
)  # the command line must set options before torch is loaded


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
