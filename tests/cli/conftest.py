"""Fixtures of the tests on the command line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from cli_helpers import SMALL, Answer, call, fruit
from training_helpers import rows_of_light

from twins.tiny import tiny
from wcapsnet.data import DATASETS, DataConfig, DatasetInfo
from wcapsnet.data.formats import Arrays, MissingFilesError, RawData
from wcapsnet.experiment import Experiment, TrainingConfig
from wcapsnet.recipes import RECIPES


@pytest.fixture(autouse=True)
def _own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test in a folder of its own, without the user's data and cache"""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("WCAPSNET_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("WCAPSNET_DATA", raising=False)


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read only."""
    return fruit(tmp_path_factory.mktemp("pictures") / "fruit")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, pictures: Path) -> tuple[Path, Answer]:
    """A run on the pictures, and what was said meanwhile. Read only."""
    place = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WCAPSNET_CACHE", str(place / "cache"))
        answer = call(
            "train", pictures, "--size", 8, "--epochs", 12, "--out", place / "fruit run", "--lr", 0.05, *SMALL
        )
    return place / "fruit run", answer


@pytest.fixture
def run(trained: tuple[Path, Answer]) -> Path:
    path, answer = trained
    assert answer.code == 0, answer
    return path


def _toy_experiment() -> Experiment:
    """Three classes told apart by which rows are bright."""
    return Experiment(
        name="toy",
        data=DataConfig(source="toy", validation=12),
        model=tiny(channels=1, dense_layers=1),
        training=TrainingConfig(epochs=2, milestones=(1,), batch_size=16, lr=0.05),
    )


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A data set and a recipe `toy`. Its data lie wherever there is a file toy.txt, and in ./data."""

    def arrays(count: int, seed: int) -> Arrays:
        return Arrays(*(part.numpy() for part in rows_of_light(count, seed)))

    def read(root: Path) -> RawData:
        if root.name != "data" and not (root / "toy.txt").is_file():
            raise MissingFilesError(["toy.txt"], [root])
        return RawData(arrays(48, 0), arrays(15, 1))

    info = DatasetInfo("Toy", ("top", "middle", "bottom"), 1, 8, 8, 48, 15, read)
    monkeypatch.setitem(DATASETS, "toy", info)
    monkeypatch.setitem(RECIPES, "toy", _toy_experiment)
    monkeypatch.setitem(RECIPES, "demo", lambda: replace(_toy_experiment(), name="demo"))
