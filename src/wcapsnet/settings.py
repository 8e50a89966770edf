"""Frozen dataclasses to and from plain values, and one field of them changed by name.

The type annotations of the dataclasses are the schema: what comes from a file or a command line is held against them,
and what does not fit is refused with a sentence that names the field.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import types
import typing
from typing import Any, TypeVar

from .errors import InputError

T = TypeVar("T")


def to_dict(value: Any) -> Any:
    """Nested dataclasses and tuples as dicts and lists, ready for JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_dict(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [to_dict(v) for v in value]
    return value


def from_dict(cls: type[T], data: Any, path: str = "") -> T:
    """The inverse of `to_dict`. Fields that are not given keep their defaults."""
    if not isinstance(data, dict):
        raise InputError(f"{path or cls.__name__} must be a table of fields, not {data!r}.")
    hints = typing.get_type_hints(cls)
    names = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
    for key in data:
        if key not in names:
            raise InputError(f"There is no field {_join(path, key)!r}{suggestion(key, names, path)}")
    for f in dataclasses.fields(cls):  # type: ignore[arg-type]
        optional = f.default is not dataclasses.MISSING or f.default_factory is not dataclasses.MISSING
        if f.name not in data and not optional:
            raise InputError(f"The field {_join(path, f.name)!r} is missing.")
    return cls(**{key: _convert(hints[key], value, _join(path, key)) for key, value in data.items()})


def with_setting(value: T, assignment: str) -> T:
    """`with_setting(experiment, "model.levels.0.capsules=8")`"""
    name, equals, text = assignment.partition("=")
    if not equals or not name.strip():
        raise InputError(f"A setting reads FIELD=VALUE, for example model.dense_layers=4, not {assignment!r}.")
    data = to_dict(value)
    *parents, last = name.strip().split(".")
    place, path = data, ""
    for part in parents:
        place, path = place[_key(place, part, path)], _join(path, part)
    place[_key(place, last, path)] = _parse(text.strip())
    return from_dict(type(value), data)


def differing(one: Any, other: Any) -> typing.Iterator[tuple[str, Any, Any]]:
    """The fields, by dotted name, in which two configurations of a kind are not the same, and both values"""
    first, second = flat(to_dict(one)), flat(to_dict(other))
    for field in sorted({**first, **second}):
        if first.get(field) != second.get(field):
            yield field, first.get(field), second.get(field)


def flat(content: Any, path: str = "") -> dict[str, Any]:
    """Nested fields by their full names, as --set takes them."""
    if isinstance(content, (dict, list)) and content:
        items = content.items() if isinstance(content, dict) else enumerate(content)
        return {k: v for key, value in items for k, v in flat(value, f"{path}.{key}" if path else str(key)).items()}
    return {path: content}


def suggestion(name: str, known: typing.Iterable[str], path: str = "") -> str:
    """The end of a sentence about a name that is not known: the nearest one, or all."""
    known = list(known)
    written = {word.lower(): word for word in known}
    near = difflib.get_close_matches(name.lower(), written, 1, 0.5)
    if near:
        return f"; did you mean {_join(path, written[near[0]])!r}?"
    return f"; known are {', '.join(_join(path, k) for k in known)}."


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _key(place: Any, part: str, path: str) -> Any:
    if isinstance(place, dict):
        if part not in place:
            raise InputError(f"There is no field {_join(path, part)!r}{suggestion(part, place, path)}")
        return part
    if isinstance(place, list):
        if not part.isdecimal() or int(part) >= len(place):
            raise InputError(f"{path} has the entries 0 to {len(place) - 1}, so {_join(path, part)!r} is not one.")
        return int(part)
    raise InputError(f"{path} is a single value and has no field {part!r}.")


def _parse(text: str) -> Any:
    """JSON where it is JSON; `true`, `False`, `none` in any case; a list as `10,20`; anything else is a word."""
    words = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    for candidate in (text, f"[{text}]") if "," in text else (text,):
        try:
            return json.loads(candidate)
        except json.JSONDecodeError:
            pass
    return text


def _convert(hint: Any, value: Any, path: str) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        if value is None:
            return None
        (hint,) = (arm for arm in typing.get_args(hint) if arm is not type(None))
    if dataclasses.is_dataclass(hint):
        return from_dict(typing.cast(type, hint), value, path)
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, (list, tuple)):
            raise InputError(f"{path} must be a list, for example [1, 2], not {value!r}.")
        inner = typing.get_args(hint)
        each = [inner[0]] * len(value) if inner[-1] is Ellipsis else list(inner)
        if len(each) != len(value):
            raise InputError(f"{path} must have {len(each)} entries, not {len(value)}.")
        return tuple(_convert(h, v, _join(path, str(i))) for i, (h, v) in enumerate(zip(each, value, strict=True)))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is str and isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    if type(value) is not hint:
        kinds = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}
        raise InputError(f"{path} must be {kinds[hint]}, not {value!r}.")
    return value
