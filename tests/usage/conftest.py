"""Fixtures of the tests on using networks from Python."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from twins.tiny import tiny
from wcapsnet import Classifier, WCapsNet


@pytest.fixture
def classifier() -> Classifier:
    torch.manual_seed(0)
    network = WCapsNet(tiny(channels=3, height=8, width=12))
    torch.nn.init.normal_(network.projection, std=3.0)  # opinions, where an untrained network shrugs
    return Classifier(network, ("cat", "dog", "cow"), (0.5, 0.4, 0.3), (0.2, 0.3, 0.1)).eval()


@pytest.fixture
def pixels() -> np.ndarray:
    """As large as the classifier's input, so that nothing is scaled."""
    return np.random.default_rng(0).integers(0, 256, (8, 12, 3), dtype=np.uint8)


@pytest.fixture
def picture(pixels) -> Image.Image:
    return Image.fromarray(pixels)
