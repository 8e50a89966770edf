"""Small data in the formats of the real files."""

from __future__ import annotations

import gzip
import pickle
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture(autouse=True)
def _own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's cache."""
    monkeypatch.setenv("WCAPSNET_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


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


@pytest.fixture
def mnist(rng: np.random.Generator) -> Mnist:
    return Mnist(rng)


def noise(seed: int, mode: str = "RGB", size: tuple[int, int] = (20, 20)) -> Image.Image:
    channels = {"L": 1, "RGB": 3, "RGBA": 4}[mode]
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], channels), dtype=np.uint8)
    return Image.fromarray(pixels.squeeze() if channels == 1 else pixels, mode)


@pytest.fixture
def picture_folder(tmp_path: Path) -> Callable[..., Path]:
    """Makes a folder from {"class/name.png": picture}, or {"class": how many}."""

    def make(content: dict[str, object], name: str = "pictures") -> Path:
        root = tmp_path / name
        root.mkdir(exist_ok=True)
        seed = 0
        for relative, what in content.items():
            if isinstance(what, int):
                (root / relative).mkdir(parents=True, exist_ok=True)
                for i in range(what):
                    seed += 1
                    noise(seed).save(root / relative / f"{i}.png")
                continue
            path = root / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(what, bytes):
                path.write_bytes(what)
            else:
                assert isinstance(what, Image.Image)
                what.save(path)
        return root

    return make


@dataclass
class Server:
    """Serves `files` on 127.0.0.1, as well or as badly as asked."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True  # honours Range requests
    wrong_piece: bool = False  # answers Range requests with another piece
    cut_after: list[int] = field(default_factory=list)  # the next answers end after so many bytes
    requests: list[tuple[str, str | None]] = field(default_factory=list)  # path, Range


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            state.requests.append((self.path, asked))
            body = state.files.get(self.path.lstrip("/"))
            if body is None:
                self.send_error(404)
                return
            start = 0
            if asked and state.ranges:
                start = int(asked.removeprefix("bytes=").removesuffix("-"))
                if start >= len(body):
                    self.send_error(416)
                    return
                start = 0 if state.wrong_piece else start
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            else:
                self.send_response(200)
            body = body[start:]
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: state.cut_after.pop(0)] if state.cut_after else body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        state.url = f"http://127.0.0.1:{http.server_address[1]}/"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield state
        http.shutdown()
        thread.join()
