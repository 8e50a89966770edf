"""A sample of MNIST included in the package, for trying everything without a download (tools/make_sample.py)."""

from __future__ import annotations

from importlib import resources

import numpy as np

from .formats import Arrays, RawData

FILE = "mnist-12k.npz"


def read_sample() -> RawData:
    """10,000 of MNIST's training images and 2,000 of its test images."""
    file = resources.files("wcapsnet.data") / "sample" / FILE
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        train, test = (
            Arrays(arrays[f"{part}_images"][:, None], arrays[f"{part}_labels"].astype(np.int64))
            for part in ("train", "test")
        )
    return RawData(train, test)
