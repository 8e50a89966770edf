"""`wcapsnet train FOLDER` against a plain CNN and against equal weights, on folders of photographs, at equal CPU time.

    python tools/photographs.py CIFAR100_DIR [--seeds 0 1 2] [--folders NAME …]    trains; writes results/photographs/
    python tools/photographs.py                                                   updates docs/results.md from it

The folders are built as picture files from the images of CIFAR-100 (`cifar-100-binary`). The classes reported here did
not serve to choose the defaults. Every run has one thread, and its cost is CPU time: a busy machine matters little.
The CNN trains for as many epochs as cost the CPU time of the default.
"""

from __future__ import annotations

import argparse
import json
import platform
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
from wcapsnet.api import experiment_for
from wcapsnet.atomic import write_text
from wcapsnet.experiment import Experiment
from wcapsnet.models import model_config
from wcapsnet.objective import PAPER, Objective, objective
from wcapsnet.parts import architecture

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "results" / "photographs" / "2026-11-18_two-cpu-cores.json"
PAGE = ROOT / "docs" / "results.md"
BEGIN, END = "<!-- photographs: made by tools/photographs.py -->", "<!-- end of photographs -->"
TEST = 100  # pictures per class in test/, from the test images of CIFAR-100


class Folder(NamedTuple):
    title: str
    classes: slice  # of the shuffled classes; the first 24 served to choose the defaults
    pictures: int  # per class, of which the loader splits 15 % off for validation
    side: int  # pixels; CIFAR's 32, or enlarged


FOLDERS = {
    "small": Folder("12 classes × 60, 32 px PNG", slice(36, 48), 60, 32),
    "enlarged": Folder("12 classes × 60, enlarged to 96 px JPEG", slice(48, 60), 60, 96),
    "few": Folder("5 classes × 200, 32 px PNG", slice(60, 65), 200, 32),
}
SYSTEMS = {"default": "`wcapsnet train`", "cnn": "plain CNN", "uniform": "equal weights"}


@dataclass(frozen=True)
class CNNConfig:
    """Four stages of two 3×3 convolutions with batch norm and ReLU, max pooling between them, mean, linear layer."""

    classes: int = 10
    channels: int = 3
    height: int = 32
    width: int = 32
    widths: tuple[int, ...] = (16, 32, 64, 144)  # 0.34M parameters

    def build(self) -> CNN:
        return CNN(self)


class CNNOutput(NamedTuple):
    logits: Tensor


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

    def forward(self, images: Tensor) -> CNNOutput:
        if self.training:  # as in wcapsnet-small: faster on CPUs
            images = images.contiguous(memory_format=torch.channels_last)
        return CNNOutput(self.linear(self.features(images).mean((2, 3))))

    def decayed_parameters(self) -> list[nn.Parameter]:
        return [p for p in self.parameters() if p.dim() > 1]


def build(name: str, source: Path, place: Path) -> None:
    """Write the pictures of a folder: train/CLASS/…, test/CLASS/…"""
    folder = FOLDERS[name]
    names = (source / "fine_label_names.txt").read_text().split()
    chosen = np.random.default_rng(0).permutation(100)[folder.classes]
    for part, count in (("train", folder.pictures), ("test", TEST)):
        rows = np.fromfile(source / f"{part}.bin", np.uint8).reshape(-1, 3074)
        for label in chosen:
            into = place / part / names[label]
            into.mkdir(parents=True)
            for number, row in enumerate(rows[rows[:, 1] == label][:count]):
                picture = Image.fromarray(row[2:].reshape(3, 32, 32).transpose(1, 2, 0))
                if folder.side == 32:
                    picture.save(into / f"{number}.png")
                else:
                    enlarged = picture.resize((folder.side, folder.side), Image.Resampling.BICUBIC)
                    enlarged.save(into / f"{number}.jpg", quality=90)


def experiments(place: Path, seed: int) -> dict[str, Experiment]:
    default, _ = experiment_for(place, device=torch.device("cpu"), seed=seed)
    model = default.model
    equal = replace(model, routing=replace(model.routing, fitness="constant"))
    plain = Objective({name: weight for name, weight in default.objective.items() if name != "wasserstein"})
    cnn = CNNConfig(model.classes, model.channels, model.height, model.width)
    # its own learning rate, weight decay and smoothing: what suited it best on the classes for choosing
    recipe = replace(default.training, lr=0.002, weight_decay=0.05)
    targets = Objective(cross_entropy=1.0, label_smoothing=0.1)
    return {
        "default": default,
        "cnn": replace(default, model=cnn, objective=targets, training=recipe),
        "uniform": replace(default, model=equal, objective=plain),
    }


def measured(experiment: Experiment, out: Path) -> dict[str, Any]:
    began = time.process_time()
    trained = wcapsnet.train(experiment, device="cpu", out=out, report=False, quiet=True)
    spent = time.process_time() - began
    network = trained.load().network
    return {
        "accuracy": trained.accuracy,
        "images": trained.results["images"],
        "epochs": trained.results["epochs"],
        "cpu_seconds": round(spent, 1),
        "parameters": sum(p.numel() for p in network.parameters()),
    }


