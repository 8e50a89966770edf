"""`wcapsnet train` and `wcapsnet demo`."""

import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from cli_helpers import SMALL, call, experiment, fruit, press_ctrl_c, same_weights, sentence
from filelock import FileLock
from training_helpers import assert_same_run, poison

import wcapsnet
import wcapsnet.hub as hub
import wcapsnet.training.step as step_module
from wcapsnet.api import experiment_for
from wcapsnet.recipes import RECIPES
from wcapsnet.training.run_folder import Run

# ── a folder of pictures ──


def test_a_folder_of_pictures_is_learned(trained, pictures):
    path, answer = trained
    assert (answer.code, answer.err) == (0, "")
    facts = json.loads((path / "test.json").read_text())
    assert facts["accuracy"] > 0.9
    assert set(facts["per_class"]) == {"apples", "plums"}
    assert f"Test accuracy {facts['accuracy']:.2%}" in answer.out
    assert f"The run folder is {path}." in answer.out
    assert "2 classes, 28 training, 6 validation, 6 test images (3×8×8)" in answer.out
    assert len(re.findall(r"^epoch ", answer.out, re.MULTILINE)) == 12
    asked = experiment(path)
    assert asked["data"]["source"] == str(pictures.resolve())
    assert (asked["training"]["epochs"], asked["training"]["lr"], asked["training"]["precision"]) == (12, 0.05, "fp32")
    assert json.loads((path / "environment.json").read_text())["command"][:3] == ["wcapsnet", "train", str(pictures)]
    _, *lines = (path / "predictions.csv").read_text().splitlines()
    assert len(lines) == 6
    assert all(re.match(r"(apples|plums)/\d+\.png,", line) for line in lines)


def test_without_out_a_folder_gives_its_name_to_the_run(pictures):
    for expected in ("fruit", "fruit-2"):
        answer = call("train", pictures, "--size", 8, "--epochs", 1, "--quiet", *SMALL)
        assert (answer.code, answer.err) == (0, "")
        assert [line.split()[0] for line in answer.out.splitlines()] == ["Test", "The"], "nothing but the result"
        assert f"The run folder is runs/{expected}." in answer.out
        assert Path("runs", expected, "test.json").is_file()


# ── options ──


def test_options_and_settings_reach_the_experiment(toy):
    answer = call(
        *("train", "toy", "--epochs", 4, "--batch-size", 8, "--lr", 0.01, "--seed", 5, "--precision", "bf16"),
        *("--device", "cpu", "--out", "mine", "--set", "model.levels.0.capsules=4", "--set", "training.patience=3"),
        *("--set", "model.nonlinearity=squash", "--quiet"),
    )
    assert answer.code == 0, answer
    asked = experiment("mine")
    assert asked["version"] == wcapsnet.__version__
    assert asked["training"] == {
        **asked["training"],
        **{"epochs": 4, "milestones": [2], "batch_size": 8, "lr": 0.01, "seed": 5, "precision": "bf16", "patience": 3},
    }
    assert asked["model"]["levels"][0]["capsules"] == 4
    assert asked["model"]["nonlinearity"] == "squash"
    assert len(Path("mine", "metrics.jsonl").read_text().splitlines()) == 4


# ── again ──


def test_a_single_setting_or_class_may_be_given_as_a_string(tmp_path):
    folder = fruit(tmp_path / "fruit")
    shutil.copytree(folder / "plums", folder / "pears")
    found, _ = experiment_for(folder, settings="training.lr=0.25", exclude="pears")
    assert (found.training.lr, found.data.exclude, found.model.classes) == (0.25, ("pears",), 2)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["first", "first/experiment.json"])
def test_a_run_is_repeated_from_its_folder_alone(toy, target):
    settings = ("--set", "model.levels.0.capsules=2", "--seed", 3, "--precision", "bf16")
    assert call("train", "toy", "--out", "first", "-q", *settings).code == 0
    assert call("train", target, "--out", "again", "-q").code == 0
    assert experiment("again") == experiment("first")
    assert same_weights(Path("first/last.safetensors"), Path("again/last.safetensors"))
    assert "The run folder is runs/toy." in call("train", target, "-q", "--seed", 9).out
    assert experiment("runs/toy")["training"]["seed"] == 9
    assert not same_weights(Path("first/last.safetensors"), Path("runs/toy/last.safetensors"))


def test_a_repeated_run_finds_its_data_where_they_were(toy, tmp_path):
    # a run folder is enough to repeat: nothing is typed again
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "toy.txt").touch()
    assert call("train", "toy", "--data-dir", tmp_path / "elsewhere", "--out", "first", "-q").code == 0
    Path("data").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WCAPSNET_DATA", str(tmp_path / "nothing"))
        assert call("evaluate", "first", "--json").code == 0
        again = call("train", "first", "--out", "again", "-q")
    assert again.code == 0, again.err
    assert same_weights(Path("first/last.safetensors"), Path("again/last.safetensors"))


