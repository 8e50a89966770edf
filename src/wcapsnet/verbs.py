"""`wcapsnet.explain` and `wcapsnet.report` are packages and, when called, functions of `wcapsnet.api`.

Once a package is imported, Python binds its name in `wcapsnet`, where a function of that name would be hidden.
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
    """Make the package `wcapsnet.x` answer to calls as `wcapsnet.api.x` does."""
    sys.modules[name].__class__ = Verb
