"""Damaged, truncated, foreign and malicious files, in every place where a file is read."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import random
import shutil
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from wcapsnet.classifier import Classifier, load_tensors, save_tensors
from wcapsnet.data.formats import CIFAR10_FILES, read_cifar, read_mnist
from wcapsnet.errors import InputError
from wcapsnet.memory import built
from wcapsnet.models import list_models, model_config

from . import inputs
from .common import Answer, Outcome, Sample, differences, forked, wcapsnet

# File → the commands that read it. "resume" continues a copy whose test is still to come.
READERS = {
    "experiment.json": ("evaluate", "predict", "report", "list", "resume"),
    "environment.json": ("evaluate", "report", "list", "resume"),
    "data.json": ("evaluate", "report", "resume"),
    "metrics.jsonl": ("report", "list", "resume"),
    "test.json": ("report", "list", "finished"),
    "best.safetensors": ("predict", "evaluate", "resume"),
    "last.safetensors": ("report", "resume"),
    "state.safetensors": ("resume",),
    "survey.safetensors": ("report",),
    "run.onnx": ("predict onnx", "evaluate onnx"),
    "cache": ("evaluate", "resume"),
}
PYTHON_FILES = (*CIFAR10_FILES.train, CIFAR10_FILES.test, CIFAR10_FILES.python_names)
# Files that are not part of a run; a payload takes the place of each.
OTHER_FILES = (
    "picture.png",
    "weights.safetensors",
    "experiment.json",
    "runtime.tgz",
    "shared/model.safetensors",
    "shared/config.json",
    "table.parquet",
    "table.arrow",
    "saved/dataset_dict.json",
    "MNIST/raw/train-images-idx3-ubyte",
    "MNIST/raw/train-labels-idx1-ubyte",
    "MNIST/raw/t10k-images-idx3-ubyte",
    "MNIST/raw/t10k-labels-idx1-ubyte",
    "train_32x32.mat",
    "test_32x32.mat",
    *(f"cifar-10-batches-py/{name}" for name in PYTHON_FILES),
    "packed/cifar-10-python.tar.gz",
)
CHECKED = ("best.safetensors", "state.safetensors", "survey.safetensors", "run.onnx", "cache")  # never a wrong answer


def mutated(content: bytes, chance: random.Random) -> bytes:
    """Bytes changed, cut off, left out, repeated, zeroed or replaced by others"""
    kind, data = chance.randrange(8), bytearray(content)
    at = chance.randrange(len(data)) if data else 0
    if kind == 0:
        return content[:at]
    if kind == 1:
        length = chance.randint(1, 64)
        return content[:at] + content[at + length :]
    if kind == 2:
        return content[:at] + content[at : at + chance.randint(1, 64)] + content[at:]
    if kind == 3:
        length = min(chance.choice((1, 16, 512, 4096)), len(data) - at)
        data[at : at + length] = bytes(length)
    elif kind == 4:
        value = chance.choice((0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, chance.getrandbits(32)))
        data[at : at + 4] = struct.pack(chance.choice(("<I", ">I")), value)
    elif kind == 5:
        data += chance.randbytes(chance.choice((1, 100, 5000)))
    else:
        for _ in range(chance.choice((1, 1, 2, 8, 64))):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8) if data else 0
    return bytes(data)


def damaged(sample: Sample, tries: int, seed: int) -> Outcome:
    """`tries` for every file of a run, its ONNX file and its cache"""
    outcome = Outcome()
    cache = sample.cache()
    places = {name: sample.run / name for name in READERS} | {"run.onnx": sample.onnx, "cache": cache}
    undamaged, right = cache.read_bytes(), dict[str, str]()
    for name, readers in READERS.items():
        chance = random.Random(f"{seed} {name}")
        good = places[name].read_bytes()
        for number in range(tries):
            reader = readers[number % len(readers)]
            bad = mutated(good, chance)
            if name.endswith(".json") and number // len(readers) % 2:  # valid JSON with other values
                bad = inputs.text_of(inputs.mutated(json.loads(good), chance), chance).encode("utf-8", "replace")
            for content in (good, bad) if reader not in right else (bad,):
                folder, answer = _read(sample, reader, name, content, cache)
                if content is good:
                    right[reader] = answer.out
                    assert answer.code == 0, (reader, answer)
                    continue
                outcome.add(f"{name} of try {number}, {reader}", answer)
                if name in CHECKED and answer.code == 0:
                    wrong = (
                        differences(folder / "run", sample.run) if reader == "resume" else answer.out != right[reader]
                    )
                    if wrong and not reader.startswith("report"):
                        outcome.lost.append(f"{name} of try {number}: {reader} gave a wrong answer")
                shutil.rmtree(folder)
                cache.write_bytes(undamaged)
    outcome.facts["files"] = len(READERS)
    return outcome


def _read(sample: Sample, reader: str, name: str, content: bytes, cache: Path) -> tuple[Path, Answer]:
    run = sample.copy(unfinished=reader == "resume")
    place = {"run.onnx": run.parent / "run.onnx", "cache": cache}.get(name, run / name)
    if reader.endswith("onnx"):
        place = run.parent / "run.onnx"
    place.write_bytes(content)
    return run.parent, _answer(sample, reader, run)


def _answer(sample: Sample, reader: str, run: Path) -> Answer:
    """A command about the run, called in the folder that holds it"""
    words: dict[str, list[object]] = {
        "predict": ["predict", "run", sample.picture, "--json"],
        "evaluate": ["evaluate", "run", "--json"],
        "report": ["report", "run", "--out", "page.html"],
        "list": ["list", "runs", "--runs", "."],
        "resume": ["train", "--resume", "run", "-q"],
        "finished": ["train", "--resume", "run", "-q"],
        "predict onnx": ["predict", "run.onnx", sample.picture, "--json"],
        "evaluate onnx": ["evaluate", "run.onnx", sample.pictures, "--json"],
    }
    return wcapsnet(*words[reader], cwd=run.parent)


# ── archives and files of datasets ──


def _cifar(folder: Path, protocol: int | None) -> Path:
    """A small CIFAR-10 archive, binary or (with a pickle protocol) of the Python version"""
    random_bytes = np.random.default_rng(0)
    kind = "binary" if protocol is None else "python"
    archive = folder / f"cifar-10-{kind}.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name in (*CIFAR10_FILES.train, CIFAR10_FILES.test):
            rows = random_bytes.integers(0, 10, (4, 3073), np.uint8)
            if protocol is None:
                data, name = rows.tobytes(), f"{name}.bin"
            else:
                data = pickle.dumps({"data": rows[:, 1:], "labels": rows[:, 0].tolist()}, protocol)
            _add(tar, f"cifar-10/{name}", data)
    return archive


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def _mnist(folder: Path) -> Path:
    for part, count in (("train", 30), ("t10k", 10)):
        images = bytes((0, 0, 8, 3)) + struct.pack(">3I", count, 28, 28) + bytes(count * 784)
        labels = bytes((0, 0, 8, 1)) + struct.pack(">I", count) + bytes(count)
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
    return folder / "train-images-idx3-ubyte.gz"


def archives(sample: Sample, tries: int, seed: int) -> Outcome:
    """Archives of datasets, compressed and mutated before or after compression"""
    outcome = Outcome()
    makers: dict[str, Callable[[Path], Path]] = {
        "CIFAR binary": lambda folder: _cifar(folder, None),
        "CIFAR pickles": lambda folder: _cifar(folder, 2),
        "IDX": _mnist,
    }

    def all_of(name: str, folder: Path, place: Path) -> None:
        """In one process; its last line names the try that ended it."""
        good, counts = place.read_bytes(), {"worked": 0, "one sentence": 0}
        for number in range(tries):
            chance = random.Random(f"{seed} {name} {number}")
            inside = chance.random() < 0.5  # what is compressed, with the right checksum of gzip
            bad = gzip.compress(mutated(gzip.decompress(good), chance), 1) if inside else mutated(good, chance)
            place.write_bytes(bad)
            print(name, number, flush=True)
            try:
                if name == "IDX":
                    read_mnist(folder, name="mnist", folders=("",))
                else:
                    read_cifar(folder, files=CIFAR10_FILES, folders=("",))
                counts["worked"] += 1
            except InputError:
                counts["one sentence"] += 1
        print(json.dumps(counts))

    for name, maker in makers.items():
        folder = sample.folder()
        place = maker(folder)
        answer = forked(lambda name=name, folder=folder, place=place: all_of(name, folder, place), limit=600)
        last = answer.out.splitlines()[-1]
        if answer.code:
            outcome.faults.append(f"{last}: exit code {answer.code}: {answer.err[-1500:]}")
            outcome.ended["fault"] += 1
        else:
            outcome.ended.update(json.loads(last))
        shutil.rmtree(folder)
    return outcome


# ── other architectures, newer versions ──


def foreign(sample: Sample, tries: int, seed: int) -> Outcome:
    """Weights and states of every other architecture, and files that a newer version might write"""
    outcome = Outcome()
    readers = ("predict", "evaluate", "report", "resume")

    def all_readers(what: str, change: Callable[[Path], None], may_work: bool = False) -> None:
        for reader in readers:
            run = sample.copy(unfinished=reader == "resume")
            change(run)
            answer = _answer(sample, reader, run)
            outcome.add(f"{what}, {reader}", answer)
            if answer.code == 0 and not may_work and reader in ("predict", "evaluate"):
                outcome.lost.append(f"{what}: {reader} answered with weights of another network")
            shutil.rmtree(run.parent)

    others = [name for name in list_models() if "capsnet" not in name or name in ("wcapsnet-quick", "capsnet")]
    for name in others[: max(1, tries)]:
        other = sample.folder() / "other.safetensors"

        def write(name: str = name, other: Path = other) -> None:
            model = model_config(name, 2, 3, 32, 32)
            Classifier(built(model), ("apples", "plums"), (0.5,) * 3, (0.5,) * 3).save(other)

        made = forked(write)
        if made.code:  # a model that these images do not suit
            continue
        all_readers(f"best weights of {name}", lambda run, other=other: shutil.copy(other, run / "best.safetensors"))
        all_readers(f"state of {name}", lambda run, other=other: shutil.copy(other, run / "state.safetensors"), True)
        shutil.rmtree(other.parent)

    def newer(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
        def write(run: Path) -> None:
            facts = json.loads((run / "experiment.json").read_text()) | {"version": "99.0"}
            change(facts)
            (run / "experiment.json").write_text(json.dumps(facts))

        return write

    def newer_weights(change: dict[str, object]) -> Callable[[Path], None]:
        def write(run: Path) -> None:
            tensors, facts = load_tensors(run / "best.safetensors")
            facts.pop("checksum")
            model = {**facts["model"], **change}
            save_tensors(run / "best.safetensors", tensors, {**facts, "version": "99.0", "model": model})

        return write

    all_readers("a newer experiment.json", newer(lambda facts: facts.update(future={"field": 1})), True)
    all_readers("a newer model", newer(lambda facts: facts["model"].update(attention=True)), True)
    all_readers("weights with a new field", newer_weights({"attention": True}))
    all_readers("weights of a new architecture", newer_weights({"architecture": "wcapsnet-2"}))
    outcome.facts["architectures"] = len(others)
    return outcome


# ── pickles ──


class Payload:
    """Unpickling it would create a file."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return (os.mkdir, (str(self.marker),))


