"""`wcapsnet train FOLDER --from NETWORK` against training from scratch, on small folders of photographs.

    python tools/finetuning.py pretrain DATA_DIR --out RUN           trains wcapsnet-small on 80 classes of CIFAR-100

The other 20 classes of CIFAR-100, and all of CIFAR-10, are new to that network. Every run has one thread, and its cost
is CPU time: a busy machine matters little.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import wcapsnet
from wcapsnet.data import DATASETS

KNOWN = np.random.default_rng(0).permutation(100)[:80]  # classes of CIFAR-100 that the starting network has seen


def write_pictures(
    place: Path, dataset: str, data_dir: Path, classes: list[int], parts: dict[str, tuple[str, slice]], side: int = 32
) -> None:
    """Write PLACE/part/CLASS/…: `parts` says of each which images of a class to take, from "train" or "test"."""
    info = DATASETS[dataset]
    raw = info.read(data_dir)
    names = raw.classes or info.classes
    for part, (origin, chosen) in parts.items():
        images, labels = getattr(raw, origin)
        for label in classes:
            into = place / part / names[label]
            into.mkdir(parents=True)
            for number, image in enumerate(images[labels == label][chosen]):
                picture = Image.fromarray(image.transpose(1, 2, 0))
                if side == 32:
                    picture.save(into / f"{number}.png", compress_level=1)
                else:
                    enlarged = picture.resize((side, side), Image.Resampling.BICUBIC)
                    enlarged.save(into / f"{number}.jpg", quality=90)


def pretrain(data_dir: Path, place: Path, out: Path, known: list[int], epochs: int) -> None:
    """The starting network: `wcapsnet-small` on all training images of the known classes but 5 %"""
    if not place.exists():
        write_pictures(place, "cifar100", data_dir, known, {"train": ("train", slice(None)), "test": ("test", slice(None))})
    wcapsnet.train(
        place,
        model="wcapsnet-small",
        epochs=epochs,
        device="cpu",
        out=out,
        settings=["data.validation=0.05", "training.weight_decay=0.05", "objective.label_smoothing=0.1"],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--epochs", type=int, default=10)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    pretrain(asked.data_dir, asked.pictures, asked.out, sorted(map(int, KNOWN)), asked.epochs)


if __name__ == "__main__":
    main()
