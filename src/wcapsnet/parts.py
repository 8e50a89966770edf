"""The registry of all parts, by kind and name.

    @weighting("sparsemax")
    def sparsemax_weights(a: Tensor) -> Tensor: ...

After that, `--set model.routing.weighting=sparsemax` works in every command. Put your own parts in a file that is
imported or loaded with `--plugin my_routing.py`; the run records that file and its hash.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from .errors import InputError, shown

Part = TypeVar("Part")


class Kind(dict[str, Any]):
    """All parts of one kind. Calling it registers a part; looking up an unknown name raises an `InputError`."""

    every: list[Kind] = []  # noqa: RUF012 - shared by design

    def __init__(self, name: str, field: str = ""):
        self.name, self.field = name, field  # the experiment field that names one or more such parts
        self.every.append(self)

    def __call__(self, name: str) -> Callable[[Part], Part]:
        def register(part: Part) -> Part:
            known = self.get(name)
            if known is not None and _defined_at(known) != _defined_at(part):
                raise InputError(
                    f"There is already a {self.name} {name!r} ({_defined_at(known)}); choose another name."
                )
            self[name] = part
            return part

        return register

    def __missing__(self, name: str) -> Any:
        raise InputError(f"There is no {self.name} {shown(name)}{suggestion(name, self)}")

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and super().__contains__(name)

    def name_of(self, part: Any) -> str:
        """The name under which a part was registered."""
        return next((name for name, known in self.items() if known is part), getattr(part, "__name__", "?"))


weighting = Kind("weighting", "model.routing.weighting")  # a (m, n, …) → b, which sums to 1 over capsules; or a module
fitness = Kind("fitness", "model.routing.fitness")  # (config, level, size, last) → module: c (m, n, k, i, j) → a
nonlinearity = Kind("non-linearity", "model.nonlinearity")  # (m, n, k, i, j) → the same shape
loss_term = Kind("loss term", "objective")  # (output, images, labels) → a number
augmentation = Kind("augmentation", "data.augment")  # (images, amount) → images, or Mixed (data/augment.py)
model = Kind("model")  # (classes, channels, height, width) → a configuration
architecture = Kind("architecture", "model.architecture")  # the type of that configuration; its `build()` → the network
dataset = Kind("dataset", "data.source")  # a DatasetInfo (data/datasets.py)
recipe = Kind("recipe")  # () → Experiment


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of an error message about an unknown name: the closest known name, or all of them."""
    known = list(known)
    written = {word.lower(): word for word in known}
    near = difflib.get_close_matches(name.lower(), written, 1, 0.5)
    return f"; did you mean {written[near[0]]!r}?" if near else f"; choose one of {', '.join(known)}."


def definition(part: Any) -> Any:
    """The function or class that defines a part; for a dataset, its reader"""
    part = inspect.unwrap(getattr(part, "read", part))
    return part.func if isinstance(part, functools.partial) else part


def _defined_at(part: Any) -> str:
    part = definition(part)
    return f"{getattr(part, '__qualname__', part)} in {getattr(part, '__module__', '?')}"
