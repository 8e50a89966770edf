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
from typing import Any, NamedTuple

import pytest
from training_helpers import CtrlC, same_tensors

from fault_trials.common import COLORS, SMALL, fruit, picture
from wcapsnet.cli import main
from wcapsnet.training.console import Board, Progress
from wcapsnet.training.run_folder import Run

__all__ = ["COLORS", "SMALL", "fruit", "picture"]
same_weights = same_tensors
SRC = Path(__file__).parents[2] / "src"


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


def experiment(run: Path | str) -> Any:
    """What is recorded"""
    return json.loads(Path(run, "experiment.json").read_text())


def environment() -> dict[str, str]:
    """Of a process of its own: this source tree, one thread."""
    path = os.pathsep.join([str(SRC), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def press_ctrl_c(patch: pytest.MonkeyPatch, epoch: int, step: int, name: str | None = None) -> None:
    """In a step of an epoch of the run, or of the run of a sweep that has this name"""

    class Pressing(Board):
        def row(self, run: Run) -> Progress:
            return CtrlC(epoch, step) if run.path.name == name else super().row(run)

    patch.setattr("wcapsnet.api.training.make_progress", lambda *args: CtrlC(epoch, step))
    patch.setattr("wcapsnet.sweeps.run.make_board", lambda *args: Pressing())
