"""Files outside the package that register parts, and how runs record them."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .errors import InputError
from .parts import Kind, definition

PACKAGE = Path(__file__).resolve().parent
MODULE = "wcapsnet_plugin_"  # how the names of loaded plugins begin in sys.modules


class MissingPluginError(InputError):
    """A run or file needs a plugin that is not loaded."""

    def __init__(self, what: object, path: str):
        self.path = path
        super().__init__(f"{what} needs the plugin {path}; add --plugin {path}, or import it first.")


class Plugin(NamedTuple):
    """A file outside the package that registers parts."""

    path: str
    sha256: str


def plugins(used_by: Mapping[str, Any] | None = None) -> tuple[Plugin, ...]:
    """The files outside the package that have registered parts. With `used_by` (an experiment as plain values), only
    the files that define its parts."""
    named = ((kind, kind if used_by is None else _named(used_by, kind.field)) for kind in Kind.every)
    files = {_file(kind[name]) for kind, names in named for name in names if name in kind}
    outside = sorted(Path(file).resolve() for file in files if file and Path(file).exists())
    return tuple(Plugin(str(path), _digest(path)) for path in outside if PACKAGE not in path.parents)


def load_plugin(path: str | Path) -> None:
    """Run a Python file that registers parts."""
    path = Path(path).expanduser().resolve()
    if not path.is_file():
        raise InputError(f"There is no plugin file {path}.")
    name = MODULE + path.stem
    if name in sys.modules and sys.modules[name].__file__ != str(path):  # another file with the same name
        name += "_" + hashlib.sha256(str(path).encode()).hexdigest()[:8]
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"The plugin {path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look up a plugin's classes here
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]  # so that the next attempt runs it again
        if isinstance(error, InputError):
            raise
        raise InputError(f"The plugin {path} cannot be loaded: {type(error).__name__}: {error}.") from error


def unused(plain: Mapping[str, Any]) -> Iterable[str]:
    """A sentence for each file loaded by `load_plugin` that defines no part of this experiment, though it could"""
    used = {one.path for one in plugins(plain)}
    for path in (module.__file__ for name, module in list(sys.modules.items()) if name.startswith(MODULE)):
        own = [(kind, name) for kind in Kind.every for name, part in kind.items() if _file(part) == path]
        if path not in used and own and all(kind.field for kind, _ in own):  # a recipe or model may have been chosen
            parts = ", ".join(f"{kind.name} {name!r} ({kind.field})" for kind, name in own)
            yield f"The plugin {path} is loaded, but the experiment uses none of its parts: {parts}."


def plugin_options(used_by: Mapping[str, Any]) -> list[str]:
    """The options that load an experiment's plugins, for a command to be pasted into a shell"""
    return [word for one in plugins(used_by) for word in ("--plugin", one.path)]


def recorded_plugins(plain: Any, what: object) -> list[Plugin]:
    """The plugins in the record of a run."""
    try:
        return [Plugin(str(one["path"]), str(one["sha256"])) for one in plain]
    except (KeyError, TypeError) as error:
        raise InputError(f"{what} is damaged: its list of plugins cannot be read.") from error


def require(needed: Iterable[Plugin], what: object) -> list[Plugin]:
    """Refuse `what` unless the plugins it was made with are loaded. Returns the plugins whose file has changed."""
    loaded = plugins()
    hashes, names = {one.sha256 for one in loaded}, {Path(one.path).name for one in loaded}
    changed = [one for one in needed if one.sha256 not in hashes]
    for one in changed:
        if Path(one.path).name not in names:
            raise MissingPluginError(what, one.path)
    return changed


def _named(plain: Any, field: str) -> Iterable[str]:
    """The names in a field: one, several (a table), or none"""
    for word in field.split("."):
        plain = plain.get(word, {}) if isinstance(plain, Mapping) else {}
    return (plain,) if isinstance(plain, str) else tuple(plain)


def _file(part: Any) -> str | None:
    try:
        return inspect.getsourcefile(definition(part))
    except TypeError:
        return None


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
