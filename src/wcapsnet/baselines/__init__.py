"""The other systems of Table V, each written from the facts its paper gives, with the interface of WCapsNet."""

from . import augmentations  # noqa: F401 - registers them
from .attention_routing import AttentionRouting, AttentionRoutingConfig
from .capsnet import CapsNet, CapsNetConfig
from .deepcaps import DeepCaps, DeepCapsConfig
from .densenet import DenseNet, DenseNetConfig
from .efficient_capsnet import EfficientCapsNet, EfficientCapsNetConfig
from .resnet import ResNet, ResNetConfig
from .sr_capsnet import SRCapsNet, SRCapsNetConfig
from .vgg import VGG, VGGConfig

__all__ = [
    "VGG",
    "AttentionRouting",
    "AttentionRoutingConfig",
    "CapsNet",
    "CapsNetConfig",
    "DeepCaps",
    "DeepCapsConfig",
    "DenseNet",
    "DenseNetConfig",
    "EfficientCapsNet",
    "EfficientCapsNetConfig",
    "ResNet",
    "ResNetConfig",
    "SRCapsNet",
    "SRCapsNetConfig",
    "VGGConfig",
]
