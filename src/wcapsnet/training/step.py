"""One training step, run eagerly or as one CUDA graph."""

from __future__ import annotations

import torch
from torch import Tensor

from ..data.device_data import DeviceSplit
from ..device import arithmetic
from ..engine import Engine
from ..experiment import Experiment
from ..objective import Objective


def summed(objective: Objective) -> tuple[str, ...]:
    """Sums accumulated on the device, without synchronising. Batches have equal size, so means are exact."""
    return ("total", *objective, "accuracy", "steps")


class Step:
    """Take a batch, augment, forward, loss, backward, update; adds the step's figures to `sums`."""

    def __init__(self, experiment: Experiment, engine: Engine, optimizer: torch.optim.Optimizer, data: DeviceSplit):
        self.experiment, self.engine, self.optimizer, self.data = experiment, engine, optimizer, data
        self.summed = summed(experiment.objective)
        self.sums = torch.zeros(len(self.summed), dtype=torch.float64, device=data.labels.device)

    def __call__(self, index: Tensor) -> None:
        experiment, engine = self.experiment, self.engine
        images, labels = engine.batch(self.data, index, experiment.data.augmentations())
        with arithmetic(experiment.training.precision, images.device):
            output = engine.forward(images, labels)
            terms = engine.terms(output, images, labels, experiment.objective, self.sums)
        self.optimizer.zero_grad(set_to_none=True)
        engine.backward(terms.total)
        self.optimizer.step()

    def means(self) -> dict[str, float]:
        """Means since `sums` was last zeroed, by name"""
        *sums, steps = self.sums.tolist()
        return {name: value / max(steps, 1) for name, value in zip(self.summed, sums, strict=False)}

    def release(self) -> None:
        """Free what outlives the object; it must not be called afterwards."""


class GraphedStep(Step):
    """The same step, recorded once and replayed: one launch per step instead of thousands."""

    def __init__(self, step: Step, batch_size: int):
        self.__dict__.update(step.__dict__)
        self.index = torch.zeros(batch_size, dtype=torch.int64, device=self.sums.device)
        self.graph = self._record(step)

    def _record(self, step: Step) -> torch.cuda.CUDAGraph:
        # Recording needs a few real steps first; their effects are undone.
        kept = [*self.engine.network.state_dict().values(), self.sums]
        kept += [tensor for state in self.optimizer.state.values() for tensor in state.values()]
        before = [tensor.clone() for tensor in kept]
        random_state = torch.cuda.get_rng_state(self.sums.device)
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
        with torch.no_grad():
            for tensor, value in zip(kept, before, strict=True):
                tensor.copy_(value)
        torch.cuda.set_rng_state(random_state, self.sums.device)
        return graph

    def __call__(self, index: Tensor) -> None:
        self.index.copy_(index)
        self.graph.replay()

    def release(self) -> None:
        """Call this before recording another graph on the same stream: freeing this one later would break the other."""
        self.graph.reset()


def make_optimizer(engine: Engine, experiment: Experiment, device: torch.device) -> torch.optim.Optimizer:
    """SGD with Nesterov or plain momentum, or AdamW; λ_WD applies to the network's `decayed_parameters()`."""
    training, network = experiment.training, engine.network
    decayed = network.decayed_parameters()
    chosen = {id(p) for p in decayed}
    others = [p for p in network.parameters() if id(p) not in chosen]
    groups = [{"params": decayed, "weight_decay": training.weight_decay}, {"params": others, "weight_decay": 0.0}]
    # The learning rate is a tensor because a recorded step reads it at every replay.
    lr = torch.tensor(training.lr, device=device)
    optimizer: torch.optim.Optimizer
    if training.optimizer == "adamw":
        betas = training.momentum, 0.999
        optimizer = torch.optim.AdamW(groups, lr, betas, fused=True, capturable=device.type == "cuda")
    elif training.nesterov:
        optimizer = engine.optimizer(groups, lr, training.momentum)
    else:
        optimizer = torch.optim.SGD(groups, lr, training.momentum, fused=True)
    for group in optimizer.param_groups:
        for p in group["params"]:  # created up front, so that all steps are identical
            optimizer.state[p] = _initial_state(optimizer, p)
    return optimizer


def _initial_state(optimizer: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    if isinstance(optimizer, torch.optim.AdamW):
        step = torch.zeros((), device=parameter.device)
        return {"step": step, "exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}
    return {"momentum_buffer": torch.zeros_like(parameter)}
