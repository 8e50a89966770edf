"""What the tests of data-parallel training start under torchrun: `equal FOLDER`, or `train FOLDER OPTIONS`.

Experiments without noise, dropout and augmentation: everything else is promised to equal one process.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from training_helpers import rows_of_light, toy_dataset  # noqa: E402

from baselines.small import SMALL, small  # noqa: E402
from twins.tiny import quiet, tiny  # noqa: E402
from wcapsnet import api  # noqa: E402
from wcapsnet.api import training  # noqa: E402
from wcapsnet.cli.exit import in_a_sentence  # noqa: E402
from wcapsnet.data import DataConfig, Dataset  # noqa: E402
from wcapsnet.data.types import Augmentations  # noqa: E402
from wcapsnet.engine import Engine  # noqa: E402
from wcapsnet.errors import InputError  # noqa: E402
from wcapsnet.experiment import Experiment, TrainingConfig  # noqa: E402
from wcapsnet.objective import PAPER, Objective, wasserstein  # noqa: E402
from wcapsnet.parts import loss_term  # noqa: E402
from wcapsnet.training import data_parallel  # noqa: E402
from wcapsnet.training.console import Progress  # noqa: E402
from wcapsnet.training.distributed import Ranks, joined  # noqa: E402
from wcapsnet.training.run_folder import Run  # noqa: E402
from wcapsnet.training.trainer import Trainer  # noqa: E402


@loss_term("test-spread")
def spread(output: Any, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """A plugin's term that is no mean over images: the spread of the logits and of the brightness over the batch"""
    return output.logits.std(0).mean() * images.mean((1, 2, 3)).std()


def experiment(model: Any, objective: Objective | None = None, **training: Any) -> Experiment:
    settings = {"epochs": 2, "batch_size": 12, "milestones": (1,), "lr": 0.05, "seed": 3, **training}
    data = DataConfig(source="toy", normalization="standardize")
    return Experiment("toy", data, model, objective or PAPER, TrainingConfig(**settings))


def experiments() -> dict[str, Experiment]:
    """Two epochs of four steps"""
    soft = quiet({"weighting": "softmax"}, channels=1)
    normalized = quiet({"weighting": "normalized"}, channels=1)
    ours = [name for name, term in loss_term.items() if term.__module__ == wasserstein.__module__]
    every = Objective({name: 1.0 if name == "cross_entropy" else 0.1 for name in ours if name != "wasserstein"})
    return {
        "softmax": experiment(soft),
        "normalized": experiment(normalized, averaging=0.9),
        "every-term": experiment(soft, every),
        "adamw": experiment(soft, optimizer="adamw", lr=0.01),
        "plugin": experiment(normalized, Objective({"cross_entropy": 1.0, "wasserstein": 0.5, "test-spread": 0.3})),
        "balanced": replace(experiment(soft), data=DataConfig(source="toy", balance=True)),
        "one-image-each": experiment(soft, batch_size=2, epochs=1, epoch_steps=3),
        "patience": experiment(soft, patience=1, lr=1e-6, epochs=4, schedule="cosine", milestones=()),
    }


def at_random() -> Experiment:
    """With noise, dropout and augmentation, mixing included: not equal to one process"""
    data = DataConfig(source="toy", mirror=True, shift=1, augment=Augmentations(mixup=1.0))
    return replace(experiment(tiny(channels=1)), data=data)


def every_model() -> dict[str, Experiment]:
    """One step of each registered model, without what it draws at random"""
    still = {"crop": 0, "dropout": 0.0, "critic_dropout": 0.0, "projection_dropout": 0.0}
    found = {}
    for name in SMALL:
        config = small(name).config
        off = {field: value for field, value in still.items() if hasattr(config, field)}
        if hasattr(config, "routing") and hasattr(config.routing, "noise_share"):
            off["routing"] = replace(config.routing, noise_share=0.0, dropout=0.0)
        terms = Objective(getattr(config, "terms", PAPER))
        found[f"model-{name}"] = experiment(replace(config, **off), terms, epochs=1, epoch_steps=1, lr=0.01)
    return found


