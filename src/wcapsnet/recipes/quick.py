"""Small experiments: on a CPU, on the included digits, on your own pictures."""

from __future__ import annotations

from pathlib import Path

from ..data import DataConfig
from ..data.folder import FolderSummary
from ..experiment import Experiment, TrainingConfig
from ..models import model_config
from ..objective import PAPER, Objective


def quick() -> Experiment:
    """MNIST on a CPU: a small WCapsNet with three levels, 50000/10000 split. 3 epochs, minutes on two cores."""
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


def folder(
    path: Path, summary: FolderSummary, size: tuple[int, int] | None = None, model: str = "wcapsnet"
) -> Experiment:
    """Your own pictures, one folder per class: standardised, shifted, and mirrored if they are in colour.

    Gray pictures are not mirrored: they often show writing, which mirroring would change. The fewer pictures, the more
    epochs: about 4000 steps in total, between 20 and 200 epochs.
    """
    height, width = size or summary.proposed_size()
    channels = summary.proposed_channels
    config = model_config(model, len(summary.classes), channels, height, width)
    images = sum(summary.counts)
    batch_size = 64 if images >= 2000 else 32 if images >= 500 else 16
    epochs = min(200, max(20, 4000 * batch_size // images))
    return Experiment(
        name=path.resolve().name or "folder",
        data=DataConfig(
            source=str(path.resolve()),
            height=height,
            width=width,
            channels=channels,
            validation=0.15,
            normalization=getattr(config, "normalization", "standardize"),
            mirror=channels == 3,
            shift=max(1, min(height, width) // 8),
        ),
        model=config,
        objective=Objective(getattr(config, "terms", PAPER)),
        training=TrainingConfig(
            epochs=epochs,
            batch_size=batch_size,
            milestones=(epochs // 2, epochs * 3 // 4),
            patience=max(10, epochs // 3),
            **getattr(config, "training", {}),
        ),
    )
