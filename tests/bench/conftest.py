"""Fixtures of the tests on benchmarks."""

from pathlib import Path

import pytest
import torch

from twins import tiny
from wcapsnet.data import DataConfig
from wcapsnet.experiment import Experiment, TrainingConfig
from wcapsnet.network import Level
from wcapsnet.recipes import RECIPES


def small() -> Experiment:
    """Three levels of next to nothing, with augmentation."""
    levels = (Level(3, 2, 4, 2), Level(2, 2, 3, 1), Level(2, 2, 3, 1))
    data = DataConfig(source="mnist", mirror=True, shift=1)
    return Experiment("small", data, tiny(levels=levels), training=TrainingConfig(batch_size=4))


@pytest.fixture
def experiment() -> Experiment:
    return small()


@pytest.fixture(autouse=True)
def _recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RECIPES, "small", small)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def cpu() -> torch.device:
    return torch.device("cpu")
