"""The recipes beyond the paper (D41) train, test, report and explain themselves, with small networks on few images."""

from dataclasses import replace

import numpy as np
import pytest

import wcapsnet
from wcapsnet.data import DATASETS
from wcapsnet.data.formats import Arrays, RawData
from wcapsnet.kernels import FusedEngine
from wcapsnet.network import WCapsNet
from wcapsnet.recipes import PLUS, recipe

SMALL = {
    "wcapsnet": ["model.dense_layers=1", "model.init_channels=8", "model.critic_channels=4"],
    "densenet": ["model.depth=10", "model.growth=4"],
}
SHORT = ["training.batch_size=20", "training.epoch_steps=2", "training.warmup=1", "data.validation=100"]


def few(dataset):
    info = DATASETS[dataset]

    def pictures(count):
        shape = (count, info.channels, info.height, info.width)
        labels = np.arange(count) % len(info.classes)
        return Arrays(np.random.default_rng(count).integers(0, 256, shape, np.uint8), labels)

    raw = RawData(pictures(300), pictures(100), info.classes)
    return replace(info, read=lambda root: raw, train_images=300, test_images=100)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLUS)
def test_a_recipe_trains_tests_reports_and_explains_itself(name, tmp_path, monkeypatch):
    experiment = recipe(name)
    dataset = experiment.data.source
    monkeypatch.setitem(DATASETS, dataset, few(dataset))
    routed = isinstance(experiment.model.build(), WCapsNet)
    settings = [*SHORT, *SMALL["wcapsnet" if routed else "densenet"]]
    trained = wcapsnet.train(name, epochs=2, settings=settings, out=tmp_path / "run", device="cpu", quiet=True)
    assert trained.report is not None
    assert [one["epoch"] for one in trained.run.metrics()] == [1, 2]
    assert set(experiment.objective) < set(trained.run.metrics()[0])
    if routed:
        inside = wcapsnet.explain(trained.path, images=20, device="cpu", quiet=True)
        assert len(inside.specialization.levels) == len(experiment.model.levels)
        if experiment.model.routing.fitness != "constant":
            assert {"mean", "other", "equal"} <= set(inside.rerouted().by)


@pytest.mark.parametrize("name", [name for name in PLUS if not name.endswith("densenet")])
def test_the_kernels_compute_a_recipe_except_for_its_further_augmentations(name):
    experiment = recipe(name)
    engine = FusedEngine(WCapsNet(experiment.model), experiment.objective, experiment.data.augmentations())
    further = [f"augmentation {name} in PyTorch" for name in experiment.data.augment]
    assert engine.description == "; ".join(["fused kernels", *further])