def images_for(given: Experiment) -> Dataset:
    dataset = toy_dataset()
    if given.data.balance:  # classes of different sizes
        some = (dataset.train.labels == 0) | (torch.arange(50) < 40)
        dataset = replace(dataset, train=type(dataset.train)(*(part[some] for part in dataset.train)))
    if given.model.height != 8:
        parts = (rows_of_light(count, seed, given.model.height) for seed, count in enumerate((12, 5, 5)))
        dataset = Dataset("toy", dataset.classes, *parts)
    return dataset


def trained(path: Path, given: Experiment, ranks: Ranks) -> None:
    """Train in this group, or alone"""
    run = Run.create(path, given, {}) if ranks.first else Run(path, given)
    Trainer(run, images_for(given), ranks.device, Progress(), ranks).fit()


def equal(out: Path) -> None:
    with joined("cpu") as ranks:
        for name, given in {**experiments(), **every_model()}.items():
            trained(out / name, given, ranks)
        trained(out / "minutes", experiment(quiet(channels=1), minutes=0.1), ranks)
        trained(out / "random", at_random(), ranks)
        # What the comparison must notice: a part that is computed for each rank alone.
        data_parallel.MEANS.add(wasserstein)
        trained(out / "wrong-normalisers", experiments()["normalized"], ranks)
        data_parallel.MEANS.remove(wasserstein)
        data_parallel.DataParallel.forward = Engine.forward  # type: ignore[method-assign]
        trained(out / "wrong-norms", experiments()["softmax"], ranks)


def digits(**training: Any) -> Experiment:
    """Two epochs of five steps on digits of the package; 1, 2 and 3 processes can share a batch"""
    settings = {"epochs": 2, "batch_size": 12, "milestones": (), "lr": 0.05, "epoch_steps": 5, **training}
    model = quiet(classes=10, channels=1, height=28, width=28)
    return Experiment("digits", DataConfig(source="sample", validation=50), model, PAPER, TrainingConfig(**settings))


def dying(rank: int, step: int, number: int, note: Path) -> None:
    """Send this rank a signal in a step (from 0), after its forward pass."""
    backward, calls = data_parallel.DataParallel.backward, []

    def killed(self: Any, total: torch.Tensor) -> None:
        calls.append(total)
        if int(os.environ["RANK"]) == rank and len(calls) == step + 1:
            note.touch()
            os.kill(os.getpid(), number)
        backward(self, total)

    data_parallel.DataParallel.backward = killed  # type: ignore[method-assign]


def on_worker(wrong: str) -> None:
    """Rank 1 has no images, or others."""
    load = training.dataset_of

    def loaded(*args: Any, **kwargs: Any) -> Dataset:
        if wrong == "missing":
            raise InputError("There are no images here.")
        dataset = load(*args, **kwargs)
        return replace(dataset, train=dataset.train._replace(labels=dataset.train.labels.flip(0)))

    if os.environ["RANK"] == "1":
        training.dataset_of = loaded


def main(what: str, place: str, *more: str) -> None:
    torch.set_num_threads(1)
    if what == "equal":
        equal(Path(place))
        return
    options = json.loads(more[0])
    if at := options.pop("signal", None):
        dying(*at, note=Path(place, "signalled"))
    if wrong := options.pop("wrong", None):
        on_worker(wrong)
    target = None if "resume" in options else digits(**options.pop("training", {}))
    with in_a_sentence():
        answer = api.train(target, **options, report=False)
    rank, threads = os.environ.get("RANK", 0), Path("/proc/self/task").glob("*/comm")
    Path(place, f"threads-{rank}").write_text("".join(path.read_text() for path in threads))
    Path(place, f"answer-{rank}.json").write_text(json.dumps(answer.results))


if __name__ == "__main__":
    main(*sys.argv[1:])
