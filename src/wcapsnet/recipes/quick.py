"""Small experiments: on a CPU, on the included digits, on your own pictures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ..data import MAX_SIDE, DataConfig
from ..data.folder import FolderSummary
from ..data.types import Augmentations
from ..experiment import Experiment, TrainingConfig
from ..models import model_config
from ..objective import PAPER, Objective

WCAPSNET_TRAINING: dict[str, Any] = {"optimizer": "adamw", "lr": 0.005, "weight_decay": 0.3, "averaging": 0.99}
FINE_TUNING_LR, FINE_TUNING_EPOCHS = 0.25, 0.5  # relative to training from scratch (docs/results.md, "Photographs")
SMALL_TRAINING = {**WCAPSNET_TRAINING, "weight_decay": 1.0}
PHOTOGRAPHS = {"erase": 0.3, "colour": 0.2}  # further augmentation, measured with wcapsnet-small
SMALL_SIDE = 32  # pixels, on a CPU: 64 costs three times as much (docs/results.md)


def quick() -> Experiment:
    """MNIST on a CPU: a small WCapsNet with three levels, 50000/10000 split. 3 epochs, six minutes on two cores."""
    return Experiment(
        name="quick",
        data=DataConfig(source="mnist", validation=10000),
        model=model_config("wcapsnet-quick", 10, 1, 28, 28),
        training=TrainingConfig(epochs=3, milestones=(1, 2)),
    )


def demo() -> Experiment:
    """The 10,000 digits included in the package, for `wcapsnet demo`. 5 epochs, about two minutes on two cores."""
    return Experiment(
        name="demo",
        data=DataConfig(source="sample", validation=1000),
        model=model_config("wcapsnet-quick", 10, 1, 28, 28),
        training=TrainingConfig(epochs=5, milestones=(3, 4)),
    )


def small_cifar100() -> Experiment:
    """CIFAR-100 with wcapsnet-small (not in the paper), for fine-tuning on CPUs. 40 epochs, 47 minutes on one core."""
    return Experiment(
        name="small-cifar100",
        data=DataConfig(source="cifar100", validation=2500, normalization="standardize", mirror=True, shift=4),
        model=model_config("wcapsnet-small", 100, 3, 32, 32),
        objective=Objective({**PAPER, "reconstruction": 0.01}),
        training=averaged(40),
    )


def averaged(epochs: int) -> TrainingConfig:
    training = {**WCAPSNET_TRAINING, "averaging": 0.999}
    return TrainingConfig(epochs=epochs, milestones=(), schedule="cosine", warmup=1, **training)


def folder(
    path: Path, summary: FolderSummary, size: tuple[int, int] | None = None, model: str | Any = "wcapsnet"
) -> Experiment:
    """Your own pictures, one folder per class: standardised, shifted, and mirrored if they are in colour.

    Gray pictures are not mirrored: they often show writing, which mirroring would change. The fewer pictures, the more
    epochs: between 20 and 100, about 1400 steps in total for wcapsnet-small and 800 for slower networks. Measurements:
    docs/results.md, "Photographs".

    `model` is a model's name, or the configuration of a trained network, whose size is kept if `size` is None.
    """
    classes, channels = len(summary.classes), summary.proposed_channels
    if isinstance(model, str):
        largest = SMALL_SIDE if model == "wcapsnet-small" else MAX_SIDE
        least = getattr(model_config(model, classes, channels, MAX_SIDE, MAX_SIDE), "least_side", 16)
        height, width = size or _fitting(summary.proposed_size(), least, largest)
        config = model_config(model, classes, channels, height, width)
    else:
        height, width = size or (model.height, model.width)
        config = replace(model, classes=classes, channels=channels, height=height, width=width)
    images = sum(summary.counts)
    batch_size = 64 if images >= 5000 else 32 if images >= 200 else 16
    small = config == model_config("wcapsnet-small", classes, channels, height, width)
    epochs = min(100, max(20, (1400 if small else 800) * batch_size // images))
    return Experiment(
        name=path.resolve().name or "folder",
        data=DataConfig(
            source=str(path.resolve()),
            height=height,
            width=width,
            channels=channels,
            exclude=summary.exclude,
            balance=True,
            validation=0.15,
            normalization=getattr(config, "normalization", "standardize"),
            mirror=channels == 3,
            shift=max(1, min(height, width) // 8),
            augment=Augmentations(PHOTOGRAPHS if small and channels == 3 else {}),
        ),
        model=config,
        objective=Objective(getattr(config, "terms", {**PAPER, "reconstruction": 0.01, "label_smoothing": 0.2})),
        training=TrainingConfig(
            epochs=epochs,
            batch_size=batch_size,
            milestones=(),
            schedule="cosine",
            warmup=max(1, epochs // 20),
            **getattr(config, "training", SMALL_TRAINING if small else WCAPSNET_TRAINING),
        ),
    )


def fine_tuned(experiment: Experiment, normalization: tuple[tuple[float, ...], tuple[float, ...]]) -> Experiment:
    """The experiment for fine-tuning weights that were trained with this mean and standard deviation: a lower learning
    rate, fewer epochs, and images standardised, with their own statistics, unless the two are 0 and 1."""
    mean, std = normalization
    kind = "unit" if set(mean) == {0.0} and set(std) == {1.0} else "standardize"
    training = experiment.training.with_epochs(round(FINE_TUNING_EPOCHS * experiment.training.epochs))
    training = replace(training, lr=FINE_TUNING_LR * training.lr)
    return replace(experiment, data=replace(experiment.data, normalization=kind), training=training)


def _fitting(size: tuple[int, int], least: int, largest: int) -> tuple[int, int]:
    """The same shape with sides from `least` to `largest`, rounded up to multiples of 4"""
    scale = min(1.0, largest / max(size))
    return tuple(-(-max(least, round(side * scale)) // 4) * 4 for side in size)  # type: ignore[return-value]
