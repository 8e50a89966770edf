"""`wcapsnet train FOLDER --from NETWORK` against training from scratch, on small folders of photographs.

    python tools/finetuning.py DATA_DIR --pretrain RUN     trains wcapsnet-small on 80 of the classes of CIFAR-100
    python tools/finetuning.py DATA_DIR --choose RUN       tries learning rates for fine-tuning it, on validation images
    python tools/finetuning.py DATA_DIR --measure RUN      trains with and without it; writes results/finetuning/
    python tools/finetuning.py                             updates docs/results.md from it

DATA_DIR holds CIFAR-100 and CIFAR-10. The other 20 classes of CIFAR-100, and all of CIFAR-10, are new to the starting
network. `--choose` uses neither the training nor the test pictures of `--measure`. Every run has one thread, and its
cost is CPU time: a busy machine matters little.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

import wcapsnet
from wcapsnet.__main__ import keep_freed_memory
from wcapsnet.atomic import write_text
from wcapsnet.data import DATASETS
from wcapsnet.recipes.quick import WCAPSNET_TRAINING
from wcapsnet.training.run_folder import Run

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "results" / "finetuning" / "2026-11-18_two-cpu-cores.json"
PAGE = ROOT / "docs" / "results.md"
BEGIN, END = "<!-- fine-tuning: made by tools/finetuning.py -->", "<!-- end of fine-tuning -->"
CLASSES = np.random.default_rng(0).permutation(100).tolist()  # of CIFAR-100
KNOWN, NEW = sorted(CLASSES[:80]), sorted(CLASSES[80:])  # seen in pretraining, and held out
SETTINGS = ["data.validation=0.05", "training.weight_decay=0.05", "objective.label_smoothing=0.1"]  # of pretraining


class Folder(NamedTuple):
    title: str
    dataset: str
    classes: list[int]
    side: int = 32  # pixels; CIFAR's own, or enlarged
    size: int | None = None  # --size

    def write(self, place: Path, data_dir: Path, **parts: tuple[str, slice]) -> None:
        """Write PLACE/part/CLASS/…: which images of a class, of CIFAR's training or test images, are in each part"""
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


FOLDERS = {
    "held-out": Folder("20 classes of CIFAR-100 × 50", "cifar100", NEW),
    "cifar10": Folder("10 classes of CIFAR-10 × 50", "cifar10", list(range(10))),
    "enlarged": Folder("20 classes × 50, enlarged to 96 px JPEG, trained at 48 px", "cifar100", NEW, 96, 48),
}
TRAIN, TEST = ("train", slice(0, 50)), ("test", slice(0, 100))
CHOOSING = {"train": ("train", slice(50, 100)), "val": ("train", slice(100, 140)), "test": ("train", slice(140, 141))}
SYSTEMS = {"scratch": "`wcapsnet train`, from scratch", "fine-tuned": "`wcapsnet train --from`"}


def pretrain(data_dir: Path, out: Path, epochs: int) -> None:
    """wcapsnet-small on all training images of the known classes but 5 %"""
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / "known"
        Folder("", "cifar100", KNOWN).write(place, data_dir, train=("train", slice(None)), test=("test", slice(None)))
        wcapsnet.train(
            place, model="wcapsnet-small", epochs=epochs, device="cpu", out=out, settings=SETTINGS, report=False
        )


def trained(place: Path, out: Path, **options: Any) -> dict[str, Any]:
    """Results and cost of `wcapsnet train FOLDER` on a CPU"""
    began = time.process_time()
    done = wcapsnet.train(place, device="cpu", out=out, report=False, quiet=True, **options)
    training, results = done.run.experiment.training, done.results
    return {
        "accuracy": done.accuracy,
        "images": results["images"],
        "validation_accuracy": results["validation_accuracy"],
        "epochs": results["epochs"],
        "lr": training.lr,
        "cpu_seconds": round(time.process_time() - began, 1),
    }


