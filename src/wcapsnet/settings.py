"""Convert frozen dataclasses to and from plain values, and change single fields by name.

The type annotations of the dataclasses are the schema: values from a file or the command line are checked against
them, and a value that does not fit is refused with an error that names the field.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

from .errors import InputError, shown
from .parts import Kind, architecture, suggestion

T = TypeVar("T")


type_hints = functools.cache(typing.get_type_hints)  # evaluating annotations is slow


class Amounts(Mapping[str, float]):
    """Registered parts of one kind, in order, each with a number: loss terms with their λ, augmentations with their
    strength. Immutable; any registered name may be set, and None leaves it out."""

    kind: ClassVar[Kind]
    renamed: ClassVar[dict[str, str]] = {}  # names used in files from earlier versions
    at_most: ClassVar[dict[str, float]] = {}  # the largest number of those parts that have one

    def __init__(self, amounts: Mapping[str, float | None] = types.MappingProxyType({}), /, **more: float | None):
        self._amounts: dict[str, float] = {}
        for given, value in {**amounts, **more}.items():
            name = self.renamed.get(given, given)
            field = f"{self.kind.field}.{name}"
            if name not in self.kind:
                raise InputError(
                    f"There is no {self.kind.name} {shown(name)} for {shown(field)}{suggestion(name, self.kind)}"
                )
            if value is None:
                continue
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            most = self.at_most.get(name)
            if not (number and 0 <= value <= (sys.float_info.max if most is None else most)):
                needs = "a finite number of at least 0" if most is None else f"a number between 0 and {most:g}"
                raise InputError(f"{field} is {shown(value)}, but it must be {needs}.")
            self._amounts[name] = float(value)

    def __getitem__(self, name: str) -> float:
        return self._amounts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._amounts)

    def __len__(self) -> int:
        return len(self._amounts)

    def __hash__(self) -> int:
        return hash(frozenset(self._amounts.items()))  # like equality, regardless of order

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._amounts})"


class _Open(dict[str, Any]):
    """`Amounts` as plain values: a table in which any registered name may be set."""


def to_dict(value: Any) -> Any:
    """Nested dataclasses and tuples as dicts and lists, ready for JSON."""
    if isinstance(value, Amounts):
        return _Open(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        named = {"architecture": architecture.name_of(type(value))} if type(value) in architecture.values() else {}
        return named | {f.name: to_dict(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [to_dict(v) for v in value]
    return value


def model_from_dict(data: Any, path: str = "model") -> Any:
    """A network's configuration, for any architecture. Files from earlier versions name none: they hold WCapsNets."""
    if not isinstance(data, dict):
        raise InputError(f"{path} must be a table of fields, not {shown(data)}.")
    fields = {name: value for name, value in data.items() if name != "architecture"}
    name = data.get("architecture", "wcapsnet")
    if not isinstance(name, str):
        raise InputError(f"{path}.architecture must be a word, not {shown(name)}.")
    return from_dict(architecture[name], fields, path)


def from_dict(cls: type[T], data: Any, path: str = "") -> T:
    """The inverse of `to_dict`. Missing fields keep their defaults."""
    if not isinstance(data, dict):
        raise InputError(f"{path or cls.__name__} must be a table of fields, not {shown(data)}.")
    hints = type_hints(typing.cast(Any, cls))
    names = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
    for key in data:
        if key not in names:
            raise _no_field(key, names, path)
    for f in dataclasses.fields(cls):  # type: ignore[arg-type]
        optional = f.default is not dataclasses.MISSING or f.default_factory is not dataclasses.MISSING
        if f.name not in data and not optional:
            raise InputError(f"The field {_join(path, f.name)!r} is missing.")
    return cls(**{key: _convert(hints[key], value, _join(path, key)) for key, value in data.items()})


def checked(config: Any, section: str) -> Callable[[str, bool, str], None]:
    """Refuse a configuration built in Python if a value does not have its field's type. Returns a function to check
    the values themselves: `check(field, whether it is right, what it must be)`."""
    for name, hint in type_hints(typing.cast(Any, type(config))).items():
        value = getattr(config, name)
        plain = value if type(value) is hint else _convert(hint, value, f"{section}.{name}")
        if plain is not value and plain != value:  # nan differs from itself
            raise InputError(f"{section}.{name} must be {plain!r}, not {shown(value)}.")

    def check(field: str, holds: bool, needs: str) -> None:
        if not holds:
            raise InputError(f"{section}.{field} is {shown(getattr(config, field))}, but it must be {needs}.")

    return check


