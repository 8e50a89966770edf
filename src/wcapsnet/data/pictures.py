"""Decode all pictures of a source, once: the result is cached until the source changes.

A cache entry is a file of four arrays, one after the other as `np.save` writes them: images, positions of the readable
ones, why the others are not, and a checksum. The images are memory-mapped, so a dataset may be larger than the memory;
the file is written a few megabytes at a time, and renamed when it is complete.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from filelock import FileLock
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from .. import cache
from ..atomic import replacing
from ..console import progress_bar
from ..errors import InputError
from ..formatting import printable
from ..host_memory import fits
from .decode import ImageSource, UnreadableImageError, read_image
from .stream import CHUNK

READER_VERSION = 3  # increase it when the output of read_image or the cache's format changes


class Pictures(NamedTuple):
    images: np.ndarray  # (m, ch, h, w) uint8, in memory or in a file; unreadable pictures are black
    readable: np.ndarray  # positions of the readable ones
    skipped: tuple[str, ...]


class Source(ABC):
    """Pictures and their classes, readable or not: a folder, or a Hugging Face dataset"""

    name: str  # name of the dataset
    place: str  # path or address, for messages
    classes: tuple[str, ...]
    names: np.ndarray  # (m,): one per picture
    labels: np.ndarray  # (m,)
    parts: np.ndarray  # (m,): "train", "validation" or "test"; a missing validation or test part is split off

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def picture(self, position: int) -> ImageSource: ...

    @abstractmethod
    def fingerprint(self) -> tuple[str, str]:
        """Which source, and a hash of its contents."""

    def classes_without(self, pictures: Pictures) -> dict[str, str]:
        """The classes that have no readable training picture, each with the reason"""
        train = self.parts == "train"
        counts = np.bincount(self.labels[pictures.readable][train[pictures.readable]], minlength=len(self.classes))
        broken: dict[str, str] = {}
        unreadable = np.delete(np.arange(len(self.labels)), pictures.readable)
        for position, line in zip(unreadable, pictures.skipped, strict=True):
            if train[position] and counts[self.labels[position]] == 0:
                broken.setdefault(self.classes[self.labels[position]], f"has no readable picture ({line})")
        return broken


def read_pictures(source: Source, shape: tuple[int, int, int], quiet: bool) -> Pictures:
    """All pictures of the source as (ch, h, w)."""
    cache_dir = cache.directory()
    if cache_dir is None:
        return _in_memory(source, shape, quiet, "there is no cache directory")
    which, content = source.fingerprint()
    entry = cache_dir / f"folder-{which}-{content}-{'x'.join(map(str, shape))}.npy"
    pictures = _load_cache(entry, len(source), shape)
    if pictures is not None:
        return pictures
    try:
        with _alone(entry):
            pictures = _load_cache(entry, len(source), shape)  # another process may have written it meanwhile
            if pictures is None:
                _write_cache(entry, source, shape, quiet)
                pictures = _load_cache(entry, len(source), shape)
    except OSError as error:  # the cache cannot be written: the next run decodes again
        return _in_memory(source, shape, quiet, f"{cache_dir} cannot be written ({error.strerror or error})")
    if pictures is None:
        return _in_memory(source, shape, quiet, f"{entry} cannot be read back")
    # remove earlier contents of the source; keep other sizes of the current contents
    for old in cache_dir.glob(f"folder-{which}-*"):
        if content not in old.name:
            with contextlib.suppress(OSError):
                old.unlink()
    return pictures


# --- Decoding -----------------------------------------------------------------------------------------------


def _decode(
    source: Source, shape: tuple[int, int, int], write: Callable[[int, np.ndarray], object], quiet: bool
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Hand all pictures to `write`, in order, a few at a time, with the position of the first. Returns the positions of
    the readable ones, and why the others are not."""
    channels, height, width = shape
    images = np.empty((max(1, min(len(source), CHUNK // (channels * height * width))), *shape), np.uint8)
    readable: list[int] = []
    skipped: list[str] = []

    def decode(position: int) -> str | None:
        place = images[position % len(images)]
        try:
            place[:] = read_image(source.picture(position), channels=channels, height=height, width=width)
        except UnreadableImageError as error:
            place[:] = 0
            return printable(f"{source.names[position]}: {error.reason}")
        return None

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # threads, not processes: Pillow releases the GIL while it decodes and resizes
    with ThreadPoolExecutor(os.cpu_count()) as pool, progress_bar(*columns, quiet=quiet) as progress:
        task = progress.add_task("Reading pictures", total=len(source))
        try:
            for start in range(0, len(source), len(images)):
                positions = range(start, min(start + len(images), len(source)))
                for position, problem in zip(positions, pool.map(decode, positions), strict=True):
                    if problem is None:
                        readable.append(position)
                    else:
                        skipped.append(problem)
                    progress.advance(task)
                write(start, images[: len(positions)])
        finally:
            pool.shutdown(cancel_futures=True)  # on Ctrl-C, do not wait for the rest of the folder
    return np.array(readable, np.int64), tuple(skipped)


def _in_memory(source: Source, shape: tuple[int, int, int], quiet: bool, why: str) -> Pictures:
    size = len(source) * int(np.prod(shape))
    if not fits(size):
        raise InputError(
            f"The pictures take {size / 2**30:,.3g} GiB, more than fits into memory, and {why}; set WCAPSNET_CACHE to "
            "a folder with enough space."
        )
    images = np.empty((len(source), *shape), np.uint8)

    def write(start: int, some: np.ndarray) -> None:
        images[start : start + len(some)] = some

    return Pictures(images, *_decode(source, shape, write, quiet))


# --- The cache ----------------------------------------------------------------------------------------------


@contextmanager
def _alone(entry: Path) -> Iterator[None]:
    """Only one process decodes; others wait for its result."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(entry.with_name(f".{entry.name}.lock"))
    try:
        lock.acquire()
    except NotImplementedError:  # the file system does not support locks
        yield
        return
    try:
        for partial in entry.parent.glob(f".{entry.name}.*.partial"):  # of a process that was killed while it wrote
            partial.unlink(missing_ok=True)
        yield
    finally:
        with contextlib.suppress(OSError):
            Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def _write_cache(entry: Path, source: Source, shape: tuple[int, int, int], quiet: bool) -> None:
    size = len(source) * int(np.prod(shape))
    free = shutil.disk_usage(entry.parent).free
    if free < size:  # do not fill the disk first
        raise OSError(f"{size / 2**30:,.3g} GiB are needed, {free / 2**30:,.3g} GiB are free")
    header = {"descr": "|u1", "fortran_order": False, "shape": (len(source), *shape)}
    checksum = 0
    with replacing(entry) as partial, partial.open("wb") as file:

        def write(start: int, images: np.ndarray) -> None:
            nonlocal checksum
            checksum = zlib.crc32(images.data, checksum)
            file.write(images.data)

        np.lib.format.write_array_header_1_0(file, header)
        readable, skipped = _decode(source, shape, write, quiet)
        reasons = np.frombuffer(json.dumps(skipped).encode(), np.uint8)
        checksum = zlib.crc32(reasons.data, zlib.crc32(readable.data, checksum))
        for array in (readable, reasons, np.array(checksum)):
            np.save(file, array, allow_pickle=False)


def _load_cache(entry: Path, count: int, shape: tuple[int, int, int]) -> Pictures | None:
    """Previously decoded pictures, or None: an unreadable cache costs time but does not fail the run."""
    try:
        images = np.lib.format.open_memmap(entry, "r")
        with entry.open("rb") as file:
            file.seek(images.offset + images.nbytes)
            readable, reasons, stored = (np.load(file, allow_pickle=False) for _ in range(3))
        skipped = tuple(map(str, json.loads(reasons.tobytes())))
        black = np.delete(np.arange(count), readable)  # raises an exception if one is out of range
        content, checksum = images.data.cast("B"), 0
        for start in range(0, len(content), CHUNK):  # Ctrl-C works between chunks
            checksum = zlib.crc32(content[start : start + CHUNK], checksum)
        intact = stored == zlib.crc32(reasons.data, zlib.crc32(readable.data, checksum))
    except Exception:  # damaged bytes may raise any exception
        return None
    complete = images.dtype == np.uint8 and images.shape == (count, *shape) and len(black) == len(skipped)
    return Pictures(images, readable, skipped) if intact and complete else None