def choose(data_dir: Path, source: Path, factors: list[float], epochs: list[int | None]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / "choosing"
        FOLDERS["held-out"].write(place, data_dir, **CHOOSING)
        for factor in factors:
            for length in epochs:
                options: dict[str, Any] = {"start_from": "none"}
                if factor:  # times the learning rate of a folder from scratch
                    options = {"start_from": source, "lr": float(WCAPSNET_TRAINING["lr"]) * factor}  # type: ignore[arg-type]
                out = Path(scratch) / f"{factor}-{length}"
                run = {"factor": factor, **trained(place, out, epochs=length, seed=0, **options)}
                kept = {name: value for name, value in run.items() if name not in ("accuracy", "images")}
                print(kept, flush=True)
                keep("choosing", kept)


def measure(
    data_dir: Path, source: Path, folders: list[str], seeds: list[int], systems: list[str], epochs: int | None
) -> None:
    """`epochs`: None for the default, which depends on the number of pictures"""
    done = {(run["folder"], run["seed"], run["system"], run["asked_epochs"]) for run in recorded()["runs"]}
    describe(source)
    for seed in seeds:
        for name in folders:
            with tempfile.TemporaryDirectory() as scratch:
                place = Path(scratch) / name
                FOLDERS[name].write(place, data_dir, train=TRAIN, test=TEST)
                for system in systems:
                    if (name, seed, system, epochs) in done:
                        continue
                    start = source if system == "fine-tuned" else "none"
                    out, size = Path(scratch) / system, FOLDERS[name].size
                    run: dict[str, Any] = {"folder": name, "system": system, "seed": seed, "asked_epochs": epochs}
                    run |= trained(place, out, seed=seed, start_from=start, size=size, epochs=epochs)
                    print(run, flush=True)
                    keep("runs", run)


def describe(source: Path) -> None:
    """Record what the starting network is."""
    run = Run.open(source)
    results, training = run.results(), run.experiment.training
    record = recorded()
    record["source"] = {
        "model": "wcapsnet-small",
        "parameters": sum(p.numel() for p in wcapsnet.load(source).network.parameters()),
        "classes": len(KNOWN),
        "epochs": results["epochs"],
        "lr": training.lr,
        "validation_accuracy": results["validation_accuracy"],
        "accuracy": results["accuracy"],
        "images": results["images"],
    }
    write(record)


def recorded() -> dict[str, Any]:
    return dict(json.loads(RECORD.read_text())) if RECORD.exists() else {"choosing": [], "runs": []}


def keep(kind: str, run: dict[str, Any]) -> None:
    record = recorded()
    record[kind].append(run)
    write(record)


def write(record: dict[str, Any]) -> None:
    versions = {"wcapsnet": wcapsnet.__version__, "torch": torch.__version__, "python": platform.python_version()}
    facts = {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "hardware": "two CPU cores, one thread per run",
        "versions": versions,
    }
    RECORD.parent.mkdir(exist_ok=True)
    write_text(RECORD, json.dumps({**facts, **{k: v for k, v in record.items() if k not in facts}}, indent=1) + "\n")


def table(record: dict[str, Any]) -> str:
    """Test accuracy and CPU time, each the mean over seeds"""
    lines = [
        "| test accuracy in % (seeds); CPU seconds | epochs | " + " | ".join(SYSTEMS.values()) + " |",
        "| --- | --- |" + " --- |" * len(SYSTEMS),
    ]
    rows = sorted({(list(FOLDERS).index(run["folder"]), run["epochs"]) for run in record["runs"]})
    for name, epochs in ((list(FOLDERS)[index], epochs) for index, epochs in rows):
        cells = []
        for system in SYSTEMS:
            asked = (name, epochs, system)
            runs = [run for run in record["runs"] if (run["folder"], run["epochs"], run["system"]) == asked]
            accuracies = [100 * run["accuracy"] for run in runs]
            spread = f" ± {statistics.stdev(accuracies):.1f}" if len(runs) > 1 else ""
            seconds = round(statistics.fmean(run["cpu_seconds"] for run in runs)) if runs else 0
            cells.append(f"{statistics.fmean(accuracies):.1f}{spread} ({len(runs)}); {seconds} s" if runs else "–")
        lines.append(f"| {FOLDERS[name].title} | {epochs} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def choosing_table(record: dict[str, Any]) -> str:
    lines = ["| validation accuracy in %, one seed | epochs | accuracy | CPU seconds |", "| --- | --- | --- | --- |"]
    for run in record["choosing"]:
        what = f"fine-tuned, learning rate {run['lr']:g}" if run["factor"] else f"from scratch, {run['lr']:g}"
        lines.append(
            f"| {what} | {run['epochs']} | {100 * run['validation_accuracy']:.1f} | {run['cpu_seconds']:.0f} |"
        )
    return "\n".join(lines)


def updated(page: str, record: dict[str, Any]) -> str:
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{table(record)}\n\n{choosing_table(record)}\n\n{END}{rest.split(END)[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_dir", type=Path, nargs="?")
    parser.add_argument("--pretrain", type=Path, metavar="RUN")
    parser.add_argument("--choose", type=Path, metavar="RUN")
    parser.add_argument("--measure", type=Path, metavar="RUN")
    parser.add_argument("--epochs", type=int, default=10, help="of pretraining")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--folders", nargs="+", default=["held-out", "cifar10"], choices=list(FOLDERS))
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=list(SYSTEMS))
    parser.add_argument("--factors", type=float, nargs="+", default=[0, 0.1, 0.2, 0.5], help="0: from scratch")
    parser.add_argument("--lengths", type=int, nargs="+", default=[None], help="epochs; default: those of a folder")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as the command does
    if asked.pretrain:
        pretrain(asked.data_dir, asked.pretrain, asked.epochs)
    if asked.choose:
        choose(asked.data_dir, asked.choose, asked.factors, asked.lengths)
    if asked.measure:
        for length in asked.lengths:
            measure(asked.data_dir, asked.measure, asked.folders, asked.seeds, asked.systems, length)
    if RECORD.exists():
        write_text(PAGE, updated(PAGE.read_text(), recorded()))


if __name__ == "__main__":
    main()
