"""A folder of pictures, with one subfolder per class, as a dataset."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from .. import cache
from ..atomic import replacing
from ..errors import InputError
from .decode import (
    IMAGE_SUFFIXES,
    ImageHeader,
    UnreadableImageError,
    image_files,
    is_hidden,
    natural_key,
    read_header,
    read_image,
)
from .progress import progress_bar
from .types import DataConfig, Dataset, Split

READER_VERSION = 1  # increase it when the output of read_image changes, to invalidate old caches
_PART_NAMES = {
    "train": "train", "training": "train",
    "val": "validation", "valid": "validation", "validation": "validation",
    "test": "test", "testing": "test",
}  # fmt: skip
_LAYOUT = (
    "expected one folder for each class, such as {0}/cats/1.jpg and {0}/dogs/2.jpg, or folders "
    "train, val and test of such folders, such as {0}/train/cats/1.jpg"
)
_SMALLEST, _LARGEST, _LARGEST_OF_MANY = 16, 64, 32
_MANY = 10_000


@dataclass(frozen=True)
class FolderSummary:
    """What a folder holds, judged by file names and the headers of some pictures."""

    path: Path
    classes: tuple[str, ...]
    counts: tuple[int, ...]  # training pictures per class; all pictures if there is no train folder
    parts: tuple[str, ...]  # which of "train", "validation", "test" have a folder; () if there are only classes
    total: int  # pictures in all parts
    height: int  # median over the sampled pictures
    width: int
    one_shape: bool  # all sampled pictures have the same aspect ratio
    has_color: bool

    @property
    def proposed_channels(self) -> int:
        return 3 if self.has_color else 1

    def proposed_size(self) -> tuple[int, int]:
        """Height and width to resize the pictures to, each a multiple of 4 from 16 to 64.

        Small pictures keep their size. Photographs are reduced to 64, which shows details that 32 blurs; with more
        than 10,000 training pictures to 32, as in CIFAR, so that an epoch takes no longer than there. The shape is
        square, which loses least with mixed shapes, unless all pictures share another shape.
        """
        height, width = self.height, self.width
        if not self.one_shape:
            height = width = min(height, width)
        largest = _LARGEST
        if max(height, width) > _LARGEST and sum(self.counts) > _MANY:
            largest = _LARGEST_OF_MANY
        scale = min(1.0, largest / max(height, width))
        return _multiple_of_4(height * scale), _multiple_of_4(width * scale)


def scan_folder(path: Path) -> FolderSummary:
    """Inspect a folder without reading all of it: at most 200 pictures, evenly spaced, the same every time."""
    return _summarize(_layout(path))


def load_folder(config: DataConfig, *, cache_dir: Path | None = None, quiet: bool = False) -> Dataset:
    """The folder `config.source` as a dataset; pictures that cannot be read are listed in `skipped`.

    Existing val and test folders are used as they are. A missing one is split off the training pictures, stratified by
    class (see `stratified_split`). Decoded pictures are cached until the folder changes: in `cache_dir`, or
    $WCAPSNET_CACHE, or $XDG_CACHE_HOME/wcapsnet, or ~/.cache/wcapsnet.
    """
    layout = _layout(Path(config.source).expanduser())
    height, width, channels = _format(config, layout)
    pictures = _read_cached(layout, (channels, height, width), cache.directory(cache_dir), quiet)

    labels = np.array([file.label for file in layout.files], np.int64)[pictures.readable]
    parts = np.array([file.part for file in layout.files])[pictures.readable]
    train = np.flatnonzero(parts == "train")
    counts = np.bincount(labels[train], minlength=len(layout.classes))
    for name, count in zip(layout.classes, counts, strict=True):
        if count == 0:
            raise InputError(
                f"None of the pictures of class {name!r} in {layout.path} can be read (the first: "
                f"{next(line for line in pictures.skipped if name in Path(line).parts)}): replace them."
            )
    index = {part: np.flatnonzero(parts == part) for part in ("validation", "test")}
    split = stratified_split(
        labels[train],
        validation=0 if "validation" in layout.parts else config.validation,
        test=0 if "test" in layout.parts else config.test,
        seed=config.split_seed,
    )
    index["train"] = train[split.train]
    if "validation" not in layout.parts:
        index["validation"] = train[split.validation]
    if "test" not in layout.parts:
        index["test"] = train[split.test]
    for part, chosen in index.items():
        if len(chosen) == 0:
            raise InputError(
                f"No {part} pictures are left in {layout.path}: give at least one class 3 readable pictures, "
                f"or add a {part} folder with pictures."
            )

    def take(part: str) -> Split:
        return Split(torch.from_numpy(pictures.images[index[part]]), torch.from_numpy(labels[index[part]]))

    def files(part: str) -> tuple[str, ...]:
        chosen = pictures.readable[index[part]]
        return tuple(layout.files[position].path.relative_to(layout.path).as_posix() for position in chosen)

    return Dataset(
        name=layout.path.resolve().name,
        classes=layout.classes,
        train=take("train"),
        validation=take("validation"),
        test=take("test"),
        train_files=files("train"),
        validation_files=files("validation"),
        test_files=files("test"),
        skipped=(*pictures.skipped, *_other_files(layout)),
    )


# --- The layout of a folder ---------------------------------------------------------------------------------


class _File(NamedTuple):
    path: Path
    part: str
    label: int


class _Layout(NamedTuple):
    path: Path
    classes: tuple[str, ...]
    parts: tuple[str, ...]
    files: tuple[_File, ...]
    loose: tuple[Path, ...]  # pictures outside the class folders


def _layout(path: Path) -> _Layout:
    if path.is_file():
        raise InputError(f"{path} is a file: give the folder that holds the pictures (unpack an archive first).")
    if not path.is_dir():
        raise InputError(f"There is no folder {path}: check the path.")
    folders = _folders(path)
    parts = _part_folders(path, folders)
    if not parts:
        parts = {"train": path}
        named: tuple[str, ...] = ()
    else:
        named = tuple(parts)
        folders = _folders(parts["train"])
    classes = tuple(folder.name for folder in folders)
    files: list[_File] = []
    for part, place in parts.items():
        files += _part_files(place, part, classes, root=path)
    loose = [file for place in dict.fromkeys((path, *parts.values())) for file in _loose(place)]
    if len(classes) < 2:
        outside = f" ({loose[0].relative_to(path).as_posix()} is outside the class folders)" if loose else ""
        raise InputError(
            f"{path} holds only one class, {classes[0]!r}, but two are needed: add another folder{outside}."
        )
    return _Layout(path, classes, named, tuple(files), tuple(loose))


def _part_files(place: Path, part: str, classes: tuple[str, ...], root: Path) -> list[_File]:
    """The pictures of one part, class by class."""
    found = {folder: image_files(folder) for folder in _folders(place)}
    if not any(found.values()):
        loose = _loose(place)
        what = f"pictures only outside class folders, such as {loose[0].name}" if loose else "no pictures"
        raise InputError(f"{place} holds {what}: {_LAYOUT.format(root.name or root)}.")
    files = []
    for folder, paths in found.items():
        others = {entry.suffix.lower() or entry.name for entry in folder.iterdir() if _other_kind(entry)}
        if folder.name not in classes:
            raise InputError(
                f"{place} has a class {folder.name!r} that is missing from the training pictures: "
                "add it to the train folder or remove it."
            )
        if not paths and part == "train":
            kinds = f" in a supported format (only {', '.join(sorted(others))})" if others else ""
            raise InputError(f"The class folder {folder} holds no pictures{kinds}: fill it or remove it.")
        files += [_File(path, part, classes.index(folder.name)) for path in paths]
    return files


def _other_kind(entry: Path) -> bool:
    return entry.is_file() and not is_hidden(entry) and entry.suffix.lower() not in IMAGE_SUFFIXES


def _other_files(layout: _Layout) -> list[str]:
    """Pictures outside the class folders, and files in unsupported formats: the user may believe they were used for
    training."""
    folders = sorted({file.path.parent for file in layout.files})
    entries = (entry for folder in folders for entry in sorted(folder.iterdir()) if _other_kind(entry))
    why = dict.fromkeys(layout.loose, "is outside the class folders")
    why |= {entry: f"{entry.suffix or 'such'} files are not supported" for entry in entries}
    return [f"{file.relative_to(layout.path).as_posix()}: {reason}" for file, reason in why.items()]


def _part_folders(path: Path, folders: Sequence[Path]) -> dict[str, Path]:
    """The train, validation and test folders; none if the folders are classes.

    A class may be called "train" (next to "bus" and "car"), so among folders with other names, one is a part only if it
    has subfolders. If all folders have part names, they are parts: otherwise test pictures would be used for training.
    """
    named = [folder for folder in folders if folder.name.lower() in _PART_NAMES]
    others = [folder.name for folder in folders if folder not in named]
    if others:
        _refuse_a_mixture(path, [folder for folder in named if _folders(folder)], others[0])
        return {}
    parts: dict[str, Path] = {}
    for folder in named:
        part = _PART_NAMES[folder.name.lower()]
        if part in parts:
            raise InputError(f"{path} has two folders for {part}, {parts[part].name} and {folder.name}: keep one.")
        parts[part] = folder
    if not parts:
        return {}
    if "train" not in parts:
        raise InputError(f"{path} has a {next(iter(parts.values())).name} folder but no train folder: add one.")
    return {part: parts[part] for part in ("train", "validation", "test") if part in parts}


def _refuse_a_mixture(path: Path, nested: Sequence[Path], other: str) -> None:
    """`nested` have part names and subfolders, but are next to the folder `other`, which has no part name."""
    loose = {folder: _loose(folder) for folder in nested}
    for folder in nested:
        if not loose[folder]:
            raise InputError(
                f"{path} holds both {folder.name!r} and {other!r}: keep either class folders or train, val and "
                "test folders in it."
            )
    for folder in nested:
        if any(map(image_files, _folders(folder))):
            raise InputError(
                f"{folder} holds pictures both in subfolders and outside them ({loose[folder][0].name}), so it "
                f"may be a class, like {other!r}, or hold classes: move all pictures out of the subfolders, or "
                f"remove {other!r}."
            )


def _folders(path: Path) -> list[Path]:
    try:
        found = [
            entry for entry in path.iterdir() if entry.is_dir() and not is_hidden(entry) and not _holds_runs(entry)
        ]
    except OSError as error:
        raise InputError(f"Cannot list the folder {path}: {error.strerror}; check its permissions.") from error
    return sorted(found, key=lambda folder: natural_key(folder.name))


def _holds_runs(folder: Path) -> bool:
    """Ignore run folders inside the image folder."""
    return any(folder.glob("experiment.json")) or any(folder.glob("*/experiment.json"))


def _loose(folder: Path) -> list[Path]:
    """The pictures directly in this folder."""
    entries = (entry for entry in folder.iterdir() if entry.suffix.lower() in IMAGE_SUFFIXES and not is_hidden(entry))
    return sorted((entry for entry in entries if not entry.is_dir()), key=lambda file: natural_key(file.name))


# --- Size and colour of pictures ----------------------------------------------------------------------------


def _summarize(layout: _Layout, most: int = 200) -> FolderSummary:
    step = max(1.0, len(layout.files) / most)
    chosen = [layout.files[int(i * step)].path for i in range(min(most, len(layout.files)))]
    headers: list[ImageHeader] = []
    failure: UnreadableImageError | None = None
    has_color = False
    for path in chosen:
        try:
            header = read_header(path, look_for_color=not has_color)  # one colour picture is enough
        except UnreadableImageError as error:
            failure = failure or error
            continue
        headers.append(header)
        has_color = has_color or header.color
    if not headers:
        raise InputError(f"None of the sampled pictures in {layout.path} can be read; the first one: {failure}")
    ratios = [header.height / header.width for header in headers]
    counts = [0] * len(layout.classes)
    for file in layout.files:
        counts[file.label] += file.part == "train"
    return FolderSummary(
        path=layout.path,
        classes=layout.classes,
        counts=tuple(counts),
        parts=layout.parts,
        total=len(layout.files),
        height=round(statistics.median(header.height for header in headers)),
        width=round(statistics.median(header.width for header in headers)),
        one_shape=max(ratios) <= 1.02 * min(ratios),  # manual cropping may be off by a pixel
        has_color=has_color,
    )


def _format(config: DataConfig, layout: _Layout) -> tuple[int, int, int]:
    """Height, width and channels: as configured, or as proposed if left out."""
    height, width, channels = config.height, config.width, config.channels
    if height is None or width is None or channels is None:
        summary = _summarize(layout)
        if height is None and width is None:
            height, width = summary.proposed_size()
        channels = channels or summary.proposed_channels
    if height is None or width is None:  # one side alone means a square
        height = width = height or width or 0
    return height, width, channels


def _multiple_of_4(length: float) -> int:
    # round up: enlarging slightly loses nothing
    return min(_LARGEST, max(_SMALLEST, -(-round(length) // 4) * 4))


# --- Splitting ----------------------------------------------------------------------------------------------


class SplitIndex(NamedTuple):
    """Positions, in ascending order."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray


