"""Commands in processes that may be killed, limited or denied, and the small run they work on.

Every command is `wcapsnet.cli.main` in a forked child: loading torch once serves thousands of tries, and a child may
be killed, may lose its rights, and may crash without taking the others along.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from safetensors import safe_open

from wcapsnet.cli import main

EXITS = (0, 1, 2, 130)
LEVELS = [
    {"capsules": 3, "growth": 2, "dimension": 4, "stride": 2},
    {"capsules": 2, "growth": 2, "dimension": 4, "stride": 1},
]
SMALL = [  # options that make any recipe or folder small
    *("--set", f"model.levels={json.dumps(LEVELS)}", "--set", "model.dense_layers=1", "--set", "model.init_channels=4"),
    *("--set", "model.critic_channels=4", "--set", "model.decoder_channels=4,4"),
]
COLORS = {"apples": (190, 60, 60), "plums": (60, 60, 190)}
EPOCHS = 5
TIMES = ("seconds", "images_per_s")


class Answer(NamedTuple):
    code: int  # negative: the signal that ended it
    out: str
    err: str
    seconds: float


@dataclass
class Outcome:
    """One row: how often something was tried, how it ended, what went wrong and what was lost."""

    ended: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def tries(self) -> int:
        return sum(self.ended.values())

    def add(self, what: str, answer: Answer) -> bool:
        """Count one try. False if it was a fault."""
        trouble = fault_in(answer)
        self.ended[trouble or ("worked" if answer.code == 0 else "one sentence")] += 1
        if trouble:
            self.faults.append(f"{what}: {trouble}: {answer.err[-1500:] or answer.out[-300:]}")
        return trouble is None


def fault_in(answer: Answer) -> str | None:
    if answer.code not in EXITS:
        return f"ended by signal {-answer.code}" if answer.code < 0 else f"exit code {answer.code}"
    if "Traceback" in answer.out + answer.err:
        return "traceback"
    said = answer.err.strip().splitlines()
    if answer.code in (1, 2) and not (said and (said[-1].startswith("error: ") or "Usage" in answer.err)):
        return "no sentence"
    return None


def forked(
    work: Callable[[], object], *, kill_after: float | None = None, limit: float = 120, cwd: Path | None = None
) -> Answer:
    """`work` in a child process, which is killed after `kill_after` or `limit` seconds."""
    sys.stdout.flush()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            code = 120
            try:
                os.setpgid(0, 0)
                with open(os.devnull, "rb") as nothing:
                    os.dup2(nothing.fileno(), 0)
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                if cwd:
                    os.chdir(cwd)
                code = _exit_code(work)
            finally:
                os._exit(code)
        code = _waited(child, began + (kill_after or limit))
        seconds = time.monotonic() - began
        texts = [(file.seek(0), file.read().decode("utf-8", "replace"))[1] for file in (out, err)]
    return Answer(code, *texts, seconds)


def _exit_code(work: Callable[[], object]) -> int:
    code = 0
    try:
        work()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 121
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    return code


def _waited(child: int, until: float) -> int:
    """The exit code of a child, which is killed with its own children at the given time."""
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child, signal.SIGKILL)  # what it left running
            return os.waitstatus_to_exitcode(status)
        if (left := until - time.monotonic()) <= 0:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child, signal.SIGKILL)
            os.kill(child, signal.SIGKILL)
            until = float("inf")
        time.sleep(min(0.004, max(left, 0.0005)))


def wcapsnet(*args: object, before: Callable[[], object] | None = None, **more: Any) -> Answer:
    """The command with these arguments; `before` runs first in its process."""

    def work() -> None:
        sys.argv = ["wcapsnet", *map(str, args)]
        if before:
            before()
        main()

    return forked(work, **more)


def without_override() -> None:
    """Bind root to the modes of files, as everybody else is: give up CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3, this process
        sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice 32 bits
        if libc.capget(header, sets):
            raise OSError(ctypes.get_errno(), "capget")
        for number in (0, 1, 2):
            sets[number] &= ~0b110
        if libc.capset(header, sets):
            raise OSError(ctypes.get_errno(), "capset")


