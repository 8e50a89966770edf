"""Hugging Face datasets as a source: `hf:PATH`, a name on the hub, a Parquet or Arrow file, or a folder of such files.

`hf:PATH?image=COLUMN&label=COLUMN&config=NAME` names what cannot be found out. Needs the `datasets` library, whose
version 4 and later never runs code that comes with a dataset.
"""

from __future__ import annotations

import hashlib
import urllib.parse
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from .. import cache
from ..errors import InputError
from ..formatting import plural, printable, some
from ..parts import suggestion
from .decode import ImageSource, UnreadableImageError, natural_key
from .folder import FolderSummary, Found, chosen_format, divided, summarize
from .layout import PART_NAMES, unusable
from .pictures import READER_VERSION, read_pictures
from .types import DataConfig, Dataset

PREFIX = "hf:"
MOST_CLASSES = 10_000
_PARTS = {**PART_NAMES, "dev": "validation"}
_FILES = {".parquet": "parquet", ".arrow": "arrow"}
_CHOICES = ("image", "label", "config")


@dataclass(frozen=True)
class Address:
    """hf:PATH?image=…&label=…&config=…"""

    path: str
    image: str | None = None
    label: str | None = None
    config: str | None = None  # of a dataset that has several

    @staticmethod
    def of(source: str) -> Address:
        path, _, query = source.removeprefix(PREFIX).partition("?")
        chosen = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        for name in chosen:
            if name not in _CHOICES:
                raise InputError(f"{source!r} sets {name!r}, which is not one of {', '.join(_CHOICES)}.")
        if not path:
            raise InputError("hf: needs the name of a dataset on the Hub or the path of a local one: hf:PATH.")
        return Address(path, **chosen)

    def __str__(self) -> str:
        chosen = {name: value for name in _CHOICES if (value := getattr(self, name)) is not None}
        return f"{PREFIX}{self.path}" + (f"?{urllib.parse.urlencode(chosen)}" if chosen else "")

    @property
    def place(self) -> Path | None:
        """The file or folder, if it is a local one"""
        place = Path(self.path).expanduser()
        if place.exists():
            return place.resolve()
        if self.path.startswith(("/", "./", "../", "~")) or place.suffix in _FILES:
            raise InputError(
                f"There is no file or folder {self.path}: check the path; if it was moved, give its new path with "
                "--data-dir."
            )
        return None

    @property
    def name(self) -> str:
        """For the run folder"""
        place = self.place or Path(self.path)
        return (place.stem if place.is_file() else place.name) or "hf"


def is_hugging_face(source: str) -> bool:
    return source.startswith(PREFIX)


def moved_to(source: str, place: Path) -> str:
    """The same dataset at another place"""
    return str(replace(Address.of(source), path=str(place)))


def scan_hugging_face(source: str, exclude: Iterable[str] = ()) -> tuple[str, str, FolderSummary]:
    """The source with an absolute path, a name for the run, and what the dataset holds (at most 200 pictures are
    looked at)."""
    address = Address.of(source)
    excluded = tuple(dict.fromkeys(exclude))
    table = _Table(address, excluded)
    summary = replace(summarize(table.found, table, address.place or Path(address.path)), exclude=excluded)
    absolute = moved_to(source, address.place) if address.place else str(address)
    return absolute, address.name, summary


def load_hugging_face(config: DataConfig, *, cache_dir: Path | None = None, quiet: bool = False) -> Dataset:
    """The dataset `config.source`. The splits train, validation and test are used as they are; a missing one is split
    off the training pictures. Decoded pictures are cached, both as for folders."""
    address = Address.of(config.source)
    table = _Table(address, config.exclude)
    height, width, channels = chosen_format(config, table.found, table)
    pictures = read_pictures(table, (channels, height, width), cache.directory(cache_dir), quiet)
    if broken := table.found.classes_without(pictures):
        raise unusable(Path(address.path), broken)
    dataset = divided(table.found, pictures, config, address.name)
    return replace(dataset, warnings=(*table.warnings, *dataset.warnings))


