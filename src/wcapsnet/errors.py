"""Errors the user can fix."""

import reprlib
from pathlib import Path


class InputError(ValueError):
    """Invalid user input. The message is one sentence: what is wrong and what to do."""


class Interrupted(Exception):
    """Training was stopped by a signal; everything has been saved."""

    report: Path | None = None  # about what there is so far


class Diverged(Exception):
    """The loss is not finite, or far above chance. The message is one sentence."""

    report: Path | None = None


_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = 100


def shown(value: object) -> str:
    """A value as it appears in a message: short, whatever its length and depth."""
    return _repr.repr(value)