def test_an_existing_folder_is_never_written_over_nor_are_data_read_first(toy, monkeypatch):
    assert call("train", "toy", "--out", "mine", "-q").code == 0
    before = {file: file.stat().st_mtime_ns for file in Path("mine").iterdir()}
    monkeypatch.setattr(hub, "load_dataset", None)
    assert "wcapsnet train --resume mine" in sentence(call("train", "toy", "--out", "mine", "-q", "--seed", 1))
    assert {file: file.stat().st_mtime_ns for file in Path("mine").iterdir()} == before
    Path("other").mkdir()
    Path("other", "notes.txt").touch()
    assert "other already exists" in sentence(call("train", "toy", "--out", "other"))


# ── stopped and resumed ──


@pytest.mark.slow
def test_ctrl_c_saves_says_how_to_resume_and_exits_130(toy):
    assert call("train", "toy", "--out", "whole", "-q").code == 0
    with pytest.MonkeyPatch.context() as patch:
        press_ctrl_c(patch, 1, 1)
        answer = call("train", "toy", "--out", "my run [b] 1", "-q")
    assert (answer.code, answer.err) == (130, "")
    words = shlex.split(answer.out.partition("Resume with: ")[2].strip())
    assert words[:4] == ["wcapsnet", "train", "--resume", "my run [b] 1"]  # then the plugin: toy is not in the package
    broken, whole = Path("my run [b] 1"), Path("whole")
    assert not (broken / "test.json").exists()
    assert "not finished" in call("list", "runs", "--runs", ".").out
    resumed = call(*words[1:])
    assert resumed.code == 0
    assert "resumed after epoch" in resumed.out
    recorded = json.loads((broken / "environment.json").read_text())
    assert recorded["computed_by"] == "plain PyTorch"
    (again,) = recorded["resumed"]
    assert (again["command"], again["after_epoch"]) == (words, 1)
    assert "data_dir" not in again
    assert_same_run(Run.open(broken), Run.open(whole))
    assert "is finished" in call(*words[1:]).out


def test_a_run_killed_in_its_first_epoch_starts_again_when_resumed(toy):
    def killed(self, index):
        raise MemoryError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_module.Step, "__call__", killed)
        with pytest.raises(MemoryError):
            call("train", "toy", "--out", "killed", "-q")
    assert call("train", "--resume", "killed", "-q").code == 0
    assert call("train", "toy", "--out", "whole", "-q").code == 0
    assert same_weights(Path("killed/last.safetensors"), Path("whole/last.safetensors"))


def test_a_run_stopped_while_its_report_was_written_gets_it_when_resumed(toy):
    assert call("train", "toy", "--out", "mine", "-q").code == 0
    Path("mine/report.html").rename("mine/.report.html.123.partial")
    before = {path: path.read_bytes() for path in Path("mine").glob("*.*") if path.suffix != ".partial"}
    answer = call("train", "--resume", "mine")
    assert answer.code == 0
    assert "report.html" in answer.out
    assert "</html>" in Path("mine/report.html").read_text()
    assert not list(Path("mine").glob("*.partial"))
    assert {path: path.read_bytes() for path in before if path.suffix != ".lock"} == before


def test_a_finished_run_without_its_data_says_why_it_has_no_report(tmp_path):
    pictures = fruit(tmp_path / "gone", 6)
    assert call("train", pictures, "--size", 8, "--epochs", 1, "--out", "mine", "-q", *SMALL).code == 0
    Path("mine/report.html").unlink()
    shutil.rmtree(pictures)
    answer = call("train", "--resume", "mine")
    assert answer.code == 0
    assert "The report could not be written" in answer.err
    assert "is finished" in answer.out


def test_resuming_goes_on_as_begun_and_says_so_when_asked_for_something_else(toy):
    with pytest.MonkeyPatch.context() as patch:
        press_ctrl_c(patch, 0, 1)
        assert call("train", "toy", "--out", "broken", "-q").code == 130
    other = {"--epochs": 3, "--batch-size": 3, "--lr": 0.1, "--seed": 0, "--size": 8, "--model": "wcapsnet"}
    other |= {"--precision": "bf16", "--kernels": "plain", "--out": "x", "--set": "training.lr=1"}
    for option, value in other.items():
        assert sentence(call("train", "--resume", "broken", option, value)).endswith(f"with {option}.")
    assert sentence(call("train", "toy", "--resume", "broken")).endswith("with toy.")
    assert not Path("broken/test.json").exists()


