"""Folders of pictures: layouts, divisions, what is broken, and the cache."""

from __future__ import annotations

import os
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from data_helpers import images, noise
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from wcapsnet import cache
from wcapsnet.data import DataConfig, Dataset, load_dataset, load_folder, load_labelled, read_image, scan_folder
from wcapsnet.data import folder as module
from wcapsnet.data import pictures as pictures_module
from wcapsnet.data.folder import FolderSummary
from wcapsnet.data.split import _number, stratified_split
from wcapsnet.errors import InputError


def config(path: Path | str, **changes: object) -> DataConfig:
    base = DataConfig(source=str(path), height=8, width=8, channels=3, validation=0.2, test=0.2)
    return replace(base, **changes)


def sizes(data: Dataset) -> tuple[int, int, int]:
    return len(data.train.labels), len(data.validation.labels), len(data.test.labels)


def test_class_folders_become_a_data_set(picture_folder):
    path = picture_folder({"10": 10, "2": 10, "hot dog ü": 20}, name="my pictures")
    data = load_dataset(config(path))
    assert data.name == "my pictures"
    assert data.classes == ("2", "10", "hot dog ü")
    assert sizes(data) == (24, 8, 8)
    assert data.train.images.shape == (24, 3, 8, 8)
    assert data.train.images.dtype == torch.uint8
    assert data.train.labels.dtype == torch.int64
    assert data.train.labels.bincount().tolist() == [6, 6, 12]
    assert data.test.labels.bincount().tolist() == [2, 2, 4]
    assert data.skipped == ()
    # every picture is in exactly one part, under its class
    expected = {}
    for label, name in enumerate(data.classes):
        for file in (path / name).iterdir():
            expected[read_image(file, channels=3, height=8, width=8).tobytes()] = label
    found = images(data)
    labels = torch.cat([data.train.labels, data.validation.labels, data.test.labels]).tolist()
    assert len(found) == len(set(found)) == 40
    assert dict(zip(found, labels, strict=True)) == expected


def test_the_seed_decides_the_division(picture_folder):
    path = picture_folder({"a": 20, "b": 20})
    first, same, other = (load_folder(config(path, split_seed=seed)) for seed in (0, 0, 1))
    assert images(first) == images(same)
    assert images(first) != images(other)
    assert sorted(images(first)) == sorted(images(other))


@pytest.mark.parametrize(("val", "test"), [("val", "test"), ("valid", "Test"), ("validation", "testing")])
def test_part_folders_are_used_as_they_are(picture_folder, val, test):
    path = picture_folder({"Train/a": 5, "Train/b": 4, f"{val}/a": 2, f"{val}/b": 1, f"{test}/b": 3, f"{test}/a": 0})
    data = load_folder(config(path))
    assert sizes(data) == (9, 3, 3)
    assert data.test.labels.tolist() == [1, 1, 1]
    assert data.classes == ("a", "b")


def test_missing_parts_are_taken_from_training(picture_folder):
    content = {"train/a": 10, "train/b": 10}
    assert sizes(load_folder(config(picture_folder(content, "1")))) == (12, 4, 4)
    assert sizes(load_folder(config(picture_folder({**content, "test/a": 3}, "2")))) == (16, 4, 3)
    assert sizes(load_folder(config(picture_folder({**content, "val/b": 3}, "3")))) == (16, 3, 4)


def test_validation_as_a_number_of_pictures(picture_folder):
    path = picture_folder({"a": 20, "b": 10})
    assert sizes(load_folder(config(path, validation=9))) == (15, 9, 6)
    with pytest.raises(InputError, match=r"data\.validation and data\.test must leave pictures .*such as 0\.15"):
        load_folder(config(path, validation=10000))
    with pytest.raises(InputError, match="must leave pictures"):
        load_folder(config(path, validation=0.6, test=0.6))


def test_a_class_may_be_called_train(picture_folder):
    path = picture_folder({"bus": 4, "train": 4, "test": 4, "train/notes": 0})
    assert load_folder(config(path)).classes == ("bus", "test", "train")


