"""Slow, literal versions of the paper's equations, written from its text: the oracles of the tests.

A twin never folds capsules into channels or samples. It keeps one small module for each capsule, and loops.
"""

from .capsules import LevelTwin, squash_twin, tilt_twin
from .compare import answers, assert_same_gradients, assert_same_state, close
from .critic import BlockCriticTwin, CriticTwin, JointCriticTwin, SpectralConvTwin, VectorCriticTwin
from .decoder import DecoderTwin, best_capsule_twin
from .network import NetworkTwin
from .objective import (
    centred_twin,
    class_information_twin,
    correctness_twin,
    information_twin,
    objective_twin,
    wasserstein_twin,
)
from .routing import normalized_twin, predict_twin, route_twin, softmax_twin
from .tiny import QUIET, quiet, tiny

__all__ = [
    "QUIET",
    "BlockCriticTwin",
    "CriticTwin",
    "DecoderTwin",
    "JointCriticTwin",
    "LevelTwin",
    "NetworkTwin",
    "SpectralConvTwin",
    "VectorCriticTwin",
    "answers",
    "assert_same_gradients",
    "assert_same_state",
    "best_capsule_twin",
    "centred_twin",
    "class_information_twin",
    "close",
    "correctness_twin",
    "information_twin",
    "normalized_twin",
    "objective_twin",
    "predict_twin",
    "quiet",
    "route_twin",
    "softmax_twin",
    "squash_twin",
    "tilt_twin",
    "tiny",
    "wasserstein_twin",
]
