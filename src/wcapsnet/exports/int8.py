"""An ONNX file computed in 8 bits: static quantisation, calibrated with real images."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from .onnx_model import finished, needs_onnx, quiet

CALIBRATION = 256  # images
_BATCH = 16
# Critics decide between nearly equal capsules and the decoder paints: in 8 bits both lose more than they gain in time.
FLOAT = ("routers", "decoder", "projection")


def quantized(content: bytes, pixels: np.ndarray, facts: dict[str, Any]) -> bytes:
    """The file with its convolutions and matrix products in int8, one scale per channel, in the QDQ format.

    `pixels` are calibration images, uint8 (m, ch, h, w): the range of every activation is the one seen on them.
    """
    needs_onnx()
    import onnx
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

    model = onnx.load_from_string(content)
    with tempfile.TemporaryDirectory() as folder, quiet():
        target = Path(folder) / "int8.onnx"
        quantize_static(
            model,
            target,
            _reader(model, pixels, facts["input"]),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            op_types_to_quantize=["Conv", "MatMul"],
            nodes_to_exclude=_in_float(model),
            calibrate_method=CalibrationMethod.MinMax,
        )
        result = onnx.load(target)
    return finished(result, {**facts, "int8": True, "calibration_images": len(pixels)})


def _in_float(model: Any) -> list[str]:
    """The nodes that stay in float: those of `FLOAT`, and the first convolution, which sees the image itself"""
    weights = {one.name for one in model.graph.initializer}
    computing = [node for node in model.graph.node if node.op_type in ("Conv", "MatMul")]
    first = next((node.name for node in computing if node.op_type == "Conv"), "")
    named = [node.name for node in computing if any(part in name for name in node.input for part in FLOAT)]
    unweighted = [node.name for node in computing if not weights & set(node.input)]
    return list({first, *named, *unweighted})


def _reader(model: Any, pixels: np.ndarray, kind: str) -> Any:
    """What onnxruntime calls a CalibrationDataReader: `get_next` returns the next batch, in the end None"""
    switches = {
        one.name: np.ones([axis.dim_value for axis in one.type.tensor_type.shape.dim], bool)
        for one in model.graph.input[1:]
    }
    images = pixels if kind == "uint8" else pixels.astype(np.float32) / np.float32(255)
    batches = ({"images": images[start : start + _BATCH], **switches} for start in range(0, len(images), _BATCH))
    return SimpleNamespace(get_next=lambda: next(batches, None))
