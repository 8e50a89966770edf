"""tools/photographs.py: the tables in docs/results.md are those of the record, and the folders are what they say."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

import photographs
from wcapsnet.data import DATASETS
from wcapsnet.data.formats import Arrays, RawData


def test_the_documented_tables_are_those_of_the_record():
    assert photographs.updated(photographs.recorded()) == photographs.PAGE.read_text()


def test_every_recorded_cnn_had_the_cpu_time_of_its_rival():
    runs = {(run["folder"], run["seed"], run["system"]): run for run in photographs.recorded()["runs"]}
    rivals = [(run, folder, seed) for (folder, seed, system), run in runs.items() if system == "cnn"]
    assert rivals
    for cnn, folder, seed in rivals:
        rival = runs[folder, seed, "fine-tuned" if photographs.FOLDERS[folder].new else "scratch"]
        assert cnn["cpu_seconds"] == pytest.approx(rival["cpu_seconds"], rel=0.3)


@pytest.mark.parametrize("folder", [one for one in photographs.FOLDERS.values() if one.dataset == "cifar100"])
def test_no_network_is_fine_tuned_on_classes_of_cifar100_that_it_has_seen(folder):
    assert folder.new == (not set(folder.classes) & set(photographs.KNOWN))


def test_choosing_uses_no_picture_that_is_measured():
    measured = set(range(photographs.FOLDERS["held-out"].pictures))
    for origin, chosen in photographs.CHOOSING.values():
        assert origin == "train"
        assert not measured & set(range(500)[chosen])


@pytest.mark.parametrize("name", [name for name, one in photographs.FOLDERS.items() if one.classes])
def test_a_folder_holds_its_classes_and_pictures(tmp_path, monkeypatch, name):
    folder = photographs.FOLDERS[name]._replace(pictures=2)
    count = 10 if folder.dataset == "cifar10" else 100
    labels = np.arange(3 * count) % count
    images = np.random.default_rng(0).integers(0, 256, (len(labels), 3, 32, 32), np.uint8)
    raw = RawData(Arrays(images, labels), Arrays(images, labels), tuple(f"name{r}" for r in range(count)))
    monkeypatch.setitem(DATASETS, folder.dataset, replace(DATASETS[folder.dataset], read=lambda root: raw))
    folder.write_measured(tmp_path, tmp_path, 0)
    assert {path.name for path in (tmp_path / "train").iterdir()} == {f"name{r}" for r in folder.classes}
    assert all(len(list(path.iterdir())) == 2 for path in (tmp_path / "train").iterdir())
    with Image.open(next((tmp_path / "test").rglob("*.*g"))) as picture:
        assert picture.size == (folder.side, folder.side)


def test_every_stamp_is_either_trained_on_or_tested(tmp_path):
    for folder in photographs.STAMPS.values():
        (tmp_path / "stamps" / folder / "cartoon").mkdir(parents=True)
        for name in ("a.png", "b.png", "c.png", "a_mirror.png", "cartoon/d.png"):
            (tmp_path / "stamps" / folder / name).touch()
    photographs.FOLDERS["stamps"].write_measured(tmp_path / "built", tmp_path, 0)
    for name in photographs.STAMPS:
        parts = [{path.name for path in (tmp_path / "built" / part / name).iterdir()} for part in ("train", "test")]
        assert [len(part) for part in parts] == [2, 1]
        assert set.union(*parts) == {"a.png", "b.png", "c.png"}