@pytest.mark.parametrize(
    "stray",
    [("train/stray.png", "test/stray.png"), ("train/stray.png",), ("test/stray.png",), ("stray.png", "val/s.JPG")],
)
def test_a_loose_picture_makes_no_class_of_a_part(picture_folder, stray):
    content = {"train/a": 5, "train/b": 4, "val/a": 2, "test/a": 1, "test/b": 2}
    path = picture_folder({**content, **dict.fromkeys(stray, noise(99))})
    data = load_folder(config(path))
    assert data.classes == ("a", "b")
    assert sizes(data) == (9, 2, 3)
    assert data.skipped == tuple(f"{file}: is outside the class folders" for file in stray)


def test_a_class_of_three_is_in_every_part_and_smaller_ones_are_trained_on_and_named(picture_folder):
    data = load_folder(config(picture_folder({"a": 50, "b": 3, "c": 2, "d": 1}), validation=0.15, test=0.15))
    assert [set(part.labels.tolist()) for part in (data.validation, data.test)] == [{0, 1}, {0, 1}]
    assert data.train.labels.bincount().tolist()[2:] == [2, 1]
    few, validation, test = data.warnings
    assert "'b' (3), 'c' (2), 'd' (1)" in few
    assert "'c', 'd': no validation pictures" in validation
    assert "'c', 'd': no test pictures" in test
    assert load_folder(config(picture_folder({"a": 10, "b": 10}, "balanced"))).warnings == ()


def test_equal_pictures_in_training_and_test_or_in_two_classes_are_counted_with_examples(picture_folder):
    content = {f"{part}/{name}": 10 for part in ("train", "val", "test") for name in "ab"}
    copies = {
        "train/a/x.png": noise(99),
        "test/a/y.png": noise(99),
        "val/b/z.bmp": noise(99),
    }  # pixels count, not bytes
    leaked, mixed = load_folder(config(picture_folder({**content, **copies}))).warnings
    assert leaked.startswith("2 validation or test pictures are also in training")
    assert "test/a/y.png = train/a/x.png" in leaked
    assert mixed == "1 picture is in two classes: val/b/z.bmp = train/a/x.png."


def test_excluded_folders_are_not_there(picture_folder):
    classes = picture_folder({"a": 4, "b": 4, "empty": 0, "broken/1.png": b"no"})
    assert load_folder(config(classes, exclude=("empty", "broken"))).classes == ("a", "b")
    assert scan_folder(classes, ["empty", "broken"]).exclude == ("empty", "broken")
    parts = picture_folder({"train/a": 9, "train/b": 9, "train/c": 9, "test/a": 1, "test/c": 1, "stray": 2}, "parts")
    data = load_folder(config(parts, exclude=("stray", "c")))
    assert (data.classes, data.test_files) == (("a", "b"), ("test/a/0.png",))
    with pytest.raises(InputError, match=r"--exclude: there is no folder 'stay' .* did you mean 'stray'"):
        load_folder(config(parts, exclude=("stay",)))


def test_names_with_control_characters_are_spelled_out(picture_folder):
    data = load_folder(config(picture_folder({"a": 4, "b": 4, "a/\x1b[2J\n.png": b"no"})))
    assert data.skipped[0].startswith(r"a/\x1b[2J\n.png: ")


# --- Pictures for a network that is trained already


def test_labelled_pictures_are_matched_with_the_classes_of_a_network_by_name(picture_folder):
    path = picture_folder({"dog": 2, "cat": 3, "horse": 4, "cat/bad.png": b"no", "empty": 0})
    found = load_labelled(path, ("cat", "dog", "emu"), (3, 8, 8))
    assert found.split.labels.tolist() == [0, 0, 0, 1, 1]
    assert found.split.images.shape == (5, 3, 8, 8)
    assert found.unknown == ("horse",)
    assert len(found.skipped) == 1
    parts = picture_folder({"train/cat": 1, "test/cat": 2}, "parts")
    assert len(load_labelled(parts, ("cat", "dog"), (3, 8, 8)).split.labels) == 2
    assert len(load_labelled(parts, ("cat", "dog"), (3, 8, 8), "train").split.labels) == 1
    one = picture_folder({"train": 2}, "one")
    assert len(load_labelled(one, ("bus", "train"), (3, 8, 8)).split.labels) == 2
    with pytest.raises(InputError, match="has no validation folder: omit --split"):
        load_labelled(one, ("bus", "train"), (3, 8, 8), "validation")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"horse": 1}, r"pictures of 'horse', but the network knows 'cat', 'dog'"),
        ({"1.png": noise(1)}, "no pictures in class folders"),
        ({"train/cat": 1}, "has no test folder, only train"),
        ({"cat/1.png": b"no"}, r"None of the pictures .*cat/1\.png"),
    ],
)
def test_a_folder_without_pictures_that_a_network_knows_says_why(picture_folder, content, says):
    with pytest.raises(InputError, match=says):
        load_labelled(picture_folder(content), ("cat", "dog"), (3, 8, 8))