def payloads(marker: Path) -> dict[str, bytes]:
    """The same call in every container that Python's libraries would unpickle"""
    payload = Payload(marker)
    found = {f"pickle protocol {number}": pickle.dumps(payload, number) for number in range(6)}
    file = io.BytesIO()
    torch.save({"state": payload}, file)
    found["torch.save"] = file.getvalue()
    file = io.BytesIO()
    np.save(file, np.array([payload], object), allow_pickle=True)
    array = file.getvalue()
    found["npy"] = array
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in ("images", "readable", "skipped"):
            archive.writestr(f"{name}.npy", array)
    found["npz"] = file.getvalue()
    batch = pickle.dumps({"data": payload, "labels": [1]}, 2)
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name in PYTHON_FILES:
            _add(tar, f"cifar-10-batches-py/{name}", batch)
    found["tar.gz of pickles"] = file.getvalue()
    return found


def pickles(sample: Sample, tries: int, seed: int) -> Outcome:
    """A payload instead of each file that a command reads"""
    outcome, marker = Outcome(), sample.place / "executed"
    cache = sample.cache()
    undamaged = cache.read_bytes()
    every = payloads(marker)

    def tried(what: str, answer: Answer) -> None:
        outcome.add(what, answer)
        if marker.exists():
            outcome.lost.append(f"{what}: the payload was executed")
            marker.rmdir()

    chosen = [(kind, name, reader) for kind in every for name, readers in READERS.items() for reader in readers]
    random.Random(seed).shuffle(chosen)
    for kind, name, reader in chosen[:tries]:
        folder, answer = _read(sample, reader, name, every[kind], cache)
        tried(f"{kind} as {name}, {reader}", answer)
        shutil.rmtree(folder)
        cache.write_bytes(undamaged)
    for kind, content in every.items():
        folder = sample.folder()
        for name in OTHER_FILES:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        out = ("--out", folder / "run")
        for words in (
            ("predict", sample.run, folder / "picture.png"),
            ("predict", folder / "weights.safetensors", sample.picture),
            ("predict", folder / "shared", sample.picture),
            ("train", sample.pictures, "--from", folder / "weights.safetensors", *out),
            ("train", folder / "experiment.json", *out),
            ("train", f"hf:{folder / 'table.parquet'}", *out),
            ("train", f"hf:{folder / 'table.arrow'}", *out),
            ("train", f"hf:{folder / 'saved'}", *out),
            *(("train", dataset, "--data-dir", folder, *out) for dataset in ("mnist", "svhn", "cifar10")),
            ("train", "cifar10", "--data-dir", folder / "packed", *out),
            ("export", sample.run, "--to", "html", "--runtime", folder / "runtime.tgz", *out),
        ):
            tried(f"{kind}, {' '.join(map(str, words))}", wcapsnet(*words))
        shutil.rmtree(folder)
    # A run that names a plugin: its code is not run unless the user asks for it.
    run = sample.copy()
    plugin = run.parent / "plugin.py"
    plugin.write_text(f"import os\nos.mkdir({str(marker)!r})\n")
    facts = json.loads((run / "experiment.json").read_text())
    (run / "experiment.json").write_text(json.dumps({**facts, "plugins": [{"path": str(plugin), "sha256": "0" * 64}]}))
    for words in (("predict", run, sample.picture), ("evaluate", run), ("report", run), ("train", "--resume", run)):
        tried(f"a plugin named by a run, {words[0]}", wcapsnet(*words))
    outcome.facts["executed"] = sum("executed" in line for line in outcome.lost)
    return outcome
