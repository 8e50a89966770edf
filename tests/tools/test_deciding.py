"""tools/deciding.py: the page and the figure show what the records say, and only runs of the recipes become records."""

import json
import shutil
from pathlib import Path

import pytest

import deciding
from wcapsnet.errors import InputError
from wcapsnet.recipes import recipe
from wcapsnet.settings import with_setting
from wcapsnet.training.run_folder import Run

ROOT = Path(__file__).parents[2]


def test_the_page_and_the_figure_are_those_of_the_records():
    for path, text in deciding.pages(ROOT).items():
        assert (ROOT / path).read_text(encoding="utf-8") == text, (
            f"stale: run python tools/deciding.py to update {path}"
        )


def test_the_table_follows_the_records(tmp_path):
    shutil.copytree(ROOT / deciding.RECORDS, tmp_path / deciding.RECORDS)
    for name, accuracy in (("deciding-cifar10", 0.9), ("deciding-cifar10-uniform", 0.8)):
        for path in (tmp_path / deciding.RECORDS / name).glob("seed=*.json"):
            record = json.loads(path.read_text())
            record["test"]["accuracy"] = accuracy
            path.write_text(json.dumps(record))
    lines = deciding.table(tmp_path).splitlines()
    assert "| 90.00 ± 0.00 | 80.00 ± 0.00 |" in lines[2]
    assert "+10.00 [" in lines[3]


def test_an_unfinished_run_is_refused(tmp_path):
    Run.create(tmp_path / "run", recipe("deciding-cifar10"), {})
    with pytest.raises(InputError, match="not finished; continue it with"):
        deciding.keep(tmp_path / "run", tmp_path, None)


@pytest.mark.parametrize("change", ["training.epochs=2", "name=another"])
def test_a_run_of_another_experiment_is_refused(tmp_path, change):
    experiment = with_setting(recipe("deciding-cifar10"), change)
    Run.create(tmp_path / "run", experiment, {})
    with pytest.raises(InputError, match="is not a run of deciding-cifar10"):
        deciding.keep(tmp_path / "run", tmp_path, None)