def with_epochs(experiment: Experiment, epochs: int) -> Experiment:
    return replace(experiment, training=experiment.training.with_epochs(max(1, epochs)))


def measure(source: Path, folders: list[str], seeds: list[int], systems: list[str]) -> None:
    torch.set_num_threads(1)
    architecture("plain-cnn")(CNNConfig)
    done = {(run["folder"], run["seed"], run["system"]): run for run in recorded()["runs"]}
    costs: dict[
        str, tuple[float, float]
    ] = {}  # of the CNN's first epoch, with all that surrounds it, and of the others
    for seed in seeds:
        for folder in folders:
            with tempfile.TemporaryDirectory() as scratch:
                place = Path(scratch) / folder
                build(folder, source, place)
                for system, experiment in experiments(place, seed).items():
                    if system not in systems or (folder, seed, system) in done:
                        continue
                    if system == "cnn":  # as many epochs as cost the same CPU time
                        if folder not in costs:
                            short, long = (
                                measured(with_epochs(experiment, epochs), Path(scratch) / f"{epochs}")["cpu_seconds"]
                                for epochs in (1, 13)
                            )
                            costs[folder] = short, (long - short) / 12
                        first, epoch = costs[folder]
                        wanted = done[folder, seed, "default"]["cpu_seconds"] - first
                        experiment = with_epochs(experiment, 1 + round(wanted / epoch))
                    run: dict[str, Any] = {"folder": folder, "system": system, "seed": seed}
                    run |= measured(experiment, Path(scratch) / system)
                    print(run, flush=True)
                    done[folder, seed, system] = run
                    keep(run)


def step(network: nn.Module, images: Tensor, terms: Objective) -> float:
    """Seconds of CPU time for one forward and backward pass"""
    began = time.process_time()
    objective(network(images), images, torch.arange(len(images)) % 12, terms).total.backward()
    return time.process_time() - began


def cost() -> list[dict[str, Any]]:
    """CPU time of a forward and backward pass per image, and the share of convolutions in it"""
    torch.set_num_threads(1)
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
    """Add to the record, to which another process may add as well."""
    RECORD.parent.mkdir(exist_ok=True)
    with FileLock(RECORD.with_suffix(".lock")):
        record = recorded()
        record |= {
            **facts,
            "date": datetime.now(timezone.utc).date().isoformat(),
            "hardware": "two CPU cores, one thread per run",
            "versions": {
                "wcapsnet": wcapsnet.__version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
        }
        record["runs"] = sorted(
            [*record.pop("runs"), *runs], key=lambda one: (one["folder"], one["system"], one["seed"])
        )
        write_text(RECORD, json.dumps(record, indent=1) + "\n")


def table(record: dict[str, Any]) -> str:
    """Test accuracy and CPU time, each the mean over seeds"""
    systems = [system for system in SYSTEMS if any(run["system"] == system for run in record["runs"])]
    lines = [
        "| test accuracy in % (seeds); CPU seconds | " + " | ".join(SYSTEMS[system] for system in systems) + " |",
        "| --- |" + " --- |" * len(systems),
    ]
    for name, folder in FOLDERS.items():
        if not any(run["folder"] == name for run in record["runs"]):
            continue
        cells = []
        for system in systems:
            runs = [run for run in record["runs"] if (run["folder"], run["system"]) == (name, system)]
            accuracies = [100 * run["accuracy"] for run in runs]
            spread = f" ± {statistics.stdev(accuracies):.1f}" if len(runs) > 1 else ""
            seconds = round(statistics.fmean(run["cpu_seconds"] for run in runs)) if runs else 0
            cells.append(f"{statistics.fmean(accuracies):.1f}{spread} ({len(runs)}); {seconds} s" if runs else "–")
        lines.append(f"| {folder.title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def cost_table(record: dict[str, Any]) -> str:
    lines = [
        "| training step, CPU time per image | 32 px | 64 px | of which convolutions |",
        "| --- | --- | --- | --- |",
    ]
    rows = record.get("cost", [])
    for name in dict.fromkeys(row["network"] for row in rows):
        own = [row for row in rows if row["network"] == name]
        times = " | ".join(f"{row['ms_per_image']:.1f} ms" for row in own)
        lines.append(f"| {name} | {times} | " + ", ".join(f"{100 * row['convolutions']:.0f} %" for row in own) + " |")
    return "\n".join(lines)


def updated(page: str, record: dict[str, Any]) -> str:
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{table(record)}\n\n{cost_table(record)}\n\n{END}{rest.split(END)[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, nargs="?", help="the folder cifar-100-binary")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--folders", nargs="+", default=list(FOLDERS), choices=list(FOLDERS))
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=list(SYSTEMS))
    parser.add_argument("--cost", action="store_true", help="measure the cost of a step instead")
    asked = parser.parse_args()
    if asked.cost:
        keep(cost=cost())
    if asked.source:
        measure(asked.source, asked.folders, asked.seeds, asked.systems)
    write_text(PAGE, updated(PAGE.read_text(), json.loads(RECORD.read_text())))


if __name__ == "__main__":
    main()
