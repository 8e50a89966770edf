"""Atomic file writes: to a temporary file in the same folder, then renamed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import InputError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a path to write to; on leaving without an error it becomes `path`, or the file that `path` links to."""
    mode = check_place(path)
    place = Path(os.path.realpath(path))
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_name(f".{place.name}.{os.getpid()}.partial")
    try:
        yield partial
        # Not the mode that the writer chose: some create files only their owner can read.
        partial.chmod(0o666 & ~_umask() if mode is None else mode)
        os.replace(partial, place)
    except OSError as error:
        if error.errno and error.filename in (None, str(partial)):  # no file, or one the user does not know
            error.filename = str(path)
        raise
    finally:
        with suppress(OSError):  # report the first error
            partial.unlink()


def check_place(path: Path) -> int | None:
    """Refuse to replace anything but a regular file: a folder, a device, a pipe. Returns the permissions of the file at
    `path`, or None if it does not exist yet."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        what = "is a folder" if stat.S_ISDIR(mode) else "is not a regular file, so it cannot be replaced"
        raise InputError(f"{path} {what}; choose another file.")
    return mode & 0o777


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_text(path: Path, text: str) -> None:
    with replacing(path) as partial:
        # Paths that are not UTF-8 hold lone surrogates; in JSON, \udcff stands for the same one.
        partial.write_text(text, encoding="utf-8", errors="backslashreplace")
