"""Accuracy of exported ONNX files, in fp32 and int8, on the full test sets of shipped networks.

    python benchmarks/onnx_accuracy.py HARDWARE-NAME DATA-DIR wcapsnet-cifar10 wcapsnet-mnist

int8 is calibrated with training images, as `wcapsnet export --int8` does. It also records the
file sizes, and for how many images int8 predicts another class than fp32.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import onnxruntime
import record

import wcapsnet
from wcapsnet import shipped
from wcapsnet.api.exporting import images_of
from wcapsnet.exports.evaluation import OnnxEvaluation, evaluate_onnx
from wcapsnet.exports.int8 import CALIBRATION, quantized
from wcapsnet.exports.runtime import OnnxNetwork


def figures(path: Path, result: OnnxEvaluation) -> dict[str, float]:
    correct, images = int(result.confusion.trace()), len(result.labels)
    return {
        "correct": correct,
        "images": images,
        "accuracy": correct / images,
        "cross_entropy": round(result.loss, 6),
        "bytes": path.stat().st_size,
    }


def measure(name: str, data_dir: Path, folder: Path) -> dict[str, object]:
    fp32 = wcapsnet.export(name, out=folder / "fp32.onnx", data_dir=data_dir)
    print(f"{name}: {fp32.comparison}", file=sys.stderr, flush=True)
    calibration = images_of(name, wcapsnet.load(name), "train", CALIBRATION, data_dir=data_dir, real=True)
    int8 = folder / "int8.onnx"
    int8.write_bytes(quantized(fp32.path.read_bytes(), calibration.pixels, OnnxNetwork(fp32.path).facts))
    found = {path: evaluate_onnx(path, data_dir=data_dir) for path in (fp32.path, int8)}
    one, other = found.values()
    return {
        "fp32": figures(fp32.path, one),
        "int8": figures(int8, other),
        "images_with_another_class_in_int8": int((one.predicted != other.predicted).sum()),
        "correct_in_the_model_card": shipped.describe(name)["test"]["correct"],
    }


def main() -> None:
    hardware, data_dir, *names = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        results = {name: measure(name, Path(data_dir), Path(folder)) for name in names}
    print(results)
    versions = {"onnxruntime": onnxruntime.__version__, "calibration_images": CALIBRATION}
    record.write("onnx_accuracy", hardware, {**versions, **results})


if __name__ == "__main__":
    main()
