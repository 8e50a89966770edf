"""Small networks as classifiers, and their exported files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from wcapsnet import Classifier
from wcapsnet.exports.graph import Graph
from wcapsnet.exports.onnx_model import facts_of, onnx_bytes


def classifier_of(network: Any) -> Classifier:
    """With opinions, and statistics as after training"""
    torch.manual_seed(0)
    if hasattr(network, "projection"):
        torch.nn.init.normal_(network.projection, std=3.0)
    for name, buffer in network.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_(std=0.2)
        elif name.endswith("running_var"):
            buffer.uniform_(0.5, 1.5)
    config = network.config
    names = tuple(f"class {r}" for r in range(config.classes))
    return Classifier(network, names, (0.3,) * config.channels, (0.4,) * config.channels).eval()


def images_for(classifier: Classifier, count: int) -> np.ndarray:
    config = classifier.config
    shape = (count, config.channels, config.height, config.width)
    return np.random.default_rng(count).integers(0, 256, shape, np.uint8)


def written(classifier: Classifier, folder: Path, **options: Any) -> Path:
    graph = Graph(classifier, **options)
    path = folder / "network.onnx"
    path.write_bytes(onnx_bytes(graph, facts_of(classifier, graph, "test")))
    return path
