"""Disks that are full, folders that are closed, data that are gone."""

from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from .common import Outcome, Sample, differences, digest, training, wcapsnet, without_override

HOW = "modes of files, for a process without CAP_DAC_OVERRIDE"
SHORT = ("--size", 8, "--epochs", 1, "--seeds", 1, "-q")


def disk_full(sample: Sample, tries: int, seed: int) -> Outcome:
    """A file system that is full after some number of bytes; once there is room again, the run continues."""
    chance, outcome = random.Random(seed), Outcome()
    disk = sample.folder()
    size = sum(path.stat().st_size for path in sample.run.rglob("*") if path.is_file())
    mounted = _mount(disk, "64m")
    how = "a small tmpfs (ENOSPC)" if mounted else "a limit on the size of files (EFBIG)"
    outcome.facts["how"] = how
    try:
        while outcome.tries < tries:
            most = int(chance.uniform(0.01, 1.1) * size)
            run = disk / "run"
            before = None if mounted else _limited(most)
            if mounted:
                _mount(disk, f"{max(most, 4096)}", "remount,")
            if chance.random() < 0.2:  # files named by an option
                words = chance.choice(
                    [("report", sample.run, "--out", disk / "a.html"), ("export", sample.run, "--out", disk / "a.onnx")]
                )
                outcome.add(f"{words[0]} with room for {most} bytes", wcapsnet(*words, before=before))
                left = [path.name for path in disk.iterdir() if path.suffix == ".partial"]
                outcome.lost += [f"{name} left behind" for name in left]
            else:
                outcome.add(
                    f"train with room for {most} bytes", wcapsnet(*training(sample.pictures, run), before=before)
                )
                if mounted:
                    _mount(disk, "64m", "remount,")
                started = (run / "experiment.json").exists()
                again = wcapsnet(*(("train", "--resume", run, "-q") if started else training(sample.pictures, run)))
                if again.code:
                    outcome.lost.append(f"a run after {most} bytes: {again.err[-500:]}")
                elif different := differences(run, sample.run):
                    outcome.lost.append(f"after {most} bytes: {', '.join(different)}")
            for path in disk.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for words in (("predict", sample.run, sample.picture), ("evaluate", sample.run, "--json"), ("list",)):
            outcome.add(f"{words[0]} > /dev/full", wcapsnet(*words, before=_to_full_device))
    finally:
        if mounted:
            subprocess.run(["umount", disk], check=True)
    return outcome


def _mount(disk: Path, size: str, remount: str = "") -> bool:
    if os.geteuid():
        return False
    command = ["mount", "-t", "tmpfs", "-o", f"{remount}size={size}", "tmpfs", str(disk)]
    return subprocess.run(command, capture_output=True).returncode == 0


