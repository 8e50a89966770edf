"""Compare `wcapsnet train FOLDER` on a CPU with training from scratch, equal weights and a plain CNN.

    python tools/photographs.py DATA_DIR --pretrain RUN    train the recipe small-cifar100 on 80 classes of CIFAR-100
    python tools/photographs.py DATA_DIR --choose RUN      fine-tune RUN with several learning rates and lengths
    python tools/photographs.py DATA_DIR --measure RUN     train all systems on all folders
    python tools/photographs.py                            update docs/results.md from results/photographs/

DATA_DIR holds CIFAR-100 and CIFAR-10, which are written as folders of picture files, and stamps/, the folder
/usr/share/tuxpaint/stamps of Debian's package tuxpaint-stamps-default (2022.06.04). Folders of CIFAR-100 start from
RUN, the others from the shipped network; neither has seen the CIFAR classes that it is fine-tuned on. `--choose` uses
neither the training nor the test pictures of `--measure`. Every run uses one thread. Cost is CPU time, which a busy
machine hardly affects. The CNN trains for as many epochs as fit into the CPU time of `wcapsnet train`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from filelock import FileLock
from PIL import Image
from torch import Tensor, nn

import wcapsnet
from records import mean_and_spread
from update_docs import filled
from wcapsnet.__main__ import keep_freed_memory
from wcapsnet.api import experiment_for
from wcapsnet.atomic import write_text
from wcapsnet.baselines.common import LogitsOutput, Pictures
from wcapsnet.data import DATASETS
from wcapsnet.experiment import Experiment
from wcapsnet.models import model_config
from wcapsnet.objective import PAPER, Objective, objective
from wcapsnet.parts import architecture
from wcapsnet.recipes import recipe
from wcapsnet.reports.tables import markdown_table
from wcapsnet.training.run_folder import Run

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "results" / "photographs" / "2026-11-18_two-cpu-cores.json"
PAGE = ROOT / "docs" / "results.md"
CLASSES = np.random.default_rng(0).permutation(100).tolist()  # of CIFAR-100; the defaults were chosen on the first 36
KNOWN, NEW = sorted(CLASSES[:80]), sorted(CLASSES[80:])  # used by --pretrain, and held out


class Folder(NamedTuple):
    title: str
    dataset: str
    classes: list[int]
    pictures: int  # per class; the loader splits off 15 % for validation
    side: int = 32  # pixels; CIFAR has 32
    new: bool = True  # whether there is a pretrained network that has not seen these classes

    def write(self, place: Path, data_dir: Path, **parts: tuple[str, slice]) -> None:
        """Write PLACE/part/CLASS/…. `parts`: CIFAR's split, and which of its images of each class to use"""
        info = DATASETS[self.dataset]
        raw = info.read(data_dir)
        names = raw.classes or info.classes
        for part, (origin, chosen) in parts.items():
            images, labels = getattr(raw, origin)
            for label in self.classes:
                into = place / part / names[label]
                into.mkdir(parents=True)
                for number, image in enumerate(images[labels == label][chosen]):
                    picture = Image.fromarray(image.transpose(1, 2, 0))
                    if self.side == 32:
                        picture.save(into / f"{number}.png", compress_level=1)
                    else:
                        enlarged = picture.resize((self.side, self.side), Image.Resampling.BICUBIC)
                        enlarged.save(into / f"{number}.jpg", quality=90)

    def write_measured(self, place: Path, data_dir: Path, seed: int) -> None:
        if self.dataset != "stamps":
            self.write(place, data_dir, train=("train", slice(self.pictures)), test=("test", slice(100)))
            return
        for name, folder in STAMPS.items():  # each seed tests on a different half of the photographs
            found = [path for path in sorted((data_dir / "stamps" / folder).rglob("*.png")) if _is_photograph(path)]
            order = np.random.default_rng(seed).permutation(len(found))
            for part, chosen in (("train", order[len(found) // 2 :]), ("test", order[: len(found) // 2])):
                (place / part / name).mkdir(parents=True)
                for index in chosen:
                    shutil.copyfile(found[index], place / part / name / found[index].name)


STAMPS = {
    "birds": "animals/birds",
    "mammals": "animals/mammals",
    "flowers": "plants/flowers",
    "fruit": "food/fruit",
    "vegetables": "food/vegetables",
}


def _is_photograph(stamp: Path) -> bool:
    drawn = {"cartoon", "plastic"} & set(stamp.parts)
    return not drawn and not stamp.stem.endswith(("_mirror", "_flip"))


FOLDERS = {
    "held-out": Folder("20 classes of CIFAR-100 × 50", "cifar100", NEW, 50),
    "cifar10": Folder("10 classes of CIFAR-10 × 60", "cifar10", list(range(10)), 60),
    "cifar10-enlarged": Folder("the same, enlarged to 96 px JPEG", "cifar10", list(range(10)), 60, 96),
    "stamps": Folder("5 classes of cut-out photographs × 9 to 33", "stamps", [], 0),
    "small": Folder("12 classes of CIFAR-100 × 60", "cifar100", CLASSES[36:48], 60, new=False),
    "enlarged": Folder("12 others × 60, enlarged to 96 px JPEG", "cifar100", CLASSES[48:60], 60, 96, new=False),
    "few": Folder("5 classes of CIFAR-100 × 200", "cifar100", CLASSES[60:65], 200, new=False),
}
CHOOSING = {"train": ("train", slice(50, 100)), "val": ("train", slice(100, 140)), "test": ("train", slice(140, 141))}
SYSTEMS = {
    "fine-tuned": "`wcapsnet train`",
    "scratch": "`--from none`",
    "uniform": "`--from none`, equal weights",
    "cnn": "plain CNN",
}


@dataclass(frozen=True)
class CNNConfig(Pictures):
    """Four stages of two 3×3 convolutions with batch norm and ReLU, max pooling between them, mean, linear layer."""

    widths: tuple[int, ...] = (16, 32, 64, 144)  # 0.34M parameters

    def build(self) -> CNN:
        return CNN(self)


class CNN(nn.Module):
    def __init__(self, config: CNNConfig):
        super().__init__()
        self.config = config
        layers: list[nn.Module] = []
        channels = config.channels
        for stage, width in enumerate(config.widths):
            layers += [nn.MaxPool2d(2)] if stage else []
            for _ in range(2):
                layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True)]
                channels = width
        self.features, self.linear = nn.Sequential(*layers), nn.Linear(channels, config.classes)

    def forward(self, images: Tensor) -> LogitsOutput:
        if self.training:  # as in wcapsnet-small: faster on CPUs
            images = images.contiguous(memory_format=torch.channels_last)
        return LogitsOutput(self.linear(self.features(images).mean((2, 3))))


def pretrain(data_dir: Path, out: Path, epochs: int | None) -> None:
    """Train the recipe small-cifar100 on the known classes."""
    whole = recipe("small-cifar100")
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / "known"
        Folder("", "cifar100", KNOWN, 0).write(
            place, data_dir, train=("train", slice(None)), test=("test", slice(None))
        )
        data = replace(whole.data, source=str(place), height=32, width=32, channels=3, validation=2000)
        known = replace(whole, data=data, model=replace(whole.model, classes=len(KNOWN)))
        wcapsnet.train(known, epochs=epochs, device="cpu", out=out, report=False)


def experiment_of(place: Path, seed: int, system: str, start: Path | None) -> Experiment:
    """The experiment of `system` on the pictures in `place`. `start` None: the default of `wcapsnet train`"""
    begin = start if system == "fine-tuned" else "none"
    experiment, _ = experiment_for(place, device=torch.device("cpu"), seed=seed, start_from=begin)
    model = experiment.model
    if system == "uniform":
        equal = replace(model, routing=replace(model.routing, fitness="constant"))
        plain = Objective({name: weight for name, weight in experiment.objective.items() if name != "wasserstein"})
        return replace(experiment, model=equal, objective=plain)
    if system == "cnn":
        # learning rate, weight decay and label smoothing tuned for the CNN on the classes for choosing
        training = replace(experiment.training, lr=0.002, weight_decay=0.05)
        cnn = CNNConfig(model.classes, model.channels, model.height, model.width)
        return replace(
            experiment, model=cnn, objective=Objective(cross_entropy=1.0, label_smoothing=0.1), training=training
        )
    return experiment


def trained(experiment: Experiment, out: Path) -> dict[str, Any]:
    """Train; return results and cost, including loading and testing."""
    began = time.process_time()
    done = wcapsnet.train(experiment, device="cpu", out=out, report=False, quiet=True)
    spent = time.process_time() - began
    return {
        "accuracy": done.accuracy,
        "images": done.results["images"],
        "validation_accuracy": done.results["validation_accuracy"],
        "epochs": done.results["epochs"],
        "cpu_seconds": round(spent, 1),
        "parameters": sum(p.numel() for p in done.load().network.parameters()),
    }


def with_epochs(experiment: Experiment, epochs: int) -> Experiment:
    return replace(experiment, training=experiment.training.with_epochs(max(1, epochs)))


def choose(data_dir: Path, source: Path, factors: list[float], lengths: list[float]) -> None:
    """Fine-tune with multiples of the default learning rate and number of epochs; record validation results only."""
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / "choosing"
        FOLDERS["held-out"].write(place, data_dir, **CHOOSING)
        for factor, length in itertools.product(factors, lengths):
            system = "fine-tuned" if factor else "scratch"
            experiment = experiment_of(place, 0, system, source)
            experiment = with_epochs(experiment, round(length * experiment.training.epochs))
            lr = experiment.training.lr * (factor or 1)
            experiment = replace(experiment, training=replace(experiment.training, lr=lr))
            run = trained(experiment, Path(scratch) / f"{factor}-{length}")
            kept = {"system": system, "lr": lr}
            kept |= {fact: run[fact] for fact in ("validation_accuracy", "epochs", "cpu_seconds")}
            print(kept, flush=True)
            keep(choosing=[*recorded().get("choosing", []), kept])


def measure(data_dir: Path, source: Path, folders: list[str], seeds: list[int], systems: list[str]) -> None:
    architecture("plain-cnn")(CNNConfig)
    if "fine-tuned" in systems:
        keep(source=described(source))
    done = {(run["folder"], run["seed"], run["system"]): run for run in recorded()["runs"]}
    costs: dict[str, tuple[float, float]] = {}
    for seed, name in itertools.product(seeds, folders):
        folder = FOLDERS[name]
        known = [system for system in systems if system != "fine-tuned" or folder.new]
        with tempfile.TemporaryDirectory() as scratch:
            place = Path(scratch) / name
            folder.write_measured(place, data_dir, seed)
            for system in (one for one in known if (name, seed, one) not in done):
                experiment = experiment_of(place, seed, system, source if folder.dataset == "cifar100" else None)
                if system == "cnn":
                    first, epoch = costs[name] = costs.get(name) or cost_of(experiment, Path(scratch))
                    rival = done[name, seed, "fine-tuned" if folder.new else "scratch"]
                    experiment = with_epochs(experiment, 1 + round((rival["cpu_seconds"] - first) / epoch))
                run = {"folder": name, "system": system, "seed": seed, **trained(experiment, Path(scratch) / system)}
                print(run, flush=True)
                done[name, seed, system] = run
                keep(run)


def cost_of(experiment: Experiment, scratch: Path) -> tuple[float, float]:
    """CPU seconds of a run of one epoch, and of each further epoch"""
    short, long = (trained(with_epochs(experiment, n), scratch / f"{n}")["cpu_seconds"] for n in (1, 13))
    return short, (long - short) / 12


def described(source: Path) -> dict[str, Any]:
    """Facts about the network that --pretrain trained"""
    results = Run.open(source).results()
    return {"classes": len(KNOWN)} | {
        name: results[name] for name in ("epochs", "validation_accuracy", "accuracy", "images")
    }


def step(network: nn.Module, images: Tensor, terms: Objective) -> float:
    """Seconds of CPU time for one forward and backward pass"""
    began = time.process_time()
    objective(network(images), images, torch.arange(len(images)) % 12, terms).total.backward()
    return time.process_time() - began


def cost() -> list[dict[str, Any]]:
    """CPU time of a forward and backward pass per image, and the share of it spent in convolutions"""
    rows = []
    for side in (32, 64):
        configs = {name: model_config(name, 12, 3, side, side) for name in ("wcapsnet-quick", "wcapsnet-small")}
        configs["plain CNN"] = CNNConfig(12, 3, side, side)
        for name, config in configs.items():
            network = config.build()
            images = torch.randn(32, 3, side, side)
            terms = Objective(cross_entropy=1.0) if isinstance(config, CNNConfig) else PAPER
            seconds = min(step(network, images, terms) for _ in range(8))
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
                for _ in range(4):
                    step(network, images, terms)
            spent = {event.key: event.self_cpu_time_total for event in profile.key_averages()}
            convolutions = sum(value for key, value in spent.items() if "conv" in key.lower())
            rows.append(
                {
                    "network": name,
                    "side": side,
                    "parameters": sum(p.numel() for p in network.parameters()),
                    "ms_per_image": round(1000 * seconds / len(images), 2),
                    "convolutions": round(convolutions / sum(spent.values()), 2),
                }
            )
    return rows


def recorded() -> dict[str, Any]:
    return dict(json.loads(RECORD.read_text())) if RECORD.exists() else {"runs": []}


def keep(*runs: dict[str, Any], **facts: Any) -> None:
    """Add to the record; other processes may add to it at the same time."""
    RECORD.parent.mkdir(exist_ok=True)
    with FileLock(RECORD.with_suffix(".lock")):
        record = recorded() | {
            **facts,
            "date": datetime.now(timezone.utc).date().isoformat(),
            "hardware": "two CPU cores, one thread per run",
            "versions": {
                "wcapsnet": wcapsnet.__version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
        }
        kept = [*record.pop("runs"), *runs]
        record["runs"] = sorted(kept, key=lambda one: (one["folder"], one["system"], one["seed"]))
        write_text(RECORD, json.dumps(record, indent=1) + "\n")


def table(record: dict[str, Any]) -> str:
    """Test accuracy and CPU time, each the mean over seeds"""
    systems = [system for system in SYSTEMS if any(run["system"] == system for run in record["runs"])]
    lines = [["test accuracy in % (seeds); CPU seconds", *(SYSTEMS[system] for system in systems)]]
    for name, folder in FOLDERS.items():
        cells = []
        for system in systems:
            runs = [run for run in record["runs"] if (run["folder"], run["system"]) == (name, system)]
            accuracy = mean_and_spread([100 * run["accuracy"] for run in runs], ".1f") if runs else ""
            seconds = round(statistics.fmean(run["cpu_seconds"] for run in runs)) if runs else 0
            cells.append(f"{accuracy} ({len(runs)}); {seconds} s" if runs else "–")
        lines += [[folder.title, *cells]] if set(cells) != {"–"} else []
    return markdown_table(lines)


def cost_table(record: dict[str, Any]) -> str:
    lines = [["training step, CPU time per image", "32 px", "64 px", "share of convolutions"]]
    rows = record.get("cost", [])
    for name in dict.fromkeys(row["network"] for row in rows):
        own = [row for row in rows if row["network"] == name]
        share = ", ".join(f"{100 * row['convolutions']:.0f} %" for row in own)
        lines.append([name, *(f"{row['ms_per_image']:.1f} ms" for row in own), share])
    return markdown_table(lines)


def choosing_table(record: dict[str, Any]) -> str:
    lines = [["one seed", "learning rate", "epochs", "validation accuracy, %", "CPU seconds"]]
    for run in record.get("choosing", []):
        accuracy, seconds = f"{100 * run['validation_accuracy']:.1f}", f"{run['cpu_seconds']:.0f}"
        lines.append([run["system"], f"{run['lr']:g}", str(run["epochs"]), accuracy, seconds])
    return markdown_table(lines)


def updated(record: dict[str, Any]) -> str:
    """docs/results.md"""
    tables = "\n".join(make(record) for make in (table, choosing_table, cost_table))
    return filled(PAGE, {"photographs": tables}, by="photographs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_dir", type=Path, nargs="?")
    parser.add_argument("--pretrain", type=Path, metavar="RUN")
    parser.add_argument("--choose", type=Path, metavar="RUN")
    parser.add_argument("--measure", type=Path, metavar="RUN")
    parser.add_argument("--cost", action="store_true", help="measure the cost of a training step")
    parser.add_argument("--epochs", type=int, help="--pretrain: number of epochs (default: the recipe's)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--folders", nargs="+", default=list(FOLDERS), choices=list(FOLDERS))
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=list(SYSTEMS))
    parser.add_argument(
        "--factors",
        type=float,
        nargs="+",
        default=[0, 0.5, 1, 2],
        help="--choose: factors of the learning rate; 0: from scratch",
    )
    parser.add_argument(
        "--lengths", type=float, nargs="+", default=[0.5, 1], help="--choose: factors of the number of epochs"
    )
    asked = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as the command does
    if asked.pretrain:
        pretrain(asked.data_dir, asked.pretrain, asked.epochs)
    if asked.choose:
        choose(asked.data_dir, asked.choose, asked.factors, asked.lengths)
    if asked.measure:
        measure(asked.data_dir, asked.measure, asked.folders, asked.seeds, asked.systems)
    if asked.cost:
        keep(cost=cost())
    if RECORD.exists():
        write_text(PAGE, updated(recorded()))


if __name__ == "__main__":
    main()
