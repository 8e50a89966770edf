"""The full description of a run: data, network, objective, training. A recipe is a function that returns one."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from .data import DataConfig
from .errors import InputError
from .network import WCapsNetConfig
from .objective import PAPER, Objective
from .settings import from_dict

PRECISIONS = ("fp32", "bf16")
KERNELS = ("auto", "fused", "plain")
OPTIMIZERS = ("sgd", "adamw")
SCHEDULES = ("steps", "exponential")


@dataclass(frozen=True)
class TrainingConfig:
    """Section V-B. The defaults are the paper's for CIFAR."""

    epochs: int = 300
    batch_size: int = 64
    optimizer: str = "sgd"  # or "adamw"
    lr: float = 0.1
    schedule: str = (
        "steps"  # by milestones, or "exponential": the rate is multiplied by `decay` after every epoch, down to `floor`
    )
    milestones: tuple[int, ...] = (150, 200, 250)  # epochs after which the learning rate decreases
    decay: float = 0.1  # factor applied at each milestone, or after every epoch
    floor: float = 0.0  # lowest learning rate of the exponential schedule
    warmup: int = 0  # epochs before the learning rate reaches its full value (D33)
    momentum: float = 0.9  # β₁ of AdamW
    nesterov: bool = True  # False: plain momentum
    weight_decay: float = 1e-4  # λ_WD, on the network's decayed_parameters()
    patience: int | None = None  # stop after this many epochs without a better validation accuracy (D13)
    precision: str = "fp32"
    kernels: str = "auto"  # fused CUDA kernels where supported, or plain PyTorch
    cuda_graph: bool = True  # on CUDA: record the whole step once and replay it
    seed: int = 0

    def __post_init__(self) -> None:
        def require(holds: bool, name: str, needs: str) -> None:
            if not holds:
                raise InputError(f"training.{name} is {getattr(self, name)!r}, but it must be {needs}.")

        for name in ("epochs", "batch_size"):
            require(getattr(self, name) >= 1, name, "at least 1")
        require(math.isfinite(self.lr) and self.lr > 0, "lr", "above zero")
        require(self.optimizer in OPTIMIZERS, "optimizer", "one of " + ", ".join(OPTIMIZERS))
        require(self.schedule in SCHEDULES, "schedule", "one of " + ", ".join(SCHEDULES))
        require(0 <= self.floor <= self.lr, "floor", "between 0 and the learning rate")
        require(self.warmup >= 0, "warmup", "zero or more epochs")
        require(0 < self.decay <= 1, "decay", "above 0 and at most 1")
        require(0 <= self.momentum < 1, "momentum", "at least 0 and below 1")
        require(math.isfinite(self.weight_decay) and self.weight_decay >= 0, "weight_decay", "zero or more")
        increasing = list(self.milestones) == sorted(set(self.milestones)) and all(m > 0 for m in self.milestones)
        require(increasing, "milestones", "increasing epochs")
        require(self.patience is None or self.patience >= 1, "patience", "at least 1, or none")
        require(self.precision in PRECISIONS, "precision", "one of " + ", ".join(PRECISIONS))
        require(self.kernels in KERNELS, "kernels", "one of " + ", ".join(KERNELS))
        require(0 <= self.seed < 2**63, "seed", "a non-negative integer")

    def learning_rate(self, epoch: int) -> float:
        """The learning rate of an epoch (counted from 0): by default it drops to a tenth after 150, 200 and 250 epochs.

        During a warm-up of w epochs it is 1, 2, … w parts in w + 1 of that rate.
        """
        rising = min(1.0, (epoch + 1) / (self.warmup + 1))
        if self.schedule == "exponential":
            return rising * max(self.floor, self.lr * self.decay**epoch)
        return self.lr * rising * self.decay ** sum(epoch >= milestone for milestone in self.milestones)

    def with_epochs(self, epochs: int) -> TrainingConfig:
        """The same schedule for another number of epochs: milestones, warm-up and exponential decay scale with it."""
        moved = sorted({max(1, round(m * epochs / self.epochs)) for m in self.milestones})
        warmup = round(self.warmup * epochs / self.epochs)
        decay = self.decay ** (self.epochs / epochs) if self.schedule == "exponential" else self.decay
        return replace(self, epochs=epochs, milestones=tuple(moved), warmup=warmup, decay=decay)


@dataclass(frozen=True)
class Experiment:
    name: str  # default name of the run folder
    data: DataConfig = field(default_factory=DataConfig)
    model: Any = field(default_factory=WCapsNetConfig)  # the configuration of any registered architecture
    objective: Objective = PAPER
    training: TrainingConfig = field(default_factory=TrainingConfig)

    def __post_init__(self) -> None:
        if self.name.strip() in ("", ".", "..") or {"/", "\\"} & set(self.name):
            raise InputError(f"name is {self.name!r}, but it must be a valid folder name.")


def stored_experiment(data: Any) -> Experiment:
    """An experiment from a file written by this version or an earlier one.

    Earlier versions summed L̃_WS over levels; now the objective uses the mean (D7). Their λ_WS is therefore multiplied
    by the number of levels, so that the returned experiment trains as the file's did.
    """
    objective = data.get("objective") if isinstance(data, dict) else None
    if isinstance(objective, dict) and {"lambda_ws", "lambda_r"} & set(objective):
        levels = len(from_dict(Experiment, {**data, "objective": {}}).model.levels)
        old = Objective(objective)
        mean = round(old.get("wasserstein", 0.2) * levels, 12)
        terms = {"cross_entropy": 1.0, "wasserstein": mean, "reconstruction": old.get("reconstruction", 0.1)}
        data = {**data, "objective": terms}
    return from_dict(Experiment, data)
