"""Refuse a network that cannot fit into memory before it is built: the system would end the process without a word.

The estimates are lower bounds, so nothing that could run is refused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from .errors import InputError
from .host_memory import free
from .settings import flat, to_dict

MAX_TENSORS = 200_000  # a network of more takes minutes to build and never ends a step
LARGE = 2**28  # bytes; up to here, building is as fast as counting
FLOAT = 4  # bytes
MARGIN = 1.25  # the measured peak of a training step on CPUs is 1.9 to 4.4 times the activations kept
CPU = torch.device("cpu")


class _TooLarge(Exception):
    """The parameters need at least this many bytes."""


def available(device: torch.device) -> float:
    """Free memory in bytes, counting what other programs would give back; infinity if unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    return free()


def built(config: Any, copies: int = 1) -> Any:
    """`config.build()`, refused if `copies` of the parameters do not fit into memory."""
    memory, random = available(CPU), torch.get_rng_state()
    try:
        try:
            return _counted(config, min(LARGE, memory / copies))
        except _TooLarge:  # count first, on a device that only knows shapes
            try:
                with torch.device("meta"):
                    _counted(config, memory / copies)
            except RuntimeError as error:
                if _beyond_numbers(error):
                    raise
                # Otherwise a plugin that cannot be built there.
            torch.set_rng_state(random)
            return _counted(config, memory / copies)
    except _TooLarge as error:
        raise _refused(config, error.args[0] * copies, memory) from None
    except (RuntimeError, TypeError, OverflowError) as error:
        if not _beyond_numbers(error):
            raise
        raise _refused(config, None, memory) from error


def _beyond_numbers(error: Exception) -> bool:
    """Whether PyTorch could not allocate a tensor, or count its elements."""
    return any(words in str(error).lower() for words in ("overflow", "allocate memory", "too large"))


def check_training(config: Any, device: torch.device, batch_size: int, evaluated: int, scale: float = 1.0) -> None:
    """Refuse a network whose activations do not fit into memory, for a training batch and for `evaluated` images at a
    time. An architecture states them by a method `activations` (see `WCapsNetConfig`); one without is not checked.
    `scale`: the share of them that is kept, below 1 for half precision or fused kernels."""
    if not hasattr(config, "activations"):
        return
    kept, working = config.activations()
    needed = FLOAT * scale * max(MARGIN * kept * batch_size, working * evaluated)
    if needed > (memory := available(device)):
        raise _refused(config, needed, memory, batch_size)


def _counted(config: Any, memory: float) -> Any:
    """`config.build()`, stopped as soon as the parameters exceed `memory`. They register before they are initialised,
    so that nothing is written to the memory of the one that is too large."""
    total = tensors = 0

    def count(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal total, tensors
        if parameter is not None:
            total, tensors = total + parameter.nbytes, tensors + 1
        if total > memory or tensors > MAX_TENSORS:
            raise _TooLarge(total)

    hook = register_module_parameter_registration_hook(count)
    try:
        return config.build()
    finally:
        hook.remove()


def _refused(config: Any, needed: float | None, memory: float, batch_size: int = 1) -> InputError:
    """A sentence that names the field that is most out of proportion, compared with the default configuration."""
    try:
        default = flat(to_dict(type(config)()), "model")
    except TypeError:  # it has no defaults
        default = {}
    usual: dict[str, int] = {}  # a list may be longer than by default: compare with its largest default
    for field, value in default.items():
        if type(value) is int:
            usual[_anywhere(field)] = max(value, usual.get(_anywhere(field), 1))
    sizes = {field: value for field, value in flat(to_dict(config), "model").items() if type(value) is int}
    sizes["training.batch_size"], usual["training.batch_size"] = batch_size, 64
    field = max(sizes, key=lambda name: sizes[name] / usual.get(_anywhere(name), 1))
    needs = "far more than that" if needed is None else f"at least {_size(needed)}"
    verb = "gives batches of" if field == "training.batch_size" else "is"  # no larger than the training set
    return InputError(
        f"{_size(memory)} of memory is available, but the network needs {needs}; {field} {verb} {sizes[field]}: make "
        "it smaller."
    )


def _anywhere(field: str) -> str:
    """model.levels.3.growth → model.levels.growth"""
    return ".".join(word for word in field.split(".") if not word.isdecimal())


def _size(amount: float) -> str:
    return f"{amount / 2**30:,.3g} GiB" if amount < 1e15 else f"{amount:.0e} bytes"