def test_nested_folders_links_upper_case_and_hidden_files(picture_folder, tmp_path):
    path = picture_folder(
        {
            "a/deep/er/1.PNG": noise(1),
            "a/2.JpG": noise(2),
            "a/3.webp": noise(3),
            "a/.hidden.png": b"no picture",
            "a/notes.txt": b"not looked at",
            "b": 3,
            ".git/x.png": noise(4),
            "__MACOSX/a/._1.png": b"no picture",
            "loose.png": noise(5),
        }
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for i in range(4):
        noise(10 + i).save(elsewhere / f"{i}.png")
    (path / "c linked").symlink_to(elsewhere)
    (path / "b" / "link.png").symlink_to(elsewhere / "0.png")
    data = load_folder(config(path))
    assert data.classes == ("a", "b", "c linked")
    labels = torch.cat([data.train.labels, data.validation.labels, data.test.labels])
    assert labels.bincount().tolist() == [3, 4, 4]
    assert data.skipped == ("loose.png: is outside the class folders", "a/notes.txt: .txt files are not supported")


def test_broken_files_are_skipped_and_listed(picture_folder):
    path = picture_folder({"a": 4, "b": 4, "a/bad one.png": b"no", "b/empty.jpg": b""})
    (path / "b" / "dangling.png").symlink_to(path / "nowhere.png")
    for _ in range(2):  # the second time from the cache
        data = load_folder(config(path))
        assert sum(sizes(data)) == 8
        reasons = dict(line.split(": ", 1) for line in data.skipped)
        assert reasons.keys() == {"a/bad one.png", "b/empty.jpg", "b/dangling.png"}
        assert reasons["b/empty.jpg"] == "the file is empty"
        assert reasons["b/dangling.png"] == "there is no such file"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"a": 3, "b": 0, "c/1.txt": b"", "d/1.png": b"no", "d/2.png": b"no", "e e": 0},
            r"^4 classes in .*'b' holds no pictures; 'c' holds no pictures, only \.txt; 'd' has no readable picture "
            r"\(d/1\.png: .*; 'e e' .* --exclude b --exclude c --exclude d --exclude 'e e'\.$",
        ),
        (
            {"a": 3, "b/1.png": b"no", "\x1bc/1.png": b""},
            r"^2 classes .*'\\x1bc' .*\(\\x1bc/1\.png: .*'b' .*\(b/1\.png: .* --exclude b\.$",
        ),
        ({"a": 3}, "only one class, 'a'"),
        ({}, r"holds no pictures: expected one folder for each class, such as pictures/cats/1\.jpg"),
        ({"1.png": noise(1), "2.png": noise(2)}, r"outside class folders, such as 1\.png: expected one"),
        ({"a": 0, "b": 0}, "holds no pictures: expected"),
        ({"train/a": 3, "train/b": 3, "test/c": 1, "val/d": 1}, r"'c' is in test but not in train; 'd' .*--exclude c"),
        ({"train/a": 3, "train/b": 3, "val/a": 0}, r"val holds no pictures"),
        ({"train/a": 3, "train/b": 3, "val/a": 1, "valid/a": 1}, "two folders for validation, val and valid"),
        ({"train/a": 3, "train/b": 3, "unlabelled": 3}, "both 'train' and 'unlabelled': .*--exclude unlabelled"),
        (
            {"train/a": 3, "train/b": 3, "train/stray.png": noise(1), "test/a": 1, "unlabelled": 3},
            "both 'test' and 'unlabelled'",
        ),
        (
            {"train/a": 3, "train/b": 3, "train/stray.png": noise(1), "bus": 3},
            r"train holds pictures both in subfolders and outside them \(stray\.png\)",
        ),
        ({"train/a": 3, "train/stray.png": noise(1)}, r"only one class, 'a', .*\(train/stray\.png is outside"),
        ({"train/a": 3, "train/b": 3, "test": 3}, r"test holds pictures only outside class folders, such as 0\.png"),
        ({"train": 3, "test": 3}, r"train holds pictures only outside class folders, such as 0\.png"),
        ({"test/a": 3, "test/b": 3}, "has a test folder but no train folder"),
        ({"a": 2, "b": 2}, "No validation pictures are left"),
        ({"train/a": 3, "train/b": 3, "test/a/1.png": b"no"}, "No test pictures are left"),
        ({"a": 1, "b": 1}, "No validation pictures are left"),
    ],
)
def test_unusable_folders_say_why(picture_folder, content, message):
    with pytest.raises(InputError, match=message):
        load_dataset(config(picture_folder(content)))


