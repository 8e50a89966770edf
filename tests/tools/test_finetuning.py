"""tools/finetuning.py: the tables in docs/results.md are those of the record, and the folders are what they say."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

import finetuning
from wcapsnet.data import DATASETS
from wcapsnet.data.formats import Arrays, RawData


def test_the_documented_tables_are_those_of_the_record():
    page = finetuning.PAGE.read_text()
    assert finetuning.updated(page, finetuning.recorded()) == page


def test_no_class_is_both_seen_in_pretraining_and_new():
    assert not set(finetuning.KNOWN) & set(finetuning.NEW)
    assert sorted(finetuning.KNOWN + finetuning.NEW) == list(range(100))


def test_choosing_uses_no_picture_that_is_measured():
    everything = list(range(500))
    measured = set(everything[finetuning.TRAIN[1]])
    assert finetuning.TEST[0] == "test"
    for origin, chosen in finetuning.CHOOSING.values():
        assert origin == "train"
        assert not measured & set(everything[chosen])


@pytest.mark.parametrize("name", finetuning.FOLDERS)
def test_a_folder_holds_its_classes_and_pictures(tmp_path, monkeypatch, name):
    folder = finetuning.FOLDERS[name]
    count = 10 if folder.dataset == "cifar10" else 100
    labels = np.arange(3 * count) % count
    images = np.random.default_rng(0).integers(0, 256, (len(labels), 3, 32, 32), np.uint8)
    raw = RawData(Arrays(images, labels), Arrays(images, labels), tuple(f"name{r}" for r in range(count)))
    monkeypatch.setitem(DATASETS, folder.dataset, replace(DATASETS[folder.dataset], read=lambda root: raw))
    folder.write(tmp_path, tmp_path, train=("train", slice(0, 2)), test=("test", slice(0, 1)))
    assert {path.name for path in (tmp_path / "train").iterdir()} == {f"name{r}" for r in folder.classes}
    assert all(len(list(path.iterdir())) == 2 for path in (tmp_path / "train").iterdir())
    with Image.open(next((tmp_path / "test").rglob("*.*g"))) as picture:
        assert picture.size == (folder.side, folder.side)
