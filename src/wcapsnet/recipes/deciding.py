"""Beyond the paper, on a CPU: small networks whose routing matters (D43, D44), and the same with equal weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..data import DATASETS, DataConfig
from ..experiment import Experiment
from ..models import model_config
from ..network import Level, RoutingConfig
from ..objective import Objective
from .paper import cifar
from .quick import averaged

LEVELS = (Level(2, 16, 64, 2), Level(4, 16, 96, 2), Level(2, 32, 128, 1))
EPOCHS = 15
_DATA = {
    "cifar10": cifar("cifar10"),
    "fashion-mnist": DataConfig("fashion-mnist", validation=5000, normalization="standardize", mirror=True, shift=2),
}


def _deciding(dataset: str) -> Experiment:
    routing = RoutingConfig(fitness="joint", per_position=True, sharpness=(6.0,), noise_share=0.0, dropout=0.0)
    one = _experiment(f"deciding-{dataset}", dataset, routing, class_information=0.03)
    model, training = replace(one.model, critic_channels=32), replace(one.training, sharpening=EPOCHS)
    return replace(one, model=model, training=training)


def _uniform(dataset: str) -> Experiment:
    routing = RoutingConfig(fitness="constant", noise_share=0.0, dropout=0.0)
    return _experiment(f"deciding-{dataset}-uniform", dataset, routing)


def _experiment(name: str, dataset: str, routing: RoutingConfig, **terms: Any) -> Experiment:
    info = DATASETS[dataset]
    model = model_config("wcapsnet-small", len(info.classes), info.channels, info.height, info.width)
    return Experiment(
        name=name,
        data=_DATA[dataset],
        model=replace(model, levels=LEVELS, routing=routing),
        objective=Objective(cross_entropy=1.0, reconstruction=0.01, label_smoothing=0.1, **terms),
        training=averaged(EPOCHS),
    )


def _recipe(make: Callable[[str], Experiment], dataset: str, text: str) -> Callable[[], Experiment]:
    def experiment() -> Experiment:
        return make(dataset)

    experiment.__doc__ = f"{DATASETS[dataset].title} on a CPU, {text} {EPOCHS} epochs, about 15 minutes on one core."
    return experiment


DECIDING: dict[str, Callable[[], Experiment]] = {}
for _dataset in _DATA:
    DECIDING[f"deciding-{_dataset}"] = _recipe(_deciding, _dataset, "with routing that matters.")
    DECIDING[f"deciding-{_dataset}-uniform"] = _recipe(
        _uniform, _dataset, f"with the network of deciding-{_dataset} and equal weights."
    )