def test_a_path_that_is_no_folder_of_pictures_says_why(picture_folder, tmp_path):
    path = picture_folder({"a/1.png": b"no", "b/2.png": b"no", "x.zip": b""})
    with pytest.raises(InputError, match=r"None of the sampled pictures .*1\.png"):
        load_folder(config(path, height=None))
    with pytest.raises(InputError, match=r"x\.zip is a file: .*unpack"):
        load_dataset(config(path / "x.zip"))
    for look in (scan_folder, lambda path: load_folder(config(path))):
        with pytest.raises(InputError, match="There is no folder"):
            look(tmp_path / "none")


def test_a_path_that_looks_like_a_name(picture_folder, monkeypatch):
    path = picture_folder({"a": 3, "b": 3}, name="mnist")
    monkeypatch.chdir(path.parent)
    assert load_dataset(config("./mnist")).classes == ("a", "b")


# --- Dividing


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(1, 30), min_size=2, max_size=6),
    st.one_of(st.just(0), st.floats(0.01, 0.45), st.integers(1, 10)),
    st.one_of(st.just(0), st.floats(0.01, 0.45)),
    st.integers(0, 5),
)
def test_a_stratified_split_is_a_fair_partition(counts, validation, test, seed):
    labels = np.repeat(np.arange(len(counts)), counts)
    np.random.default_rng(seed).shuffle(labels)
    m = len(labels)
    if m < 3 or _number(validation, m) + _number(test, m) >= m:
        return
    split = stratified_split(labels, validation=validation, test=test, seed=seed)
    assert sorted(np.concatenate(split)) == list(range(m))
    per_class = [np.bincount(labels[part], minlength=len(counts)) for part in split]
    for n, train, val, held in zip(counts, *per_class, strict=True):
        assert train >= 1
        if n < 3:
            assert train == n
        else:
            assert (val >= 1) == (validation > 0)
            assert (held >= 1) == (test > 0)
    if min(counts) >= 20:  # with room to spare the numbers are exact and each class gets its share
        for part, asked in ((split.validation, validation), (split.test, test)):
            wanted = _number(asked, m)
            if wanted >= len(counts):
                assert len(part) == wanted
                share = np.bincount(labels[part], minlength=len(counts)) - np.array(counts) * wanted / m
                assert abs(share).max() < 1.001
    again = stratified_split(labels, validation=validation, test=test, seed=seed)
    assert all(np.array_equal(a, b) for a, b in zip(split, again, strict=True))


# --- Looking a folder over


def test_scan(picture_folder):
    path = picture_folder({"train/a": 3, "train/b": 2, "test/a": 1, "test/b/bad.png": b"no"})
    summary = scan_folder(path)
    assert summary.classes == ("a", "b")
    assert summary.counts == (3, 2)
    assert (summary.height, summary.width) == (20, 20)
    assert summary.proposed_size() == (20, 20)
    assert summary.proposed_channels == 3


def test_gray_pictures_are_known_however_they_are_stored(picture_folder):
    gray = noise(1, "L")
    content = {
        "a/1.png": gray,
        "a/2.jpg": gray.convert("RGB"),
        "b/3.png": gray.convert("RGBA"),
        "b/4.gif": gray,
        "b/5.png": gray.convert("1"),
    }
    assert scan_folder(picture_folder(content, "gray")).proposed_channels == 1
    assert scan_folder(picture_folder({**content, "b/6.jpg": noise(2)}, "mixed")).proposed_channels == 3


