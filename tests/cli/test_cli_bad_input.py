"""Every bad input: one sentence, a non-zero exit, and nothing left behind."""

import contextlib
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cli_helpers import call, environment, sentence

from wcapsnet import device
from wcapsnet.api import explaining, reporting, sweeping
from wcapsnet.classifier import load_tensors, save_tensors
from wcapsnet.cli import bench, demo, explore
from wcapsnet.cli.exit import in_a_sentence
from wcapsnet.errors import InputError
from wcapsnet.training import distributed

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
    "learning rate": (("train", "toy", "--lr", "-1"), "--lr is -1.0"),
    "learning rate nan": (("train", "toy", "--lr", "nan"), "--lr is nan"),
    "learning rate inf": (("train", "toy", "--lr", "inf"), "at most 3.4e+38"),
    "learning rate beyond float32": (("train", "toy", "--lr", "1e308"), "--lr is 1e+308"),
    "seed beyond 63 bits": (("train", "toy", "--seed", str(2**64)), "between 0 and 9,223,372,036,854,775,807"),
    "epochs beyond all numbers": (("train", "toy", "--epochs", "1" + "0" * 400), "--epochs is"),
    "integer beyond 64 bits": (("train", "toy", "--set", f"model.dense_layers={2**64}"), "model.dense_layers"),
    "float of a huge integer": (("train", "toy", "--set", f"training.lr=1{'0' * 400}"), "training.lr"),
    "amount of a huge integer": (("train", "toy", "--set", f"objective.wasserstein=1{'0' * 400}"), "wasserstein"),
    "integer of many digits": (("train", "toy", "--set", f"training.epochs={'9' * 5000}"), "training.epochs"),
    "brackets": (("train", "toy", "--set", f"training.epochs={'[' * 100_000}"), "training.epochs"),
    "brackets of levels": (("train", "toy", "--set", f"model.levels={'[' * 500}{']' * 500}"), "model.levels.0"),
    "more memory than there is": (
        ("train", "toy", "--set", "model.levels.0.capsules=1000000000"),
        "model.levels.0.capsules is 1000000000",
    ),
    "device": (("train", "toy", "--device", "tpu"), "There is no device 'tpu'"),
    "device not supported": (("train", "toy", "--device", "meta"), "'meta'"),
    "device not there": (("train", "toy", "--device", "cuda:77"), "'cuda:77' is not available"),
    "precision": (("train", "toy", "--precision", "fp16"), "--precision is 'fp16'"),
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
    ("train", "--model", "capsnet", "--size", "20x16"): "--size: the width is 16, but it must be a whole number of at",
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
        ("[" * 100_000, "experiment.json"),
        ('{"name": "x", "training": {"epochs": ' + "9" * 5000 + "}}", "experiment.json"),
        ('{"name": "x", "model": {"architecture": []}}', "model.architecture"),
        ('{"name": "\\ud800"}', "name is"),
        ('{"name": "x", "data": {"source": "a\\u0000"}}', "data.source"),
        ('{"name": "x", "plugins": 3}', "plugins"),
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

    for module in (device, distributed, sweeping, explaining, reporting, bench, demo, explore):
        monkeypatch.setattr(module, "choose_device", fails)
    said = sentence(call(*command))
    assert "memory; " in said
    named = re.findall(r"--[a-z-]+", said)
    assert named
    options = call(command[0], "--help").out
    assert all(f"{option} " in options for option in named)
    if any(word.startswith("--resume") for word in command):
        assert "--batch-size" not in said  # which is refused with it


# ── damaged run folders ──


@pytest.fixture
def spoiled(run, tmp_path):
    """A finished run that may be damaged"""
    copy = tmp_path / "spoiled"
    shutil.copytree(run, copy)
    return copy


DAMAGED = {
    "data.json": ["{", "[]", "{}", '{"classes": 3}', '{"classes": ["a", 1], "fingerprint": {}}', "[" * 100_000],
    "environment.json": ["{", "[]", "[" * 100_000],
    "metrics.jsonl": ["{", "3", "{}", '{"validation_accuracy": "high"}', '{"validation_accuracy": NaN}', "9" * 5000],
    "test.json": ["{", "[]", "{}", "[" * 100_000],
}


@pytest.mark.parametrize(("name", "content"), [(name, text) for name, texts in DAMAGED.items() for text in texts])
def test_a_damaged_file_of_a_run_is_a_sentence_in_every_command(spoiled, name, content):
    (spoiled / name).write_text(content)
    resumed = spoiled.with_name("resumed")
    shutil.copytree(spoiled, resumed)
    if name != "test.json":
        (resumed / "test.json").unlink()
    commands = (
        ("evaluate", spoiled),
        ("report", spoiled),
        ("report", spoiled, resumed),
        ("train", "--resume", resumed),
    )
    for command in (*commands, ("list", "runs", "--runs", spoiled.parent)):
        answer = call(*command)
        said = answer.err.splitlines()
        assert answer.code == 0 or said[-1].startswith("error: ")
        assert len(said) < 4, answer.err


