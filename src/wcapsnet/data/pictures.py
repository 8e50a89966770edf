"""Decode all pictures of a folder, once: the result is cached until the folder changes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from ..atomic import replacing
from ..formatting import printable
from .decode import UnreadableImageError, read_image
from .layout import Layout
from .progress import progress_bar

READER_VERSION = 1  # increase it when the output of read_image changes, to invalidate old caches


class Pictures(NamedTuple):
    images: np.ndarray  # (m, ch, h, w) uint8, the readable ones
    readable: np.ndarray  # their positions among all files
    skipped: tuple[str, ...]


def read_pictures(layout: Layout, shape: tuple[int, int, int], cache_dir: Path | None, quiet: bool) -> Pictures:
    if cache_dir is None:
        return _decode(layout, shape, quiet)
    folder, content = _fingerprint(layout)
    entry = cache_dir / f"folder-{folder}-{content}-{'x'.join(map(str, shape))}.npz"
    pictures = _load_cache(entry, len(layout.files), shape)
    if pictures is None:
        pictures = _decode(layout, shape, quiet)
        _save_cache(entry, pictures)
        # remove what the folder held before; keep other sizes of its current contents
        for old in cache_dir.glob(f"folder-{folder}-*.npz"):
            if content not in old.name:
                with contextlib.suppress(OSError):
                    old.unlink()
    return pictures


def _decode(layout: Layout, shape: tuple[int, int, int], quiet: bool) -> Pictures:
    channels, height, width = shape
    images = np.empty((len(layout.files), *shape), np.uint8)

    def decode(position: int) -> str | None:
        path = layout.files[position].path
        try:
            images[position] = read_image(path, channels=channels, height=height, width=width)
        except UnreadableImageError as error:
            return printable(f"{layout.name(path)}: {error.reason}")
        return None

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    readable, skipped = [], []
    # threads, not processes: Pillow releases the GIL while it decodes and resizes
    with ThreadPoolExecutor(os.cpu_count()) as pool, progress_bar(*columns, quiet=quiet) as progress:
        try:
            results = pool.map(decode, range(len(layout.files)))
            tracked = progress.track(results, total=len(layout.files), description="Reading pictures")
            for position, problem in enumerate(tracked):
                if problem is None:
                    readable.append(position)
                else:
                    skipped.append(problem)
        finally:
            pool.shutdown(cancel_futures=True)  # on Ctrl-C, do not wait for the rest of the folder
    index = np.array(readable, np.int64)
    return Pictures(images[index] if skipped else images, index, tuple(skipped))


def _fingerprint(layout: Layout) -> tuple[str, str]:
    """Which folder, and a hash of its contents: adding, removing, renaming or writing a file changes the hash."""
    content = hashlib.sha256(f"reader {READER_VERSION}\n".encode())
    for file in layout.files:
        name = os.fsencode(file.path.relative_to(layout.path))
        try:
            status = file.path.stat()
            state = f"{status.st_size} {status.st_mtime_ns}"
        except OSError:  # a dangling link; reading it will report the error
            state = "gone"
        content.update(name + f"\0{state}\n".encode())
    folder = hashlib.sha256(os.fsencode(layout.path.resolve()))
    return folder.hexdigest()[:16], content.hexdigest()[:32]


def _load_cache(entry: Path, files: int, shape: tuple[int, int, int]) -> Pictures | None:
    """Previously decoded pictures, or None: an unreadable cache costs time but does not fail the run."""
    try:
        with entry.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            images, readable = arrays["images"], arrays["readable"]
            skipped = tuple(map(str, json.loads(arrays["skipped"].tobytes())))
    except Exception:  # damaged bytes may raise any exception
        return None
    complete = len(readable) + len(skipped) == files and images.shape == (len(readable), *shape)
    return Pictures(images, readable, skipped) if complete else None


def _save_cache(entry: Path, pictures: Pictures) -> None:
    skipped = np.frombuffer(json.dumps(pictures.skipped).encode(), np.uint8)
    # the cache cannot be written: the next run decodes again
    with contextlib.suppress(OSError), replacing(entry) as partial, partial.open("wb") as stream:
        np.savez(stream, images=pictures.images, readable=pictures.readable, skipped=skipped)
