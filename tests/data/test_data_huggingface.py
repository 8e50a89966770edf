"""Hugging Face datasets: local files and folders, columns, splits, and what is broken."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_helpers import noise

from wcapsnet.data import DataConfig, Dataset, load_dataset, load_folder
from wcapsnet.data.huggingface import Address, scan_hugging_face
from wcapsnet.data.stream import Rows
from wcapsnet.errors import InputError

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    with warnings.catch_warnings():  # the library's own
        warnings.simplefilter("ignore")
        yield


def png(number: int) -> bytes:
    file = io.BytesIO()
    noise(number).save(file, "png")
    return file.getvalue()


def table(count: int = 24, first: int = 0, **columns: Any) -> Any:
    """Pictures first, first + 1, …; two classes by turns"""
    pictures = [{"bytes": png(number), "path": None} for number in range(first, first + count)]
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    rows = {"image": pictures, "label": [number % 2 for number in range(count)]}
    for name, (feature, values) in columns.items():
        rows[name] = values
        features[name] = feature
    return datasets.Dataset.from_dict(rows, features=datasets.Features(features))


def read(source: object, **options: Any) -> Dataset:
    return load_dataset(DataConfig(f"hf:{source}", 8, 8, 3, validation=0.2, **options), quiet=True)


def test_every_kind_of_local_source_gives_the_pictures_that_a_folder_would(tmp_path):
    for number in range(24):
        file = tmp_path / "photos" / ("cat", "dog")[number % 2] / f"{number:02}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        noise(number).save(file)
    whole = table()
    (tmp_path / "parquet").mkdir()
    whole.to_parquet(tmp_path / "parquet" / "train-00000-of-00001.parquet")
    whole.save_to_disk(tmp_path / "saved")
    (arrow,) = (tmp_path / "saved").glob("*.arrow")
    folder = load_folder(DataConfig(str(tmp_path / "photos"), 8, 8, 3, validation=0.2))
    every = {tuple(image.flatten().tolist()) for image in torch.cat([folder.train.images, folder.test.images])}
    sources = (tmp_path / "parquet", tmp_path / "parquet" / "train-00000-of-00001.parquet", tmp_path / "saved", arrow)
    found = [read(source) for source in sources]
    for dataset in found:
        assert dataset.classes == folder.classes
        assert dataset.fingerprint("train", "test") == found[0].fingerprint("train", "test")
        assert len(dataset.train.labels) == len(folder.train.labels)
        both = torch.cat([dataset.train.images, dataset.validation.images, dataset.test.images])
        assert every <= {tuple(image.flatten().tolist()) for image in both}


def test_labels_stay_with_their_pictures(tmp_path):
    colours = [np.full((8, 8, 3), 10 * number, np.uint8) for number in range(20)]
    features = datasets.Features({"image": datasets.Image(), "name": datasets.Value("string")})
    names = ["dark" if number < 10 else "light" for number in range(20)]
    rows = datasets.Dataset.from_dict({"image": colours, "name": names}, features=features).shuffle(seed=1)
    rows.save_to_disk(tmp_path / "saved")
    dataset = read(tmp_path / "saved")
    assert dataset.classes == ("dark", "light")
    for split in (dataset.train, dataset.validation, dataset.test):
        assert torch.equal((split.images[:, 0, 0, 0] >= 100).long(), split.labels)


def test_the_splits_of_a_dataset_are_used_as_they_are(tmp_path):
    parts = {"train": table(12), "dev": table(6, 100), "test": table(8, 200), "extra": table(2, 300)}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    dataset = read(tmp_path / "saved")
    assert [len(part.labels) for part in (dataset.train, dataset.validation, dataset.test)] == [12, 6, 8]
    assert dataset.test_files[3] == "test/3"
    assert any("extra" in sentence for sentence in dataset.warnings)


def test_a_hugging_face_dataset_streams_from_the_same_cache(tmp_path):
    table().save_to_disk(tmp_path / "saved")
    here, there = read(tmp_path / "saved"), read(tmp_path / "saved", stream="always")
    assert isinstance(there.train.images, Rows)
    assert here.fingerprint("train", "test") == there.fingerprint("train", "test")
    assert len(list((tmp_path / "cache").glob("*.npy"))) == 1


def test_a_column_can_be_chosen_and_must_be_if_two_could_be_meant(tmp_path):
    coarse = (datasets.ClassLabel(names=["big", "small"]), [number // 12 for number in range(24)])
    table(coarse=coarse).rename_column("label", "fine").save_to_disk(tmp_path / "saved")
    with pytest.raises(InputError, match="'fine', 'coarse'") as refused:
        read(tmp_path / "saved")
    assert "?label=" in str(refused.value)
    assert read(f"{tmp_path}/saved?label=coarse").classes == ("big", "small")
    for wrong in ("label=nothing", "image=fine", "label=image", "colour=red"):
        with pytest.raises(InputError):
            read(f"{tmp_path}/saved?{wrong}")


def test_plain_bytes_and_numbers_are_found_without_the_librarys_own_types(tmp_path):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"jpg": [png(number) for number in range(12)], "kind": [10 * (number % 3) for number in range(12)]}
    parquet.write_table(pa.table(columns), tmp_path / "plain.parquet")
    assert read(tmp_path / "plain.parquet").classes == ("0", "10", "20")


def test_rows_without_a_label_or_a_readable_picture_are_left_out(tmp_path):
    rows = table(20).to_dict()
    rows["label"][3] = -1
    rows["label"][4] = None
    rows["image"][5] = {"bytes": b"broken", "path": None}
    rows["image"][6] = None
    rows["image"][7] = {"bytes": None, "path": "https://example.org/secret.png"}
    parquet = pytest.importorskip("pyarrow.parquet")
    broken = datasets.Dataset.from_dict(rows, features=table(2).features)
    parquet.write_table(broken.data.table, tmp_path / "broken.parquet")
    dataset = read(tmp_path / "broken.parquet")
    assert sum(len(part.labels) for part in (dataset.train, dataset.validation, dataset.test)) == 15
    assert [line.split(":")[0] for line in dataset.skipped] == ["train/5", "train/6", "train/7"]
    assert any("2 rows" in sentence for sentence in dataset.warnings)


def test_classes_can_be_excluded(tmp_path):
    kinds = (datasets.Value("string"), [("a", "b", "c")[number % 3] for number in range(24)])
    table(kind=kinds).remove_columns("label").save_to_disk(tmp_path / "saved")
    assert read(tmp_path / "saved", exclude=("b",)).classes == ("a", "c")
    with pytest.raises(InputError, match="no class 'd'"):
        read(tmp_path / "saved", exclude=("d",))
    with pytest.raises(InputError, match="two are needed"):
        read(tmp_path / "saved", exclude=("a", "b"))


def test_a_class_without_training_pictures_is_refused(tmp_path):
    labels = (datasets.ClassLabel(names=["cat", "dog", "newt"]), [number % 2 for number in range(24)])
    table().remove_columns("label").add_column("label", labels[1]).cast_column("label", labels[0]).save_to_disk(
        tmp_path / "saved"
    )
    with pytest.raises(InputError, match="newt"):
        read(tmp_path / "saved")
    assert read(tmp_path / "saved", exclude=("newt",)).classes == ("cat", "dog")


def test_a_script_beside_the_data_is_never_run(tmp_path):
    folder = tmp_path / "evil"
    folder.mkdir()
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(InputError):
        read(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", ["nothing", "garbage", "text", "empty"])
def test_what_is_no_dataset_is_refused_in_a_sentence(tmp_path, content):
    place = tmp_path / {"text": "notes.txt"}.get(content, "data.parquet")
    if content != "nothing":
        place.write_bytes({"garbage": b"PAR1 no", "text": b"hello", "empty": b""}[content])
    with pytest.raises(InputError) as refused:
        read(place)
    assert "\n" not in str(refused.value)


def test_a_scan_proposes_size_and_colour(tmp_path):
    table().save_to_disk(tmp_path / "saved")
    source, name, summary = scan_hugging_face(f"hf:{tmp_path}/saved?label=label")
    assert source == f"hf:{tmp_path}/saved?label=label"
    assert name == "saved"
    assert (summary.classes, summary.counts, summary.proposed_size()) == (("cat", "dog"), (12, 12), (20, 20))
    assert summary.proposed_channels == 3


def test_an_address_is_read_back_as_it_was_written():
    address = Address("user/name", image="a picture", label="kind&of", config="en")
    assert Address.of(str(address)) == address
    assert address.name == "name"
