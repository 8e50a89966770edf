"""The registry: every part that can be exchanged, by kind and name.

    @weighting("sparsemax")
    def sparsemax_weights(a: Tensor) -> Tensor: ...

After that, `--set model.routing.weighting=sparsemax` works in every command. Parts of your own live in a file that is
imported, or loaded by `--plugin my_routing.py`; a run records that file and its hash.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from .errors import InputError

PACKAGE = Path(__file__).resolve().parent
Part = TypeVar("Part")


class UnknownPart(InputError, KeyError):
    """A name that nothing is registered by."""

    def __str__(self) -> str:
        return str(self.args[0])


class Plugin(NamedTuple):
    """A file outside the package that registers parts."""

    path: str
    sha256: str


class Kind(MutableMapping[str, Any]):
    """All parts of one kind. Calling it registers a part; looking up an unknown name raises an `InputError`."""

    every: list[Kind] = []  # noqa: RUF012 - shared on purpose

    def __init__(self, name: str, field: str = ""):
        self.name, self.field = name, field  # of an experiment, which names such a part or several
        self._parts: dict[str, Any] = {}
        self.every.append(self)

    def __call__(self, name: str) -> Callable[[Part], Part]:
        def register(part: Part) -> Part:
            known = self._parts.get(name)
            if known is not None and _defined_at(known) != _defined_at(part):
                raise InputError(
                    f"There is already a {self.name} {name!r} ({_defined_at(known)}); choose another name."
                )
            self._parts[name] = part
            return part

        return register

    def __getitem__(self, name: str) -> Any:
        if name not in self._parts:
            raise UnknownPart(f"There is no {self.name} {name!r}{suggestion(name, self._parts)}")
        return self._parts[name]

    def __setitem__(self, name: str, part: Any) -> None:
        self._parts[name] = part

    def __delitem__(self, name: str) -> None:
        del self._parts[name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._parts

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def name_of(self, part: Any) -> str:
        """The name a part was registered by."""
        return next((name for name, known in self._parts.items() if known is part), getattr(part, "__name__", "?"))


weighting = Kind("weighting", "model.routing.weighting")  # a (m, n, …) → b, which sums to 1 over capsules
fitness = Kind("fitness", "model.routing.fitness")  # (config, level, size, last) → module: c (m, n, k, i, j) → a
nonlinearity = Kind("non-linearity", "model.nonlinearity")  # (m, n, k, i, j) → the same shape
loss_term = Kind("loss term", "objective")  # (output, images, labels) → a number
augmentation = Kind("augmentation", "data.augment")  # (images, amount) → images
model = Kind("model")  # (classes, channels, height, width) → a configuration
architecture = Kind("architecture", "model.architecture")  # the type of that configuration; its `build()` → the network
dataset = Kind("dataset", "data.source")  # a DatasetInfo (data/datasets.py)
recipe = Kind("recipe")  # () → Experiment


def plugins(used_by: Mapping[str, Any] | None = None) -> tuple[Plugin, ...]:
    """The files outside the package that have registered parts; `used_by` an experiment, as plain values, only those
    that define its parts."""
    named = ((kind, kind if used_by is None else _named(used_by, kind.field)) for kind in Kind.every)
    files = {_file(kind[name]) for kind, names in named for name in names if name in kind}
    outside = sorted(Path(file).resolve() for file in files if file and Path(file).exists())
    return tuple(Plugin(str(path), _digest(path)) for path in outside if PACKAGE not in path.parents)


def load_plugin(path: Path) -> None:
    """Run a Python file that registers parts."""
    path = path.resolve()
    if not path.is_file():
        raise InputError(f"There is no plugin file {path}.")
    name = f"wcapsnet_plugin_{path.stem}"
    if name in sys.modules and sys.modules[name].__file__ != str(path):  # another file of that name
        name += "_" + hashlib.sha256(str(path).encode()).hexdigest()[:8]
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"The plugin {path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses and pickles look a plugin's classes up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]  # so that the next attempt runs it again
        if isinstance(error, InputError):
            raise
        raise InputError(f"The plugin {path} cannot be loaded: {type(error).__name__}: {error}.") from error


def require(needed: Iterable[Plugin], what: object) -> list[Plugin]:
    """Refuse `what` unless the plugins it was made with are loaded. Returns those whose file has changed since."""
    loaded = plugins()
    hashes, names = {one.sha256 for one in loaded}, {Path(one.path).name for one in loaded}
    changed = [one for one in needed if one.sha256 not in hashes]
    for one in changed:
        if Path(one.path).name not in names:
            raise InputError(f"{what} needs the plugin {one.path}; add --plugin {one.path}, or import it first.")
    return changed


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the nearest known one, or all of them."""
    known = list(known)
    written = {word.lower(): word for word in known}
    near = difflib.get_close_matches(name.lower(), written, 1, 0.5)
    return f"; did you mean {written[near[0]]!r}?" if near else f"; choose one of {', '.join(known)}."


def _named(plain: Any, field: str) -> Iterable[str]:
    """The names that a field holds: one, several as a table, or none"""
    for word in field.split("."):
        plain = plain.get(word, {}) if isinstance(plain, Mapping) else {}
    return (plain,) if isinstance(plain, str) else tuple(plain)


def _file(part: Any) -> str | None:
    part = inspect.unwrap(getattr(part, "read", part))  # a dataset is defined where its reader is
    try:
        return inspect.getsourcefile(part)
    except TypeError:
        return None


def _defined_at(part: Any) -> str:
    part = inspect.unwrap(part)
    return f"{getattr(part, '__qualname__', part)} in {getattr(part, '__module__', '?')}"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
