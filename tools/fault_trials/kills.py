"""kill -9, again and again, until the run is finished: its weights must be those of the unbroken run."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .common import Outcome, Sample, differences, fault_in, training, wcapsnet

MOST = 12  # kills in a row, then the run may finish


def at_random_moments(sample: Sample, tries: int, seed: int) -> Outcome:
    whole = sample.trained.seconds
    return _chains(sample, tries, seed, lambda chance: {"kill_after": chance.uniform(0, whole)})


def inside_writes(sample: Sample, tries: int, seed: int) -> Outcome:
    """While a file is half written, between writing and renaming, and right after."""

    def dying(chance: random.Random) -> dict[str, Any]:
        number, where = chance.randint(1, 12), chance.choice(("half", "before", "after"))
        return {"before": lambda: _die_in_write(number, where)}

    return _chains(sample, tries, seed, dying)


def _chains(sample: Sample, tries: int, seed: int, dying: Callable[[random.Random], dict[str, Any]]) -> Outcome:
    chance, outcome, runs = random.Random(seed), Outcome(), 0
    kills = 0
    while kills < tries:
        run, runs, chain = sample.folder() / "run", runs + 1, 0
        while True:
            started = (run / "experiment.json").exists()
            command = ("train", "--resume", run, "-q") if started else training(sample.pictures, run)
            final = chain == MOST or kills == tries
            answer = wcapsnet(*command, **({} if final else dying(chance)))
            if answer.code == -signal.SIGKILL and not final:
                kills, chain = kills + 1, chain + 1
                outcome.ended["resumed" if (run / "experiment.json").exists() else "started again"] += 1
                continue
            if trouble := fault_in(answer) or ("refused" if answer.code else None):
                outcome.faults.append(f"{command[:3]} after {chain} kills: {trouble}: {answer.err[-1500:]}")
                outcome.lost.append("a run that could not be resumed")
            elif different := differences(run, sample.run):
                outcome.lost.append(f"after {chain} kills: {', '.join(different)}")
            break
        shutil.rmtree(run.parent)
    outcome.facts = {"runs": runs, "equal": runs - len(outcome.lost)}
    return outcome


def _die_in_write(number: int, where: str) -> None:
    """End this process with SIGKILL in the write of the file with this number, counted by renames."""
    done, rename = 0, os.replace
    real = {name: getattr(Path, name) for name in ("write_bytes", "write_text")}

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def replace(source: Any, target: Any) -> None:
        nonlocal done
        done += 1
        if done == number and where != "after":
            die()
        rename(source, target)
        if done == number:
            die()

    def half(name: str) -> Callable[..., int]:
        def write(path: Path, data: Any, *args: Any, **more: Any) -> int:
            last = done + 1 == number and where == "half"
            written = real[name](path, data[: len(data) // 2] if last else data, *args, **more)
            if last:
                die()
            return int(written)

        return write

    os.replace = replace
    for name in real:
        setattr(Path, name, half(name))
