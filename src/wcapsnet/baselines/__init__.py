"""What WCapsNet is compared with: each network in its own paper's words, with the same verbs."""

from .densenet import DenseNet, DenseNetConfig

__all__ = ["DenseNet", "DenseNetConfig"]
