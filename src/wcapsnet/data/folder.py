"""A folder of pictures, with one subfolder per class, as a dataset."""

from __future__ import annotations

import hashlib
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..errors import InputError
from ..formatting import plural, printable, some
from .decode import ImageHeader, UnreadableImageError, read_header
from .formats import Arrays
from .layout import match_classes, read_layout, unusable
from .pictures import Pictures, Source, read_pictures
from .split import stratified_split
from .stream import Images, Rows, chunks, picked, streams
from .types import DataConfig, Dataset, Split

_SMALLEST, _LARGEST, _LARGEST_OF_MANY = 16, 64, 32
_MANY = 10_000
_FEW = 10  # pictures of a class; fewer are mentioned


@dataclass(frozen=True)
class FolderSummary:
    """What a folder holds, judged by file names and the headers of some pictures."""

    path: Path
    classes: tuple[str, ...]
    counts: tuple[int, ...]  # training pictures per class; all pictures if there is no train folder
    height: int  # median over the sampled pictures
    width: int
    one_shape: bool  # all sampled pictures have the same aspect ratio
    has_color: bool
    exclude: tuple[str, ...] = ()  # folders that were left out

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


def scan_folder(path: Path, exclude: Iterable[str] = ()) -> FolderSummary:
    """Inspect a folder without reading all of it: at most 200 pictures, evenly spaced, the same every time."""
    source = read_layout(path, excluded := tuple(dict.fromkeys(exclude)))
    return replace(summarize(source, path), exclude=excluded)


def load_folder(config: DataConfig, *, quiet: bool = False) -> Dataset:
    """The folder `config.source` as a dataset; pictures that cannot be read are listed in `skipped`.

    Existing val and test folders are used as they are. A missing one is split off the training pictures, stratified by
    class (see `stratified_split`). Decoded pictures are cached until the folder changes: in $WCAPSNET_CACHE, or
    $XDG_CACHE_HOME/wcapsnet, or ~/.cache/wcapsnet.
    """
    source = read_layout(Path(config.source).expanduser(), config.exclude)
    dataset = load_source(source, config, quiet)
    return replace(dataset, skipped=(*dataset.skipped, *source.ignored()))


def load_source(source: Source, config: DataConfig, quiet: bool) -> Dataset:
    """The readable pictures as a dataset. Parts that the source has are used as they are; a missing one is split off
    the training pictures, stratified by class."""
    pictures = read_pictures(source, chosen_shape(config, source), quiet)
    if broken := source.classes_without(pictures):
        raise unusable(source.place, broken)
    names, labels, parts = (column[pictures.readable] for column in (source.names, source.labels, source.parts))
    present = set(source.parts.tolist())
    index = {part: np.flatnonzero(parts == part) for part in ("train", "validation", "test")}
    train = index["train"]
    split = stratified_split(
        labels[train],
        validation=0 if "validation" in present else config.validation,
        test=0 if "test" in present else config.test,
        seed=config.split_seed,
    )
    index["train"] = train[split.train]
    index |= {part: train[chosen] for part, chosen in split._asdict().items() if part not in present}
    for part, places in index.items():
        if len(places) == 0:
            raise InputError(
                f"No {part} pictures are left in {source.place}: put at least 3 readable pictures into one class, or "
                f"add separate {part} pictures."
            )
    unread = streams(config.stream, pictures.images.nbytes)

    def take(part: str) -> Split:
        chosen = index[part]
        return as_split(picked(pictures.images, pictures.readable[chosen], unread), labels[chosen])

    return Dataset(
        name=source.name,
        classes=source.classes,
        train=take("train"),
        validation=take("validation"),
        test=take("test"),
        train_files=tuple(names[index["train"]]),
        validation_files=tuple(names[index["validation"]]),
        test_files=tuple(names[index["test"]]),
        skipped=pictures.skipped,
        warnings=(
            *_small_classes(source.classes, {part: labels[chosen] for part, chosen in index.items()}),
            *_duplicates(Rows(pictures.images, pictures.readable), names, labels, index["train"]),
        ),
    )


def as_split(images: Images, labels: np.ndarray) -> Split:
    import torch  # here, so that pictures can be read without it

    return Split(images, torch.from_numpy(labels))


class Labelled(NamedTuple):
    """Pictures of a folder whose class folders have the names of a network's classes."""

    pictures: Pictures
    labels: np.ndarray  # of the readable ones
    unknown: tuple[str, ...]  # class folders the network does not know; their pictures are left out
    skipped: tuple[str, ...]

    @property
    def split(self) -> Split:
        images, readable = self.pictures.images, self.pictures.readable
        return as_split(picked(images, readable, streams("auto", images.nbytes)), self.labels)

    @property
    def arrays(self) -> Arrays:
        """The same without torch"""
        return Arrays(self.pictures.images[self.pictures.readable], self.labels)


