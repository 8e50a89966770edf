"""Errors the user can fix."""

import reprlib


class InputError(ValueError):
    """Invalid user input. The message is one sentence: what is wrong and what to do."""


_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = 100


def shown(value: object) -> str:
    """A value as it appears in a message: short, whatever its length and depth."""
    return _repr.repr(value)
