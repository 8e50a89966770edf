"""One process at a time in a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import InputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Refuse a second process that trains in `folder`; one that dies lets go of it. Where there are no such locks,
    nothing is refused."""
    file = _lock(folder / ".lock") if fcntl else None
    try:
        yield
    finally:
        if file is not None:
            (folder / ".lock").unlink(missing_ok=True)
            os.close(file)


def _lock(path: Path) -> int | None:
    while True:
        file = os.open(path, os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            raise InputError(f"Another process is training {path.parent}; wait until it is done, or stop it.") from None
        except OSError:  # a file system without locks
            os.close(file)
            return None
        if _is(file, path):
            return file
        os.close(file)  # its owner deleted it between our opening and locking it: that lock keeps nobody out


def _is(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
