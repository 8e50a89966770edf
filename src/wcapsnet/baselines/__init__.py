"""Networks to compare WCapsNet with, each as described in its paper, with the same interface."""

from .densenet import DenseNet, DenseNetConfig

__all__ = ["DenseNet", "DenseNetConfig"]