def stratified_split(labels: np.ndarray, *, validation: float, test: float, seed: int) -> SplitIndex:
    """Split positions so that each class is divided in proportion, shuffled with `seed`.

    `validation` and `test` are numbers of images (>= 1), fractions of all of them (< 1), or 0 for none.
    Every class keeps at least one training image. A class of 3 or more gives at least one image to each requested part;
    a class of 1 or 2 is used for training only. These rules take precedence over the exact numbers.
    """
    m = len(labels)
    wanted_test, wanted_validation = _number(test, m), _number(validation, m)
    if wanted_test + wanted_validation >= m and m >= 3:
        raise InputError(
            f"data.validation and data.test must leave pictures to train on: they ask for {wanted_validation} and "
            f"{wanted_test} of {m}; give fractions such as 0.15."
        )
    counts = np.bincount(labels)
    free = np.where(counts >= 3, counts - 1, 0)  # one is kept for training
    low = np.minimum(free, 1)
    reserved = low if wanted_validation else np.zeros_like(low)
    from_test = _share(counts, wanted_test, low, free - reserved)
    from_validation = _share(counts, wanted_validation, low, free - from_test)

    generator = torch.Generator().manual_seed(seed)
    parts: tuple[list[np.ndarray], ...] = ([], [], [])
    for label, (a, b) in enumerate(zip(from_test, from_validation, strict=True)):
        mine = np.flatnonzero(labels == label)
        mine = mine[torch.randperm(len(mine), generator=generator).numpy()]
        for part, chosen in zip(parts, (mine[a + b :], mine[a : a + b], mine[:a]), strict=True):
            part.append(chosen)
    return SplitIndex(*(np.sort(np.concatenate(part)) for part in parts))


