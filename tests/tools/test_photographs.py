"""tools/photographs.py: the table in docs/results.md is that of the record, and the folders are what they say."""

import numpy as np
import pytest
from PIL import Image

import photographs


def test_the_documented_table_is_that_of_the_record():
    page = photographs.PAGE.read_text()
    assert photographs.updated(page, photographs.recorded()) == page


def test_every_recorded_cnn_had_the_cpu_time_of_the_default():
    runs = {(run["folder"], run["seed"], run["system"]): run for run in photographs.recorded()["runs"]}
    pairs = [(run, runs[folder, seed, "cnn"]) for (folder, seed, system), run in runs.items() if system == "default"]
    assert pairs
    for default, cnn in pairs:
        assert cnn["cpu_seconds"] == pytest.approx(default["cpu_seconds"], rel=0.3)


@pytest.mark.parametrize(("name", "side"), [("small", 32), ("enlarged", 96)])
def test_a_folder_holds_its_classes_and_pictures(tmp_path, monkeypatch, name, side):
    source, folder = tmp_path / "cifar", photographs.FOLDERS[name]
    source.mkdir()
    (source / "fine_label_names.txt").write_text("\n".join(f"name{label}" for label in range(100)))
    rows = np.zeros((300, 3074), np.uint8)
    rows[:, 1] = np.arange(300) % 100
    for part in ("train", "test"):
        rows.tofile(source / f"{part}.bin")
    monkeypatch.setitem(photographs.FOLDERS, name, folder._replace(pictures=2))
    photographs.build(name, source, tmp_path / "built")
    assert len(list((tmp_path / "built" / "train").iterdir())) == 12
    assert all(len(list(one.iterdir())) == 2 for one in (tmp_path / "built" / "train").iterdir())
    with Image.open(next((tmp_path / "built" / "test").rglob("*.*g"))) as picture:
        assert picture.size == (side, side)
