"""Make the packages `wcapsnet.explain` and `wcapsnet.report` callable as functions of `wcapsnet.api`.

Importing a package binds its name in `wcapsnet`, which would hide a function of the same name.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class Verb(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        api = import_module("wcapsnet.api")
        return getattr(api, self.__name__.rpartition(".")[2])(*arguments, **options)


def callable_package(name: str) -> None:
    """Make the package `wcapsnet.x` callable as `wcapsnet.api.x`."""
    sys.modules[name].__class__ = Verb
