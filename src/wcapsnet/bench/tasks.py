"""The timed tasks: a whole training step, a forward pass, one level forward and backward."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..baselines.common import LogitsOutput
from ..classifier import Classifier
from ..data import DATASETS, Split
from ..data.augment import augment
from ..data.device_data import DeviceSplit, epoch_order
from ..data.types import Augmentations
from ..device import arithmetic
from ..engine import Engine
from ..errors import InputError
from ..experiment import Experiment
from ..exports.graph import Graph
from ..exports.int8 import quantized
from ..exports.onnx_model import onnx_bytes
from ..exports.runtime import session
from ..kernels import FusedEngine
from ..network import WCapsNet
from ..training.step import Average, GraphedStep, Step, make_optimizer
from .contenders import Contender
from .measure import Call, recorded


class Job(NamedTuple):
    call: Call
    facts: Callable[[], dict[str, Any]] = dict  # facts to record about the outputs, after timing
    first_s: float | None = None  # from start to the end of the first call
    peak: int | None = None  # bytes on the GPU


# ── training ────────────────────────────────────────────────────────────────────────────────────────────────────────


def synthetic(experiment: Experiment, device: torch.device) -> DeviceSplit:
    """As many random images as the dataset has for training, in the network's shape."""
    model, count = experiment.model, DATASETS[experiment.data.source].train_images
    generator = torch.Generator(device).manual_seed(0)
    shape = (count, model.channels, model.height, model.width)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, device=device, generator=generator)
    labels = torch.randint(0, model.classes, (count,), device=device, generator=generator)
    return DeviceSplit(Split(images, labels), (0.5,) * model.channels, (0.25,) * model.channels, device)


class OneBatch(DeviceSplit):
    """Loading at no cost: always the same images, already on the device."""

    def __init__(self, data: DeviceSplit, batch: int):
        self.__dict__.update(data.__dict__)
        self.ready = data.take(slice(batch))

    def take(self, index: Tensor | slice) -> tuple[Tensor, Tensor]:
        return self.ready


def _batches(data: DeviceSplit, batch: int) -> Iterator[Tensor]:
    return itertools.cycle(epoch_order(len(data), batch, 0, 0).to(data.labels.device).unbind())


def training(contender: Contender, experiment: Experiment, batch: int, data: DeviceSplit) -> Job:
    """The step of `wcapsnet train`, from indices to updated weights."""
    device = data.labels.device
    experiment, engine = contender.of(experiment), contender.engine(experiment, device)
    averaging = experiment.training.averaging
    average = Average(engine.network, averaging) if averaging else None
    step = Step(experiment, engine, make_optimizer(engine, experiment, device), data, average)
    if device.type == "cuda" and contender.how.graph:
        step = GraphedStep(step, batch)
    batches = _batches(data, batch)

    def facts() -> dict[str, Any]:
        mean = float(step.sums[0] / step.sums[-1])
        return {"mean_loss": round(mean, 4) if math.isfinite(mean) else None}

    return Job(lambda: step(next(batches)), facts)


def parts(contender: Contender, experiment: Experiment, batch: int, data: DeviceSplit) -> dict[str, Job]:
    """The same step with loading and augmentation left out one by one, and these alone."""
    plain = replace(experiment, data=replace(experiment.data, mirror=False, shift=0, augment=Augmentations()))
    device, batches = data.labels.device, _batches(data, batch)
    index = torch.zeros(batch, dtype=torch.int64, device=device)

    def load() -> object:
        images, _ = data.take(index)
        return augment(images, experiment.data.augmentations())

    loading = recorded(load, device)
    return {
        "whole step": training(contender, experiment, batch, data),
        "without augmentation": training(contender, plain, batch, data),
        "without augmentation and loading": training(contender, plain, batch, OneBatch(data, batch)),
        "augmentation and loading alone": Job(lambda: (index.copy_(next(batches)), loading())),
    }


# ── inference ───────────────────────────────────────────────────────────────────────────────────────────────────────


