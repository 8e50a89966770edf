"""The implementations compared: the same network computed in several ways, and DenseNet-BC-100."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from .. import kernels
from ..baselines import DenseNetConfig
from ..engine import Engine, check_compiler
from ..errors import InputError
from ..experiment import PRECISIONS, Experiment
from ..exports.onnx_model import needs_onnx
from ..network import WCapsNet
from ..objective import Objective
from ..parts import suggestion
from .loop import looped


@dataclass(frozen=True)
class Formulation:
    kernels: str = "plain"
    graph: bool = True  # on CUDA: recorded once and replayed
    loop: bool = False  # a Python loop over capsules
    baseline: bool = False  # DenseNet-BC-100
    onnx: str | None = None  # an exported file in onnxruntime, in this precision; inference on a CPU only

    @property
    def compiled(self) -> bool:
        return self.kernels == "compiled"


FORMULATIONS = {
    "fused": Formulation(kernels="fused"),
    "plain": Formulation(),  # grouped convolutions
    "compiled": Formulation(kernels="compiled"),
    "eager": Formulation(graph=False),
    "loop": Formulation(graph=False, loop=True),
    "onnx": Formulation(onnx="fp32"),
    "onnx-int8": Formulation(onnx="int8"),
    "densenet": Formulation(baseline=True),
    "densenet-compiled": Formulation(kernels="compiled", baseline=True),
}


@dataclass(frozen=True)
class Contender:
    name: str
    precision: str
    label: str

    @property
    def how(self) -> Formulation:
        return FORMULATIONS[self.name]

    def check(self, device: torch.device, what: str = "infer") -> None:
        """Raise an error with the reason if this contender is known not to support `what` on the device."""
        if self.name == "eager" and device.type == "cpu":
            raise InputError("On a CPU, eager is the same as plain.")
        if self.how.onnx:
            if what != "infer":
                raise InputError("ONNX files run inference only; use bench infer.")
            if device.type != "cpu":
                raise InputError("ONNX files run on the CPU.")
            needs_onnx()
        if self.how.compiled:
            check_compiler(device)

    def of(self, experiment: Experiment) -> Experiment:
        """The experiment as this implementation trains it"""
        precision = "fp32" if self.how.onnx else self.precision  # of the network that is exported
        training = replace(experiment.training, precision=precision, kernels=self.how.kernels)
        experiment = replace(experiment, training=training)
        if not self.how.baseline:
            return experiment
        shape = experiment.model
        model = DenseNetConfig(shape.classes, shape.channels, shape.height, shape.width)
        return replace(experiment, model=model, objective=Objective(cross_entropy=1.0))

    def engine(self, experiment: Experiment, device: torch.device) -> Engine:
        torch.manual_seed(0)
        experiment = self.of(experiment)
        network = experiment.model.build().to(device)
        if self.how.loop:
            if not isinstance(network, WCapsNet):
                raise InputError(f"{self.name} computes the blocks of a WCapsNet one by one.")
            network = looped(network)
        return kernels.choose(network, experiment, device)


def parse(names: str | None, precision: str, what: str = "infer") -> list[Contender]:
    """`fused,plain,loop:fp32` → contenders; None means all that do `what`: train, infer or level."""
    every = [name for name, how in FORMULATIONS.items() if what == "infer" or not how.onnx]
    asked = every if names is None else [name.strip() for name in names.split(",") if name.strip()]
    if not asked:
        raise InputError(f"--against needs at least one of {', '.join(FORMULATIONS)}.")
    contenders = []
    for label in dict.fromkeys(asked):
        name, colon, own = label.partition(":")
        if name not in FORMULATIONS:
            raise InputError(f"There is no implementation {name!r}{suggestion(name, FORMULATIONS)}")
        if colon and own not in PRECISIONS:
            raise InputError(f"The precision of {name} must be {' or '.join(PRECISIONS)}, not {own!r}.")
        if colon and FORMULATIONS[name].onnx:
            raise InputError(f"{name} has a fixed precision; leave out {colon}{own}.")
        contenders.append(Contender(name, FORMULATIONS[name].onnx or own or precision, label))
    return contenders
