"""One training step, run eagerly or as one CUDA graph."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..data.augment import Mixed
from ..data.device_data import DeviceSplit
from ..device import arithmetic, random_state, set_random_state, sum_dtype
from ..engine import Engine
from ..experiment import Experiment
from ..objective import Objective


def summed(objective: Objective) -> tuple[str, ...]:
    """Sums accumulated on the device, without synchronising. Batches have equal size, so means are exact."""
    return ("total", *objective, "accuracy", "steps")


class Step:
    """Take a batch, augment, forward, loss, backward, update; adds the step's figures to `sums`."""

    def __init__(
        self,
        experiment: Experiment,
        engine: Engine,
        optimizer: torch.optim.Optimizer,
        data: DeviceSplit,
        average: Average | None = None,
    ):
        self.experiment, self.engine, self.optimizer, self.data = experiment, engine, optimizer, data
        self.average = average
        self.summed = summed(experiment.objective)
        device = data.labels.device
        self.sums = torch.zeros(len(self.summed), dtype=sum_dtype(device), device=device)

    def __call__(self, index: Tensor) -> None:
        experiment, engine = self.experiment, self.engine
        batch, labels = engine.batch(*self.data.staged(index), experiment.data.augmentations())
        images, share = batch if isinstance(batch, Mixed) else (batch, None)
        with arithmetic(experiment.training.precision, images.device):
            output = engine.forward(images, labels)
            total = engine.terms(output, images, labels, experiment.objective, self.sums, share).total
        self.optimizer.zero_grad(set_to_none=True)
        engine.backward(total)
        self.optimizer.step()
        if self.average:
            self.average.update()

    def tensors(self) -> list[Tensor]:
        """Everything that a step changes, except random states"""
        changed = [*self.engine.network.state_dict().values(), self.sums]
        changed += [value for state in self.optimizer.state.values() for value in state.values()]
        return changed + (self.average.tensors() if self.average else [])

    def means(self) -> dict[str, float]:
        """Means since `sums` was last zeroed, by name"""
        *sums, steps = self.sums.tolist()
        return {name: value / max(steps, 1) for name, value in zip(self.summed, sums, strict=False)}

    def release(self) -> None:
        """Free what outlives the object; it must not be called afterwards."""


class GraphedStep(Step):
    """The same step, recorded once and replayed: one launch per step instead of thousands."""

    def __init__(self, step: Step, batch_size: int):
        self.source = step.data
        step.data = step.data.window(batch_size)  # streamed images: the graph reads every batch from the same memory
        self.__dict__.update(step.__dict__)
        self.index = torch.zeros(batch_size, dtype=torch.int64, device=self.sums.device)
        with undone(step):  # recording needs a few real steps first
            self.graph = self._record(step)

    def _record(self, step: Step) -> torch.cuda.CUDAGraph:
        # A separate stream for each graph: graphs recorded on the same stream share cuBLAS's workspace for it.
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
        return graph

    def __call__(self, index: Tensor) -> None:
        if self.source is not self.data:
            index = self.source.copy_to(self.data, index)
        self.index.copy_(index)
        self.graph.replay()

    def release(self) -> None:
        """Call this before recording another graph on the same stream: freeing this one later would break the other."""
        self.graph.reset()


@contextmanager
def undone(step: Step) -> Iterator[None]:
    """Steps taken inside leave no trace: afterwards weights, optimizer, averages and random numbers are as before."""
    restore = remembered(step.tensors(), step.sums.device)
    yield
    restore()


def remembered(tensors: list[Tensor], device: torch.device) -> Callable[[], None]:
    """A function that sets these tensors and the random numbers back to what they are now"""
    before = [tensor.clone() for tensor in tensors]
    on_cpu, on_device = torch.get_rng_state(), random_state(device)

    @torch.no_grad()
    def restore() -> None:
        for tensor, value in zip(tensors, before, strict=True):
            tensor.copy_(value)
        torch.set_rng_state(on_cpu)
        if on_device is not None:
            set_random_state(device, on_device)

    return restore


class Average:
    """A moving average of the weights:  w̄ ← w̄ + (1 − d_t) (w − w̄),  d_t = min(decay, (1 + t) / (10 + t))

    Running statistics of batch norms are averaged alike. Other buffers are copied: the critics' singular vectors would
    lose their length in an average.
    """

    def __init__(self, network: nn.Module, decay: float):
        self.network: Any = copy.deepcopy(network).eval().requires_grad_(False)
        self.decay = decay
        device = next(network.parameters()).device
        self.steps = torch.zeros((), dtype=sum_dtype(device), device=device)  # t
        own, other = self.network.state_dict(), network.state_dict(keep_vars=True)
        averaged = [name for name, _ in network.named_parameters()]
        averaged += [name for name, _ in network.named_buffers() if name.endswith(("running_mean", "running_var"))]
        self._averaged = [own[name] for name in averaged], [other[name].detach() for name in averaged]
        copied = [name for name in own if name not in set(averaged)]
        self._copied = [own[name] for name in copied], [other[name] for name in copied]

    @torch.no_grad()
    def update(self) -> None:
        self.steps += 1
        rate = (9 / (10 + self.steps)).clamp_min(1 - self.decay).float()  # 1 − d_t
        averages, values = self._averaged
        difference = torch._foreach_sub(values, averages)
        torch._foreach_mul_(difference, rate)
        torch._foreach_add_(averages, difference)
        if self._copied[0]:
            torch._foreach_copy_(*self._copied)

    def tensors(self) -> list[Tensor]:
        return [*self.network.state_dict().values(), self.steps]


def decayed_parameters(network: nn.Module) -> list[nn.Parameter]:
    """The network's own choice, if it has one; otherwise all with more than one dimension: no biases, no norms"""
    if hasattr(network, "decayed_parameters"):
        return list(network.decayed_parameters())  # type: ignore[operator]
    return [p for p in network.parameters() if p.dim() > 1]


def make_optimizer(engine: Engine, experiment: Experiment, device: torch.device) -> torch.optim.Optimizer:
    """SGD with Nesterov or plain momentum, or AdamW; λ_WD applies to `decayed_parameters`."""
    training, network = experiment.training, engine.network
    decayed = decayed_parameters(network)
    chosen = {id(p) for p in decayed}
    others = [p for p in network.parameters() if id(p) not in chosen]
    groups = [{"params": decayed, "weight_decay": training.weight_decay}, {"params": others, "weight_decay": 0.0}]
    # The learning rate is a tensor because a recorded step reads it at every replay.
    rate = torch.tensor(training.lr, device=device)
    optimizer = engine.optimizer(groups, rate, training.momentum, training.optimizer, training.nesterov)
    for group in optimizer.param_groups:
        for p in group["params"]:  # created up front, so that all steps are identical
            optimizer.state[p].update(_initial_state(optimizer, p))
    return optimizer


def _initial_state(optimizer: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    if isinstance(optimizer, torch.optim.AdamW):
        step = torch.zeros((), device=parameter.device)
        return {"step": step, "exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}
    return {"momentum_buffer": torch.zeros_like(parameter)}
