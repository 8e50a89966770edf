"""Parts from outside the package, tried on two images before training starts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..console import warn
from ..data.augment import Mixed
from ..errors import InputError
from ..experiment import Experiment
from ..network.routing import Router, Routing
from ..network.wcapsnet import Routes, WCapsNet, WCapsNetConfig, judged
from ..parts import augmentation, loss_term, nonlinearity
from ..plugins import plugins
from ..settings import to_dict


def check_parts(experiment: Experiment, network: nn.Module, device: torch.device) -> None:
    """Refuse augmentations, non-linearities, critics and loss terms whose results have the wrong type or shape. Does
    nothing if all parts of the experiment come with the package."""
    if not plugins(to_dict(experiment)):
        return
    config: Any = experiment.model
    training = network.training
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        images = torch.rand(2, config.channels, config.height, config.width, device=device)
        for name, amount in experiment.data.augmentations().items():
            made = augmentation[name](images.clone(), amount)
            _check_same(f"The augmentation {name!r}", made.images if isinstance(made, Mixed) else made, images)
        if isinstance(network, WCapsNet):
            c = torch.rand(2, 3, 4, 5, 5, device=device)  # capsules (m, n, k, i, j)
            name = network.config.nonlinearity
            _check_same(f"The non-linearity {name!r}", nonlinearity[name](c), c)
        critics = {"routes": _checked_critics(network.config)} if isinstance(network, WCapsNet) else {}
        network.eval()
        try:
            output = network(images, **critics)
        finally:
            network.train(training)
        labels = torch.arange(2, device=device) % config.classes
        for name in experiment.objective:
            _check_number(name, loss_term[name](output, images, labels))


def _check_same(part: str, made: Any, given: Tensor) -> None:
    if not isinstance(made, Tensor) or (made.shape, made.dtype) != (given.shape, given.dtype):
        raise InputError(
            f"{part} must return the shape and type it is given, {_described(given)}, not {_described(made)}."
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
    if not value.isfinite():  # only a warning: a term may need more than two images
        warn(f"The loss term {name!r} is {value.item()} for an untrained network and two random images.")


def _described(value: Any) -> str:
    """Shape and type of a tensor, or the type of anything else"""
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    return "nothing" if value is None else type(value).__name__
