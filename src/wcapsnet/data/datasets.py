"""Datasets by name, and how each is split into training, validation and test images."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from ..errors import InputError
from ..parts import dataset, suggestion
from .download import download as fetch
from .folder import as_split, load_folder
from .formats import (
    CIFAR10_FILES,
    CIFAR100_FILES,
    Arrays,
    CifarFiles,
    MissingFilesError,
    RawData,
    read_cifar,
    read_mnist,
    read_sample,
    read_svhn,
)
from .huggingface import is_hugging_face, load_hugging_face
from .stream import Images, chunks, picked, streams
from .types import DataConfig, Dataset, Split


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
    """The dataset named by `config`, or the folder of images or Hugging Face dataset (`hf:PATH`) it points to.

    The files of a named dataset are searched in `data_dir` (default: $WCAPSNET_DATA or ./data). Its training images are
    shuffled with `split_seed`, and the last `validation` of them become the validation set.
    """
    source, info = config.source, DATASETS.get(config.source)
    if info is None and is_hugging_face(source):
        return load_hugging_face(config, quiet=quiet)
    if info is None:
        if Path(source).expanduser().exists():
            return load_folder(config, quiet=quiet)
        if {"/", "\\"} & set(source):
            raise InputError(f"There is no folder {source}; if it was moved, give its new path with --data-dir.")
        raise InputError(f"There is no dataset or folder {source!r}{suggestion(source, DATASETS)}")
    for field in ("height", "width", "channels"):
        if getattr(config, field) not in (None, getattr(info, field)):
            raise InputError(
                f"data.{field} must be left out or {getattr(info, field)} for {source}: "
                "only folders of images can be resized."
            )

    raw, classes = read_dataset(source, data_dir=data_dir, download=download, quiet=quiet)

    m = len(raw.train.labels)
    count = int(config.validation) if config.validation >= 1 else max(1, round(config.validation * m))
    if count >= m:
        raise InputError(f"data.validation must leave images to train on: {source} has {m} training images.")
    import torch

    order = torch.randperm(m, generator=torch.Generator().manual_seed(config.split_seed)).numpy()
    return Dataset(
        name=source,
        classes=classes,
        train=_split(raw.train, order[: m - count], config.stream),
        validation=_split(raw.train, order[m - count :], config.stream),
        test=_split(raw.test, np.arange(len(raw.test.labels)), config.stream),
    )


def read_dataset(
    name: str, *, data_dir: Path | None = None, download: bool = False, quiet: bool = False
) -> tuple[RawData, tuple[str, ...]]:
    """The images of a named dataset as arrays, and its class names. Needs no torch."""
    info, root = DATASETS[name], default_data_dir() if data_dir is None else data_dir
    raw = _read(name, info, root, download=download, quiet=quiet)
    if not isinstance(raw, RawData):
        raise InputError(f"The reader of {name} must return RawData(train, test), not {type(raw).__name__}.")
    classes = info.classes if raw.classes is None else raw.classes
    _check("training", raw.train, info.train_images, classes, info, root)
    _check("test", raw.test, info.test_images, classes, info, root)
    return raw, classes


def statistics(train: Images, normalization: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of images scaled to [0, 1]; 0 and 1 for "unit".

    A channel without variation gets 1, to avoid division by zero.
    """
    import torch

    channels = train.shape[1]
    if normalization == "unit":
        return (0.0,) * channels, (1.0,) * channels
    total = torch.zeros(channels, dtype=torch.float64)
    squares = torch.zeros(channels, dtype=torch.float64)
    for images in chunks(train):  # the whole dataset in float64 would take eight times the memory
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
    except FileNotFoundError as error:
        raise InputError(
            f"{error.filename or root} was not found; give its folder with --data-dir or WCAPSNET_DATA."
        ) from error
    except OSError as error:
        raise InputError(
            f"Cannot read {error.filename or root}: {error.strerror or error}; check its permissions."
        ) from error


def _check(part: str, arrays: Arrays, expected: int, classes: tuple[str, ...], info: DatasetInfo, root: Path) -> None:
    """Truncation between two images of CIFAR's binary files leaves no trace, so count the images."""
    problem = _fault(part, arrays, (expected, info.channels, info.height, info.width), len(classes), len(info.classes))
    if not problem:
        return
    if not info.archives:  # its files may be the only copy: never advise to delete them
        raise InputError(
            f"The dataset {info.title} does not match its DatasetInfo: it has {problem}; correct its reader or "
            "its DatasetInfo."
        )
    raise InputError(
        f"The {info.title} files under {root} hold {problem}: they are truncated, corrupt or from another "
        "dataset; delete them and download them again."
    )


