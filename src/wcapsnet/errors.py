"""Errors the user can fix."""

import reprlib
from pathlib import Path


class InputError(ValueError):
    """Invalid user input. The message is one sentence: what is wrong and what to do."""


class Interrupted(Exception):
    """Training was stopped by a signal; everything has been saved."""

    report: Path | None = None  # on the epochs so far


class Diverged(Exception):
    """The loss is not finite, or far above chance. The message is one sentence."""

    report: Path | None = None


class Lost(Exception):
    """Another process of the group has ended or cannot be reached. The message is one sentence."""


_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = 100


def first_line(error: BaseException) -> str:
    """The first line of a library's message, or the error's type, for use in a sentence"""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300].rstrip(".")


def shown(value: object) -> str:
    """A value as it appears in a message: short, whatever its length and depth."""
    return _repr.repr(value)
