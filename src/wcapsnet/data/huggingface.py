"""Hugging Face datasets as a source: `hf:PATH`, a name on the hub, a Parquet or Arrow file, or a folder of such files.

`hf:PATH?image=COLUMN&label=COLUMN&config=NAME` names what cannot be found out. Needs the `datasets` library, whose
version 4 and later never runs code that comes with a dataset.
"""

from __future__ import annotations

import hashlib
import urllib.parse
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from ..formatting import plural, printable, some
from ..parts import suggestion
from .decode import ImageSource, UnreadableImageError, natural_key
from .folder import FolderSummary, load_source, summarize
from .layout import PART_NAMES, unusable
from .pictures import READER_VERSION, Source
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
    summary = replace(summarize(table, address.place or Path(address.path)), exclude=excluded)
    absolute = moved_to(source, address.place) if address.place else str(address)
    return absolute, address.name, summary


def load_hugging_face(config: DataConfig, *, quiet: bool = False) -> Dataset:
    """The dataset `config.source`. The splits train, validation and test are used as they are; a missing one is split
    off the training pictures. Decoded pictures are cached, both as for folders."""
    table = _Table(Address.of(config.source), config.exclude)
    dataset = load_source(table, config, quiet)
    return replace(dataset, warnings=(*table.warnings, *dataset.warnings))


class _Table(Source):
    """The pictures of all splits that are used. Rows without a label are left out."""

    def __init__(self, address: Address, exclude: Iterable[str]):
        self.address, self.place, self.name = address, str(address), address.name
        self.warnings: list[str] = []
        opened = self._used(_opened(address))
        features = next(iter(opened.values())).features
        self.image = _column(address, features, "image")
        self.label = _column(address, features, "label", self.image)
        self.split_names = tuple(opened)
        self.fingerprints = [(name, one.num_rows, getattr(one, "_fingerprint", "")) for name, one in opened.items()]
        self.tables = [_undecoded(one, self.image) for one in opened.values()]
        columns = [_labels(one, self.label) for one in opened.values()]
        self.class_of = self._classes(features[self.label], columns[0].values, tuple(exclude))
        self.classes = tuple(self.class_of.values())
        labels = [self._numbered(name, column) for name, column in zip(self.split_names, columns, strict=True)]
        rows = [np.flatnonzero(label >= 0) for label in labels]
        self.labels = np.concatenate([label[kept] for label, kept in zip(labels, rows, strict=True)])
        self.rows = np.concatenate(rows)
        self.splits = np.repeat(np.arange(len(rows)), [len(kept) for kept in rows])
        named = (f"{self.split_names[split]}/{row}" for split, row in zip(self.splits, self.rows, strict=True))
        self.names = np.array(list(named), object)
        self.parts = np.array([self.part_of[name] for name in self.split_names])[self.splits]
        self._check_classes()

    def picture(self, position: int) -> ImageSource:
        value: Any = self.tables[self.splits[position]][int(self.rows[position])][self.image]
        content, path = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, None)
        if content is None and path:
            return self._file(str(path), position)
        if not isinstance(content, bytes):
            raise UnreadableImageError(self.names[position], "it is missing")
        return content

    def _file(self, path: str, position: int) -> Path:
        """Only a local file; a dataset from the hub must not name files outside the download."""
        file = Path(path)
        downloads = Path(_library().config.HF_CACHE_HOME).resolve()
        inside = self.address.place is not None or downloads in file.resolve().parents
        if not (inside and file.is_absolute() and file.is_file()):
            raise UnreadableImageError(self.names[position], f"it refers to another file, {path}, which is not read")
        return file

    def fingerprint(self) -> tuple[str, str]:
        which = hashlib.sha256(f"{self.address.place or self.address.path}\n{self.image}".encode())
        kept = hashlib.sha256(self.rows.tobytes() + self.splits.tobytes()).hexdigest()
        content = hashlib.sha256(f"hf reader {READER_VERSION}\n{self.fingerprints}\n{self.image}\n{kept}".encode())
        return which.hexdigest()[:16], content.hexdigest()[:32]

    def _used(self, splits: dict[str, Any]) -> dict[str, Any]:
        """Splits by name, training first. A single one is divided, whatever its name."""
        if len(splits) == 1:
            self.part_of = dict.fromkeys(splits, "train")
            return splits
        self.part_of = {}
        for name in splits:
            part = _PARTS.get(name.lower())
            if part is None or part in self.part_of.values():
                self.warnings.append(f"The split {name!r} is not used: only train, validation and test are.")
            else:
                self.part_of[name] = part
        if "train" not in self.part_of.values():
            raise InputError(f"{self.address} has the splits {some(map(repr, splits))}, but none is called train.")
        order = ("train", "validation", "test")
        return {name: splits[name] for name in sorted(self.part_of, key=lambda name: order.index(self.part_of[name]))}

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
                "classes; name the column: hf:PATH?label=COLUMN."
            )
        for name in exclude:
            if name not in classes.values():
                raise InputError(f"--exclude: {self.address} has no class {name!r}{suggestion(name, classes.values())}")
        self.excluded = {value for value, name in classes.items() if name in exclude}
        return {value: name for value, name in classes.items() if name not in exclude}

    def _numbered(self, name: str, column: _Labels) -> np.ndarray:
        """The class of each row of a split; -1 if the row is left out."""
        number = {value: place for place, value in enumerate(self.class_of)}
        places = np.array([*(number.get(value, -1) for value in column.values), -1])  # the last one for code -1
        strange = np.array([*(value not in number and value not in self.excluded for value in column.values), False])
        for count, why in (((column.codes < 0).sum(), "no label"), (strange[column.codes].sum(), "an unknown label")):
            if count:
                self.warnings.append(f"{plural(int(count), 'row', 'rows')} of {name!r} with {why} were left out.")
        return places[column.codes]

    def _check_classes(self) -> None:
        if len(self.classes) < 2:
            raise InputError(f"{self.address} has {plural(len(self.classes), 'class', 'classes')}; two are needed.")
        counts = np.bincount(self.labels[self.parts == "train"], minlength=len(self.classes))
        if not counts.all():
            empty = [name for name, n in zip(self.classes, counts, strict=True) if not n]
            raise unusable(self.place, dict.fromkeys(empty, "has no training picture"))


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


