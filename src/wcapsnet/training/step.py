"""One training step, eagerly or as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from .. import kernels
from ..data.augment import augment
from ..data.loader import DeviceSplit
from ..experiment import Experiment
from ..network import WCapsNet
from ..objective import ObjectiveConfig, Terms, objective
from .precision import arithmetic

# What a step adds up, so that nobody has to wait for it. Batches are all of one size: means of means are means.
SUMMED = (*Terms._fields, "accuracy", "steps")


Losses = Callable[[Any, Tensor, Tensor, ObjectiveConfig], tuple[Terms, Tensor]]
"""network, images, labels → the terms of the loss, and the logits of the real classes"""
Augmentation = Callable[..., Tensor]
"""images, mirroring=, shifting= → images"""


def wcapsnet_losses(network: WCapsNet, images: Tensor, labels: Tensor, config: ObjectiveConfig) -> tuple[Terms, Tensor]:
    output = network(images)
    return objective(output, images, labels, config), network.class_logits(output)


class Step:
    """Take a batch, augment, forward, loss, backward, update; `sums` grows by what was seen."""

    def __init__(
        self,
        experiment: Experiment,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
        data: DeviceSplit,
        losses: Losses = wcapsnet_losses,
        augmentation: Augmentation = augment,
    ):
        self.experiment, self.network, self.optimizer, self.data = experiment, network, optimizer, data
        self.losses, self.augmentation = losses, augmentation
        self.sums = torch.zeros(len(SUMMED), dtype=torch.float64, device=data.labels.device)
        self.engine: kernels.Engine | None = getattr(network, "engine", None)

    def __call__(self, index: Tensor) -> None:
        images, labels = self._take(index)
        with arithmetic(self.experiment.training.precision, images.device):
            terms = self._judge(images, labels)
        self.optimizer.zero_grad(set_to_none=True)
        self._backward(terms)
        self.optimizer.step()

    def _backward(self, terms: Terms) -> None:
        if self.engine is None:
            terms.total.backward()
            return
        self.engine.aside.enabled = True  # gradients are read by the optimizer only, and none are there before
        try:
            terms.total.backward()
        finally:
            self.engine.aside.enabled = False

    def _take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        mirroring, shifting = self.experiment.data.mirror, self.experiment.data.shift
        if self.engine is not None and type(self.data) is DeviceSplit and self.augmentation is augment:
            return kernels.take(self.data, index, mirroring, shifting)
        images, labels = self.data.take(index)
        return self.augmentation(images, mirroring=mirroring, shifting=shifting), labels

    def _judge(self, images: Tensor, labels: Tensor) -> Terms:
        config = self.experiment.objective
        if self.engine is not None and self.losses is wcapsnet_losses:
            return kernels.objective(self.network(images), images, labels, config, self.engine.classes, self.sums)
        terms, logits = self.losses(self.network, images, labels, config)
        with torch.no_grad():
            accuracy = (logits.argmax(1) == labels).double().mean()
            self.sums[:-1] += torch.stack([*(term.double() for term in terms), accuracy])
            self.sums[-1] += 1
        return terms

    def release(self) -> None:
        """Give back what outlives the object; it cannot be called any more."""


class GraphedStep(Step):
    """The same, recorded once and replayed: one launch a step instead of some thousands."""

    def __init__(self, step: Step, batch_size: int):
        self.__dict__.update(step.__dict__)
        self.index = torch.zeros(batch_size, dtype=torch.int64, device=self.sums.device)
        self.graph = self._record(step)

    def _record(self, step: Step) -> torch.cuda.CUDAGraph:
        # Recording needs a few real steps first, and they must leave no trace.
        kept = [*self.network.state_dict().values(), self.sums]
        kept += [state["momentum_buffer"] for state in self.optimizer.state.values()]
        before = [tensor.clone() for tensor in kept]
        random_state = torch.cuda.get_rng_state(self.sums.device)
        # A stream that no other graph is recorded on: what cuBLAS keeps for a stream, all graphs recorded there share.
        outside = torch.cuda.current_stream(self.sums.device)
        shared = outside == torch.cuda.default_stream(self.sums.device)
        stream = torch.cuda.Stream(self.sums.device) if shared else outside
        stream.wait_stream(outside)
        with torch.cuda.stream(stream):
            for _ in range(3):
                step(self.index)
        outside.wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph, stream=stream):
            step(self.index)
        with torch.no_grad():
            for tensor, value in zip(kept, before, strict=True):
                tensor.copy_(value)
        torch.cuda.set_rng_state(random_state, self.sums.device)
        return graph

    def __call__(self, index: Tensor) -> None:
        self.index.copy_(index)
        self.graph.replay()

    def release(self) -> None:
        """Before another graph is recorded on the same stream: giving this one up later would break that one."""
        self.graph.reset()


class Decayed(Protocol):
    """A network that knows which of its parameters L₂ falls on."""

    def parameters(self) -> Iterator[nn.Parameter]: ...
    def decayed_parameters(self) -> list[nn.Parameter]: ...


def nesterov(network: Decayed, experiment: Experiment, device: torch.device) -> torch.optim.SGD:
    """SGD with Nesterov momentum; λ_WD acts on what the paper's L₂ falls on and on nothing else."""
    training = experiment.training
    decayed = network.decayed_parameters()
    chosen = {id(p) for p in decayed}
    others = [p for p in network.parameters() if id(p) not in chosen]
    fused = getattr(network, "engine", None) is not None and training.momentum > 0
    optimizer = (kernels.FusedNesterov if fused else torch.optim.SGD)(
        [{"params": decayed, "weight_decay": training.weight_decay}, {"params": others, "weight_decay": 0.0}],
        # A tensor, because a recorded step reads it anew every time.
        lr=torch.tensor(training.lr, device=device),
        momentum=training.momentum,
        nesterov=training.momentum > 0,
        fused=True,  # the other forms wait for the device to read the rate
    )
    for group in optimizer.param_groups:
        for p in group["params"]:  # there from the start, so that every step is the same step
            optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)
    return optimizer
