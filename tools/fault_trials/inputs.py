"""Random experiment.json files and random command lines."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
import signal
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from wcapsnet import memory
from wcapsnet.cli import app, load_commands
from wcapsnet.errors import InputError
from wcapsnet.memory import built, check_training
from wcapsnet.models import model_config
from wcapsnet.recipes import RECIPES, recipe
from wcapsnet.settings import to_dict
from wcapsnet.training.run_folder import Run, read_experiment

from .common import SMALL, Outcome, Sample, digest, forked, wcapsnet

NUMBERS = [0, -0.0, -1, 1, 2, 3, 0.5, 1e-320, 1e308, -1e308]
NUMBERS += [2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63), 10**400]
TEXTS = ["", " ", "x" * 10_000, "\0", "\ud800", "é×\u202e\x1b[31m", "../..", "NaN", "1"]
OTHERS = [None, True, False, [], {}, [[]], [{}], *TEXTS]
SPECIAL = [float("nan"), float("inf"), -float("inf")]


# ── experiment.json ──


def nested(depth: int, inner: Any = 1) -> Any:
    for _ in range(depth):
        inner = [inner]
    return inner


def places(content: Any) -> Any:
    """Every (container, key) in nested dicts and lists."""
    items = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in list(items):
        yield content, key
        if isinstance(value, (dict, list)):
            yield from places(value)


def mutated(content: Any, chance: random.Random) -> Any:
    content = copy.deepcopy(content)
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        where, key = chance.choice(list(places(content)))
        kind = chance.randrange(8)
        if kind == 0:
            del where[key]
        elif kind == 1:
            where[key] = chance.choice(OTHERS)
        elif kind == 2:
            where[key] = nested(chance.choice([1, 5, 400]))
        elif kind == 3 and isinstance(where, dict):
            where[chance.choice(["", "new", "levels", "architecture", "\ud800", "x" * 1000, key + "s"])] = where[key]
        elif kind == 3:
            where.extend(where * chance.choice([1, 3, 50]))
        elif kind == 4:
            other, there = chance.choice(list(places(content)))
            where[key] = copy.deepcopy(other[there])
        elif kind == 5 and isinstance(where[key], (int, float)) and not isinstance(where[key], bool):
            where[key] *= chance.choice([-1, 0, 10, 1000, 10**6, 0.5])
        else:
            where[key] = chance.choice(NUMBERS + SPECIAL)
        if not content:
            break
    return content


def text_of(content: Any, chance: random.Random) -> str:
    text = json.dumps(content)
    if chance.random() < 0.1:
        at = chance.randrange(len(text) + 1)
        text = text[:at] + chance.choice(["[" * 100_000, "9" * 5000, "", "\x00", "}", '{"a":' * 3000]) + text[at + 1 :]
    return text


def base(name: str) -> dict[str, Any]:
    experiment = to_dict(recipe("quick"))
    if name != "wcapsnet-quick":
        experiment["model"] = {**to_dict(model_config(name, 10, 1, 28, 28)), "depth": 16, "growth": 4}
    return {"version": "0", "plugins": [], **experiment}


def tried(path: Path, text: str) -> str | None:
    """The sentence that refuses a file; None if it is accepted and its network can be built."""
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    again = path.parent / "again"
    try:
        experiment = Run.open(path.parent).experiment if path.name == "experiment.json" else read_experiment(path)
        training = experiment.training
        check_training(experiment.model, memory.CPU, training.batch_size, 16)
        built(experiment.model)
        training.learning_rate(training.epochs - 1)
        Run.create(again, experiment, {})
    except InputError as error:
        return str(error)
    finally:
        shutil.rmtree(again, ignore_errors=True)
    return None


BASES = {"wcapsnet-quick": 0.8, "densenet-bc-100": 0.2}  # share of the tries


def configurations(sample: Sample, tries: int, seed: int) -> Outcome:
    outcome = Outcome()
    path = sample.folder() / "experiment.json"

    def all_of_them() -> None:
        memory.available = lambda device: 80e6  # type: ignore[assignment]  # what fits is built, so keep it small
        counts = {"worked": 0, "one sentence": 0}
        for name, share in BASES.items():
            content = base(name)
            for number in range(round(share * tries)):
                chance = random.Random(f"{seed} {name} {number}")
                text = text_of(mutated(content, chance), chance)
                os.pwrite(1, f"{name} {number:<30}".encode(), 0)
                refused = tried(path, text)
                assert refused is None or len(refused) < 1000
                counts["worked" if refused is None else "one sentence"] += 1
        os.pwrite(1, b" " * 60 + b"\n" + json.dumps(counts).encode(), 0)

    answer = forked(all_of_them, limit=3600)
    if answer.code:
        outcome.ended["fault"] += 1
        outcome.faults.append(f"mutation {answer.out[:60].strip()}: exit code {answer.code}: {answer.err[-1500:]}")
    else:
        outcome.ended.update(json.loads(answer.out[61:]))
    return outcome


# ── command lines ──

LEFT_OUT = {"--download", "--open", "--plugin", "--host"}  # networks, browsers and the user's own code
SECONDS = 1.0  # then a command is interrupted as by Ctrl-C


def command_lines(sample: Sample, tries: int, seed: int) -> Outcome:
    """Any command with any options, good and bad values, in any order. What works for long is stopped by Ctrl-C."""
    outcome = Outcome()
    load_commands()
    commands = typer.main.get_group(app).commands
    every = sorted(commands)
    kept = digest(sample.run, sample.pictures)
    interrupted = 0
    for number in range(tries):
        chance = random.Random(f"{seed} {number}")
        room = sample.folder()
        shutil.copy(sample.picture, room / "picture.png")
        words = line(commands, every[number % len(every)], sample, chance)
        answer = wcapsnet(*words, before=_interrupting, cwd=room, limit=90)
        outcome.add(" ".join(word[:80] for word in words), answer)
        interrupted += answer.code == 130
        if digest(sample.run, sample.pictures) != kept:
            outcome.lost.append(f"{words} changed what it was given")
            break
        shutil.rmtree(room)
    outcome.ended["one sentence"] -= interrupted
    outcome.ended["stopped by Ctrl-C"] += interrupted
    outcome.facts["commands"] = len(every)
    return outcome


def _interrupting() -> None:
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, SECONDS, 5.0)


def line(commands: dict[str, Any], name: str, sample: Sample, chance: random.Random) -> list[str]:
    """A command line that is right in most places and wrong in some"""
    words = [name if chance.random() < 0.97 else chance.choice([name[:-1], name.upper(), "", "-", "\x1b[31m"])]
    odd = chance.choice((0.0, 0.1, 0.3))  # share of values that are random
    for one in commands[name].params:
        if one.param_type_name == "argument":
            for _ in range(chance.choice((1, 1, 1, 1, 0, 2))):
                words.append(_value(one, sample, chance, odd))
        elif chance.random() < (0.6 if one.required else 0.2):
            option = chance.choice(one.opts)
            if option in LEFT_OUT:
                continue
            for _ in range(chance.choice((1, 1, 1, 2))):
                words += [option] if getattr(one, "is_flag", False) else [option, _value(one, sample, chance, odd)]
    if name in ("train", "sweep", "ablate") and chance.random() < 0.7:
        words += ["--size", "8", "--epochs", "1", "--lr", "0.05", *SMALL]
    if name == "explore":
        words += ["--no-browser", "--port", "0"]
    if chance.random() < 0.1:
        at = chance.randrange(1, len(words) + 1)
        words.insert(at, chance.choice(["--nonsense", "--help", "-x", "--", "-", "--epochs", "extra", "\ud800"]))
    return [word.replace("\0", "0") for word in words]  # a process cannot be given a NUL


def _value(one: Any, sample: Sample, chance: random.Random, odd: float) -> str:
    if chance.random() < odd:
        return str(
            chance.choice([*NUMBERS[:-1], *TEXTS, *SPECIAL, "a,b", "1x2x3", "model.levels=[]", "training.lr=-1"])
        )
    kind = getattr(getattr(one, "type_descriptor", None), "annotation", str)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return str(chance.choice(list(kind)).value)
    if kind is int:
        return str(chance.choice((0, 1, 2, 3, 8)))
    if one.name in ("lr", "minutes"):
        return str(chance.choice((0.01, 0.05, 0.2)))
    if one.name in ("settings", "grid"):
        return chance.choice(("training.lr=0.01", "model.dense_layers=1", "training.seed=1,2", "data.validation=0.2"))
    if one.name == "data_dir":
        return str(chance.choice((sample.pictures, sample.place / "nowhere")))
    if one.name == "out":
        return chance.choice(("new", "picture.png", "new/deep/er"))
    places = [sample.run, sample.run, sample.pictures, sample.run / "best.safetensors", "picture.png", "wcapsnet-mnist"]
    recipe_name = chance.choice(sorted(RECIPES))
    names = ["cpu", "auto", "fp32", "plain", "8", "3", "quick", recipe_name, "wcapsnet-quick", "routing"]
    return str(chance.choice(places if one.param_type_name == "argument" else names))
