"""Datasets by name, and how each is split into training, validation and test images."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import InputError
from ..parts import dataset
from .download import download as fetch
from .folder import as_split, load_folder
from .formats import (
    CIFAR10_FILES,
    CIFAR100_FILES,
    Arrays,
    MissingFilesError,
    RawData,
    read_cifar,
    read_mnist,
    read_svhn,
)
from .types import DataConfig, Dataset, Split

if TYPE_CHECKING:  # test images can be read without torch
    from torch import Tensor

__all__ = [
    "DATASETS",
    "Archive",
    "DataConfig",
    "Dataset",
    "DatasetInfo",
    "Split",
    "default_data_dir",
    "load_dataset",
    "statistics",
]


@dataclass(frozen=True)
class Archive:
    """A file to download: its path under the dataset directory, its URLs, and its checksum."""

    path: str
    urls: tuple[str, ...]
    md5: str


@dataclass(frozen=True)
class DatasetInfo:
    """What is known about a dataset before any file is opened."""

    title: str
    classes: tuple[str, ...]
    channels: int
    height: int
    width: int
    train_images: int
    test_images: int
    read: Callable[[Path], RawData]
    archives: tuple[Archive, ...] = ()


def load_dataset(
    config: DataConfig, *, data_dir: Path | None = None, download: bool = False, quiet: bool = False
) -> Dataset:
    """The dataset named by `config`, or the folder of images it points to.

    The files of a named dataset are searched in `data_dir` (default: $WCAPSNET_DATA or ./data). Its training images are
    shuffled with `split_seed`, and the last `validation` of them become the validation set.
    """
    info = DATASETS.get(config.source)
    if info is None:
        folder = Path(config.source).expanduser()
        if not folder.exists():
            raise InputError(_unknown(config.source))
        return load_folder(config, quiet=quiet)
    for field in ("height", "width", "channels"):
        if getattr(config, field) not in (None, getattr(info, field)):
            raise InputError(
                f"data.{field} must be left out or {getattr(info, field)} for {config.source}: "
                "only folders of images can be resized."
            )

    raw, classes = read_dataset(config.source, data_dir=data_dir, download=download, quiet=quiet)

    m = len(raw.train.labels)
    count = int(config.validation) if config.validation >= 1 else max(1, round(config.validation * m))
    if count >= m:
        raise InputError(f"data.validation must leave images to train on: {config.source} has {m} training images.")
    import torch

    order = torch.randperm(m, generator=torch.Generator().manual_seed(config.split_seed)).numpy()
    return Dataset(
        name=config.source,
        classes=classes,
        train=_split(raw.train, order[: m - count]),
        validation=_split(raw.train, order[m - count :]),
        test=_split(raw.test, np.arange(len(raw.test.labels))),
    )


def read_dataset(
    name: str, *, data_dir: Path | None = None, download: bool = False, quiet: bool = False
) -> tuple[RawData, tuple[str, ...]]:
    """The images of a named dataset as arrays, and its class names. Needs no torch."""
    info, root = DATASETS[name], default_data_dir() if data_dir is None else data_dir
    raw = _read(name, info, root, download=download, quiet=quiet)
    classes = info.classes if raw.classes is None else raw.classes
    _check("training", raw.train, info.train_images, classes, info, root)
    _check("test", raw.test, info.test_images, classes, info, root)
    return raw, classes


def statistics(train: Tensor, normalization: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of images scaled to [0, 1]; 0 and 1 for "unit".

    A channel without variation gets 1, to avoid division by zero.
    """
    import torch

    channels = train.shape[1]
    if normalization == "unit":
        return (0.0,) * channels, (1.0,) * channels
    total = torch.zeros(channels, dtype=torch.float64)
    squares = torch.zeros(channels, dtype=torch.float64)
    for images in train.split(4096):  # the whole dataset in float64 would take eight times the memory
        values = images.double()  # sums of integers, hence exact
        total += values.sum((0, 2, 3)).cpu()
        squares += values.square().sum((0, 2, 3)).cpu()
    n = train.numel() // channels
    mean = total / n
    variance = (squares / n - mean.square()).clamp(min=0)
    std = torch.where(variance > 0, variance.sqrt() / 255, 1.0)
    return tuple((mean / 255).tolist()), tuple(std.tolist())


def default_data_dir() -> Path:
    """$WCAPSNET_DATA, or ./data."""
    return Path(os.environ.get("WCAPSNET_DATA") or "data").expanduser()


def _read(name: str, info: DatasetInfo, root: Path, *, download: bool, quiet: bool) -> RawData:
    try:
        try:
            return info.read(root)
        except MissingFilesError:
            if not download:
                raise
        for archive in info.archives:
            if not (root / archive.path).is_file():
                fetch(archive.urls, root / archive.path, md5=archive.md5, quiet=quiet)
        return info.read(root)
    except MissingFilesError as missing:
        raise InputError(
            f"The files of {name} were not found: searched for {', '.join(missing.files)} in "
            f"{', '.join(map(str, missing.folders))}; give their folder with --data-dir or WCAPSNET_DATA, "
            "or download them with --download."
        ) from missing
    except OSError as error:
        raise InputError(
            f"Cannot read {error.filename or root}: {error.strerror or error}; check its permissions."
        ) from error


