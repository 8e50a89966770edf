"""A network as ONNX: one file without external data, for onnxruntime and onnxruntime-web."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .. import __version__
from ..classifier import Classifier, checksum
from ..errors import InputError
from .graph import DecoderGraph, Graph, captured
from .sealed import CHECKSUM, FACTS, UNSEALED, sealed

if TYPE_CHECKING:
    import onnx

# The oldest opset that PyTorch's exporter writes without converting; every onnxruntime(-web) since 1.14 (2023) runs it.
OPSET = 18


def facts_of(classifier: Classifier, graph: Graph, source: str) -> dict[str, Any]:
    """What the file says about itself, as plain values"""
    mean, std = classifier.normalization
    config = classifier.config
    known = classifier.facts.get("checksum")
    return {
        "version": __version__,
        "source": source,
        "source_checksum": known or checksum(classifier.network.state_dict(), classifier.description()),
        "classes": classifier.classes,
        "channels": config.channels,
        "height": config.height,
        "width": config.width,
        "mean": mean,
        "std": std,
        "input": graph.input,
        "outputs": graph.names,
        "levels": len(graph.levels),
        "switches": graph.levels if graph.switches else (),
        "int8": False,
    }


def onnx_bytes(graph: Graph | DecoderGraph, facts: dict[str, Any]) -> bytes:
    """The content of the file, for any batch size"""
    model = _translated(graph)
    _reshape_weights(model.graph)
    return finished(model, facts)


def finished(model: onnx.ModelProto, facts: dict[str, Any]) -> bytes:
    """The file's bytes: with its description and checksum, without the traces of Python that the exporter records"""
    for node in model.graph.node:
        del node.metadata_props[:]
        node.ClearField("doc_string")
    for value in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        del value.metadata_props[:]
    del model.graph.value_info[:], model.graph.metadata_props[:], model.metadata_props[:]
    for value in (*model.graph.input, *model.graph.output):
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param:
                axis.dim_param = "m"
    model.producer_name, model.producer_version = "wcapsnet", __version__
    for key, value in ((FACTS, json.dumps(facts, ensure_ascii=False)), (CHECKSUM, UNSEALED)):
        model.metadata_props.add(key=key, value=value)
    return sealed(model.SerializeToString(deterministic=True))


def _translated(graph: Graph | DecoderGraph) -> onnx.ModelProto:
    needs_onnx()
    with quiet():
        program = torch.onnx.export(
            captured(graph),
            dynamo=True,
            opset_version=OPSET,
            input_names=list(graph.input_names),
            output_names=list(graph.names),
            external_data=False,
            verbose=False,
        )
    assert program is not None  # only the older exporter returns None
    return program.model_proto


def _reshape_weights(graph: onnx.GraphProto) -> None:
    """Store weights in the shape in which they are used, instead of reshaping them in every run.

    Layers for all capsules of a level keep their weights as (n, …) and merge axes when they are called; the exporter
    evaluates such steps beforehand only for small tensors.
    """
    from onnx import numpy_helper

    tensors = {one.name: one for one in graph.initializer}
    renamed: dict[str, str] = {}
    kept = []
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        if node.op_type != "Reshape" or not tensors.keys() >= set(node.input):
            kept.append(node)
            continue
        weights, sides = (tensors[name] for name in node.input)
        reshaped = graph.initializer.add()
        reshaped.CopyFrom(weights)
        reshaped.name = f"{weights.name}/{node.name}"
        reshaped.dims[:] = np.empty(tuple(weights.dims), np.bool_).reshape(numpy_helper.to_array(sides)).shape
        tensors[reshaped.name], renamed[node.output[0]] = reshaped, reshaped.name
    del graph.node[:]
    graph.node.extend(kept)
    used = {name for node in kept for name in node.input} | {one.name for one in graph.output}
    initializers = [one for one in graph.initializer if one.name in used]
    del graph.initializer[:]
    graph.initializer.extend(initializers)


def needs_onnx() -> None:
    for name in ("onnx", "onnxruntime", "onnxscript"):
        if find_spec(name) is None:
            raise InputError(f"{name} is not installed; install it with pip install 'wcapsnet[onnx]'.")


@contextmanager
def quiet() -> Iterator[None]:
    """Without the libraries' remarks on their own deprecated calls and advice that does not apply to our graphs"""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
