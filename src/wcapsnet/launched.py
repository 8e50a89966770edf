"""What `torchrun` tells its processes, and which of them prints. Can be imported without torch."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

GRACE = 10.0  # seconds that a failed worker waits: torchrun stops all others once one has ended


def started() -> bool:
    """Whether `torchrun` has started this process with others"""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def processes_here() -> int:
    """How many processes of this machine train together"""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if started() else 1


def follows() -> bool:
    """Whether this process is a worker, which prints nothing"""
    return started() and int(os.environ["RANK"]) > 0


@contextmanager
def only_first_speaks() -> Iterator[None]:
    """Around a command: what a worker prints is dropped, except for the trace of a bug."""
    if not follows():
        yield
        return
    with open(os.devnull, "w") as nothing, redirect_stdout(nothing), redirect_stderr(nothing):
        try:
            yield
        except SystemExit as end:
            if end.code == 2:  # bad input, which rank 0 reports
                time.sleep(GRACE)
            raise


def launcher() -> list[str]:
    """The command to resume with, reconstructed from the variables that `torchrun` sets"""
    if not started():
        return []
    local = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
    nodes = int(os.environ["WORLD_SIZE"]) // local
    where = ["--nnodes", str(nodes)] if nodes > 1 else ["--standalone"]
    return ["torchrun", *where, "--nproc-per-node", str(local), "-m", "wcapsnet"]
