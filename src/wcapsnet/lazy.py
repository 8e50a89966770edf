"""Packages that import their public names on first use: not every command needs torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy(package: str, places: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package. `places` maps its modules to the names they define."""
    module_of = {name: module for module, names in places.items() for name in names}

    def find(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f".{module_of[name]}", package), name)

    return find
