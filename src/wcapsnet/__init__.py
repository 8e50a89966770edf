"""Wasserstein Routed Capsule Networks (Fuchs & Pernkopf, 2020)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from . import explain
    from .classifier import Classifier, Prediction
    from .errors import InputError
    from .models import create, load
    from .network import Level, Output, Routing, RoutingConfig, WCapsNet, WCapsNetConfig

_PLACES = {
    "Classifier": "classifier",
    "InputError": "errors",
    "Level": "network",
    "Output": "network",
    "Prediction": "classifier",
    "Routing": "network",
    "RoutingConfig": "network",
    "WCapsNet": "network",
    "WCapsNetConfig": "network",
    "create": "models",
    "load": "models",
}
__all__ = [
    "Classifier",
    "InputError",
    "Level",
    "Output",
    "Prediction",
    "Routing",
    "RoutingConfig",
    "WCapsNet",
    "WCapsNetConfig",
    "create",
    "explain",
    "load",
]


def __getattr__(name: str) -> Any:
    """The public names, fetched when asked for: the command line has something to settle before torch is loaded."""
    if name == "explain":
        return import_module(".explain", __name__)
    if name not in _PLACES:
        raise AttributeError(f"module 'wcapsnet' has no attribute {name!r}")
    return getattr(import_module(f".{_PLACES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
