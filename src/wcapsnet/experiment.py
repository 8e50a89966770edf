"""The full description of a run: data, network, objective, training. A recipe is a function that returns one."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from . import baselines  # noqa: F401 - an experiment may name any built-in part
from .data import DataConfig
from .data.huggingface import PREFIX
from .errors import InputError, shown
from .network import WCapsNetConfig
from .objective import PAPER, Objective
from .settings import checked, from_dict, to_dict

PRECISIONS = ("fp32", "bf16")
KERNELS = ("auto", "fused", "plain", "compiled")
MAX_COUNT = 2**31 - 1
MAX_RATE = 3.4e38  # the largest number of float32
SCHEDULES = ("steps", "cosine", "exponential")
OPTIMIZERS = ("sgd", "adamw")


@dataclass(frozen=True)
class TrainingConfig:
    """Section V-B. The defaults are the paper's for CIFAR."""

    epochs: int = 300
    batch_size: int = 64
    lr: float = 0.1
    milestones: tuple[int, ...] = (150, 200, 250)  # epochs after which the learning rate decreases
    decay: float = 0.1  # factor applied at each milestone; for an exponential schedule, per epoch
    schedule: str = "steps"  # by milestones; "cosine", down to zero at the end; or "exponential"
    floor: float = 0.0  # lowest learning rate of the exponential schedule
    warmup: int = 0  # epochs before the learning rate reaches its full value (D33)
    optimizer: str = "sgd"  # or "adamw"
    momentum: float = 0.9  # of SGD; β₁ of AdamW
    nesterov: bool = True  # False: plain momentum
    weight_decay: float = 1e-4  # λ_WD, on decayed_parameters(), training/step.py
    sharpening: int = 0  # number of epochs over which the routing sharpness grows from 1 to its value (D42)
    averaging: float = 0.0  # decay of a moving average of the weights, which is evaluated in their place; 0: off
    epoch_steps: int | None = None  # end an epoch after this many steps; None: after all images
    minutes: float | None = None  # set epochs so that the run, its test and its report take this long
    patience: int | None = None  # stop after this many epochs without a better validation accuracy (D13)
    precision: str = "fp32"
    kernels: str = "auto"  # fused CUDA kernels where supported, else plain PyTorch; "compiled": torch.compile
    cuda_graph: bool = True  # on CUDA: record the whole step once and replay it
    seed: int = 0

    def __post_init__(self) -> None:
        check = checked(self, "training")
        for name in ("epochs", "batch_size"):
            check(name, 1 <= getattr(self, name) <= MAX_COUNT, f"between 1 and {MAX_COUNT:,}")
        check("schedule", self.schedule in SCHEDULES, "one of " + ", ".join(SCHEDULES))
        check("optimizer", self.optimizer in OPTIMIZERS, "one of " + ", ".join(OPTIMIZERS))
        check("averaging", 0 <= self.averaging < 1, "at least 0 and below 1")
        steps = self.epoch_steps
        check("epoch_steps", steps is None or 1 <= steps <= MAX_COUNT, f"between 1 and {MAX_COUNT:,}, or none")
        check("minutes", self.minutes is None or 0 < self.minutes < math.inf, "above zero and finite, or none")
        check("lr", 0 < self.lr <= MAX_RATE, f"above zero and at most {MAX_RATE:g}")
        check("floor", 0 <= self.floor <= self.lr, "between 0 and the learning rate")
        check("warmup", 0 <= self.warmup <= MAX_COUNT, f"between 0 and {MAX_COUNT:,} epochs")
        check("sharpening", 0 <= self.sharpening <= MAX_COUNT, f"between 0 and {MAX_COUNT:,} epochs")
        check("decay", 0 < self.decay <= 1, "above 0 and at most 1")
        check("momentum", 0 <= self.momentum < 1, "at least 0 and below 1")
        check("weight_decay", 0 <= self.weight_decay <= MAX_RATE, f"between 0 and {MAX_RATE:g}")
        increasing = list(self.milestones) == sorted(set(self.milestones)) and all(m > 0 for m in self.milestones)
        check("milestones", increasing, "increasing epochs")
        check("patience", self.patience is None or self.patience >= 1, "at least 1, or none")
        check("precision", self.precision in PRECISIONS, "one of " + ", ".join(PRECISIONS))
        check("kernels", self.kernels in KERNELS, "one of " + ", ".join(KERNELS))
        check("seed", 0 <= self.seed < 2**63, f"between 0 and {2**63 - 1:,}")

    def learning_rate(self, epoch: float) -> float:
        """The learning rate after `epoch` epochs: by default it drops to a tenth after 150, 200 and 250 epochs.

        During a warm-up of w epochs it is 1, 2, … w parts in w + 1 of that rate. With the cosine and exponential
        schedules, `epoch` need not be whole: the rate changes at every step.
        """
        if self.schedule == "steps":
            epoch = math.floor(epoch)
        rising = min(1.0, (epoch + 1) / (self.warmup + 1))
        if self.schedule == "cosine":
            past = max(0.0, epoch - self.warmup) / max(self.epochs - self.warmup, 1e-9)
            return self.lr * rising * 0.5 * (1 + math.cos(math.pi * min(1.0, past)))
        if self.schedule == "exponential":
            return rising * max(self.floor, self.lr * self.decay**epoch)
        return self.lr * rising * self.decay ** sum(epoch >= milestone for milestone in self.milestones)

    def with_epochs(self, epochs: int) -> TrainingConfig:
        """The same schedule for another number of epochs: milestones, warm-up, sharpening, patience and exponential
        decay scale."""
        new = replace(self, epochs=epochs)  # refuses impossible numbers first
        moved = sorted({max(1, round(m * epochs / self.epochs)) for m in self.milestones})
        warmup, sharpening = (round(n * epochs / self.epochs) for n in (self.warmup, self.sharpening))
        patience = self.patience and max(1, round(self.patience * epochs / self.epochs))
        decay = self.decay ** (self.epochs / epochs) if self.schedule == "exponential" else self.decay
        new = replace(new, milestones=tuple(moved), warmup=warmup, sharpening=sharpening)
        return replace(new, patience=patience, decay=decay)

    def out_of_patience(self, epoch: int, best: int) -> bool:
        """Whether to stop after `epoch` epochs if epoch `best` had the best validation accuracy. With milestones,
        patience counts from the first decrease of the learning rate: before it, a plateau says little (D13)."""
        started = max(best, self.milestones[0]) if self.schedule == "steps" and self.milestones else best
        return self.patience is not None and epoch - started >= self.patience


