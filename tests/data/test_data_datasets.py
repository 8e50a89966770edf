"""Named data sets: configuration, divisions, what is missing, downloads, and the real files where they are."""

from __future__ import annotations

import gzip
import hashlib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from data_helpers import Cifar, Mnist, idx_bytes, images

from make_sample import make_sample
from wcapsnet.data import DATASETS, Archive, DataConfig, DatasetInfo, load_dataset, statistics
from wcapsnet.data.formats import SAMPLE, Arrays, RawData
from wcapsnet.data.types import Dataset
from wcapsnet.errors import InputError


@pytest.fixture
def small_mnist(mnist: Mnist, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with 30 training and 10 test images, and a registry that expects just these."""
    monkeypatch.setitem(DATASETS, "mnist", replace(DATASETS["mnist"], train_images=30, test_images=10))
    return mnist.write(tmp_path / "root" / "mnist").parent


# --- The configuration


@pytest.mark.parametrize(
    "change",
    [
        {"source": ""},
        {"height": 0},
        {"height": 4.5},
        {"width": 5000},
        {"channels": 2},
        {"channels": True},
        {"validation": 0},
        {"validation": -1},
        {"validation": 1.5},
        {"validation": float("nan")},
        {"validation": float("inf")},
        {"validation": "many"},
        {"test": 0},
        {"test": 1},
        {"split_seed": -1},
        {"split_seed": 0.5},
        {"normalization": "none"},
        {"stream": "sometimes"},
        {"mirror": 1},
        {"shift": -1},
        {"shift": True},
        {"shift": 1.0},
    ],
)
def test_what_is_wrong_in_a_configuration_is_named(change):
    with pytest.raises(InputError, match=f"^data.{next(iter(change))} (is|must) "):
        DataConfig(**change)


# --- Dividing


def test_the_division_is_disjoint_exhaustive_and_seeded(small_mnist, mnist):
    def load(seed: int) -> Dataset:
        return load_dataset(DataConfig(validation=10, split_seed=seed), data_dir=small_mnist)

    data = load(0)
    assert (len(data.train.labels), len(data.validation.labels), len(data.test.labels)) == (20, 10, 10)
    assert images(data) == images(load(0))
    assert images(data) != images(load(1))
    assert sorted(images(data)) == sorted(images(load(1)))
    assert len(set(images(data))) == 40
    # the last images of the permutation, with their labels
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    assert torch.equal(data.validation.labels, torch.from_numpy(mnist.arrays["train-labels-idx1-ubyte"])[order[20:]])
    assert torch.equal(data.train.images[:, 0], torch.from_numpy(mnist.arrays["train-images-idx3-ubyte"])[order[:20]])
    assert data.train.images.dtype == torch.uint8
    assert data.train.labels.dtype == torch.int64
    assert data.classes == tuple("0123456789")
    assert data.name == "mnist"


def test_validation_as_a_fraction_and_too_much_of_it(small_mnist):
    assert len(load_dataset(DataConfig(validation=0.2), data_dir=small_mnist).validation.labels) == 6
    assert len(load_dataset(DataConfig(validation=0.001), data_dir=small_mnist).validation.labels) == 1
    for validation in (30, 31, 0.99):
        with pytest.raises(InputError, match=r"data\.validation must leave images .*30 training images"):
            load_dataset(DataConfig(validation=validation), data_dir=small_mnist)


# --- Where the files are


def test_the_data_folder_by_argument_variable_or_default(small_mnist, tmp_path, monkeypatch):
    config = DataConfig(validation=10)
    monkeypatch.setenv("WCAPSNET_DATA", str(small_mnist))
    by_variable = load_dataset(config)
    monkeypatch.setenv("WCAPSNET_DATA", str(tmp_path / "nowhere"))
    assert images(load_dataset(config, data_dir=small_mnist)) == images(by_variable)
    monkeypatch.delenv("WCAPSNET_DATA")
    small_mnist.rename(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    assert images(load_dataset(config)) == images(by_variable)


@pytest.mark.parametrize("name", [name for name in DATASETS if name != "sample"])
def test_missing_files_say_what_where_and_what_to_do(tmp_path, name):
    with pytest.raises(InputError, match=r"--data-dir or WCAPSNET_DATA, .* --download") as error:
        load_dataset(DataConfig(source=name), data_dir=tmp_path)
    for archive in DATASETS[name].archives:  # the readers look where downloads go
        assert archive.path.rpartition("/")[2].removesuffix(".gz") in str(error.value)
        assert str((tmp_path / archive.path).parent) in str(error.value)
        assert len(archive.md5) == 32
        assert all(url.startswith("http") and url.endswith("/" + Path(archive.path).name) for url in archive.urls)


def test_unreadable_files(small_mnist, monkeypatch):
    def refuse(root: Path) -> None:
        raise PermissionError(13, "Permission denied", "the/file")

    monkeypatch.setitem(DATASETS, "mnist", replace(DATASETS["mnist"], read=refuse))
    with pytest.raises(InputError, match="Cannot read the/file: Permission denied"):
        load_dataset(DataConfig(), data_dir=small_mnist)


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("mnits", "; did you mean 'mnist'"),
        ("CIFAR-10", "; did you mean 'cifar10'"),
        ("zzz", "; choose one of sample, mnist"),
    ],
)
def test_an_unknown_source_is_met_with_the_nearest(source, hint):
    with pytest.raises(InputError, match=f"no dataset or folder '{source}'{hint}"):
        load_dataset(DataConfig(source=source))


def test_a_size_of_choice_is_for_folders():
    with pytest.raises(InputError, match=r"data\.height must be left out or 28 for sample"):
        load_dataset(DataConfig(source="sample", height=32))
    load_dataset(DataConfig(source="sample", height=28, width=28, channels=1, validation=1000))


# --- Files that are whole but not what they should be


def test_another_number_of_images_than_the_data_set_has(mnist, tmp_path):
    mnist.write(tmp_path)
    with pytest.raises(InputError, match=r"MNIST files .*\(30, 1, 28, 28\) instead of \(60000, 1, 28, 28\).*delete"):
        load_dataset(DataConfig(), data_dir=tmp_path)


def test_cifar_cut_between_two_images(rng, tmp_path, monkeypatch):
    info = replace(DATASETS["cifar10"], train_images=20, test_images=4)
    monkeypatch.setitem(DATASETS, "cifar10", info)
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for name, data in Cifar(rng, 10).binary().items():
        (folder / name).write_bytes(data)
    config = DataConfig(source="cifar10", validation=5)
    assert load_dataset(config, data_dir=tmp_path).classes[3] == "class 3"  # from the files
    (folder / "batches.meta.txt").write_text("one\ntwo\n")
    with pytest.raises(InputError, match="2 class names instead of 10"):
        load_dataset(config, data_dir=tmp_path)
    (folder / "batches.meta.txt").unlink()
    assert load_dataset(config, data_dir=tmp_path).classes[3] == "cat"  # built in
    test = folder / "test_batch.bin"
    test.write_bytes(test.read_bytes()[:-3073])
    with pytest.raises(InputError, match="test images of shape"):
        load_dataset(config, data_dir=tmp_path)


def test_labels_out_of_range(small_mnist, mnist):
    mnist.arrays["t10k-labels-idx1-ubyte"][3] = 77
    mnist.write(small_mnist / "mnist")
    with pytest.raises(InputError, match="test labels from 0 to 77 instead of 0 to 9"):
        load_dataset(DataConfig(validation=10), data_dir=small_mnist)


def own(images: np.ndarray, labels: np.ndarray) -> DatasetInfo:
    """A dataset as a plugin registers it: without archives"""
    data = RawData(Arrays(images, labels), Arrays(images, labels))
    return DatasetInfo("Leaves", ("oak", "birch"), 1, 8, 8, 6, 6, lambda root: data)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"images": np.zeros((6, 1, 8, 8))}, "training images of type float64 instead of uint8, from 0 to 255"),
        ({"images": [0] * 6}, "training images as list instead of a NumPy array"),
        ({"images": np.zeros((6, 8, 8, 1), np.uint8)}, r"shape \(6, 8, 8, 1\) instead of \(6, 1, 8, 8\)"),
        ({"labels": np.zeros(5, np.int64)}, r"training labels of shape \(5,\) instead of \(6,\)"),
        ({"labels": np.zeros((6, 1), np.int64)}, r"training labels of shape \(6, 1\) instead of \(6,\)"),
        ({"labels": np.zeros(6)}, "training labels of type float64 instead of whole numbers"),
        ({"labels": np.arange(6)}, "training labels from 0 to 5 instead of 0 to 1"),
    ],
)
def test_an_own_dataset_that_is_not_as_registered_is_refused_but_its_files_are_not_to_be_deleted(
    monkeypatch, change, problem
):
    right = {"images": np.zeros((6, 1, 8, 8), np.uint8), "labels": np.arange(6) % 2}
    monkeypatch.setitem(DATASETS, "leaves", own(**{**right, **change}))
    with pytest.raises(InputError, match=f"Leaves does not match its DatasetInfo: it has .*{problem}") as error:
        load_dataset(DataConfig(source="leaves", validation=2))
    assert "delete" not in str(error.value)


def test_labels_of_an_own_dataset_may_be_any_integers(monkeypatch):
    monkeypatch.setitem(DATASETS, "leaves", own(np.zeros((6, 1, 8, 8), np.uint8), (np.arange(6) % 2).astype(np.uint8)))
    assert load_dataset(DataConfig(source="leaves", validation=2)).train.labels.dtype == torch.int64


def test_a_file_that_the_reader_of_an_own_dataset_does_not_find(monkeypatch, tmp_path):
    info = replace(own(np.zeros(0), np.zeros(0)), read=lambda root: np.load(root / "leaves.npz"))
    monkeypatch.setitem(DATASETS, "leaves", info)
    with pytest.raises(InputError, match=r"leaves\.npz was not found; give its folder with --data-dir"):
        load_dataset(DataConfig(source="leaves"), data_dir=tmp_path)


def test_the_reader_of_an_own_dataset_must_return_raw_data(monkeypatch):
    info = replace(own(np.zeros(0), np.zeros(0)), read=lambda root: (1, 2))
    monkeypatch.setitem(DATASETS, "leaves", info)
    with pytest.raises(InputError, match="reader of leaves must return RawData"):
        load_dataset(DataConfig(source="leaves"))


# --- Downloads


def test_download_fetches_what_is_missing_once(small_mnist, mnist, server, tmp_path, monkeypatch):
    archives = []
    for name, array in mnist.arrays.items():
        data = gzip.compress(idx_bytes(array))
        server.files[f"{name}.gz"] = data
        urls = (f"{server.url}missing/{name}.gz", f"{server.url}{name}.gz")
        archives.append(Archive(f"MNIST/raw/{name}.gz", urls, hashlib.md5(data).hexdigest()))
    monkeypatch.setitem(DATASETS, "mnist", replace(DATASETS["mnist"], archives=tuple(archives)))
    config, root = DataConfig(validation=10), tmp_path / "fresh"
    data = load_dataset(config, data_dir=root, download=True, quiet=True)
    assert images(data) == images(load_dataset(config, data_dir=small_mnist))
    assert len(server.requests) == 8
    load_dataset(config, data_dir=root, download=True)
    assert len(server.requests) == 8
    (root / archives[0].path).unlink()
    load_dataset(config, data_dir=root, download=True)
    assert len(server.requests) == 10


# --- Statistics


def test_statistics_worked_by_hand():
    # channel 0: 0 and 255, half each: mean ½, deviation ½; channel 1: 51 everywhere: mean .2, no variation
    train = torch.zeros(4, 2, 2, 2, dtype=torch.uint8)
    train[:2, 0], train[:, 1] = 255, 51
    mean, std = statistics(train, "standardize")
    assert mean == pytest.approx((0.5, 0.2))
    assert std == pytest.approx((0.5, 1.0))
    assert statistics(train, "unit") == ((0.0, 0.0), (1.0, 1.0))


def test_statistics_agree_with_numpy_over_several_pieces(rng):
    train = rng.integers(0, 256, (5000, 3, 4, 4), dtype=np.uint8)
    mean, std = statistics(torch.from_numpy(train), "standardize")
    assert mean == pytest.approx((train / 255).mean((0, 2, 3)).tolist())
    assert std == pytest.approx((train / 255).std((0, 2, 3)).tolist())


# --- The sample


def test_the_sample_comes_with_the_package(tmp_path, monkeypatch):
    monkeypatch.setenv("WCAPSNET_DATA", str(tmp_path / "nowhere"))
    data = load_dataset(DataConfig(source="sample", validation=0.1))
    assert [len(part.labels) for part in (data.train, data.validation, data.test)] == [9000, 1000, 2000]
    assert data.train.images.shape[1:] == (1, 28, 28)
    assert data.test.labels.bincount().min() > 150
    assert statistics(data.train.images, "standardize")[0][0] == pytest.approx(0.1307, abs=0.002)
    assert "Share Alike 3.0" in SAMPLE.with_name("LICENSE.md").read_text(encoding="utf-8")


def test_the_sample_is_made_from_the_original_files_only(mnist, tmp_path):
    mnist.write(tmp_path)
    with pytest.raises(InputError, match="not MNIST's original file"):
        make_sample(tmp_path, tmp_path / "x.npz")


# --- The real files


@pytest.fixture
def real_data() -> Path:
    root = os.environ.get("WCAPSNET_DATA")
    if not root:
        pytest.skip("WCAPSNET_DATA is not set")
    return Path(root)


REAL = {
    # training images of each class, validation, mean of each channel of the whole training set
    "mnist": ([5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949], 10000, (0.1307,)),
    "fashion-mnist": ([6000] * 10, 10000, (0.2860,)),
    "cifar10": ([5000] * 10, 5000, (0.4914, 0.4822, 0.4465)),
    "cifar100": ([500] * 100, 5000, (0.5071, 0.4865, 0.4409)),
    "svhn": ([4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659], 10000, (0.4377, 0.4438, 0.4728)),
}


@pytest.mark.data
@pytest.mark.parametrize("name", REAL)
def test_real_files(real_data, name):
    counts, validation, means = REAL[name]
    try:
        data = load_dataset(DataConfig(source=name, validation=validation), data_dir=real_data)
    except InputError as error:
        if "not found" not in str(error):
            raise
        pytest.skip(str(error))
    info = DATASETS[name]
    labels = torch.cat([data.train.labels, data.validation.labels])
    assert labels.bincount().tolist() == counts
    assert len(data.validation.labels) == validation
    assert data.test.images.shape == (info.test_images, info.channels, info.height, info.width)
    assert data.classes == info.classes
    whole = torch.cat([data.train.images, data.validation.images])
    assert statistics(whole, "standardize")[0] == pytest.approx(means, abs=1e-4)


@pytest.mark.data
def test_the_sample_can_be_made_again(real_data, tmp_path):
    folder = real_data / "MNIST" / "raw"
    if not (folder / "train-images-idx3-ubyte").is_file():
        pytest.skip("no plain IDX files")
    make_sample(folder, tmp_path / "sample.npz")
    with np.load(tmp_path / "sample.npz") as made, np.load(SAMPLE) as kept:
        assert made.files == kept.files
        assert all(np.array_equal(made[name], kept[name]) for name in made.files)
