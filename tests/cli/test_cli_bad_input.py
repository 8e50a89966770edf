"""Every bad input: one sentence, a non-zero exit, and nothing left behind."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from cli_helpers import call, sentence

from wcapsnet.api import explaining, prediction, reporting, sweeping, training
from wcapsnet.cli import bench, demo, explore, predict

CASES = {
    "nothing to train": (("train",), "what to train"),
    "unknown recipe": (("train", "cifr10"), "did you mean 'cifar10'"),
    "recipe like nothing": (("train", "zzzzzz"), "neither a recipe nor a folder"),
    "missing folder": (("train", "no/such/folder"), "There is no folder no/such/folder"),
    "missing experiment": (("train", "none.json"), "There is no file none.json"),
    "missing data": (("train", "mnist", "--data-dir", "nowhere"), "--download"),
    "size of a recipe": (("train", "toy", "--size", "8"), "are for folders"),
    "model of a recipe": (("train", "toy", "--model", "wcapsnet"), "are for folders"),
    "exclude of a recipe": (("sweep", "toy", "--exclude", "x"), "--exclude"),
    "unknown field": (("train", "toy", "--set", "training.epoch=3"), "did you mean 'training.epochs'"),
    "wrong type": (("train", "toy", "--set", "training.epochs=three"), "training.epochs must be a whole number"),
    "no value": (("train", "toy", "--set", "training.epochs"), "FIELD=VALUE"),
    "half a level": (("train", "toy", "--set", 'model.levels=[{"capsules": 1}]'), "model.levels.0"),
    "lambda nan": (("train", "toy", "--set", "objective.wasserstein=NaN"), "objective.wasserstein"),
    "impossible stride": (("train", "toy", "--set", "model.levels.0.stride=99"), "model.levels.0.stride"),
    "network for other images": (("train", "toy", "--set", "model.height=16"), "model.height is 16"),
    "network for other classes": (("train", "toy", "--set", "model.classes=4"), "model.classes is 4"),
    "no images to train on": (("train", "toy", "--set", "data.validation=48"), "data.validation"),
    "learning rate": (("train", "toy", "--lr", "-1"), "training.lr is -1.0"),
    "learning rate nan": (("train", "toy", "--lr", "nan"), "training.lr is nan"),
    "device": (("train", "toy", "--device", "tpu"), "There is no device 'tpu'"),
    "device not supported": (("train", "toy", "--device", "meta"), "'meta'"),
    "device not there": (("train", "toy", "--device", "cuda:77"), "'cuda:77' is not available"),
    "precision": (("train", "toy", "--precision", "fp16"), "training.precision is 'fp16'"),
    "resume nothing": (("train", "--resume", "nowhere"), "nowhere is not a run folder"),
    "evaluate nothing": (("evaluate", "nowhere"), "There is no run folder nowhere, nor a shipped network"),
    "predict with nothing": (("predict", "nowhere", "a.png"), "no run folder or weights file at nowhere"),
    "demo device": (("demo", "--device", "tpu"), "There is no device 'tpu'"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_one_sentence_and_leaves_nothing_behind(toy, case):
    command, says = CASES[case]
    said = sentence(call(*command))
    assert says in said
    assert list(Path().iterdir()) == []


PICTURES = {
    **{("train", f"--size={size}"): "HEIGHTxWIDTH" for size in ("big", "8x", "x8", "8x8x8", "-8", "8.5", "²")},
    **{("train", "--size", size): "between 8 and 1024" for size in ("0", "7", "7x16", "16x7", "1025", "100000")},
    ("sweep", "--size", "7"): "between 8 and 1024",
    ("ablate", "routing", "--size", "7"): "between 8 and 1024",
    ("train", "--model", "wcapsnett"): "did you mean 'wcapsnet'",
}


@pytest.mark.parametrize("case", PICTURES, ids=" ".join)
def test_bad_input_for_pictures_is_one_sentence(pictures, case):
    command, *options = case[:2] if case[0] == "ablate" else case[:1]
    assert PICTURES[case] in sentence(call(command, *options, pictures, *case[1 + len(options) :]))
    assert "one folder for each class" in sentence(call("train", pictures / "apples"))
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not valid JSON"),
        ("[]", "must hold a JSON object"),
        ('{"name": "x", "modle": {}}', "did you mean 'model'"),
        ('{"name": "x", "model": {"classes": 1}}', "model.classes is 1"),
        ("{}", "name"),
        ('{"name": "x", "model": {"levels": [{}]}}', "model.levels.0"),
        ("\x00\xff", "is not valid JSON"),
    ],
)
@pytest.mark.parametrize("command", [("evaluate",), ("predict",), ("train",), ("train", "--resume")])
def test_a_corrupt_experiment_json_is_one_sentence(command, text, says):
    Path("run").mkdir()
    Path("run", "experiment.json").write_text(text, encoding="latin-1")
    pictures = ("a.png",) if command == ("predict",) else ()
    assert says in sentence(call(*command, "run", *pictures))
    assert {p.name for p in Path().rglob("*")} == {"run", "experiment.json"}


@pytest.mark.parametrize(
    ("command", "name", "content", "says"),
    [
        (("evaluate", "own"), "best.safetensors", b"short", "best.safetensors"),
        (("evaluate", "own"), "best.safetensors", None, "there is no best.safetensors"),
        (("predict", "own", "a.png"), "best.safetensors", None, "there is no best.safetensors"),
        (("predict", "own/state.safetensors", "a.png"), "test.json", None, "state.safetensors"),
        (("train", "--resume", "own"), "state.safetensors", b"short", "state.safetensors"),
        (("train", "--resume", "own"), "metrics.jsonl", b"{\n", "metrics.jsonl"),
        (("evaluate", "own", "--precision", "half"), "test.json", None, "fp32 or bf16"),
    ],
)
def test_a_damaged_run_is_one_sentence(run, command, name, content, says):
    shutil.copytree(run, "own", ignore=shutil.ignore_patterns("test.json", name))
    if content:
        Path("own", name).write_bytes(content)
    assert says in sentence(call(*command))


def test_a_folder_that_may_not_be_written_is_one_sentence(toy):
    Path("file").write_text("in the way")
    sentence(call("train", "toy", "--out", "file/run", "-q"))
    assert Path("file").read_text() == "in the way"


USAGE = """train toy --epochs 0
train toy --epochs many
train toy --seed -1
train toy --nonsense
trian toy
sweep toy --parallel 0
sweep toy --parallel 99
ablate everything toy
ablate routing
evaluate
evaluate run --split exam
predict run
predict run a.png --top 0
list everything"""


@pytest.mark.parametrize("command", USAGE.splitlines())
def test_wrong_usage_is_explained_and_leaves_nothing_behind(toy, command):
    answer = call(*command.split())
    assert answer.code == 2
    assert "Usage" in answer.err
    assert "Traceback" not in answer.err
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
@pytest.mark.parametrize(
    "command",
    [
        *(("train", "toy"), ("train", "--resume", "run"), ("train", "--resume=run"), ("sweep", "toy"), ("demo",)),
        *(("ablate", "routing", "toy"), ("bench",), ("evaluate", "run"), ("predict", "run", "a.png")),
        *(("explain", "run"), ("report", "run"), ("explore", "run")),
    ],
)
def test_where_memory_is_short_a_command_advises_what_it_can_do(toy, monkeypatch, command, error):
    def fails(*args):
        raise error

    for module in (training, sweeping, prediction, explaining, reporting, bench, demo, explore, predict):
        monkeypatch.setattr(module, "choose_device", fails)
    said = sentence(call(*command))
    assert "memory; " in said
    named = re.findall(r"--[a-z-]+", said)
    assert named
    options = call(command[0], "--help").out
    assert all(f"{option} " in options for option in named)
    if any(word.startswith("--resume") for word in command):
        assert "--batch-size" not in said  # which is refused with it
