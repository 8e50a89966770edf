"""Atomic file writes: to a temporary file in the same folder, then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a path to write to; on leaving without an error it becomes `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.chmod(0o666 & ~_umask())  # some writers create files only their owner can read
        os.replace(partial, path)
    except OSError as error:
        if error.errno and error.filename in (None, str(partial)):  # no file, or one the user does not know
            error.filename = str(path)
        raise
    finally:
        with suppress(OSError):  # report the first error
            partial.unlink()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_text(path: Path, text: str) -> None:
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")