def _fault(part: str, arrays: Arrays, shape: tuple[int, ...], classes: int, expected_classes: int) -> str | None:
    """What is wrong with the images, the labels or the number of class names"""
    images, labels = arrays
    for name, found, right, kinds in (
        (f"{part} images", images, "uint8, from 0 to 255", "B"),
        (f"{part} labels", labels, "whole numbers", np.typecodes["AllInteger"]),
    ):
        if not isinstance(found, np.ndarray):
            return f"{name} as {type(found).__name__} instead of a NumPy array"
        if found.dtype.char not in kinds:
            return f"{name} of type {found.dtype} instead of {right}"
    if images.shape != shape:
        return f"{part} images of shape {images.shape} instead of {shape}"
    if labels.shape != shape[:1]:
        return f"{part} labels of shape {labels.shape} instead of {shape[:1]}"
    low, high = labels.min(initial=0), labels.max(initial=0)
    if classes != expected_classes:
        return f"{classes} class names instead of {expected_classes}"
    if low < 0 or high >= classes:
        return f"{part} labels from {low} to {high} instead of 0 to {classes - 1}"
    return None


def _split(arrays: Arrays, index: np.ndarray, stream: str) -> Split:
    # indexing copies, so the tensors own writable memory
    unread = streams(stream, arrays.images.nbytes)
    return as_split(picked(arrays.images, index, unread), arrays.labels[index].astype(np.int64))


_GRAY, _COLOR = (1, 28, 28), (3, 32, 32)  # channels, height, width
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


def _mnist(name: str, title: str, classes: tuple[str, ...], mirrors: tuple[str, ...], *md5s: str) -> DatasetInfo:
    folder = title.replace("-", "")
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    archives = tuple(
        Archive(f"{folder}/raw/{file}-ubyte.gz", tuple(f"{mirror}{file}-ubyte.gz" for mirror in mirrors), md5)
        for file, md5 in zip(names, md5s, strict=True)
    )
    read = partial(read_mnist, name=name, folders=(f"{folder}/raw", name, folder, "."))
    return DatasetInfo(title, classes, *_GRAY, 60000, 10000, read, archives)


def _cifar(name: str, files: CifarFiles, classes: tuple[str, ...], md5: str) -> DatasetInfo:
    """Of the two versions, the binary one is downloaded: it needs no pickle."""
    read = partial(read_cifar, files=files, folders=(".", name, name.upper()))
    archive = Archive(files.binary_archive, (f"https://www.cs.toronto.edu/~kriz/{files.binary_archive}",), md5)
    return DatasetInfo(files.name.upper(), classes, *_COLOR, 50000, 10000, read, (archive,))


def _svhn(**md5s: str) -> DatasetInfo:
    archives = tuple(
        Archive(f"{part}_32x32.mat", (f"http://ufldl.stanford.edu/housenumbers/{part}_32x32.mat",), md5)
        for part, md5 in md5s.items()
    )
    return DatasetInfo(
        "SVHN", _DIGITS, *_COLOR, 73257, 26032, partial(read_svhn, folders=(".", "svhn", "SVHN")), archives
    )


DATASETS = dataset
DATASETS["sample"] = DatasetInfo("MNIST sample", _DIGITS, *_GRAY, 10000, 2000, lambda root: read_sample())
DATASETS["mnist"] = _mnist(
    "mnist",
    "MNIST",
    _DIGITS,
    ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "d53e105ee54ea40749a09fcbcd1e9432",
    "9fb629c4189551a2d022fa330f9573f3",
    "ec29112dd5afa0611ce80d1b7f02629c",
)
DATASETS["fashion-mnist"] = _mnist(
    "fashion-mnist",
    "Fashion-MNIST",
    _FASHION,
    ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "25c81989df183df01b3e8a0aad5dffbe",
    "bef4ecab320f06d8554ea6380940ec79",
    "bb300cfdad3c16e7a12a480ee83cd310",
)
DATASETS["cifar10"] = _cifar("cifar10", CIFAR10_FILES, _CIFAR10, "c32a1d4ab5d03f1284b67883e8d87530")
DATASETS["cifar100"] = _cifar("cifar100", CIFAR100_FILES, _CIFAR100, "03b5dce01913d631647c71ecec9e9cb8")
DATASETS["svhn"] = _svhn(train="e26dedcc434d2e4c54c9b2d4a06d8373", test="eb5a983be6a315427106f1b164d9cef3")
