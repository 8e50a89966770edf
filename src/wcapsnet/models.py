"""Untrained networks by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from threading import Lock, get_ident
from typing import Any

import torch
from torch import nn

from . import baselines  # noqa: F401 - registers them
from .errors import InputError
from .memory import built
from .network import CIFAR10_LEVELS, CIFAR100_LEVELS, Level, RoutingConfig, WCapsNetConfig
from .parts import model
from .settings import model_from_dict, to_dict

QUICK_LEVELS = (Level(4, 8, 8, 2), Level(4, 8, 16, 2), Level(2, 8, 8, 1))
SMALL_LEVELS = (Level(2, 16, 64, 2), Level(2, 32, 128, 2))
PLUS_LEVELS = (Level(2, 24, 48, 1), Level(2, 16, 64, 2), Level(2, 16, 96, 2), Level(2, 8, 64, 1))
_PATCHING = Lock()


@model("wcapsnet")
def paper_config(classes: int, channels: int, height: int, width: int) -> WCapsNetConfig:
    """The paper's network (Table I): its CIFAR-10 column for up to ten classes, its CIFAR-100 column for more."""
    levels = CIFAR10_LEVELS if classes <= 10 else CIFAR100_LEVELS
    return WCapsNetConfig(classes, channels, height, width, levels)


@model("wcapsnet-quick")
def quick_config(classes: int, channels: int, height: int, width: int) -> WCapsNetConfig:
    """A smaller version for CPUs: three levels, half the dense layers, the same routing."""
    levels = QUICK_LEVELS if classes <= 10 else (*QUICK_LEVELS[:2], Level(2, 8, 24, 1))
    shape = (classes, channels, height, width)
    return WCapsNetConfig(*shape, levels, init_channels=8, dense_layers=3, critic_channels=16)


# No noise, dropout or extra class; smaller critics.
PLAIN: dict[str, Any] = {
    "routing": RoutingConfig(noise_share=0.0, dropout=0.0),
    "critic_channels": 16,
    "critic_dropout": 0.0,
    "projection_dropout": 0.0,
    "extra_class": False,
}


@model("wcapsnet-small")
def small_config(classes: int, channels: int, height: int, width: int) -> WCapsNetConfig:
    """For folders of pictures on a CPU: four convolutions, then two levels of two blocks; max pooling, no dropout or
    noise, no extra class. Channels in multiples of 16, which CPUs compute fastest."""
    layers = {"init_channels": 16, "stem": (16, 32, 32), "dense_layers": 2, "max_pooling": True}
    small = {**PLAIN, **layers, "decoder_channels": (8, 8)}
    return WCapsNetConfig(classes, channels, height, width, SMALL_LEVELS, **small)


@model("wcapsnet-plus")
def plus_config(classes: int, channels: int, height: int, width: int) -> WCapsNetConfig:
    """Not in the paper: the first level at full resolution, two wide blocks per level, smaller critics and decoder; no
    dropout, noise or extra class."""  # D41
    return WCapsNetConfig(classes, channels, height, width, PLUS_LEVELS, decoder_channels=(8, 16), **PLAIN)


def model_config(name: str, classes: int, channels: int, height: int, width: int) -> Any:
    return model[name](classes, channels, height, width)


def create(
    name: str = "wcapsnet", *, classes: int = 10, channels: int = 3, size: int | tuple[int, int] = 32, **fields: Any
) -> Any:
    """An untrained network. `size` is a side or (height, width); `fields` are fields of the model's configuration."""
    height, width = _sides(size)
    config = to_dict(model_config(name, classes, channels, height, width))
    return built(model_from_dict({**config, **{name: to_dict(value) for name, value in fields.items()}}))


@contextmanager
def uninitialised() -> Iterator[None]:
    """Networks that this thread builds in this context are not initialised, for use where only shapes matter.

    Saves the time of `torch.nn.init`, which is most of it, and leaves the random numbers alone. The meta device would
    do the same, but takes seconds to import.
    """
    known, thread = {name: getattr(nn.init, name) for name in nn.init.__all__ if name.endswith("_")}, get_ident()

    def unless_here(initialise: Any) -> Any:
        def skip(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            filled: torch.Tensor = tensor if get_ident() == thread else initialise(tensor, *args, **kwargs)
            return filled

        return skip

    with _PATCHING, torch.random.fork_rng(devices=[]):
        for name, initialise in known.items():
            setattr(nn.init, name, unless_here(initialise))
        try:
            yield
        finally:
            for name, initialise in known.items():
                setattr(nn.init, name, initialise)


@lru_cache(maxsize=256)
def parameter_count(config: Any) -> int:
    """The number of parameters of a network

    >>> parameter_count(model_config("densenet-bc-100", classes=10, channels=3, height=32, width=32))
    769162
    """
    with uninitialised():
        return sum(p.numel() for p in config.build().parameters())


def _sides(size: object) -> tuple[int, int]:
    sides = (size, size) if isinstance(size, int) else size
    if not isinstance(sides, (tuple, list)) or len(sides) != 2 or not all(isinstance(side, int) for side in sides):
        raise InputError(f"size must be a side such as 32 or (height, width) such as (32, 64), not {size!r}.")
    return sides[0], sides[1]


def list_models() -> dict[str, str]:
    """The names of all models, each with a one-line description.

    >>> "wcapsnet" in list_models()
    True
    """
    return {name: " ".join((function.__doc__ or "").split()) for name, function in model.items()}