def _column(address: Address, features: Any, what: str, image: str | None = None) -> str:
    """The column of images or labels (`what`): the one that the address names, or the only one that fits"""
    kind = {"image": "pictures", "label": "labels"}[what]
    choose = f"name the column: hf:PATH?{what}=COLUMN"
    sure, likely = (_is_image, _may_be_image) if what == "image" else (_is_label, _may_be_label)
    named = getattr(address, what)
    if named is not None:
        if named not in features:
            raise InputError(f"{address.path} has no column {named!r} for {what}={suggestion(named, list(features))}")
        if not (sure(features[named]) or likely(features[named])):
            raise InputError(f"The column {named!r} of {address.path} does not hold {kind}; {choose}.")
        return str(named)
    others = {name: feature for name, feature in features.items() if name != image}
    found = [name for name, feature in others.items() if sure(feature)]
    found = found or [name for name, feature in others.items() if likely(feature)]
    if what == "label" and what in found:
        return what
    if len(found) == 1:
        return found[0]
    listed = some(map(repr, found or features), 8)
    holds = f"{len(found)} columns that may hold {kind}" if found else f"no column of {kind}"
    raise InputError(f"{address.path} has {holds} ({listed}); {choose}.")


def _is_image(feature: Any) -> bool:
    return isinstance(feature, _library().Image)


def _may_be_image(feature: Any) -> bool:
    """Bytes, or bytes and a path, in a Parquet file written by another program"""
    if isinstance(feature, dict):
        feature = feature.get("bytes")
    return getattr(feature, "dtype", None) in ("binary", "large_binary")


def _is_label(feature: Any) -> bool:
    return isinstance(feature, _library().ClassLabel)


def _may_be_label(feature: Any) -> bool:
    kind = str(feature.dtype) if isinstance(feature, _library().Value) else ""
    return kind in ("string", "large_string", "bool") or kind.startswith(("int", "uint"))
