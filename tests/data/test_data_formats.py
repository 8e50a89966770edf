"""Readers of the original files: what is written is read, what is damaged is named."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import resource
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from data_helpers import Cifar, idx_bytes

from wcapsnet.data import formats
from wcapsnet.data.formats import (
    CIFAR10_FILES,
    CIFAR100_FILES,
    CifarFiles,
    MissingFilesError,
    RawData,
    read_cifar,
    read_idx,
    read_mat,
    read_mnist,
    read_pickle,
    read_svhn,
)
from wcapsnet.errors import InputError

MNIST_FOLDERS = ("MNIST/raw", "mnist", "MNIST", ".")


def load_mnist(root: Path) -> RawData:
    return read_mnist(root, name="mnist", folders=MNIST_FOLDERS)


@pytest.mark.parametrize("gz", [False, True])
@pytest.mark.parametrize("dots", [False, True])
@pytest.mark.parametrize("folder", MNIST_FOLDERS)
def test_mnist_in_every_layout(tmp_path, mnist, folder, gz, dots):
    mnist.write(tmp_path / folder, gz=gz, dots=dots)
    raw = load_mnist(tmp_path)
    assert np.array_equal(raw.train.images[:, 0], mnist.arrays["train-images-idx3-ubyte"])
    assert np.array_equal(raw.train.labels, mnist.arrays["train-labels-idx1-ubyte"])
    assert np.array_equal(raw.test.images[:, 0], mnist.arrays["t10k-images-idx3-ubyte"])
    assert raw.train.labels.dtype == np.int64


def test_mnist_missing_files_are_all_named(tmp_path, mnist):
    mnist.write(tmp_path / "mnist")
    for name in ("train-labels-idx1-ubyte", "t10k-images-idx3-ubyte"):
        (tmp_path / "mnist" / name).unlink()
    with pytest.raises(MissingFilesError) as error:
        load_mnist(tmp_path)
    assert error.value.files == ("train-labels-idx1-ubyte[.gz]", "t10k-images-idx3-ubyte[.gz]")
    assert tmp_path / "MNIST/raw" in error.value.folders


def test_mnist_is_not_taken_for_fashion_mnist(tmp_path, mnist, monkeypatch):
    mnist.write(tmp_path)
    digest = formats.hashlib.md5(mnist.arrays["t10k-labels-idx1-ubyte"].tobytes()).hexdigest()
    monkeypatch.setitem(formats._TEST_LABELS, digest, "mnist")
    load_mnist(tmp_path)
    with pytest.raises(InputError, match="are mnist, not fashion-mnist"):
        read_mnist(tmp_path, name="fashion-mnist", folders=(".",))


GOOD = idx_bytes(np.arange(24, dtype=np.uint8).reshape(2, 3, 4))
PACKED = gzip.compress(GOOD)
DAMAGED = {
    "empty": b"",
    "header": GOOD[:7],
    "cut": GOOD[:-1],
    "more": GOOD + b"x",
    "magic": b"\0\0\x0d\x03" + GOOD[4:],
    "huge": GOOD[:4] + struct.pack(">3I", 2**31, 2**31, 2**31) + GOOD[16:],
}
DAMAGED |= {f"{name}.gz": gzip.compress(data) for name, data in DAMAGED.items()}
DAMAGED |= {
    "cut archive.gz": PACKED[:-10],
    "checksum.gz": PACKED[:-8] + b"\0\0\0\0" + PACKED[-4:],
    "page.gz": b"<html>",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_idx(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(DAMAGED[name])
    with pytest.raises(InputError, match=f"{path}.* is truncated or corrupt: .*delete it and download it again"):
        read_idx(path, dimensions=3)


def test_mnist_images_and_labels_of_different_number(tmp_path, mnist):
    mnist.arrays["train-labels-idx1-ubyte"] = mnist.arrays["train-labels-idx1-ubyte"][:-1]
    mnist.write(tmp_path)
    with pytest.raises(InputError, match="30 images, but train-labels-idx1-ubyte holds 29 labels"):
        load_mnist(tmp_path)


# --- CIFAR


def tar(path: Path, folder: str, contents: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in contents.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def place(root: Path, layout: CifarFiles, kind: str, cifar: Cifar) -> Path:
    """Write one version; the file or folder it is in."""
    contents = cifar.binary() if "binary" in kind else cifar.python()
    folder = layout.binary_folder if "binary" in kind else layout.python_folder
    if "archive" in kind:
        archive = root / (layout.binary_archive if "binary" in kind else layout.python_archive)
        tar(archive, folder, contents)
        return archive
    (root / folder).mkdir()
    for name, data in contents.items():
        (root / folder / name).write_bytes(data)
    return root / folder


def load_cifar(root: Path, layout: CifarFiles = CIFAR10_FILES) -> RawData:
    return read_cifar(root, files=layout, folders=(".", "cifar"))


KINDS = ["binary folder", "binary archive", "python folder", "python archive"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("classes", [10, 100])
def test_cifar_in_every_version(tmp_path, rng, classes, kind):
    layout = CIFAR10_FILES if classes == 10 else CIFAR100_FILES
    cifar = Cifar(rng, classes)
    (tmp_path / "cifar").mkdir()
    place(tmp_path / "cifar", layout, kind, cifar)
    raw = load_cifar(tmp_path, layout)
    assert np.array_equal(raw.train.images, np.concatenate([cifar.images[n] for n in cifar.train]))
    assert np.array_equal(raw.train.labels, np.concatenate([cifar.labels[n] for n in cifar.train]))
    assert np.array_equal(raw.test.images, cifar.images[cifar.test])
    assert np.array_equal(raw.test.labels, cifar.labels[cifar.test])
    assert raw.classes == tuple(cifar.names)


def test_cifar_without_names_and_with_a_file_missing(tmp_path, rng):
    folder = place(tmp_path, CIFAR10_FILES, "binary folder", Cifar(rng, 10))
    (folder / "batches.meta.txt").unlink()
    assert load_cifar(tmp_path).classes is None
    (folder / "data_batch_3.bin").unlink()
    with pytest.raises(MissingFilesError, match="cifar-10-batches-bin"):
        load_cifar(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_truncated_cifar(tmp_path, rng, kind):
    path = place(tmp_path, CIFAR10_FILES, kind, Cifar(rng, 10))
    if path.is_dir():
        path = path / ("test_batch.bin" if "binary" in kind else "test_batch")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match=f"{path.name}.* truncated or corrupt: .*delete it"):
        load_cifar(tmp_path)


def test_cifar_archive_that_lacks_a_file_or_is_none(tmp_path, rng):
    contents = Cifar(rng, 10).binary()
    del contents["data_batch_2.bin"]
    tar(tmp_path / "cifar-10-binary.tar.gz", "cifar-10-batches-bin", contents)
    with pytest.raises(InputError, match=r"it lacks data_batch_2\.bin"):
        load_cifar(tmp_path)
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(b"<html>")
    with pytest.raises(InputError, match="truncated or corrupt"):
        load_cifar(tmp_path)


def test_cifar_far_too_large(tmp_path, rng, monkeypatch):
    monkeypatch.setattr(formats, "MAX_BYTES", 1000)
    for kind in ("binary folder", "binary archive"):
        root = tmp_path / kind
        root.mkdir()
        place(root, CIFAR10_FILES, kind, Cifar(rng, 10))
        with pytest.raises(InputError, match="far larger"):
            load_cifar(root)
    with tarfile.open(root / "cifar-10-binary.tar.gz", "w:gz", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("long" * 1000))  # a header beside the files
    with pytest.raises(InputError, match="far larger"):
        load_cifar(root)


@pytest.mark.parametrize(
    "change",
    [
        {"data": None},
        {"data": np.zeros((4, 5), np.uint8)},
        {"labels": ["a"] * 4},
        {"labels": [1, 2, 3, 10**30]},
        {"labels": [1, 2, 3]},
        {"data": np.zeros((4, 3072), np.float32)},
    ],
)
def test_cifar_pickles_with_other_content(tmp_path, rng, change):
    folder = place(tmp_path, CIFAR10_FILES, "python folder", Cifar(rng, 10))
    batch = {"data": np.zeros((4, 3072), np.uint8), "labels": [1, 2, 3, 4], **change}
    (folder / "test_batch").write_bytes(pickle.dumps(batch, protocol=2))
    with pytest.raises(InputError, match="test_batch is truncated or corrupt"):
        load_cifar(tmp_path)


# --- Pickles


@pytest.mark.parametrize("protocol", range(5))
def test_pickled_arrays_are_read_whatever_the_protocol(protocol):
    array = np.arange(256, dtype=np.uint8).reshape(4, 64)
    content = {b"data": array, "turned": np.asfortranarray(array), "empty": array[:0], "n": [1, 2]}
    read = read_pickle(pickle.dumps(content, protocol=protocol), "x")
    assert np.array_equal(read["data"], array)
    assert np.array_equal(read["turned"], array)
    assert read["empty"].shape == (0, 64)
    assert read["n"] == [1, 2]


def test_a_pickle_as_python_2_wrote_it():
    # {'data': array([[7, 200]], uint8), 'labels': [3]} with Python 2 strings (opcode U), names as in old NumPy
    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t" + text(b"b") + b"tR"
        b"(K\x01(K\x01K\x02tcnumpy\ndtype\n(" + text(b"u1") + b"K\x00K\x01tR"
        b"(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"I00\n" + text(b"\x07\xc8") + b"tb"
    )
    data = b"\x80\x02}(" + text(b"data") + array + text(b"labels") + b"]K\x03au."
    read = read_pickle(data, "x")
    assert np.array_equal(read["data"], [[7, 200]])
    assert read["labels"] == [3]


class Malicious:
    def __init__(self, function: object, *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_malicious_pickle_runs_nothing_in_a_folder_or_an_archive(tmp_path, rng, protocol):
    proof, contents = tmp_path / "proof", Cifar(rng, 10).python()
    folder = place(tmp_path, CIFAR10_FILES, "python folder", Cifar(rng, 10))
    for bomb in (Malicious(os.system, f"touch {proof}"), Malicious(eval, f"open({str(proof)!r}, 'w')")):
        contents["data_batch_1"] = pickle.dumps({"data": bomb}, protocol=protocol)
        (folder / "data_batch_1").write_bytes(contents["data_batch_1"])
        (tmp_path / "packed").mkdir(exist_ok=True)
        tar(tmp_path / "packed" / "cifar-10-python.tar.gz", "cifar-10-batches-py", contents)
        for root in (tmp_path, tmp_path / "packed"):
            with pytest.raises(InputError, match=r"data_batch_1 asks to run .*(system|eval).*malicious"):
                load_cifar(root)
    assert not proof.exists()


@pytest.mark.parametrize("index", [2**28, 2**32 - 1])
def test_a_pickle_of_a_few_bytes_allocates_no_gigabytes(index):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=f"memo index {index}"):
        read_pickle(b"]r" + struct.pack("<I", index) + b".", "x")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 18  # kB


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        pickle.dumps([1, 2]),
        b"\x80\x02c_codecs\nencode\n(X\x01\x00\x00\x00aX\x03\x00\x00\x00bz2tR.",  # encode with another codec
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n)R}b.",  # an array of no state
        b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\n)R(K\x01K\x02K\x03tbu.",
        b"\x80\x02cwcapsnet.data.files\nos\n.",
        b"\x80\x04\x8c\x05numpy\x8c\x0bndarray.tag\x93.",  # a path below a permitted name
    ],
)
def test_broken_and_odd_pickles(data):
    with pytest.raises(InputError, match="some name"):
        read_pickle(data, "some name")


# --- MAT-5


@pytest.mark.parametrize("cut", [0, 100, 200, -9])
def test_a_damaged_mat_file_is_refused(tmp_path, cut):
    path = tmp_path / "x.mat"
    scipy.io.savemat(path, {"X": np.arange(1000)}, do_compression=True)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(InputError, match=r"x\.mat is truncated or corrupt"):
        read_mat(path, "X")


def test_a_mat_file_that_claims_too_much_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "MAX_BYTES", 1 << 16)
    path = tmp_path / "x.mat"
    scipy.io.savemat(path, {"X": np.zeros(1 << 22, np.uint8)}, do_compression=True)  # 4 MB in 4 kB
    with pytest.raises(InputError, match="far larger than it should be"):
        read_mat(path, "X")


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("folder", [".", "svhn", "SVHN"])
def test_svhn(tmp_path, rng, compressed, folder):
    place = tmp_path / folder
    place.mkdir(exist_ok=True)
    images = {part: rng.integers(0, 256, (32, 32, 3, 20), dtype=np.uint8) for part in ("train", "test")}
    labels = {part: rng.integers(1, 11, (20, 1), dtype=np.uint8) for part in ("train", "test")}
    for part in images:
        scipy.io.savemat(place / f"{part}_32x32.mat", {"X": images[part], "y": labels[part]}, do_compression=compressed)
    raw = read_svhn(tmp_path, folders=(".", "svhn", "SVHN"))
    for part, arrays in (("train", raw.train), ("test", raw.test)):
        assert arrays.images.shape == (20, 3, 32, 32)
        assert np.array_equal(arrays.images[7, 2], images[part][:, :, 2, 7])
        assert np.array_equal(arrays.labels, labels[part].ravel() % 10)  # 10 stands for 0


IMAGES, LABELS = np.zeros((32, 32, 3, 4), np.uint8), np.ones((4, 1), np.uint8)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"X": IMAGES}, "does not hold the arrays X and y"),
        ({"y": LABELS}, "does not hold the arrays X and y"),
        ({"X": IMAGES.astype(float), "y": LABELS}, "bytes"),
        ({"X": IMAGES, "y": LABELS[:3]}, "3 labels"),
    ],
)
def test_svhn_with_other_content_or_a_file_missing(tmp_path, content, says):
    for part in ("train", "test"):
        scipy.io.savemat(tmp_path / f"{part}_32x32.mat", content)
    with pytest.raises(InputError, match=says):
        read_svhn(tmp_path, folders=(".",))
    (tmp_path / "test_32x32.mat").unlink()
    with pytest.raises(MissingFilesError, match=r"test_32x32\.mat"):
        read_svhn(tmp_path, folders=(".",))
