"""Parts from outside the package, tried on two images before training starts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..data.augment import Mixed
from ..errors import InputError
from ..experiment import Experiment
from ..network.routing import Router, Routing
from ..network.wcapsnet import Routes, WCapsNet, WCapsNetConfig, judged
from ..parts import augmentation, loss_term
from ..plugins import plugins
from ..settings import to_dict


def check_parts(experiment: Experiment, network: nn.Module, device: torch.device) -> None:
    """Refuse augmentations, critics and loss terms whose results have the wrong type or shape. Does nothing if all
    parts of the experiment come with the package."""
    if not plugins(to_dict(experiment)):
        return
    config: Any = experiment.model
    training = network.training
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        images = torch.rand(2, config.channels, config.height, config.width, device=device)
        for name, amount in experiment.data.augmentations().items():
            _check_images(name, augmentation[name](images.clone(), amount), images)
        critics = {"routes": _checked_critics(network.config)} if isinstance(network, WCapsNet) else {}
        network.eval()
        try:
            output = network(images, **critics)
        finally:
            network.train(training)
        labels = torch.arange(2, device=device) % config.classes
        for name in experiment.objective:
            _check_number(name, loss_term[name](output, images, labels))


def _check_images(name: str, made: Any, images: Tensor) -> None:
    made = made.images if isinstance(made, Mixed) else made
    if not isinstance(made, Tensor) or (made.shape, made.dtype) != (images.shape, images.dtype):
        raise InputError(
            f"The augmentation {name!r} must return images of the shape and type it is given, {_described(images)}, "
            f"not {_described(made)}."
        )


def _checked_critics(config: WCapsNetConfig) -> Routes:
    """The critics' routing, refused if a fitness has the wrong shape"""

    def routes(level: int, router: Router, c: Tensor) -> Routing:
        last = level == len(config.levels) - 1
        expected = (len(c), *judged(config, config.levels[level], config.maps()[level], last))
        a = router.critic(c)
        if not isinstance(a, Tensor) or a.shape != expected:
            raise InputError(
                f"model.routing.fitness is {config.routing.fitness!r}, but in level {level + 1} of "
                f"{len(config.levels)} it turns capsules of shape {tuple(c.shape)} into {_described(a)} "
                f"instead of {expected}."
            )
        return router(c)

    return routes


def _check_number(name: str, value: Any) -> None:
    if not isinstance(value, Tensor) or value.dim():
        raise InputError(
            f"The loss term {name!r} must return a tensor with one number, shape (), not {_described(value)}."
        )


def _described(value: Any) -> str:
    """Shape and type of a tensor, or the type of anything else"""
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    return "nothing" if value is None else type(value).__name__
