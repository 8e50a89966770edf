"""Beyond the paper: `wcapsnet-plus` (D41), the same with equal weights, and DenseNet-BC-100, all trained alike.

The three recipes for a dataset share data, schedule and number of epochs. Names: cifar10-plus, cifar10-plus-uniform,
cifar10-plus-densenet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..data import DATASETS
from ..data.types import Augmentations
from ..experiment import Experiment, TrainingConfig
from ..models import model_config
from ..objective import Objective
from .paper import cifar, digits

_TERMS = {"cross_entropy": 1.0, "centred_wasserstein": 0.2, "reconstruction": 0.01, "label_smoothing": 0.1}
_GRAY: dict[str, Any] = {"normalization": "standardize", "shift": 2}
_DATA = {
    "cifar10": cifar("cifar10", augment=Augmentations(cutmix=0.5)),
    "cifar100": cifar("cifar100", augment=Augmentations(cutmix=0.5)),
    "fashion-mnist": digits("fashion-mnist", **_GRAY, mirror=True, augment=Augmentations(erase=0.4)),
    "mnist": digits("mnist", **_GRAY, augment=Augmentations(rotate=10, zoom=0.1)),
}
_EPOCHS = {"cifar10": 300, "cifar100": 300, "fashion-mnist": 200, "mnist": 100}


def _plus(dataset: str, model: str = "wcapsnet-plus") -> Experiment:
    info, epochs = DATASETS[dataset], _EPOCHS[dataset]
    return Experiment(
        name=f"{dataset}-plus",
        data=_DATA[dataset],
        model=model_config(model, len(info.classes), info.channels, info.height, info.width),
        objective=Objective(_TERMS),
        training=TrainingConfig(
            epochs=epochs,
            batch_size=128,
            milestones=(),
            schedule="cosine",
            warmup=epochs // 40,
            weight_decay=5e-4,
            averaging=0.999,
        ),
    )


def _uniform(dataset: str) -> Experiment:
    one = _plus(dataset)
    model = replace(one.model, routing=replace(one.model.routing, fitness="constant"))
    objective = Objective({**_TERMS, "centred_wasserstein": None})
    return replace(one, name=f"{dataset}-plus-uniform", model=model, objective=objective)


def _densenet(dataset: str) -> Experiment:
    objective = Objective({name: _TERMS[name] for name in ("cross_entropy", "label_smoothing")})
    return replace(_plus(dataset, "densenet-bc-100"), name=f"{dataset}-plus-densenet", objective=objective)


def _recipe(make: Callable[[str], Experiment], dataset: str, text: str) -> Callable[[], Experiment]:
    def experiment() -> Experiment:
        return make(dataset)

    experiment.__doc__ = f"{DATASETS[dataset].title} with {text}. {_EPOCHS[dataset]} epochs."
    return experiment


PLUS: dict[str, Callable[[], Experiment]] = {}
for _dataset in _DATA:
    PLUS[f"{_dataset}-plus"] = _recipe(_plus, _dataset, "wcapsnet-plus")
    PLUS[f"{_dataset}-plus-uniform"] = _recipe(_uniform, _dataset, "wcapsnet-plus and equal weights")
    PLUS[f"{_dataset}-plus-densenet"] = _recipe(_densenet, _dataset, "DenseNet-BC-100 and the recipe of wcapsnet-plus")

PLUS_ROWS = {  # rows of records: their recipes' endings, and titles
    "wcapsnet-plus": ("plus", "WCapsNet-plus"),
    "wcapsnet-plus-uniform": ("plus-uniform", "WCapsNet-plus, equal weights"),
    "densenet-bc-100-plus": ("plus-densenet", "DenseNet-BC-100 (k = 12), same recipe"),
}
