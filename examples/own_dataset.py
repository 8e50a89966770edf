"""A dataset in your own format, registered by name for `wcapsnet train`, `evaluate` and `explain`.

python examples/own_dataset.py
wcapsnet train stripes --plugin examples/own_dataset.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import wcapsnet
from wcapsnet.data import DataConfig, DatasetInfo
from wcapsnet.data.formats import Arrays, RawData
from wcapsnet.experiment import TrainingConfig
from wcapsnet.models import model_config
from wcapsnet.parts import dataset, recipe


def read(folder: Path) -> RawData:
    """uint8 images (m, ch, h, w) and labels (m,): drawn here, usually read from files in `folder`."""

    def part(count: int, seed: int) -> Arrays:
        random = np.random.default_rng(seed)
        labels = np.arange(count) % 2
        images = random.integers(0, 100, (count, 1, 16, 16), dtype=np.uint8)
        images[labels == 0, :, ::2] += 120  # horizontal stripes
        images[labels == 1, :, :, ::2] += 120  # vertical ones
        return Arrays(images, labels)

    return RawData(part(600, seed=0), part(100, seed=1))


dataset("stripes")(DatasetInfo("Stripes", ("horizontal", "vertical"), 1, 16, 16, 600, 100, read))


@recipe("stripes")
def stripes() -> wcapsnet.Experiment:
    """Two kinds of stripes, three epochs."""
    return wcapsnet.Experiment(
        name="stripes",
        data=DataConfig(source="stripes", validation=100),
        model=model_config("wcapsnet-quick", classes=2, channels=1, height=16, width=16),
        training=TrainingConfig(epochs=3, batch_size=32, milestones=(2,), lr=0.05),
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        trained = wcapsnet.train("stripes", out=f"{folder}/stripes", report=False)
        print(f"Test accuracy {trained.accuracy:.1%}")
