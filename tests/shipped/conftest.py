"""Toy runs that train in a fraction of a second, a copy of the pages, and an installation whose weights may change."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import update_docs as pages
from twins.tiny import tiny
from wcapsnet import shipped
from wcapsnet.data import DATASETS, DataConfig, DatasetInfo, load_dataset
from wcapsnet.data.formats import Arrays, RawData
from wcapsnet.experiment import Experiment, TrainingConfig
from wcapsnet.recipes import RECIPES
from wcapsnet.training.console import Progress
from wcapsnet.training.environment import describe_environment
from wcapsnet.training.run_folder import Run
from wcapsnet.training.trainer import Trainer

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")


def _arrays(count: int, seed: int) -> Arrays:
    """Three classes told apart by which rows are bright, but not easily."""
    labels = np.arange(count) % 3
    images = np.random.default_rng(seed).integers(0, 200, (count, 1, 8, 8), dtype=np.uint8)
    for r in range(3):
        images[labels == r, :, 3 * r : 3 * r + 2] += 50
    return Arrays(images, labels)


def toy() -> Experiment:
    return Experiment(
        name="toy",
        data=DataConfig(source="toy", validation=30, normalization="standardize"),
        model=tiny(channels=1),
        training=TrainingConfig(epochs=2, milestones=(1,), batch_size=16, lr=0.05),
    )


@pytest.fixture(scope="module", autouse=True)  # not the session: other tests list all recipes
def _toy() -> Iterator[None]:
    info = DatasetInfo(
        "Toy", ("top", "middle", "bottom"), 1, 8, 8, 130, 60, lambda root: RawData(_arrays(130, 0), _arrays(60, 1))
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DATASETS, "toy", info)
        patch.setitem(RECIPES, "toy", toy)
        yield


@pytest.fixture(scope="module")
def runs(_toy: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seeds. Read only."""
    folder = tmp_path_factory.mktemp("runs")
    dataset = load_dataset(toy().data)
    for seed in range(3):
        experiment = replace(toy(), training=replace(toy().training, seed=seed))
        run = Run.create(folder / f"seed={seed}", experiment, describe_environment(CPU, None))
        trainer = Trainer(run, dataset, CPU, Progress())
        trainer.fit()
        trainer.finish()
    return folder


@pytest.fixture
def own_runs(runs: Path, tmp_path: Path) -> Path:
    """A copy that may be changed."""
    return Path(shutil.copytree(runs, tmp_path / "runs"))


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout, installed in place, that ships nothing yet."""
    root = tmp_path / "checkout"
    for path in (*pages.PAGES, pages.PACKAGED, pages.COMPARED):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, root / path)
    (root / pages.WEIGHTS).mkdir(parents=True)
    monkeypatch.setattr(shipped, "WEIGHTS", root / pages.WEIGHTS)
    return root
