"""`python tools/make_sample.py IDX_FOLDER`: rebuild the digits in the package from the four original MNIST files."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np

from wcapsnet.data.formats import SAMPLE, read_idx
from wcapsnet.errors import InputError

TRAIN, TEST = 10000, 2000
# of the decompressed files
MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}


def make_sample(idx_folder: Path, target: Path) -> None:
    """Draw the sample from MNIST's original files and write it to `target`.

    The first 10,000 of a permutation of the training images and the first 2,000 of a permutation of the test images, in
    MNIST's order. The permutations come from NumPy's legacy generator with seed 0, whose stream is frozen, so the file
    is reproducible.
    """
    for name, expected in MD5.items():
        digest = hashlib.md5((idx_folder / name).read_bytes(), usedforsecurity=False).hexdigest()
        if digest != expected:
            raise InputError(f"{idx_folder / name} is not MNIST's original file: its md5 is {digest}.")
    random = np.random.RandomState(0)
    arrays: dict[str, np.ndarray] = {}
    for part, prefix, count in (("train", "train", TRAIN), ("test", "t10k", TEST)):
        images = read_idx(idx_folder / f"{prefix}-images-idx3-ubyte", dimensions=3)
        labels = read_idx(idx_folder / f"{prefix}-labels-idx1-ubyte", dimensions=1)
        chosen = np.sort(random.permutation(len(labels))[:count])
        arrays[f"{part}_images"], arrays[f"{part}_labels"] = images[chosen], labels[chosen]
    with target.open("wb") as stream:
        np.savez_compressed(stream, allow_pickle=False, **arrays)


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit(__doc__)
    make_sample(Path(sys.argv[1]), SAMPLE)