STATES = [{}, {"epoch": "three"}, {"epoch": 1, "more": 2}, [], None, {"epoch": 1.5}, {"seconds": "long"}]


@pytest.mark.parametrize("wrong", [*STATES, "sums", "random.cpu", "exp_avg.projection"])
def test_a_state_of_another_kind_or_without_one_of_its_tensors_is_one_sentence(spoiled, wrong):
    (spoiled / "test.json").unlink()
    path = spoiled / "state.safetensors"
    tensors, facts = load_tensors(path)
    if isinstance(wrong, str):
        del tensors[wrong]
    else:
        facts = {**facts, "state": wrong} if wrong != {} else {}
    save_tensors(path, tensors, facts)
    assert "cannot be resumed" in sentence(call("train", "--resume", spoiled))


@pytest.mark.parametrize("command", ["predict", "explain", "evaluate", "report", "explore"])
def test_weights_that_are_not_finite_are_refused_by_every_command(spoiled, pictures, command):
    tensors, facts = load_tensors(spoiled / "best.safetensors")
    tensors["projection"][0, 0] = torch.nan
    save_tensors(spoiled / "best.safetensors", tensors, facts)
    words = {"predict": (pictures / "apples" / "0.png", "--json"), "report": ("--out", "page.html")}
    answer = call(command, spoiled, *words.get(command, ()))
    if command != "report":  # it says what it lacks
        assert "projection is not finite" in sentence(answer)
    assert "nan" not in answer.out.lower()


@pytest.mark.parametrize("command", ["predict", "explain one", "explain", "evaluate", "report", "export"])
def test_a_network_whose_finite_weights_overflow_gives_no_numbers(spoiled, pictures, command):
    tensors, facts = load_tensors(spoiled / "best.safetensors")
    for tensor in tensors.values():
        if tensor.is_floating_point() and tensor.dim() > 1:
            tensor.fill_(3e38)
    save_tensors(spoiled / "best.safetensors", tensors, facts)
    picture = pictures / "apples" / "0.png"
    words = {"predict": (picture, "--json"), "explain one": (picture, "--json"), "report": ("--out", "page.html")}
    answer = call(command.split()[0], spoiled, *words.get(command, ()))
    assert "output is not finite" in answer.err
    if command != "report":  # it says what it lacks
        assert "output is not finite" in sentence(answer)
    assert "nan" not in answer.out.lower()
    assert not list(Path().glob("*.onnx"))


def test_escape_sequences_of_a_name_do_not_reach_the_terminal(toy):
    answer = call("train", "toy", "--out", "nowhere", "--set", "model.nonlinearity=\x1b[2J")
    assert "\x1b[2J" not in answer.err
    assert "\\x1b[2J" in sentence(answer)


# ── output files ──


def test_a_report_never_replaces_what_is_no_file(spoiled):
    os.mkfifo("pipe")
    Path("link.html").symlink_to("real.html")
    assert "pipe" in sentence(call("report", spoiled, "--out", "pipe"))
    assert stat.S_ISFIFO(Path("pipe").stat().st_mode)
    assert call("report", spoiled, "--out", "link.html").code == 0
    assert Path("link.html").is_symlink()
    assert "<html" in Path("real.html").read_text()


# ── standard streams ──


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_no_error(closed):
    command = f"{shlex.quote(sys.executable)} -m wcapsnet list parts {closed}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment())
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}])
def test_characters_that_an_encoding_lacks_become_similar_ones(settings):
    command = [sys.executable, "-m", "wcapsnet", "list", "datasets"]
    env = {**environment(), "PYTHONCOERCECLOCALE": "0", **settings}
    done = subprocess.run(command, capture_output=True, env=env)
    assert done.returncode == 0, done.stderr
    assert b"3x32x32" in done.stdout


class Interrupted(InputError):
    """Ctrl-C comes while its sentence is being made."""

    def __str__(self):
        signal.raise_signal(signal.SIGINT)
        return "Too late."


def swallowed():
    """As in a library that turns Ctrl-C into an error of its own"""
    with contextlib.suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    raise ValueError("half a tensor")


def late():
    raise Interrupted


@pytest.mark.parametrize("work", [swallowed, late])
def test_ctrl_c_is_one_sentence_wherever_it_comes(capsys, work):
    with pytest.raises(SystemExit) as end, in_a_sentence():
        work()
    assert end.value.code == 130
    assert capsys.readouterr().err.count("error: ") == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_bug_keeps_its_trace():
    with pytest.raises(ValueError, match="a bug"), in_a_sentence():
        raise ValueError("a bug")
