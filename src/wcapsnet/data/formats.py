"""Readers for the datasets' original files: IDX, CIFAR (binary and pickled), MAT-5; and for the sample of MNIST.

File contents are not trusted: sizes are checked before memory is allocated, and errors name the damaged file.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
import tarfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np

from ..errors import InputError
from .pickles import Array, ForbiddenError, text, unpickle

MAX_BYTES = 1 << 29  # twice the largest array of these datasets (SVHN's training images, 225 MB)
TOO_LARGE = "it is far larger than it should be"


class Arrays(NamedTuple):
    """Images and labels as stored in a file."""

    images: np.ndarray  # (m, ch, h, w) uint8
    labels: np.ndarray  # (m,) int64


def checksum(labels: np.ndarray, images: Iterable[np.ndarray], start: bytes = b"") -> str:
    """SHA-256 of labels and images, which may come in parts"""
    digest = hashlib.sha256(start)
    digest.update(labels.tobytes())
    for part in images:
        digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()


class RawData(NamedTuple):
    """A whole dataset before it is split; `classes` if the files name them."""

    train: Arrays
    test: Arrays
    classes: tuple[str, ...] | None = None


class MissingFilesError(InputError):
    """Missing files, and the folders that were searched."""

    def __init__(self, files: Iterable[str], folders: Iterable[Path]) -> None:
        self.files = tuple(files)
        self.folders = tuple(folders)
        super().__init__(f"Found no {', '.join(self.files)} in {', '.join(map(str, self.folders))}.")


def _find(root: Path, folders: Iterable[str], wanted: Mapping[str, Iterable[str]]) -> list[Path]:
    """Each of the `wanted` files, under the first of its spellings in the first folder that has one."""
    places = [root / folder for folder in folders]
    found = {
        name: next((file for place in places for word in spellings if (file := place / word).is_file()), None)
        for name, spellings in wanted.items()
    }
    if missing := [name for name, file in found.items() if file is None]:
        raise MissingFilesError(missing, places)
    return [file for file in found.values() if file is not None]


def _corrupt(name: str | Path, what: str, cause: Exception | None = None) -> NoReturn:
    raise InputError(f"The file {name} is truncated or corrupt: {what}; delete it and download it again.") from cause


# --- IDX: MNIST and Fashion-MNIST ---------------------------------------------------------------------------

# The two datasets use the same file names, so in a shared folder one could be mistaken for the other.
# md5 of the labels of the test images.
_TEST_LABELS = {"073c3904dfbd3e141ff8aa01cfde6b15": "mnist", "8dea97a4e78c1bd1b5a6e8efbb870b6e": "fashion-mnist"}


def read_mnist(root: Path, *, name: str, folders: tuple[str, ...]) -> RawData:
    """The four IDX files, plain or gzipped; each from the first of `folders` under `root` that has it."""
    wanted = {
        f"{stem}-{kind}[.gz]": [f"{stem}{dot}{kind}{end}" for dot in "-." for end in ("", ".gz")]
        for part in ("train", "t10k")
        for stem, kind in ((f"{part}-images", "idx3-ubyte"), (f"{part}-labels", "idx1-ubyte"))
    }
    train_images, train_labels, test_images, test_labels = _find(root, folders, wanted)
    train = _read_idx_pair(train_images, train_labels)
    test = _read_idx_pair(test_images, test_labels)
    digest = hashlib.md5(test.labels.astype(np.uint8).tobytes(), usedforsecurity=False).hexdigest()
    found = _TEST_LABELS.get(digest, name)
    if found != name:
        raise InputError(
            f"The files in {root} are {found}, not {name}: put the files of each dataset into its "
            f"own folder, {root / found} and {root / name}."
        )
    return RawData(train, test)


def _read_idx_pair(images_path: Path, labels_path: Path) -> Arrays:
    images, labels = read_idx(images_path, dimensions=3), read_idx(labels_path, dimensions=1)
    if len(images) != len(labels):
        _corrupt(images_path, f"it holds {len(images)} images, but {labels_path.name} holds {len(labels)} labels")
    return Arrays(images[:, None], labels.astype(np.int64))


def read_idx(path: Path, *, dimensions: int) -> np.ndarray:
    """An IDX file of bytes: magic number 0 0 8 d, then d sizes, then the values."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            header = file.read(4 + 4 * dimensions)
            if len(header) < 4 + 4 * dimensions:
                _corrupt(path, "its header is incomplete")
            if header[:4] != bytes((0, 0, 8, dimensions)):
                _corrupt(path, f"it does not start like a {dimensions}-dimensional IDX file of bytes")
            shape = struct.unpack(f">{dimensions}I", header[4:])
            size = math.prod(shape)
            if size > MAX_BYTES:
                _corrupt(path, f"its header promises {size} bytes")
            # read one byte too many: this detects trailing bytes and makes gzip verify its checksum
            data = file.read(size + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        _corrupt(path, str(error), error)
    if len(data) != size:
        _corrupt(path, f"its header promises {size} bytes and {'more' if len(data) > size else len(data)} follow")
    return np.frombuffer(data, np.uint8).reshape(shape)


# --- CIFAR --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CifarFiles:
    """The file layout of one CIFAR dataset. Files of the binary version end in .bin."""

    name: str
    binary_folder: str
    python_folder: str
    train: tuple[str, ...]
    test: str
    binary_names: str
    python_names: str
    labels_key: str
    names_key: str
    label_bytes: int  # before each image of the binary version; the last one is the label

    @property
    def binary_archive(self) -> str:
        return f"{self.name}-binary.tar.gz"

    @property
    def python_archive(self) -> str:
        return f"{self.name}-python.tar.gz"


CIFAR10_FILES = CifarFiles(
    name="cifar-10",
    binary_folder="cifar-10-batches-bin",
    python_folder="cifar-10-batches-py",
    train=tuple(f"data_batch_{i}" for i in range(1, 6)),
    test="test_batch",
    binary_names="batches.meta.txt",
    python_names="batches.meta",
    labels_key="labels",
    names_key="label_names",
    label_bytes=1,
)
CIFAR100_FILES = CifarFiles(
    name="cifar-100",
    binary_folder="cifar-100-binary",
    python_folder="cifar-100-python",
    train=("train",),
    test="test",
    binary_names="fine_label_names.txt",
    python_names="meta",
    labels_key="fine_labels",
    names_key="fine_label_names",
    label_bytes=2,  # coarse, fine
)


def read_cifar(root: Path, *, files: CifarFiles, folders: tuple[str, ...]) -> RawData:
    """Either version, as a folder or as an archive; the binary one first, because it needs no pickle."""
    places = [root / folder for folder in folders]
    binary = [f"{name}.bin" for name in (*files.train, files.test)]
    python = [*files.train, files.test]
    for place in places:
        for fetch, source, wanted, names, parse in (
            (_from_folder, files.binary_folder, binary, files.binary_names, _parse_cifar_binary),
            (_from_folder, files.python_folder, python, files.python_names, _parse_cifar_python),
            (_from_archive, files.binary_archive, binary, files.binary_names, _parse_cifar_binary),
            (_from_archive, files.python_archive, python, files.python_names, _parse_cifar_python),
        ):
            contents = fetch(place / source, wanted, names)
            if contents is not None:
                return parse(contents, place / source, files)
    sources = (files.binary_folder, files.python_folder, files.binary_archive, files.python_archive)
    raise MissingFilesError((f"{source} (complete)" for source in sources), places)


def _from_folder(folder: Path, wanted: list[str], optional: str) -> dict[str, bytes] | None:
    if not all((folder / name).is_file() for name in wanted):
        return None
    names = [*wanted, optional] if (folder / optional).is_file() else wanted
    if sum((folder / name).stat().st_size for name in names) > MAX_BYTES:
        _corrupt(max((folder / name for name in names), key=lambda file: file.stat().st_size), TOO_LARGE)
    return {name: (folder / name).read_bytes() for name in names}


def _from_archive(archive: Path, wanted: list[str], optional: str) -> dict[str, bytes] | None:
    if not archive.is_file():
        return None
    contents: dict[str, bytes] = {}
    try:
        # one pass in the archive's order: seeking back would decompress it again
        with _Bounded(archive) as unpacked, tarfile.open(fileobj=unpacked, mode="r:") as tar:
            for member in tar:
                name = member.name.rsplit("/", 1)[-1]
                if member.isfile() and name in (*wanted, optional):
                    if member.size + sum(map(len, contents.values())) > MAX_BYTES:
                        _corrupt(archive, TOO_LARGE)
                    file = tar.extractfile(member)
                    contents[name] = b"" if file is None else file.read()
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        _corrupt(archive, str(error), error)
    lacking = [name for name in wanted if name not in contents]
    if lacking:
        _corrupt(archive, f"it lacks {', '.join(lacking)}")
    return contents


class _Bounded(gzip.GzipFile):
    """Refuses to unpack far more at once than any of these files holds: a tar header may claim any length."""

    def read(self, size: int | None = -1) -> bytes:
        if size is not None and size > MAX_BYTES:
            raise tarfile.ReadError(TOO_LARGE)
        return super().read(size)


def _parse_cifar_binary(contents: Mapping[str, bytes], source: Path, files: CifarFiles) -> RawData:
    def parse(name: str) -> Arrays:
        name += ".bin"
        record = files.label_bytes + 3 * 32 * 32
        if not contents[name] or len(contents[name]) % record:
            _corrupt(source / name, f"its size is not a multiple of the {record} bytes of an image and its label")
        rows = np.frombuffer(contents[name], np.uint8).reshape(-1, record)
        labels = rows[:, files.label_bytes - 1].astype(np.int64)
        return Arrays(rows[:, files.label_bytes :].reshape(-1, 3, 32, 32), labels)

    classes = None
    if files.binary_names in contents:
        lines = contents[files.binary_names].decode("utf-8", errors="replace").splitlines()
        classes = tuple(line.strip() for line in lines if line.strip())
    return RawData(_join(map(parse, files.train)), parse(files.test), classes)


def _parse_cifar_python(contents: Mapping[str, bytes], source: Path, files: CifarFiles) -> RawData:
    def parse(name: str) -> Arrays:
        batch = read_pickle(contents[name], source / name)
        images, labels = batch.get("data"), batch.get(files.labels_key)
        if not isinstance(images, np.ndarray) or images.shape[1:] != (3 * 32 * 32,):
            _corrupt(source / name, "it has no 32 x 32 images under 'data'")
        if not isinstance(labels, list) or not all(isinstance(label, int) and 0 <= label < 256 for label in labels):
            _corrupt(source / name, f"it does not hold labels from 0 to 255 under '{files.labels_key}'")
        if len(images) != len(labels):
            _corrupt(source / name, f"it holds {len(images)} images and {len(labels)} labels")
        return Arrays(images.reshape(-1, 3, 32, 32), np.array(labels, np.int64))

    classes = None
    if files.python_names in contents:
        listed = read_pickle(contents[files.python_names], source / files.python_names).get(files.names_key)
        if not isinstance(listed, list):
            _corrupt(source / files.python_names, f"it has no list under '{files.names_key}'")
        classes = tuple(map(text, listed))
    return RawData(_join(map(parse, files.train)), parse(files.test), classes)


def _join(parts: Iterable[Arrays]) -> Arrays:
    images, labels = zip(*parts, strict=True)
    return Arrays(np.concatenate(images), np.concatenate(labels))


def read_pickle(data: bytes, name: str | Path) -> dict[str, object]:
    """A pickled dictionary of plain values and byte arrays; nothing it names is called."""
    try:
        content = unpickle(data)
        if not isinstance(content, dict):
            _corrupt(name, "it does not hold a dictionary")
        return {text(key): value.array() if isinstance(value, Array) else value for key, value in content.items()}
    except ForbiddenError as error:
        raise InputError(
            f"The file {name} asks to run {error}, which no CIFAR file does: it may be malicious; delete it."
        ) from error
    except InputError:
        raise
    except Exception as error:  # a broken pickle may raise any exception
        _corrupt(name, f"it cannot be unpickled ({error or type(error).__name__})", error)


# --- MAT-5: SVHN --------------------------------------------------------------------------------------------


def read_svhn(root: Path, *, folders: tuple[str, ...]) -> RawData:
    """train_32x32.mat and test_32x32.mat: X (h, w, ch, m), y (m, 1), where 10 stands for the digit 0."""
    names = ("train_32x32.mat", "test_32x32.mat")
    train, test = map(_read_svhn_part, _find(root, folders, {name: [name] for name in names}))
    return RawData(train, test)


def _read_svhn_part(path: Path) -> Arrays:
    arrays = read_mat(path, "X", "y")
    images, labels = arrays.get("X"), arrays.get("y")
    if images is None or labels is None:
        _corrupt(path, "it does not hold the arrays X and y")
    if images.ndim == 3:  # MATLAB drops a trailing dimension of 1
        images = images[..., None]
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[2] != 3:
        _corrupt(path, "X does not hold colour images of bytes")
    if images.shape[3] != labels.size:
        _corrupt(path, f"it holds {images.shape[3]} images and {labels.size} labels")
    digits = labels.reshape(-1).astype(np.int64)
    return Arrays(np.ascontiguousarray(images.transpose(3, 2, 0, 1)), np.where(digits == 10, 0, digits))


_BYTES = {"int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "single": 4}  # of MATLAB's types


def read_mat(path: Path, *names: str) -> dict[str, np.ndarray]:
    """These arrays of a MATLAB file. Its declared sizes are checked before anything is allocated."""
    from scipy.io import loadmat, whosmat  # not needed for other datasets

    try:
        claimed = sum(math.prod(shape) * _BYTES.get(kind, 8) for name, shape, kind in whosmat(path) if name in names)
        if max(path.stat().st_size, claimed) > MAX_BYTES:
            _corrupt(path, TOO_LARGE)
        arrays = loadmat(path, variable_names=names)
    except MemoryError as error:
        _corrupt(path, "it does not fit into memory", error)
    except InputError:
        raise
    except Exception as error:  # damaged bytes may raise any exception in scipy
        _corrupt(path, f"{type(error).__name__}: {error}", error)
    return {name: arrays[name] for name in names if isinstance(arrays.get(name), np.ndarray)}


# --- The sample of MNIST in the package, for trying everything without a download (tools/make_sample.py) -----

SAMPLE = Path(__file__).parent / "sample" / "mnist-12k.npz"


def read_sample() -> RawData:
    """10,000 of MNIST's training images and 2,000 of its test images."""
    with np.load(SAMPLE, allow_pickle=False) as arrays:
        train, test = (
            Arrays(arrays[f"{part}_images"][:, None], arrays[f"{part}_labels"].astype(np.int64))
            for part in ("train", "test")
        )
    return RawData(train, test)
