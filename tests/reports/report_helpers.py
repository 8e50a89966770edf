"""Run folders of the right form whose figures are made up: what the tables make of them can be worked out by hand.

Not in conftest.py: several folders of tests have one, and they all import under the same name.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from wcapsnet.data import DATASETS
from wcapsnet.recipes import recipe
from wcapsnet.training.run_folder import Run

ENVIRONMENT = {
    "started": "2026-11-17T10:00:00+00:00",
    "command": ["wcapsnet", "train", "x", "--data-dir", "/home/me/data", "--out=/home/me/x", "/home/me/runs/x", "-q"],
    "hardware": "NVIDIA H200",
    "data_dir": "/home/me/data",
}


def finished(path: Path, name: str, correct: int, seed: int = 0, seconds: float = 100.0, **training: Any) -> Path:
    """A run folder of a recipe that got so many test images right."""
    experiment = recipe(name)
    experiment = replace(experiment, training=replace(experiment.training, seed=seed, **training))
    run = Run.create(path, experiment, ENVIRONMENT)
    images, epochs = DATASETS[experiment.data.source].test_images, experiment.training.epochs
    run.write_metrics(
        [
            {
                "epoch": epoch,
                "lr": experiment.training.learning_rate(epoch - 1),
                "total": 1 / 3,
                "train_accuracy": epoch / (epoch + 1),
                "validation_accuracy": epoch / (epoch + 2),
                "best": True,
            }
            for epoch in range(1, epochs + 1)
        ]
    )
    facts = {"best_epoch": epochs, "epochs": epochs, "seconds": seconds, "validation_accuracy": 0.9}
    run.write_json("test.json", {**facts, **figures(correct, images)})
    return path


def figures(correct: int, images: int) -> dict[str, Any]:
    """Of two classes, one of them never answered."""
    wrong = images - correct
    return {"images": images, "errors": wrong, "accuracy": correct / images, "confusion": [[correct, 0], [wrong, 0]]}