def load_labelled(
    path: Path, classes: tuple[str, ...], shape: tuple[int, int, int], part: str = "test", quiet: bool = False
) -> Labelled:
    """All pictures of these classes, as (ch, h, w). If it has train, val and test folders, those of `part`."""
    source, unknown = match_classes(path.expanduser(), classes, part)
    pictures = read_pictures(source, shape, quiet)
    if not len(pictures.readable):
        raise InputError(f"None of the pictures in {path} can be read (the first: {pictures.skipped[0]}).")
    return Labelled(pictures, source.labels[pictures.readable], unknown, (*pictures.skipped, *source.ignored()))


# --- Warnings -----------------------------------------------------------------------------------------------


def _small_classes(classes: Sequence[str], labels: dict[str, np.ndarray]) -> list[str]:
    counts = {part: np.bincount(chosen, minlength=len(classes)) for part, chosen in labels.items()}
    totals = np.sum(list(counts.values()), axis=0)
    few = {name: int(n) for name, n in zip(classes, totals, strict=True) if n < _FEW}
    sentences = []
    if few:
        listed = some([f"{name!r} ({n})" for name, n in few.items()])
        sentences.append(f"{plural(len(few), 'class has', 'classes have')} very few pictures: {listed}.")
    for part in ("validation", "test"):
        absent = [repr(name) for name, n in zip(classes, counts[part], strict=True) if n == 0]
        if absent:
            sentences.append(f"The {part} accuracy says nothing about {some(absent)}: no {part} pictures.")
    return sentences


def _duplicates(images: Rows, names: np.ndarray, labels: np.ndarray, train: np.ndarray) -> list[str]:
    """Identical pictures, compared after resizing, that are in training and elsewhere, or in two classes."""
    every = (image.numpy() for some in chunks(images) for image in some)
    digests = (hashlib.blake2b(image.data, digest_size=16).digest() for image in every)
    hashes = np.fromiter(digests, "V16", len(images))  # in an array: millions of Python objects would fill the memory
    _, number, equal = np.unique(hashes, return_inverse=True, return_counts=True)
    same = defaultdict(list)
    for position in np.flatnonzero(equal[number] > 1):
        same[number[position]].append(int(position))
    trained = set(train.tolist())
    leaked, mixed = [], []
    for group in same.values():
        seen = [i for i in group if i in trained]
        if seen:
            leaked += [(i, seen[0]) for i in group if i not in trained]
        mixed += [(i, group[0]) for i in group if labels[i] != labels[group[0]]]
    sentences = []
    if leaked:
        count = plural(len(leaked), "validation or test picture is", "validation or test pictures are")
        sentences.append(
            f"{count} also in training, which makes the accuracy look better than it is: {_pairs(names, leaked)}."
        )
    if mixed:
        count = plural(len(mixed), "picture is", "pictures are")
        sentences.append(f"{count} in two classes: {_pairs(names, mixed)}.")
    return sentences


def _pairs(names: np.ndarray, pairs: Sequence[tuple[int, int]]) -> str:
    return some([printable(f"{names[i]} = {names[j]}") for i, j in pairs], 3)


# --- Size and colour of pictures ----------------------------------------------------------------------------


def summarize(source: Source, path: Path, most: int = 200) -> FolderSummary:
    """Judged by the headers of at most `most` pictures, evenly spaced."""
    step = max(1.0, len(source) / most)
    headers: list[ImageHeader] = []
    failure: UnreadableImageError | None = None
    has_color = False
    for number in range(min(most, len(source))):
        try:
            picture = source.picture(int(number * step))
            header = read_header(picture, look_for_color=not has_color)  # one colour picture is enough
        except UnreadableImageError as error:
            failure = failure or error
            continue
        headers.append(header)
        has_color = has_color or header.color
    if not headers:
        raise InputError(f"None of the sampled pictures in {source.place} can be read; the first one: {failure}")
    ratios = [header.height / header.width for header in headers]
    in_training = source.labels[source.parts == "train"]
    return FolderSummary(
        path=path,
        classes=source.classes,
        counts=tuple(np.bincount(in_training, minlength=len(source.classes)).tolist()),
        height=round(statistics.median(header.height for header in headers)),
        width=round(statistics.median(header.width for header in headers)),
        one_shape=max(ratios) <= 1.02 * min(ratios),  # manual cropping may be off by a pixel
        has_color=has_color,
    )


def chosen_shape(config: DataConfig, source: Source) -> tuple[int, int, int]:
    """Channels, height and width: as configured, or as proposed if left out."""
    height, width, channels = config.height, config.width, config.channels
    if height is None or width is None or channels is None:
        summary = summarize(source, Path(source.place))
        if height is None and width is None:
            height, width = summary.proposed_size()
        channels = channels or summary.proposed_channels
    if height is None or width is None:  # one side alone means a square
        height = width = height or width or 0
    return channels, height, width


def _multiple_of_4(length: float) -> int:
    # round up: enlarging slightly loses nothing
    return min(_LARGEST, max(_SMALLEST, -(-round(length) // 4) * 4))