class _Table:
    """The pictures of all splits that are used (a `Source` of `read_pictures`). Rows without a label are left out."""

    def __init__(self, address: Address, exclude: Iterable[str]):
        self.address = address
        self.warnings: list[str] = []
        opened = self._used(_opened(address))
        features = next(iter(opened.values())).features
        self.image = _image_column(address, features)
        self.label = _label_column(address, features, self.image)
        self.names = tuple(opened)
        self.fingerprints = [(name, one.num_rows, getattr(one, "_fingerprint", "")) for name, one in opened.items()]
        self.pictures = [_undecoded(one, self.image) for one in opened.values()]
        columns = [_labels(one, self.label) for one in opened.values()]
        self.classes = self._classes(features[self.label], columns[0].values, tuple(exclude))
        labels = [self._numbered(name, column) for name, column in zip(self.names, columns, strict=True)]
        rows = [np.flatnonzero(label >= 0) for label in labels]
        self.labels = np.concatenate([label[kept] for label, kept in zip(labels, rows, strict=True)])
        self.rows = np.concatenate(rows)
        self.splits = np.repeat(np.arange(len(rows)), [len(kept) for kept in rows])
        self._check_classes()

    # ── a `Source` ──

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, position: int) -> str:
        return f"{self.names[self.splits[position]]}/{self.rows[position]}"

    def picture(self, position: int) -> ImageSource:
        value: Any = self.pictures[self.splits[position]][int(self.rows[position])][self.image]
        content, path = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, None)
        if content is None and path:
            return self._file(str(path), position)
        if not isinstance(content, bytes):
            raise UnreadableImageError(self.name(position), "it is missing")
        return content

    def _file(self, path: str, position: int) -> Path:
        """Only a local file; a dataset from the hub must not name files outside the download."""
        file = Path(path)
        inside = self.address.place is not None or _downloads() in file.resolve().parents
        if not (inside and file.is_absolute() and file.is_file()):
            raise UnreadableImageError(self.name(position), f"it refers to another file, {path}, which is not read")
        return file

    def fingerprint(self) -> tuple[str, str]:
        which = hashlib.sha256(f"{self.address.place or self.address.path}\n{self.image}".encode())
        kept = hashlib.sha256(self.rows.tobytes() + self.splits.tobytes()).hexdigest()
        content = hashlib.sha256(f"hf reader {READER_VERSION}\n{self.fingerprints}\n{self.image}\n{kept}".encode())
        return which.hexdigest()[:16], content.hexdigest()[:32]

    # ── what is in it ──

    @cached_property
    def found(self) -> Found:
        parts = np.array([self.parts[name] for name in self.names])
        names = (f"{self.names[split]}/{row}" for split, row in zip(self.splits, self.rows, strict=True))
        return Found(
            place=str(self.address),
            classes=tuple(self.classes.values()),
            names=np.array(list(names), object),
            labels=self.labels,
            parts=parts[self.splits],
        )

    def _used(self, splits: dict[str, Any]) -> dict[str, Any]:
        """Splits by name, training first. A single one is divided, whatever its name."""
        if len(splits) == 1:
            self.parts = dict.fromkeys(splits, "train")
            return splits
        self.parts = {}
        for name in splits:
            part = _PARTS.get(name.lower())
            if part is None or part in self.parts.values():
                self.warnings.append(f"The split {name!r} is not used: only train, validation and test are.")
            else:
                self.parts[name] = part
        if "train" not in self.parts.values():
            raise InputError(f"{self.address} has the splits {some(map(repr, splits))}, but none is called train.")
        order = ("train", "validation", "test")
        return {name: splits[name] for name in sorted(self.parts, key=lambda name: order.index(self.parts[name]))}

    def _classes(self, feature: Any, found: list[Any], exclude: tuple[str, ...]) -> dict[Any, str]:
        """The name of each value; `found` are those of the training split."""
        names = getattr(feature, "names", None)
        if names is not None:
            classes = dict(enumerate(map(str, names)))
        else:
            classes = {value: str(value) for value in sorted(found, key=lambda value: natural_key(str(value)))}
        if len(classes) > MOST_CLASSES:
            raise InputError(
                f"The column {self.label!r} of {self.address} has {len(classes):,} different values, too many for "
                f"classes; {_choose('label')}."
            )
        for name in exclude:
            if name not in classes.values():
                raise InputError(f"--exclude: {self.address} has no class {name!r}{suggestion(name, classes.values())}")
        self.excluded = {value for value, name in classes.items() if name in exclude}
        return {value: name for value, name in classes.items() if name not in exclude}

    def _numbered(self, name: str, column: _Labels) -> np.ndarray:
        """The class of each row of a split; -1 if the row is left out."""
        number = {value: place for place, value in enumerate(self.classes)}
        places = np.array([*(number.get(value, -1) for value in column.values), -1])  # the last one for code -1
        strange = np.array([*(value not in number and value not in self.excluded for value in column.values), False])
        for count, why in (((column.codes < 0).sum(), "no label"), (strange[column.codes].sum(), "an unknown label")):
            if count:
                self.warnings.append(f"{plural(int(count), 'row', 'rows')} of {name!r} with {why} were left out.")
        return places[column.codes]

    def _check_classes(self) -> None:
        if len(self.classes) < 2:
            raise InputError(f"{self.address} has {plural(len(self.classes), 'class', 'classes')}; two are needed.")
        counts = np.bincount(self.labels[self.found.parts == "train"], minlength=len(self.classes))
        if not counts.all():
            empty = [name for name, n in zip(self.classes.values(), counts, strict=True) if not n]
            raise unusable(Path(self.address.path), dict.fromkeys(empty, "has no training picture"))


@dataclass(frozen=True)
class _Labels:
    codes: np.ndarray  # (rows,) places in `values`; -1: none
    values: list[Any]


# --- The library --------------------------------------------------------------------------------------------


def _library() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise InputError("hf: needs the datasets library; install it with: pip install 'wcapsnet[hf]'.") from error
    if int(datasets.__version__.split(".")[0]) < 4:  # earlier versions run code that comes with a dataset
        raise InputError(f"hf: needs datasets 4 or later, not {datasets.__version__}; install 'wcapsnet[hf]' again.")
    return datasets


