"""Mutated experiment.json files: each is accepted, or refused with one sentence.

WCAPSNET_MUTATIONS is the number of files to try; the default takes a few seconds.
"""

import copy
import json
import os
import random

import pytest

from wcapsnet import memory
from wcapsnet.errors import InputError
from wcapsnet.experiment import Experiment
from wcapsnet.memory import built, check_training
from wcapsnet.models import model_config
from wcapsnet.recipes import recipe
from wcapsnet.settings import to_dict
from wcapsnet.training.run_folder import Run, read_experiment

NUMBERS = [
    0,
    -0.0,
    -1,
    1,
    2,
    3,
    0.5,
    1e-320,
    1e308,
    -1e308,
    2**31,
    2**53 + 1,
    2**63 - 1,
    2**63,
    2**64,
    -(2**63),
    10**400,
]
OTHERS = [
    None,
    True,
    False,
    "",
    " ",
    "x" * 10_000,
    "\0",
    "\ud800",
    "é×\u202e\x1b[31m",
    "../..",
    [],
    {},
    [[]],
    [{}],
    "NaN",
    "1",
]
SPECIAL = [float("nan"), float("inf"), -float("inf")]


def nested(depth, inner=1):
    for _ in range(depth):
        inner = [inner]
    return inner


def places(content):
    """Every (container, key) in nested dicts and lists."""
    items = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in list(items):
        yield content, key
        if isinstance(value, (dict, list)):
            yield from places(value)


def mutated(content, chance):
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


def text_of(content, chance):
    text = json.dumps(content)
    if chance.random() < 0.1:
        at = chance.randrange(len(text) + 1)
        text = text[:at] + chance.choice(["[" * 100_000, "9" * 5000, "", "\x00", "}", '{"a":' * 3000]) + text[at + 1 :]
    return text


def base(name):
    experiment = to_dict(recipe("quick"))
    if name != "wcapsnet-quick":
        experiment["model"] = {**to_dict(model_config(name, 10, 1, 28, 28)), "depth": 16, "growth": 4}
    return {"version": "0", "plugins": [], **experiment}


def tried(path, text):
    """The sentence that refuses a file; None if it is accepted and its network can be built."""
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        experiment = Run.open(path.parent).experiment if path.name == "experiment.json" else read_experiment(path)
        assert isinstance(experiment, Experiment)
        training = experiment.training
        check_training(experiment.model, memory.CPU, training.batch_size, 16)
        built(experiment.model)
        training.learning_rate(training.epochs - 1)
        Run.create(path.parent / "again", experiment, {})
    except InputError as error:
        return str(error)
    return None


@pytest.mark.parametrize(("name", "share"), [("wcapsnet-quick", 0.8), ("densenet-bc-100-12", 0.2)])
def test_any_experiment_json_is_accepted_or_refused_but_never_a_crash(tmp_path, monkeypatch, name, share):
    monkeypatch.setattr(memory, "available", lambda device: 80e6)  # what fits is built, so keep it small
    content, accepted = base(name), 0
    path = tmp_path / "experiment.json"
    for number in range(int(share * int(os.environ.get("WCAPSNET_MUTATIONS", 300)))):
        chance = random.Random(f"{name} {number}")
        text = text_of(mutated(content, chance), chance)
        try:
            refused = tried(path, text)
        except Exception as error:
            raise AssertionError(f"mutation {number}: {text[:5000]}") from error
        accepted += refused is None
        assert refused is None or len(refused) < 1000
        for left in sorted(tmp_path.glob("again/*")) + sorted(tmp_path.glob("again")):
            left.rmdir() if left.is_dir() else left.unlink()
    assert accepted  # the test is about both
    assert tried(path, json.dumps(content)) is None
