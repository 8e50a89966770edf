"""The command line called in this process, on things that train in a fraction of a second.

Not in conftest.py: several folders of tests have one, and they all import under the same name.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image
from training_helpers import CtrlC, same_tensors

from wcapsnet.cli import main
from wcapsnet.training.console import Board, Progress
from wcapsnet.training.run_folder import Run

same_weights = same_tensors
SRC = Path(__file__).parents[2] / "src"

# What makes any recipe or folder small, as options of `train`.
LEVELS = [
    {"capsules": 3, "growth": 2, "dimension": 4, "stride": 2},
    {"capsules": 2, "growth": 2, "dimension": 4, "stride": 1},
]
SMALL = [
    *("--set", f"model.levels={json.dumps(LEVELS)}"),
    *("--set", "model.dense_layers=1"),
    *("--set", "model.init_channels=4"),
    *("--set", "model.critic_channels=4"),
    *("--set", "model.decoder_channels=4,4"),
]


class Answer(NamedTuple):
    code: int
    out: str
    err: str


def call(*args: object, stdin: bytes | None = None) -> Answer:
    """`wcapsnet ARGS`, in this process and through `main`."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["wcapsnet", *map(str, args)])
        patch.setenv("COLUMNS", "200")
        if stdin is not None:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main()
            except SystemExit as exit:
                code = exit.code if isinstance(exit.code, int) else 1
    return Answer(code, out.getvalue(), err.getvalue())


def sentence(answer: Answer) -> str:
    """The one line of an answer to bad input."""
    assert answer.code not in (0, None)
    lines = answer.err.strip().splitlines()
    assert len(lines) == 1, answer.err
    assert lines[0].startswith("error: ")
    assert lines[0].endswith((".", "?")), lines[0]
    assert "Traceback" not in answer.out + answer.err
    return lines[0].removeprefix("error: ")


def environment() -> dict[str, str]:
    """Of a process of its own: this source tree, one thread."""
    path = os.pathsep.join([str(SRC), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def picture(color: tuple[int, int, int], seed: int, size: tuple[int, int] = (14, 14)) -> Image.Image:
    noise = np.random.default_rng(seed).integers(-60, 61, (size[1], size[0], 3))
    return Image.fromarray((np.array(color) + noise).clip(0, 255).astype(np.uint8))


COLORS = {"apples": (190, 60, 60), "plums": (60, 60, 190)}


def fruit(root: Path, count: int = 20) -> Path:
    """A folder of pictures that anybody can tell apart."""
    for kind, color in COLORS.items():
        (root / kind).mkdir(parents=True)
        for i in range(count):
            picture(color, i).save(root / kind / f"{i}.png")
    return root


def press_ctrl_c(patch: pytest.MonkeyPatch, epoch: int, step: int, name: str | None = None) -> None:
    """In a step of an epoch of the run, or of the run of a sweep that has this name"""

    class Pressing(Board):
        def row(self, run: Run) -> Progress:
            return CtrlC(epoch, step) if run.path.name == name else super().row(run)

    patch.setattr("wcapsnet.api.training.make_progress", lambda *args: CtrlC(epoch, step))
    patch.setattr("wcapsnet.sweeps.run.make_board", lambda *args: Pressing())
