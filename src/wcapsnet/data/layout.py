"""The classes and files of a folder of pictures, found by their names."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..errors import InputError
from ..formatting import printable, some
from ..parts import suggestion
from . import pictures
from .decode import IMAGE_SUFFIXES, UnreadableImageError, image_files, is_hidden, natural_key, read_image
from .pictures import Source

PART_NAMES = {
    "train": "train", "training": "train",
    "val": "validation", "valid": "validation", "validation": "validation",
    "test": "test", "testing": "test",
}  # fmt: skip
_LAYOUT = (
    "expected one folder for each class, such as {0}/cats/1.jpg and {0}/dogs/2.jpg, or folders "
    "train, val and test of such folders, such as {0}/train/cats/1.jpg"
)


class File(NamedTuple):
    path: Path
    part: str
    label: int


class Files(Source):
    """The pictures of a folder"""

    def __init__(self, path: Path, classes: tuple[str, ...], files: Sequence[File], loose: Sequence[Path]):
        self.path, self.classes, self.files = path, classes, files
        self.loose = loose  # pictures outside the class folders
        self.place, self.name = str(path), path.resolve().name
        self.names = np.array([self.relative(file.path) for file in files], object)
        self.labels = np.array([file.label for file in files], np.int64)
        self.parts = np.array([file.part for file in files])

    def picture(self, position: int) -> Path:
        return self.files[position].path

    def fingerprint(self) -> tuple[str, str]:
        """Adding, removing, renaming or writing a file changes the hash."""
        content = hashlib.sha256(f"reader {pictures.READER_VERSION}\n".encode())
        for file in self.files:
            try:
                status = file.path.stat()
                state = f"{status.st_size} {status.st_mtime_ns}"
            except OSError:  # a dangling link; reading it will report the error
                state = "gone"
            content.update(os.fsencode(file.path.relative_to(self.path)) + f"\0{state}\n".encode())
        folder = hashlib.sha256(os.fsencode(self.path.resolve()))
        return folder.hexdigest()[:16], content.hexdigest()[:32]

    def relative(self, file: Path) -> str:
        return file.relative_to(self.path).as_posix()

    def ignored(self) -> list[str]:
        """Pictures outside the class folders, and files in unsupported formats: the user may believe they were used."""
        folders = sorted({file.path.parent for file in self.files})
        entries = (entry for folder in folders for entry in sorted(folder.iterdir()) if _other_kind(entry))
        why = dict.fromkeys(self.loose, "is outside the class folders")
        why |= {entry: f"{entry.suffix or 'such'} files are not supported" for entry in entries}
        return [printable(f"{self.relative(file)}: {reason}") for file, reason in why.items()]


def read_layout(path: Path, exclude: Collection[str] = ()) -> Files:
    """All classes of a folder to train on, without those named in `exclude`."""
    folders = _class_folders(path, exclude)
    _check_excluded(path, exclude)
    parts = _part_folders(path, folders)
    places = parts or {"train": path}
    classes = tuple(folder.name for folder in (_folders(parts["train"], exclude) if parts else folders))
    files: list[File] = []
    problems: dict[str, str] = {}
    for part, place in places.items():
        found = {folder: image_files(folder) for folder in _folders(place, exclude)}
        if not any(found.values()):
            loose = _loose(place)
            what = f"pictures only outside class folders, such as {loose[0].name}" if loose else "no pictures"
            raise InputError(f"{place} holds {what}: {_LAYOUT.format(path.name or path)}.")
        for folder, paths in found.items():
            if folder.name not in classes:
                problems[folder.name] = f"is in {place.name} but not in {parts['train'].name}"
            elif not paths and part == "train":
                kinds = sorted({entry.suffix.lower() or entry.name for entry in folder.iterdir() if _other_kind(entry)})
                only = f", only {', '.join(kinds)}" if kinds else ""
                problems[folder.name] = f"holds no pictures{only}"
            else:
                files += [File(file, part, classes.index(folder.name)) for file in paths]
    source = Files(path, classes, files, _loose_files(path, places.values()))
    if problems:
        raise unusable(path, {**_unreadable_classes(source, set(classes) - set(problems)), **problems})
    if len(classes) < 2:
        outside = f" ({source.relative(source.loose[0])} is outside the class folders)" if source.loose else ""
        raise InputError(
            f"{path} holds only one class, {classes[0]!r}, but two are needed: add another folder{outside}."
        )
    return source


def match_classes(path: Path, classes: tuple[str, ...], part: str) -> tuple[Files, tuple[str, ...]]:
    """The pictures of the class folders named in `classes`, and the names of the other folders.

    If the folder has train, val and test folders, `part` says which is meant.
    """
    folders = _class_folders(path)
    place = path
    if not any(folder.name in classes for folder in folders) and (parts := _part_folders(path, folders, "")):
        if part not in parts:
            raise InputError(f"{path} has no {part} folder, only {', '.join(p.name for p in parts.values())}.")
        place = parts[part]
        folders = _folders(place)
    elif part != "test":
        raise InputError(f"{path} has no {part} folder: omit --split to evaluate all its pictures.")
    known = {folder: image_files(folder) for folder in folders if folder.name in classes}
    files = [File(file, part, classes.index(folder.name)) for folder, paths in known.items() for file in paths]
    others = tuple(folder.name for folder in folders if folder not in known and image_files(folder))
    if not files:
        holds = f"pictures of {some(map(repr, others))}" if others else "no pictures in class folders"
        raise InputError(
            f"{place} holds {holds}, but the network knows {some(map(repr, classes))}: check the folder names."
        )
    return Files(path, classes, files, _loose_files(path, [place])), others


def unusable(path: Path | str, problems: Mapping[str, str]) -> InputError:
    """All classes that cannot be used, each with the reason."""
    listed = "; ".join(f"{name!r} {problems[name]}" for name in sorted(problems, key=natural_key))
    options = " ".join(f"--exclude {shlex.quote(name)}" for name in sorted(problems, key=natural_key))
    what, them = ("A class", "it") if len(problems) == 1 else (f"{len(problems)} classes", "them")
    return InputError(f"{what} in {path} cannot be used: {listed}. Fix {them}, or leave {them} out with {options}.")


def _unreadable_classes(source: Files, classes: Collection[str]) -> dict[str, str]:
    problems: dict[str, str] = {}
    readable: set[str] = set()
    for file in source.files:
        name = source.classes[file.label]
        if file.part == "train" and name in classes and name not in readable:
            try:
                read_image(file.path, channels=1, height=8, width=8)
                readable.add(name)
            except UnreadableImageError as error:
                problems.setdefault(name, f"has no readable picture ({source.relative(file.path)}: {error.reason})")
    return {name: problem for name, problem in problems.items() if name not in readable}


def _check_excluded(path: Path, exclude: Collection[str]) -> None:
    folders = _folders(path)
    parts = [folder for folder in folders if folder.name.lower() in PART_NAMES]
    known = {folder.name for folder in (*folders, *(inner for part in parts for inner in _folders(part)))}
    for name in exclude:
        if name not in known:
            raise InputError(f"--exclude: there is no folder {name!r} in {path}{suggestion(name, sorted(known))}")


def _class_folders(path: Path, exclude: Collection[str] = ()) -> list[Path]:
    if path.is_file():
        raise InputError(f"{path} is a file: give the folder that holds the pictures (unpack an archive first).")
    if not path.is_dir():
        raise InputError(f"There is no folder {path}: check the path.")
    return _folders(path, exclude)


def _part_folders(path: Path, folders: Sequence[Path], needed: str = "train") -> dict[str, Path]:
    """The train, validation and test folders; none if the folders are classes.

    A class may be called "train" (next to "bus" and "car"), so among folders with other names, one is a part only if it
    has subfolders. If all folders have part names, they are parts: otherwise test pictures would be used for training.
    """
    named = [folder for folder in folders if folder.name.lower() in PART_NAMES]
    others = [folder.name for folder in folders if folder not in named]
    if others:
        _refuse_a_mixture(path, [folder for folder in named if _folders(folder)], others)
        return {}
    parts: dict[str, Path] = {}
    for folder in named:
        part = PART_NAMES[folder.name.lower()]
        if part in parts:
            raise InputError(
                f"{path} has two folders for {part}, {parts[part].name} and {folder.name}: keep one, or leave one out "
                "with --exclude."
            )
        parts[part] = folder
    if parts and needed and needed not in parts:
        raise InputError(f"{path} has a {next(iter(parts.values())).name} folder but no {needed} folder: add one.")
    return {part: parts[part] for part in ("train", "validation", "test") if part in parts}


def _refuse_a_mixture(path: Path, nested: Sequence[Path], others: Sequence[str]) -> None:
    """`nested` have part names and subfolders, but are next to the folders `others`, which have no part name."""
    loose = {folder: _loose(folder) for folder in nested}
    options = " ".join(f"--exclude {shlex.quote(name)}" for name in others)
    for folder in nested:
        if not loose[folder]:
            raise InputError(
                f"{path} holds both {folder.name!r} and {some(map(repr, others))}: keep either class folders or train, "
                f"val and test folders in it, or leave folders out with {options}."
            )
    for folder in nested:
        if any(map(image_files, _folders(folder))):
            raise InputError(
                f"{folder} holds pictures both in subfolders and outside them ({loose[folder][0].name}), so it "
                f"may be a class, like {others[0]!r}, or hold classes: move all pictures out of the subfolders, or "
                f"leave {others[0]!r} out with {options}."
            )


def _folders(path: Path, exclude: Collection[str] = ()) -> list[Path]:
    try:
        found = [
            entry
            for entry in path.iterdir()
            if entry.is_dir() and not is_hidden(entry) and entry.name not in exclude and not _holds_runs(entry)
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


def _loose_files(path: Path, places: Collection[Path]) -> tuple[Path, ...]:
    return tuple(file for place in dict.fromkeys((path, *places)) for file in _loose(place))


def _other_kind(entry: Path) -> bool:
    return entry.is_file() and not is_hidden(entry) and entry.suffix.lower() not in IMAGE_SUFFIXES
