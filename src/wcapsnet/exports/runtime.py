"""An exported ONNX file on onnxruntime: needs neither torch nor onnx."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..data.decode import ImageSource
from ..errors import InputError, first_line
from ..prediction import Prediction, best_first, predict
from .sealed import facts_from, read_sealed

NEEDED = {"classes", "channels", "height", "width", "input", "outputs", "levels"}


class OnnxNetwork:
    """The network in an ONNX file that `wcapsnet export` wrote; `facts` is its description."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._session = session(read_sealed(self.path), str(self.path))
        self.facts: dict[str, Any] = facts_from(self._session.get_modelmeta().custom_metadata_map, self.path)
        if missing := NEEDED - self.facts.keys():
            raise InputError(f"{self.path} does not describe its {', '.join(sorted(missing))}; export it again.")
        self.classes: tuple[str, ...] = tuple(map(str, self.facts["classes"]))
        self.shape: tuple[int, int, int] = (self.facts["channels"], self.facts["height"], self.facts["width"])
        self.levels: int = self.facts["levels"]

    def run(self, pixels: np.ndarray) -> dict[str, np.ndarray]:
        """uint8 images (m, ch, h, w) → the named outputs"""
        images = pixels if self.facts["input"] == "uint8" else pixels.astype(np.float32) / np.float32(255)
        names = [one.name for one in self._session.get_outputs()]
        keep = {one.name: np.ones(one.shape, bool) for one in self._session.get_inputs()[1:]}  # all blocks on
        return dict(zip(names, self._session.run(names, {"images": images, **keep}), strict=True))

    def classify(self, pixels: np.ndarray, top: int, names: Sequence[str | None]) -> list[Prediction]:
        """Predictions for pictures as `read_image` returns them: uint8 (m, ch, h, w)"""
        answers = self.run(pixels)
        weights = [answers[f"weights_{level}"] for level in range(1, self.levels + 1)]
        return best_first(answers["probabilities"], weights, self.classes, top, names)

    def predict(self, pictures: ImageSource | Sequence[ImageSource], top: int = 3) -> Prediction | list[Prediction]:
        """Class, probability and routing of one picture, or of each in a list, as `Classifier.predict` returns them."""
        return predict(self, pictures, top)


def is_onnx(source: object) -> bool:
    """Whether a network is named by an ONNX file"""
    return isinstance(source, (str, Path)) and Path(source).suffix.lower() == ".onnx"


def check_device(device: str) -> None:
    """Refuse a device that ONNX files do not run on here."""
    if device not in ("auto", "cpu"):
        raise InputError(f"ONNX files run on the CPU, not on {device}.")


def session(content: bytes, name: str, threads: int = 0) -> Any:
    """An onnxruntime session on the CPU, with this many threads (0: all cores)"""
    try:
        import onnxruntime
    except ImportError as error:
        raise InputError(
            "onnxruntime, which runs ONNX files, is not installed; install it with pip install 'wcapsnet[onnx]'."
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors only
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions have no common base class
        raise InputError(f"onnxruntime {onnxruntime.__version__} cannot load {name} ({first_line(error)}).") from error
