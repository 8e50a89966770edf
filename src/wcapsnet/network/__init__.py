"""Sections III and IV of the paper."""

from ..limits import MIN_SIDE
from .decoder import BestCapsule
from .routing import Routing
from .wcapsnet import (
    CIFAR10_LEVELS,
    CIFAR100_LEVELS,
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
