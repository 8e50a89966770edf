"""Fixtures of the tests on the command line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_helpers import SMALL, Answer, call, fruit

from wcapsnet.data import DATASETS, DataConfig, DatasetInfo
from wcapsnet.data.formats import Arrays, MissingFilesError, RawData
from wcapsnet.experiment import Experiment, TrainingConfig
from wcapsnet.network import Level, WCapsNetConfig
from wcapsnet.recipes import RECIPES


@pytest.fixture(autouse=True)
def _own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test in a folder of its own, without the user's data and cache, on one thread as networks are small."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("WCAPSNET_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("WCAPSNET_DATA", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read only."""
    return fruit(tmp_path_factory.mktemp("pictures") / "fruit")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, pictures: Path) -> tuple[Path, Answer]:
    """A run on the pictures, and what was said meanwhile. Read only."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    place = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WCAPSNET_CACHE", str(place / "cache"))
        answer = call(
            "train", pictures, "--size", 8, "--epochs", 12, "--out", place / "fruit run", "--lr", 0.05, *SMALL
        )
    torch.set_num_threads(before)
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
        model=WCapsNetConfig(
            classes=3,
            channels=1,
            height=8,
            width=8,
            levels=(Level(3, 2, 4, 2), Level(2, 2, 4, 1)),
            init_channels=4,
            dense_layers=1,
            critic_channels=4,
            decoder_channels=(4, 4),
        ),
        training=TrainingConfig(epochs=2, milestones=(1,), batch_size=16, lr=0.05),
    )


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A data set and a recipe `toy`. Its data lie wherever there is a file toy.txt, and in ./data."""

    def arrays(count: int, seed: int) -> Arrays:
        labels = np.arange(count) % 3
        images = np.random.default_rng(seed).integers(0, 100, (count, 1, 8, 8), dtype=np.uint8)
        for r in range(3):
            images[labels == r, :, 3 * r : 3 * r + 2] += 150
        return Arrays(images, labels)

    def read(root: Path) -> RawData:
        if root.name != "data" and not (root / "toy.txt").is_file():
            raise MissingFilesError(["toy.txt"], [root])
        return RawData(arrays(48, 0), arrays(15, 1))

    info = DatasetInfo("Toy", ("top", "middle", "bottom"), 1, 8, 8, 48, 15, read)
    monkeypatch.setitem(DATASETS, "toy", info)
    monkeypatch.setitem(RECIPES, "toy", _toy_experiment)
    monkeypatch.setitem(RECIPES, "demo", lambda: replace(_toy_experiment(), name="demo"))