def _check(part: str, arrays: Arrays, expected: int, classes: tuple[str, ...], info: DatasetInfo, root: Path) -> None:
    """Truncation between two images of CIFAR's binary files leaves no trace, so count the images."""
    shape = (expected, info.channels, info.height, info.width)
    low, high = arrays.labels.min(initial=0), arrays.labels.max(initial=0)
    if arrays.images.shape != shape:
        problem = f"{part} images of shape {arrays.images.shape} instead of {shape}"
    elif len(classes) != len(info.classes):
        problem = f"{len(classes)} class names instead of {len(info.classes)}"
    elif low < 0 or high >= len(classes):
        problem = f"{part} labels from {low} to {high} instead of 0 to {len(classes) - 1}"
    else:
        return
    raise InputError(
        f"The {info.title} files under {root} hold {problem}: they are truncated, corrupt or from another "
        "dataset; delete them and download them again."
    )


def _split(arrays: Arrays, index: np.ndarray) -> Split:
    # indexing copies, so the tensors own writable memory
    return as_split(Arrays(arrays.images[index], arrays.labels[index]))


def _unknown(source: str) -> str:
    if {"/", "\\"} & set(source):
        return f"There is no folder {source}; if it was moved, give its new path with --data-dir."
    near = difflib.get_close_matches(source.lower(), DATASETS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"name a folder of images or one of {', '.join(DATASETS)}."
    return f"There is no dataset or folder {source!r}: {hint}"


def _read_sample(root: Path) -> RawData:
    # imported on use, so that `python -m wcapsnet.data.embedded` does not import itself first
    from .embedded import read_sample

    return read_sample()


_DIGITS = tuple("0123456789")
_FASHION = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR100 = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle",
    "bowl", "boy", "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle",
    "chair", "chimpanzee", "clock", "cloud", "cockroach", "couch", "crab", "crocodile", "cup",
    "dinosaur", "dolphin", "elephant", "flatfish", "forest", "fox", "girl", "hamster", "house",
    "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion", "lizard", "lobster", "man",
    "maple_tree", "motorcycle", "mountain", "mouse", "mushroom", "oak_tree", "orange", "orchid",
    "otter", "palm_tree", "pear", "pickup_truck", "pine_tree", "plain", "plate", "poppy", "porcupine",
    "possum", "rabbit", "raccoon", "ray", "road", "rocket", "rose", "sea", "seal", "shark", "shrew",
    "skunk", "skyscraper", "snail", "snake", "spider", "squirrel", "streetcar", "sunflower",
    "sweet_pepper", "table", "tank", "telephone", "television", "tiger", "tractor", "train", "trout",
    "tulip", "turtle", "wardrobe", "whale", "willow_tree", "wolf", "woman", "worm",
)  # fmt: skip


def _idx_archives(folder: str, mirrors: tuple[str, ...], md5s: tuple[str, str, str, str]) -> tuple[Archive, ...]:
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple(
        Archive(f"{folder}/{name}-ubyte.gz", tuple(f"{mirror}{name}-ubyte.gz" for mirror in mirrors), md5)
        for name, md5 in zip(names, md5s, strict=True)
    )


_BUILT_IN: dict[str, DatasetInfo] = {
    "sample": DatasetInfo(
        title="MNIST sample",
        classes=_DIGITS,
        channels=1,
        height=28,
        width=28,
        train_images=10000,
        test_images=2000,
        read=_read_sample,
    ),
    "mnist": DatasetInfo(
        title="MNIST",
        classes=_DIGITS,
        channels=1,
        height=28,
        width=28,
        train_images=60000,
        test_images=10000,
        read=partial(read_mnist, name="mnist", folders=("MNIST/raw", "mnist", "MNIST", ".")),
        archives=_idx_archives(
            "MNIST/raw",
            (
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
            ),
            (
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
        ),
    ),
    "fashion-mnist": DatasetInfo(
        title="Fashion-MNIST",
        classes=_FASHION,
        channels=1,
        height=28,
        width=28,
        train_images=60000,
        test_images=10000,
        read=partial(
            read_mnist, name="fashion-mnist", folders=("FashionMNIST/raw", "fashion-mnist", "FashionMNIST", ".")
        ),
        archives=_idx_archives(
            "FashionMNIST/raw",
            ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
            (
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79",
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
        ),
    ),
    # of the two versions of CIFAR, download the binary one: it needs no pickle
    "cifar10": DatasetInfo(
        title="CIFAR-10",
        classes=_CIFAR10,
        channels=3,
        height=32,
        width=32,
        train_images=50000,
        test_images=10000,
        read=partial(read_cifar, files=CIFAR10_FILES, folders=(".", "cifar10", "CIFAR10")),
        archives=(
            Archive(
                "cifar-10-binary.tar.gz",
                ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
                "c32a1d4ab5d03f1284b67883e8d87530",
            ),
        ),
    ),
    "cifar100": DatasetInfo(
        title="CIFAR-100",
        classes=_CIFAR100,
        channels=3,
        height=32,
        width=32,
        train_images=50000,
        test_images=10000,
        read=partial(read_cifar, files=CIFAR100_FILES, folders=(".", "cifar100", "CIFAR100")),
        archives=(
            Archive(
                "cifar-100-binary.tar.gz",
                ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
                "03b5dce01913d631647c71ecec9e9cb8",
            ),
        ),
    ),
    "svhn": DatasetInfo(
        title="SVHN",
        classes=_DIGITS,
        channels=3,
        height=32,
        width=32,
        train_images=73257,
        test_images=26032,
        read=partial(read_svhn, folders=(".", "svhn", "SVHN")),
        archives=tuple(
            Archive(name, (f"http://ufldl.stanford.edu/housenumbers/{name}",), md5)
            for name, md5 in (
                ("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
                ("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
            )
        ),
    ),
}
for _name, _info in _BUILT_IN.items():
    dataset(_name)(_info)
DATASETS = dataset