@dataclass(frozen=True)
class Start:
    """Trained weights to start from, instead of random ones."""

    source: str  # a shipped network, or the path of a run folder or file
    checksum: str  # of the weights file; the run folder keeps a copy

    def __post_init__(self) -> None:
        if not self.source.strip() or not self.checksum:
            raise InputError("start needs a source and its checksum; use --from NAME, RUN or FILE.")


@dataclass(frozen=True)
class Experiment:
    name: str  # default name of the run folder
    data: DataConfig = field(default_factory=DataConfig)
    model: Any = field(default_factory=WCapsNetConfig)  # the configuration of any registered architecture
    objective: Objective = None  # type: ignore[assignment]  # the model's `terms`, or the paper's
    training: TrainingConfig = field(default_factory=TrainingConfig)
    start: Start | None = None  # None: random weights

    def __post_init__(self) -> None:
        if self.objective is None:
            object.__setattr__(self, "objective", Objective(getattr(self.model, "terms", PAPER)))
        if self.training.sharpening and not hasattr(self.model, "routing"):
            raise InputError(
                f"training.sharpening is {self.training.sharpening}, but this network has no routing; set it to 0."
            )
        if self.name.strip() in ("", ".", "..") or {"/", "\\", "\0"} & set(self.name):
            raise InputError(f"name is {shown(self.name)}, but it must be a valid folder name.")
        for field_name, text in (("name", self.name), ("data.source", self.data.source)):
            if "\0" in text or text != text.encode(errors="ignore").decode():
                raise InputError(f"{field_name} is {shown(text)}, which is not valid Unicode; rename it.")


def published(experiment: Experiment) -> dict[str, Any]:
    """As plain values for a file to share: of local pictures and weights only the names, not the paths"""
    data, start = experiment.data, experiment.start
    return dict(
        to_dict(
            replace(
                experiment,
                data=replace(data, source=_without_path(data.source)),
                start=start and replace(start, source=Path(start.source).name),
            )
        )
    )


def _without_path(source: str) -> str:
    path = source.removeprefix(PREFIX)
    if path != source and not Path(path).is_absolute():  # on the Hub, where a name has an owner
        return source
    return source[: len(source) - len(path)] + (Path(path).name or path)


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
