"""Read pickled arrays of bytes without trusting the file.

A pickle is a program that may call any function. Here the few names that pickled arrays refer to are replaced by inert
stand-ins, and every other name is refused: nothing in Python or NumPy is called.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections.abc import Callable

import numpy as np


class ForbiddenError(Exception):
    """A name that no array pickle needs."""


def unpickle(data: bytes) -> object:
    """Plain values and byte arrays. Raises `ForbiddenError`, or any other exception if the bytes are damaged."""
    for operation, argument, _ in pickletools.genops(data):
        # the memo is a table as long as its largest index, so one index could claim gigabytes
        if operation.name in ("PUT", "BINPUT", "LONG_BINPUT") and not 0 <= int(argument or 0) <= len(data):
            raise ValueError(f"memo index {argument} in {len(data)} bytes")
    # the originals were written by Python 2, so their strings are bytes
    return _ArrayUnpickler(io.BytesIO(data), encoding="bytes").load()


def text(value: object) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


class Array:
    """Stands in for a pickled array until `array` is called."""

    state: tuple[object, ...] = ()

    def __setstate__(self, state: tuple[object, ...]) -> None:
        self.state = state

    def array(self) -> np.ndarray:
        _, shape, dtype, fortran, data = self.state
        if not isinstance(dtype, _Dtype) or dtype.code.lstrip("|") != "u1" or not isinstance(data, bytes):
            raise ValueError("an array that is not of bytes")
        if not isinstance(shape, tuple) or math.prod(shape) != len(data):
            raise ValueError("an array whose size does not fit its shape")
        return np.frombuffer(data, np.uint8).reshape(shape, order="F" if fortran else "C")


class _Dtype:
    def __init__(self, code: object, *_: object) -> None:
        self.code = text(code)

    def __setstate__(self, state: object) -> None:
        """Byte order and the like, which single bytes do not have."""


def _encode(value: str, encoding: object) -> bytes:
    # how Python 3 stores bytes in the old protocol; other codecs could decompress
    if encoding not in ("latin1", b"latin1"):
        raise ForbiddenError(f"the codec {encoding!r}")
    return value.encode("latin1")


_PERMITTED: dict[tuple[str, str], Callable[..., object]] = {
    ("numpy.core.multiarray", "_reconstruct"): lambda *_: Array(),
    ("numpy._core.multiarray", "_reconstruct"): lambda *_: Array(),
    ("numpy", "ndarray"): object,  # only passed on, to _reconstruct
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
    # how Python 3 stores the bytes of an empty array in the old protocol; the real function could allocate gigabytes
    ("__builtin__", "bytes"): lambda: b"",
    ("builtins", "bytes"): lambda: b"",
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        try:
            return _PERMITTED[module, name]
        except KeyError:
            raise ForbiddenError(f"{module}.{name}") from None
