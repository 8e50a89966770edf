"""Small data in the formats of the real files, and a server that can break off.

Not in conftest.py: several folders of tests have one, and they all import under the same name.
"""

from __future__ import annotations

import gzip
import pickle
import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from wcapsnet.data import Dataset


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


class Mnist:
    """Small MNIST files and what they hold."""

    def __init__(self, rng: np.random.Generator, train: int = 30, test: int = 10) -> None:
        self.arrays = {
            "train-images-idx3-ubyte": rng.integers(0, 256, (train, 28, 28), dtype=np.uint8),
            "train-labels-idx1-ubyte": rng.integers(0, 10, train, dtype=np.uint8),
            "t10k-images-idx3-ubyte": rng.integers(0, 256, (test, 28, 28), dtype=np.uint8),
            "t10k-labels-idx1-ubyte": rng.integers(0, 10, test, dtype=np.uint8),
        }

    def write(self, folder: Path, *, gz: bool = False, dots: bool = False) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name, array in self.arrays.items():
            data = idx_bytes(array)
            name = name.replace("-idx", ".idx") if dots else name
            (folder / (name + (".gz" if gz else ""))).write_bytes(gzip.compress(data) if gz else data)
        return folder


class Cifar:
    """Small CIFAR files of either set and either version."""

    def __init__(self, rng: np.random.Generator, classes: int, per_file: int = 4) -> None:
        self.hundred = classes == 100
        names = ("train", "test") if self.hundred else (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
        self.images = {n: rng.integers(0, 256, (per_file, 3, 32, 32), dtype=np.uint8) for n in names}
        self.labels = {n: rng.integers(0, classes, per_file) for n in names}
        self.names = [f"class {i}" for i in range(classes)]
        self.train, self.test = names[:-1], names[-1]

    def binary(self) -> dict[str, bytes]:
        files = {}
        for name, images in self.images.items():
            columns = [self.labels[name][:, None], images.reshape(len(images), -1)]
            if self.hundred:
                columns.insert(0, np.full((len(images), 1), 19))  # the coarse label
            files[f"{name}.bin"] = np.concatenate(columns, axis=1).astype(np.uint8).tobytes()
        listed = "fine_label_names.txt" if self.hundred else "batches.meta.txt"
        return {**files, listed: ("\n".join(self.names) + "\n\n").encode()}

    def python(self, protocol: int = 2) -> dict[str, bytes]:
        files = {}
        labels_key, names_key = ("fine_labels", "fine_label_names") if self.hundred else ("labels", "label_names")
        for name, images in self.images.items():
            batch: dict[str, object] = {"data": images.reshape(len(images), -1), labels_key: self.labels[name].tolist()}
            batch["filenames"] = ["x.png"] * len(images)
            if self.hundred:
                batch["coarse_labels"] = [0] * len(images)
            files[name] = pickle.dumps(batch, protocol=protocol)
        listed = "meta" if self.hundred else "batches.meta"
        return {**files, listed: pickle.dumps({names_key: self.names}, protocol=protocol)}


def noise(seed: int, mode: str = "RGB", size: tuple[int, int] = (20, 20)) -> Image.Image:
    channels = {"L": 1, "RGB": 3, "RGBA": 4}[mode]
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], channels), dtype=np.uint8)
    return Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels)


def images(data: Dataset) -> list[bytes]:
    """All images of a dataset, in order"""
    return [image.numpy().tobytes() for part in (data.train, data.validation, data.test) for image in part.images]


@dataclass
class Server:
    """Serves `files` on 127.0.0.1."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)  # files whose connection breaks off halfway
    requests: list[str] = field(default_factory=list)  # paths
