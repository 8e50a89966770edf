"""Sections III and IV of the paper."""

from .decoder import BestCapsule
from .routing import Routing
from .wcapsnet import (
    CIFAR10_LEVELS,
    CIFAR100_LEVELS,
    MIN_SIDE,
    Level,
    Output,
    RoutingConfig,
    WCapsNet,
    WCapsNetConfig,
)

__all__ = [
    "CIFAR10_LEVELS",
    "CIFAR100_LEVELS",
    "MIN_SIDE",
    "BestCapsule",
    "Level",
    "Output",
    "Routing",
    "RoutingConfig",
    "WCapsNet",
    "WCapsNetConfig",
]