def _limited(size: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def _to_full_device() -> None:
    os.dup2(os.open("/dev/full", os.O_WRONLY), 1)


def _commands(sample: Sample, run: Path, room: Path) -> dict[str, list[object]]:
    """Everything that reads or writes a run; `room` can be written"""
    return {
        "predict": ["predict", run, sample.picture],
        "evaluate": ["evaluate", run],
        "explain": ["explain", run],
        "report": ["report", run],
        "report elsewhere": ["report", run, "--out", room / "page.html"],
        "resume": ["train", "--resume", run, "-q"],
        "repeat": ["train", run, "--out", room / "again", "-q", "--epochs", 1],
        "list": ["list", "runs", "--runs", run.parent],
        "export": ["export", run, "--out", run / "network.onnx"],
        "train into": training(sample.pictures, run / "new"),
        "sweep into": ["sweep", sample.pictures, *SHORT, "--out", run / "sweep"],
    }


def read_only(sample: Sample, tries: int, seed: int) -> Outcome:
    """A run folder, cache and working directory that may be read but not written."""
    outcome, runs = Outcome(facts={"how": HOW}), [sample.copy(), sample.copy(unfinished=True)]
    with _closed(*(file for run in runs for file in (run.parent, *run.parent.rglob("*"))), mode=0o555):
        _each(sample, outcome, runs, tries, seed, lambda run: nullcontext())
    return outcome


def permission_missing(sample: Sample, tries: int, seed: int) -> Outcome:
    """Each file or folder of the run, the pictures or the cache in turn may not even be read."""
    outcome = Outcome(facts={"how": HOW})
    chance = random.Random(seed)
    runs = [sample.copy(), sample.copy(unfinished=True)]

    def close(run: Path) -> AbstractContextManager[str]:
        others = [sample.pictures, sample.pictures / "apples", sample.picture, sample.place / "cache"]
        places = [run, *run.iterdir(), *run.iterdir(), *others]
        return _closed(chance.choice([place for place in places if place.exists()]), mode=0)

    _each(sample, outcome, runs, tries, seed, close)
    return outcome


def _each(
    sample: Sample,
    outcome: Outcome,
    runs: list[Path],
    tries: int,
    seed: int,
    close: Callable[[Path], AbstractContextManager[str | None]],
) -> None:
    """Every command in turn while something is closed; `close` names it, or None if that is true all the time."""
    chance, number = random.Random(seed), 0
    kept = digest(*runs, sample.pictures)
    while outcome.tries < tries:
        run = runs[number % 2]
        room = sample.folder()
        room.chmod(0o777)
        every = _commands(sample, run, room)
        if number % len(every) == 0:
            names = chance.sample(sorted(every), len(every))
        name = names[number % len(every)]
        if name == "resume" and run == runs[0]:
            run = runs[1]
        with close(run) as closed:
            answer = wcapsnet(*_commands(sample, run, room)[name], before=without_override, cwd=room)
        outcome.add(f"{name} ({closed or 'read only'})", answer)
        shutil.rmtree(room)
        number += 1
        if closed:  # it may have been written where that was allowed
            continue
        if digest(*runs, sample.pictures) != kept:
            outcome.lost.append(f"{name} changed files")
            break


@contextmanager
def _closed(*paths: Path, mode: int) -> Iterator[str]:
    """Takes rights from files and folders, folders first in `paths`, and gives them back."""
    modes = [(path, path.stat().st_mode) for path in paths]
    for path, was in reversed(modes):
        path.chmod(was & (mode if path.is_dir() or not mode else 0o444))
    try:
        yield paths[0].name
    finally:
        for path, was in modes:
            path.chmod(was)


def data_gone(sample: Sample, tries: int, seed: int) -> Outcome:
    """Pictures moved, emptied, changed or replaced since the run was trained. `--data-dir` finds moved ones."""
    chance, outcome = random.Random(seed), Outcome()
    run, unfinished = sample.copy(), sample.copy(unfinished=True)
    aside = sample.place / "moved"

    def spoil(place: Path, how: str) -> None:
        if how == "a class gone":
            shutil.rmtree(place / "apples")
        elif how == "a picture gone":
            chance.choice(sorted(place.glob("*/*.png"))).unlink()
        elif how == "a picture changed":
            one, other = chance.sample(sorted(place.glob("*/*.png")), 2)
            shutil.copy(one, other)
        elif how == "emptied":
            for path in place.glob("*/*.png"):
                path.unlink()
        elif how == "damaged":
            for path in place.glob("*/*.png"):
                path.write_bytes(b"no picture")

    ways = ["moved", "a file instead", "a class gone", "a picture gone", "a picture changed", "emptied", "damaged"]
    while outcome.tries < tries:
        how = ways[outcome.tries % len(ways)]
        sample.pictures.rename(aside)
        try:
            if how == "a file instead":
                sample.pictures.write_text("")
            elif how != "moved":
                shutil.copytree(aside, sample.pictures)
                spoil(sample.pictures, how)
            room = sample.folder()
            every = _commands(sample, chance.choice((run, run, unfinished)), room)
            name = chance.choice(["predict", "evaluate", "explain", "report elsewhere", "resume", "repeat", "list"])
            if how == "moved" and chance.random() < 0.5:
                words = ["evaluate", run, "--data-dir", aside]
                answer = wcapsnet(*words, cwd=room)
                if answer.code:
                    outcome.lost.append(f"moved pictures that --data-dir did not find: {answer.err[-300:]}")
            else:
                words = (
                    every[name]
                    if name != "resume"
                    else ["train", "--resume", shutil.copytree(unfinished, room / "run"), "-q"]
                )
                answer = wcapsnet(*words, cwd=room)
            outcome.add(f"{words[0]} ({how})", answer)
            shutil.rmtree(room)
        finally:
            if sample.pictures.is_dir():
                shutil.rmtree(sample.pictures)
            sample.pictures.unlink(missing_ok=True)
            aside.rename(sample.pictures)
    return outcome