def _opened(address: Address) -> dict[str, Any]:
    """The splits by name. Images stay on disk: Arrow files are memory-mapped."""
    library, place = _library(), address.place
    shown = library.is_progress_bar_enabled()
    library.disable_progress_bars()
    try:
        if place is None:
            opened = library.load_dataset(address.path, address.config)
        elif place.is_file():
            kind = _FILES.get(place.suffix)
            if kind is None:
                raise InputError(f"{place} is not a {' or '.join(_FILES)} file; name such a file, or a folder of them.")
            opened = library.load_dataset(kind, data_files={"train": str(place)})
        elif any((place / name).is_file() for name in ("dataset_dict.json", "state.json")):
            opened = library.load_from_disk(str(place))
        else:
            opened = library.load_dataset(str(place), address.config)
    except InputError:
        raise
    except Exception as error:  # of all kinds: the library's, Arrow's, the network's
        why = printable(" ".join(str(error).split()) or type(error).__name__).rstrip(".")
        raise InputError(f"{address} cannot be opened: {why[:300]}.") from error
    finally:
        if shown:
            library.enable_progress_bars()
    splits = dict(opened) if isinstance(opened, dict) else {"train": opened}
    splits = {name: split for name, split in splits.items() if split.num_rows}
    if not splits:
        raise InputError(f"{address} holds no rows.")
    return splits


def _downloads() -> Path:
    return Path(_library().config.HF_CACHE_HOME).resolve()


def _undecoded(split: Any, column: str) -> Any:
    """Only the pictures, as files in memory: Pillow must not see formats that `read_image` refuses."""
    library, split = _library(), split.select_columns([column]).with_format(None)
    return split.cast_column(column, library.Image(decode=False)) if _is_image(split.features[column]) else split


def _labels(split: Any, column: str) -> _Labels:
    """Read by Arrow, without the other columns."""
    values = split.select_columns([column]).with_format("arrow")[:][column].combine_chunks()
    encoded = values.dictionary_encode()
    found = encoded.dictionary.to_pylist()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    missing = [value is None or value == "" or (type(value) is int and value < 0) for value in found]
    if any(missing):  # -1 stands for no label, as in test splits whose labels are secret
        kept = np.flatnonzero(~np.array(missing))
        renumbered = np.full(len(found) + 1, -1)
        renumbered[kept] = np.arange(len(kept))
        codes, found = renumbered[codes], [found[place] for place in kept]
    return _Labels(codes, found)


# --- Columns ------------------------------------------------------------------------------------------------


def _image_column(address: Address, features: Any) -> str:
    if address.image is not None:
        return _named(address, features, address.image, "image")
    images = [name for name, feature in features.items() if _is_image(feature)]
    images = images or [name for name, feature in features.items() if _may_be_image(feature)]
    return _only(address, features, images, "image", "pictures")


def _label_column(address: Address, features: Any, image: str) -> str:
    if address.label is not None:
        return _named(address, features, address.label, "label")
    library = _library()
    others = {name: feature for name, feature in features.items() if name != image}
    labels = [name for name, feature in others.items() if isinstance(feature, library.ClassLabel)]
    labels = labels or [name for name, feature in others.items() if _may_be_label(feature)]
    if len(labels) > 1 and "label" in labels:
        labels = ["label"]
    return _only(address, features, labels, "label", "labels")


def _is_image(feature: Any) -> bool:
    return isinstance(feature, _library().Image)


def _may_be_image(feature: Any) -> bool:
    """Bytes, or bytes and a path, in a Parquet file written by another program"""
    if isinstance(feature, dict):
        feature = feature.get("bytes")
    return getattr(feature, "dtype", None) in ("binary", "large_binary")


def _may_be_label(feature: Any) -> bool:
    kind = str(feature.dtype) if isinstance(feature, _library().Value) else ""
    return kind in ("string", "large_string", "bool") or kind.startswith(("int", "uint"))


def _named(address: Address, features: Any, name: str, what: str) -> str:
    if name not in features:
        raise InputError(f"{address.path} has no column {name!r} for {what}={suggestion(name, list(features))}")
    fitting = (
        _is_image(features[name]) or _may_be_image(features[name])
        if what == "image"
        else (isinstance(features[name], _library().ClassLabel) or _may_be_label(features[name]))
    )
    if not fitting:
        kind = "pictures" if what == "image" else "labels"
        raise InputError(f"The column {name!r} of {address.path} does not hold {kind}; {_choose(what)}.")
    return name


def _only(address: Address, features: Any, candidates: list[str], what: str, kind: str) -> str:
    if len(candidates) == 1:
        return candidates[0]
    listed = some(map(repr, candidates or features), 8)
    holds = f"{len(candidates)} columns that may hold {kind}" if candidates else f"no column of {kind}"
    raise InputError(f"{address.path} has {holds} ({listed}); {_choose(what)}.")


def _choose(what: str) -> str:
    return f"name the column: hf:PATH?{what}=COLUMN"