def test_size_and_channels_are_proposed_where_none_are_given(picture_folder):
    content = {f"{name}/{i}.png": noise(i, "L", (28, 28)) for name in "ab" for i in range(4)}
    path = picture_folder(content)
    plain = DataConfig(source=str(path), validation=0.2, test=0.2)
    assert load_folder(plain).train.images.shape[1:] == (1, 28, 28)
    assert load_folder(replace(plain, height=16)).train.images.shape[1:] == (1, 16, 16)
    assert load_folder(replace(plain, height=16, width=12)).train.images.shape[1:] == (1, 16, 12)
    assert load_folder(replace(plain, channels=3)).train.images.shape[1:] == (3, 28, 28)


def test_sizes_are_seen_upright(picture_folder):
    path = picture_folder({"a": 0, "b": 0})
    exif = Image.Exif()
    exif[0x0112] = 6
    for name in "ab":
        noise(1, size=(60, 30)).save(path / name / "1.jpg", exif=exif)
    summary = scan_folder(path)
    assert (summary.height, summary.width) == (60, 30)
    assert summary.proposed_size() == (60, 32)


def summary(height: int, width: int, *, one_shape: bool = True, images: int = 100) -> FolderSummary:
    return FolderSummary(Path(), ("a", "b"), (images // 2, images // 2), height, width, one_shape, True)


@pytest.mark.parametrize(
    ("seen", "proposed"),
    [
        (summary(28, 28), (28, 28)),
        (summary(30, 30), (32, 32)),
        (summary(8, 8), (16, 16)),
        (summary(64, 64), (64, 64)),
        (summary(3000, 4000), (48, 64)),
        (summary(3000, 4000, one_shape=False), (64, 64)),
        (summary(3000, 4000, images=50000), (24, 32)),
        (summary(3000, 4000, one_shape=False, images=50000), (32, 32)),
        (summary(28, 28, images=50000), (28, 28)),
        (summary(100, 2000), (16, 64)),
        (summary(20, 40, one_shape=False), (20, 20)),
    ],
)
def test_proposed_sizes(seen, proposed):
    assert seen.proposed_size() == proposed


def test_a_large_folder_is_looked_at_in_part(picture_folder, monkeypatch):
    path = picture_folder({"a": 150, "b": 150})
    looked: list[Path] = []
    original = module.read_header
    monkeypatch.setattr(module, "read_header", lambda p, **k: (looked.append(p), original(p, **k))[1])
    scan_folder(path)
    first = list(looked)
    scan_folder(path)
    assert len(first) == 200
    assert looked == first * 2
    assert {p.parent.name for p in first} == {"a", "b"}


# --- The cache


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the pictures that were decoded rather than found in the cache."""
    names: list[str] = []

    def spy(path: Path, **options: int) -> np.ndarray:
        names.append(path.name)
        return read_image(path, **options)

    monkeypatch.setattr(pictures_module, "read_image", spy)
    return names


def entries(cache: Path) -> list[str]:
    return sorted(os.listdir(cache))


def test_a_second_reading_decodes_nothing(picture_folder, decoded, tmp_path):
    path = picture_folder({"a": 4, "b": 4})
    first = load_folder(config(path))
    assert len(decoded) == 8
    second = load_folder(config(path))
    assert len(decoded) == 8
    assert images(first) == images(second)
    load_folder(config(path, split_seed=5, validation=0.4))  # another division of the same pictures
    assert len(decoded) == 8
    assert len(entries(tmp_path / "cache")) == 1
    second.train.images.fill_(0)  # the tensors own their memory


@pytest.mark.parametrize("change", ["add", "remove", "touch", "edit", "rename", "reader"])
def test_a_changed_folder_is_read_again_and_the_old_entry_goes(picture_folder, decoded, tmp_path, monkeypatch, change):
    path = picture_folder({"a": 4, "b": 4})
    load_folder(config(path))
    before = entries(tmp_path / "cache")
    decoded.clear()
    file = path / "a" / "0.png"
    if change == "add":
        noise(99).save(path / "a" / "new.png")
    elif change == "remove":
        file.unlink()
    elif change == "touch":
        os.utime(file, ns=(0, 12345))
    elif change == "edit":
        noise(98).save(file)
        os.utime(file, ns=(0, 54321))
    elif change == "rename":
        file.rename(path / "b" / "renamed.png")
    else:
        monkeypatch.setattr(pictures_module, "READER_VERSION", pictures_module.READER_VERSION + 1)
    load_folder(config(path))
    assert len(decoded) == {"add": 9, "remove": 7}.get(change, 8)
    assert len(entries(tmp_path / "cache")) == 1
    assert entries(tmp_path / "cache") != before


def test_other_sizes_and_folders_have_entries_of_their_own(picture_folder, decoded, tmp_path):
    one, two = picture_folder({"a": 3, "b": 3}, "one"), picture_folder({"a": 3, "b": 3}, "two")
    asked = [config(one), config(two), config(one, height=4), config(one, channels=1)]
    for _ in range(2):
        for each in asked:
            load_folder(each)
    assert len(decoded) == 6 * 4
    assert len(entries(tmp_path / "cache")) == 4


@pytest.mark.parametrize("damage", ["cut", "garbage", "flipped", "empty", "other"])
def test_a_corrupt_cache_only_costs_time(picture_folder, decoded, tmp_path, damage):
    path = picture_folder({"a": 4, "b": 4})
    first = load_folder(config(path))
    (entry,) = (tmp_path / "cache").iterdir()
    data = bytearray(entry.read_bytes())
    data[400] ^= 255
    if damage == "other":
        np.save(entry, np.zeros((1, 3, 8, 8), np.uint8))
    else:
        content = {"cut": data[: len(data) // 2], "garbage": b"garbage", "flipped": data, "empty": b""}[damage]
        entry.write_bytes(content)
    assert images(load_folder(config(path))) == images(first)
    assert len(decoded) == 16
    load_folder(config(path))  # mended
    assert len(decoded) == 16


@pytest.mark.parametrize("forged", ["positions", "numbers", "order", "objects"])
def test_a_forged_cache_only_costs_time(picture_folder, decoded, tmp_path, forged):
    path = picture_folder({"a": 4, "b": 4})
    first = load_folder(config(path))
    (entry,) = (tmp_path / "cache").iterdir()
    pixels, readable = np.zeros((8, 3, 8, 8), np.uint8), np.arange(8)
    if forged == "positions":
        readable = readable + 100
    elif forged == "numbers":
        pixels = pixels.astype(np.float64)
    elif forged == "order":
        pixels = np.asfortranarray(pixels)
    else:
        readable = np.array([Trap(tmp_path / "sprung")] * 8, object)
    reasons = np.frombuffer(b"[]", np.uint8)
    checksum = zlib.crc32(reasons, zlib.crc32(readable.tobytes(), zlib.crc32(pixels.tobytes())))
    with entry.open("wb") as file:
        for array in (pixels, readable, reasons, np.array(checksum)):
            np.save(file, array, allow_pickle=True)
    assert images(load_folder(config(path))) == images(first)
    assert len(decoded) == 16
    assert not (tmp_path / "sprung").exists()


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, place: Path):
        self.place = place

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (os.fspath(self.place),)


def test_an_unwritable_cache_only_costs_time(picture_folder, decoded, tmp_path, monkeypatch):
    path = picture_folder({"a": 4, "b": 4})
    (tmp_path / "file").touch()
    monkeypatch.setenv("WCAPSNET_CACHE", str(tmp_path / "file" / "cache"))
    for _ in range(2):
        assert sum(sizes(load_folder(config(path)))) == 8
    assert len(decoded) == 16


def test_where_the_cache_is(tmp_path, monkeypatch):
    assert cache.directory() == tmp_path / "cache"
    monkeypatch.delenv("WCAPSNET_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache.directory() == Path("/somewhere/wcapsnet")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/me")
    assert cache.directory() == Path("/me/.cache/wcapsnet")
    monkeypatch.setattr(Path, "home", classmethod(lambda cls: (_ for _ in ()).throw(RuntimeError)))
    assert cache.directory() is None


def test_without_a_place_for_a_cache(picture_folder, monkeypatch):
    monkeypatch.setattr(cache, "directory", lambda: None)
    assert sum(sizes(load_folder(config(picture_folder({"a": 3, "b": 3}))))) == 6


def test_quiet_and_without_a_terminal_nothing_is_printed(picture_folder, capfd):
    path = picture_folder({"a": 3, "b": 3})
    load_folder(config(path), quiet=True)
    load_folder(config(path, height=4))
    assert capfd.readouterr() == ("", "")