def with_setting(value: T, assignment: str) -> T:
    """`with_setting(experiment, "model.levels.0.capsules=8")`"""
    name, equals, text = assignment.partition("=")
    if not equals or not name.strip():
        raise InputError(f"A setting must be FIELD=VALUE, for example model.dense_layers=4, not {shown(assignment)}.")
    data = to_dict(value)
    *parents, last = name.strip().split(".")
    place, path = data, ""
    for part in parents:
        place, path = place[_key(place, part, path)], _join(path, part)
    place[_key(place, last, path)] = _parse(text.strip())
    return from_dict(type(value), data)


def differing(one: Any, other: Any) -> typing.Iterator[tuple[str, Any, Any]]:
    """The fields, by dotted name, in which two configurations of the same kind differ, with both values"""
    first, second = flat(to_dict(one)), flat(to_dict(other))
    for field in sorted({**first, **second}):
        if first.get(field) != second.get(field):
            yield field, first.get(field), second.get(field)


def flat(content: Any, path: str = "") -> dict[str, Any]:
    """Nested fields by the full names that --set accepts."""
    if isinstance(content, (dict, list)) and content:
        items = content.items() if isinstance(content, dict) else enumerate(content)
        return {k: v for key, value in items for k, v in flat(value, f"{path}.{key}" if path else str(key)).items()}
    return {path: content}


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _key(place: Any, part: str, path: str) -> Any:
    if isinstance(place, dict):
        if part not in place and not isinstance(place, _Open):
            raise _no_field(part, place, path)
        return part
    if isinstance(place, list):
        if not part.isdecimal() or len(part) > 9 or int(part) >= len(place):
            raise InputError(
                f"{path} has the entries 0 to {len(place) - 1}, so there is no {shown(_join(path, part))}."
            )
        return int(part)
    raise InputError(f"{path} is a single value and has no field {shown(part)}.")


def _no_field(name: str, known: typing.Iterable[str], path: str) -> InputError:
    full = [_join(path, one) for one in known]
    return InputError(f"There is no field {shown(_join(path, name))}{suggestion(_join(path, name), full)}")


def _parse(text: str) -> Any:
    """JSON if it parses; `true`, `False`, `none` in any case; a list as `10,20`; otherwise a string."""
    words = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    for candidate in (text, f"[{text}]") if "," in text else (text,):
        try:
            return json.loads(candidate, parse_int=_whole)
        except (ValueError, RecursionError):
            pass
    return text


def _whole(digits: str) -> int:
    """Python converts at most 4,300 digits; those kept here still make a number that no field can hold."""
    return int(digits[:4000])


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}


def _convert(hint: Any, value: Any, path: str) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        arms = [arm for arm in typing.get_args(hint) if arm is not type(None)]
        if len(arms) > 1:
            raise _unsupported(hint, path)
        if value is None:
            return None
        (hint,) = arms
    if isinstance(hint, type) and issubclass(hint, Amounts):
        if not isinstance(value, Mapping):
            raise InputError(f"{path} must be a table of names and numbers, not {shown(value)}.")
        return hint(value)
    if hint is Any:  # the network's configuration, the one field that may have several types
        return model_from_dict(value, path)
    if dataclasses.is_dataclass(hint):
        return from_dict(typing.cast(type, hint), value, path)
    if typing.get_origin(hint) is tuple and typing.get_args(hint):
        if typing.get_args(hint) in ((int, Ellipsis), (float, Ellipsis)) and isinstance(value, (int, float)):
            value = [value]  # --set training.milestones=20
        if not isinstance(value, (list, tuple)):
            raise InputError(f"{path} must be a list, for example [1, 2], not {shown(value)}.")
        inner = typing.get_args(hint)
        each = [inner[0]] * len(value) if inner[-1] is Ellipsis else list(inner)
        if len(each) != len(value):
            raise InputError(f"{path} must have {len(each)} entries, not {len(value)}.")
        return tuple(_convert(h, v, _join(path, str(i))) for i, (h, v) in enumerate(zip(each, value, strict=True)))
    if hint not in list(_WORDS):
        raise _unsupported(hint, path)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise InputError(f"{path} is {shown(value)}, but a number must fit into 64 bits.")
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is str and isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    if type(value) is not hint:
        raise InputError(f"{path} must be {_WORDS[hint]}, not {shown(value)}.")
    return value


def _unsupported(hint: Any, path: str) -> InputError:
    kind = hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else hint
    return InputError(
        f"The field {path} has the type {kind}, which cannot be stored; use int, float, bool, str, a tuple of these, a "
        "dataclass, or one of them | None."
    )