def picture(color: tuple[int, int, int], seed: int, size: tuple[int, int] = (14, 14)) -> Image.Image:
    noise = np.random.default_rng(seed).integers(-60, 61, (size[1], size[0], 3))
    return Image.fromarray((np.array(color) + noise).clip(0, 255).astype(np.uint8))


def fruit(root: Path, count: int = 20) -> Path:
    """A folder of two classes that are easy to tell apart"""
    for kind, color in COLORS.items():
        (root / kind).mkdir(parents=True)
        for number in range(count):
            picture(color, number).save(root / kind / f"{number}.png")
    return root


def training(folder: Path, run: Path) -> list[object]:
    return ["train", folder, "--size", 8, "--epochs", EPOCHS, "--lr", 0.05, "--out", run, "-q", *SMALL]


class Sample:
    """A folder of pictures, a finished run on it and its ONNX file, all read only; and a place for copies."""

    def __init__(self, place: Path):
        self.place = place
        os.environ["WCAPSNET_CACHE"] = str(place / "cache")
        self.pictures = fruit(place / "pictures")
        self.run = place / "run"
        self.trained = wcapsnet(*training(self.pictures, self.run))
        if self.trained.code:
            raise SystemExit(f"The run to try things on failed: {self.trained.err}")
        self.picture = self.pictures / "apples" / "0.png"
        self._onnx: Path | None = None
        self._copies = 0

    @property
    def onnx(self) -> Path:
        if self._onnx is None:
            self._onnx = self.place / "run.onnx"
            answer = wcapsnet("export", self.run, "--out", self._onnx)
            if answer.code:
                raise SystemExit(f"The export failed: {answer.err}")
        return self._onnx

    def cache(self) -> Path:
        """The cache of the pictures, made again if a trial has removed it"""
        wcapsnet("evaluate", self.run)
        return next((self.place / "cache").glob("folder-*.npy"))

    def folder(self) -> Path:
        """A new empty folder"""
        self._copies += 1
        path = self.place / f"{self._copies}"
        path.mkdir()
        return path

    def copy(self, unfinished: bool = False) -> Path:
        """A copy of the run that may be damaged; `unfinished`: its test and report are still to come."""
        path = self.folder() / "run"
        shutil.copytree(self.run, path)
        if unfinished:
            for name in ("test.json", "report.html", "survey.safetensors"):
                (path / name).unlink()
        return path


def tensors(path: Path) -> dict[str, np.ndarray]:
    with safe_open(path, "np") as file:
        return {name: file.get_tensor(name) for name in sorted(file.keys())}


def differences(run: Path, other: Path) -> list[str]:
    """What two finished runs of one experiment do not have in common, times aside"""
    found = []
    for name in ("best", "last", "state"):
        a, b = (tensors(place / f"{name}.safetensors") for place in (run, other))
        if a.keys() != b.keys() or any(a[key].tobytes() != b[key].tobytes() for key in a):
            found.append(f"{name}.safetensors")
    for name in ("metrics.jsonl", "test.json"):
        lines = [(place / name).read_text() for place in (run, other)]
        facts = [
            [json.loads(line) for line in (text.splitlines() if name != "test.json" else [text])] for text in lines
        ]
        plain = [[{k: v for k, v in one.items() if k not in TIMES} for one in all] for all in facts]
        if plain[0] != plain[1]:
            found.append(name)
    found += [n for n in ("predictions.csv", "confusion.csv") if (run / n).read_bytes() != (other / n).read_bytes()]
    found += [f"{path.name} left behind" for path in run.glob(".*.partial")]
    return found + [n for n in ("report.html",) if not (run / n).is_file()]


def digest(*roots: Path) -> str:
    """Names and contents of every file under these folders"""
    found = hashlib.sha256()
    for root in roots:
        for path in sorted(root.rglob("*")):
            if path.is_file() and path.name != ".lock":
                found.update(f"{path}\0".encode() + path.read_bytes())
    return found.hexdigest()


def percentiles(values: Iterable[float]) -> dict[str, float]:
    every = list(values)
    shares = {"p50": 50, "p95": 95, "p99": 99, "max": 100} if every else {}
    return {name: round(float(np.percentile(every, share, method="lower")), 1) for name, share in shares.items()}