def inference(contender: Contender, experiment: Experiment, batch: int, device: torch.device) -> Job:
    """A complete forward pass, from normalised images on the device."""
    model = experiment.model
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batch, model.channels, model.height, model.width, generator=generator).to(device)
    call: Any
    if contender.how.onnx:
        call = partial(_logits_by_onnx, _exported(experiment, contender.how.onnx == "int8"), images.numpy())
    else:
        engine = contender.engine(experiment, device)
        engine.network.eval()

        @torch.no_grad()
        def answer() -> Any:
            with arithmetic(contender.precision, device):
                return engine.forward(images)

        call = recorded(answer, device) if contender.how.graph else answer

    def facts() -> dict[str, Any]:
        if contender.how.baseline:
            return {}
        with torch.no_grad():
            plain = Contender("plain", "fp32", "plain").engine(experiment, device).network.eval()
            expected = plain(images[:64]).logits
        return {"largest_error_of_logits": float((call().logits[:64] - expected).abs().max())}

    return Job(call, facts)


@cache  # exporting takes much longer than a measurement
def _exported(experiment: Experiment, int8: bool) -> Any:
    """An onnxruntime session of the untrained network that the other contenders compute, on as many threads"""
    model = experiment.model
    network = Contender("plain", "fp32", "plain").engine(experiment, torch.device("cpu")).network
    zero, one = (0.0,) * model.channels, (1.0,) * model.channels  # the images are normalised
    graph = Graph(Classifier(network, tuple(map(str, range(model.classes))), zero, one).eval(), input="float")
    content = onnx_bytes(graph, {})
    if int8:
        shape = (64, model.channels, model.height, model.width)
        pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)  # what is measured is speed
        content = quantized(content, pixels, {"input": "float"})
    return session(content, "the exported network", torch.get_num_threads())


def _logits_by_onnx(network: Any, images: np.ndarray) -> LogitsOutput:
    names = [one.name for one in network.get_outputs()]  # all, as the other contenders compute them
    answers = dict(zip(names, network.run(names, {"images": images}), strict=True))
    return LogitsOutput(torch.from_numpy(answers["logits"]))


# ── levels ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def levels(contender: Contender, experiment: Experiment, batch: int, device: torch.device) -> dict[str, Job]:
    """Each level forward and backward: its capsule blocks alone, and with critic, weights and weighted output."""
    if contender.how.baseline:
        raise InputError(f"{contender.name} has no capsules.")
    # Levels are compiled separately, below.
    whole_network = replace(contender, name="plain") if contender.how.compiled else contender
    engine = whole_network.engine(experiment, device)
    network = engine.network
    config, jobs = experiment.model, {}
    channels, sizes = (config.init_channels, *config.stem)[-1], [config.first_map(), *config.maps()]
    for at, level in enumerate(config.levels):
        dtype = torch.bfloat16 if contender.precision == "bf16" else torch.float32
        x = torch.randn(batch, channels, *sizes[at], device=device, dtype=dtype, requires_grad=True)
        blocks, whole = _blocks(engine, at), _level(engine, at)
        name = f"level {at + 1}"
        jobs[f"{name}, blocks"] = _there_and_back(contender, blocks, x, list(network.capsules[at].parameters()))
        others = [*network.routers[at].parameters(), *([network.projection] if at == len(config.levels) - 1 else [])]
        jobs[name] = _there_and_back(contender, whole, x, [*network.capsules[at].parameters(), *others])
        channels = level.dimension
    return jobs


def _blocks(engine: Engine, at: int) -> Callable[[Tensor], Tensor]:
    if isinstance(engine, FusedEngine):
        return partial(engine.fused.blocks, engine.network, at)
    return engine.network.capsules[at]


def _level(engine: Engine, at: int) -> Callable[[Tensor], Tensor]:
    network: WCapsNet = engine.network
    if isinstance(engine, FusedEngine):
        return partial(engine.fused.level, network, at)
    _, blocks, router = list(network.levels())[at]

    def level(x: Tensor) -> Tensor:
        c = blocks(x)
        b = network.applied(router(c).weights)
        last = at == len(network.capsules) - 1
        return network.handed_on(at, b, F.dropout(c, network.config.projection_dropout) if last else c)

    return level


def _there_and_back(
    contender: Contender, function: Callable[[Tensor], Tensor], x: Tensor, parameters: list[nn.Parameter]
) -> Job:
    if contender.how.compiled:
        function = torch.compile(function, dynamic=False)

    def call() -> object:
        with arithmetic(contender.precision, x.device):
            y = function(x)
        return torch.autograd.grad(y, [x, *parameters], torch.ones_like(y), allow_unused=True)

    return Job(recorded(call, x.device) if contender.how.graph else call)