def _number(amount: float, m: int) -> int:
    return int(amount) if amount >= 1 or amount == 0 else max(1, round(amount * m))


def _share(counts: np.ndarray, wanted: int, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """`wanted` distributed over the classes in proportion to `counts`, each within low and high."""
    if wanted == 0:
        return np.zeros_like(counts)
    exact = counts * (wanted / counts.sum())
    share = np.clip(np.floor(exact).astype(counts.dtype), low, high)
    while share.sum() < wanted and (share < high).any():
        share[np.argmax(np.where(share < high, exact - share, -np.inf))] += 1
    while share.sum() > wanted and (share > low).any():
        share[np.argmin(np.where(share > low, exact - share, np.inf))] -= 1
    return share


# --- Decoding and cache -------------------------------------------------------------------------------------


class _Pictures(NamedTuple):
    images: np.ndarray  # (m, ch, h, w) uint8, the readable ones
    readable: np.ndarray  # their positions among all files
    skipped: tuple[str, ...]


def _read_cached(layout: _Layout, shape: tuple[int, int, int], cache_dir: Path | None, quiet: bool) -> _Pictures:
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


def _decode(layout: _Layout, shape: tuple[int, int, int], quiet: bool) -> _Pictures:
    channels, height, width = shape
    images = np.empty((len(layout.files), *shape), np.uint8)

    def decode(position: int) -> str | None:
        path = layout.files[position].path
        try:
            images[position] = read_image(path, channels=channels, height=height, width=width)
        except UnreadableImageError as error:
            return f"{path.relative_to(layout.path).as_posix()}: {error.reason}"
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
    return _Pictures(images[index] if skipped else images, index, tuple(skipped))


def _fingerprint(layout: _Layout) -> tuple[str, str]:
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


def _load_cache(entry: Path, files: int, shape: tuple[int, int, int]) -> _Pictures | None:
    """Previously decoded pictures, or None: an unreadable cache costs time but does not fail the run."""
    try:
        with entry.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            images, readable = arrays["images"], arrays["readable"]
            skipped = tuple(map(str, json.loads(arrays["skipped"].tobytes())))
    except Exception:  # damaged bytes may raise any exception
        return None
    complete = len(readable) + len(skipped) == files and images.shape == (len(readable), *shape)
    return _Pictures(images, readable, skipped) if complete else None


def _save_cache(entry: Path, pictures: _Pictures) -> None:
    skipped = np.frombuffer(json.dumps(pictures.skipped).encode(), np.uint8)
    # the cache cannot be written: the next run decodes again
    with contextlib.suppress(OSError), replacing(entry) as partial, partial.open("wb") as stream:
        np.savez(stream, images=pictures.images, readable=pictures.readable, skipped=skipped)
