"""Wasserstein Routed Capsule Networks (Fuchs & Pernkopf, 2020)."""

__version__ = "0.1.0"

from .classifier import Classifier, Prediction
from .errors import InputError
from .models import create, load
from .network import Level, Output, Routing, RoutingConfig, WCapsNet, WCapsNetConfig
from .objective import ObjectiveConfig, objective

__all__ = [
    "Classifier",
    "InputError",
    "Level",
    "ObjectiveConfig",
    "Output",
    "Prediction",
    "Routing",
    "RoutingConfig",
    "WCapsNet",
    "WCapsNetConfig",
    "create",
    "load",
    "objective",
]