def test_ctrl_c_while_data_are_read_exits_130_and_leaves_nothing(toy, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(hub, "load_dataset", interrupted)
    answer = call("train", "toy")
    assert answer.code == 130
    assert "Traceback" not in answer.err
    assert not Path("runs").exists()


# ── divergence ──


def test_divergence_is_one_sentence_and_the_last_good_checkpoint_stays(toy):
    with pytest.MonkeyPatch.context() as patch:
        poison(patch, lambda step, weights: step > 3)
        said = sentence(call("train", "toy", "--out", "mine", "-q"))
    assert "diverged in epoch 2" in said
    assert "--lr 0.005" in said
    assert "The last good checkpoint is kept" in said
    assert Path("mine/report.html").is_file()
    assert wcapsnet.load("mine").predict([]) == []
    assert call("evaluate", "mine", "--json").code == 0
    assert call("train", "--resume", "mine", "-q").code == 0


@pytest.mark.parametrize(
    ("optimizer", "batch_size", "usual"),
    [("sgd", 16, 0.1), ("sgd", 64, 0.1), ("adamw", 64, 0.001)],
    ids=["several steps an epoch", "one step an epoch", "AdamW"],
)
def test_a_learning_rate_beyond_all_measure_stops_with_one_sentence(toy, optimizer, batch_size, usual):
    options = ("--batch-size", batch_size, "--epochs", 3, "--set", f"training.optimizer={optimizer}")
    answer = call("train", "toy", "--out", "mine", "-q", "--lr", "1e6", *options)
    said = sentence(answer)
    assert "Training diverged in epoch 1 " in said
    assert "checkpoint is kept" not in said  # no checkpoint yet
    assert not list(Path("mine").glob("*.safetensors"))
    assert re.search(rf"--lr {usual}[.,](?!\d)", said), "a rate that is known to work, not a tenth of this one"


# ── demo ──


def test_demo_shows_accuracy_and_routing_weights_and_can_be_resumed(toy):
    with pytest.MonkeyPatch.context() as patch:
        press_ctrl_c(patch, 0, 1)
        assert "wcapsnet train --resume runs/demo" in call("demo").out
    answer = call("demo")
    assert answer.code == 0, answer
    facts = json.loads(Path("runs/demo-2/test.json").read_text())
    assert f"Test accuracy {facts['accuracy']:.2%}" in answer.out
    assert "wcapsnet predict runs/demo-2" in answer.out
    for name, row in zip(("top", "middle", "bottom"), facts["mean_weights"][0], strict=True):
        shown = next(line for line in answer.out.splitlines() if re.match(rf"\W*{name}\W", line))
        assert [float(w) for w in re.findall(r"0\.\d{3}", shown)] == pytest.approx(row, abs=6e-4)
        assert float(re.search(r"(0\.\d{3}) ◀", shown).group(1)) == pytest.approx(max(row), abs=6e-4)


def test_demo_takes_epochs_and_out_and_a_network_of_a_single_level(toy, monkeypatch):
    base = RECIPES["toy"]()
    single = replace(base, name="demo", model=replace(base.model, levels=base.model.levels[:1]))
    monkeypatch.setitem(RECIPES, "demo", lambda: single)
    assert call("demo", "--epochs", 1, "--out", "there").code == 0
    assert len(Path("there/metrics.jsonl").read_text().splitlines()) == 1


# ── two at once ──


def test_a_run_is_not_trained_by_two_processes_at_once(toy):
    with pytest.MonkeyPatch.context() as patch:
        press_ctrl_c(patch, 1, 1)
        assert call("train", "toy", "--out", "mine", "-q").code == 130
    before = {path: path.read_bytes() for path in Path("mine").glob("*.*") if path.is_file()}
    with FileLock("mine/.lock"):
        assert "Another process is training mine" in sentence(call("train", "--resume", "mine", "-q"))
    assert {path: path.read_bytes() for path in before} == before
    assert call("train", "--resume", "mine", "-q").code == 0
    with FileLock("mine/.lock", blocking=False):  # it was let go
        pass


def test_a_run_without_its_state_does_not_begin_anew(toy):
    with pytest.MonkeyPatch.context() as patch:
        press_ctrl_c(patch, 1, 1)
        assert call("train", "toy", "--out", "mine", "-q").code == 130
    state = Path("mine/state.safetensors").read_bytes()
    before = Path("mine/metrics.jsonl").read_bytes()
    Path("mine/state.safetensors").write_bytes(state[:1000])
    assert "mine/state.safetensors" in sentence(call("train", "--resume", "mine"))
    Path("mine/state.safetensors").unlink()
    assert "state.safetensors is missing" in sentence(call("train", "--resume", "mine"))
    assert Path("mine/metrics.jsonl").read_bytes() == before
