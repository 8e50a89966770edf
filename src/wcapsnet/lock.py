"""One process at a time in a folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from .errors import InputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


def hold(folder: Path) -> Callable[[], None]:
    """Refuse other processes that want to train in `folder`, until what is returned is called or this one ends. Where
    there are no such locks, nothing is refused."""
    path = folder / ".lock"
    while fcntl:
        file = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            raise InputError(f"Another process is training {folder}; wait until it is done, or stop it.") from None
        except OSError:  # a file system without locks
            _let_go(path, file)
            break
        if _is(file, path):
            return lambda: _let_go(path, file)
        os.close(file)  # its owner deleted it between our opening and locking it: that lock keeps nobody out
    return lambda: None


def _let_go(path: Path, file: int) -> None:
    path.unlink(missing_ok=True)
    os.close(file)


def _is(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
