"""`wcapsnet train` and `wcapsnet demo`."""

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cli_helpers import SMALL, call, environment, fruit, same_weights, sentence
from filelock import FileLock

import wcapsnet
import wcapsnet.api as api
import wcapsnet.engine as engine_module
import wcapsnet.hub as hub
import wcapsnet.training.step as step_module
from wcapsnet.recipes import RECIPES
from wcapsnet.training.console import Progress


def experiment(run):
    return json.loads((Path(run) / "experiment.json").read_text())


def metrics_without_timings(run):
    records = [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in record.items() if k not in ("seconds", "images_per_s")} for record in records]


# ── a folder of pictures ──


def test_a_folder_of_pictures_is_learned(trained, pictures):
    path, answer = trained
    assert answer.code == 0
    assert answer.err == ""
    facts = json.loads((path / "test.json").read_text())
    assert facts["accuracy"] > 0.9
    assert f"Test accuracy {facts['accuracy']:.2%}" in answer.out
    assert f"The run folder is {path}." in answer.out
    assert "fruit: 2 classes, 28 training, 6 validation, 6 test images (3×8×8)" in answer.out
    assert len(re.findall(r"^epoch ", answer.out, re.MULTILINE)) == 12
    assert set(facts["per_class"]) == {"apples", "plums"}
    asked = experiment(path)
    assert asked["data"]["source"] == str(pictures.resolve())
    assert (asked["training"]["epochs"], asked["training"]["lr"]) == (12, 0.05)


def test_the_command_is_in_the_environment(run, pictures):
    facts = json.loads((run / "environment.json").read_text())
    assert facts["command"][:3] == ["wcapsnet", "train", str(pictures)]


def test_predictions_name_the_pictures(run):
    lines = (run / "predictions.csv").read_text().splitlines()
    assert len(lines) == 7
    assert all(re.match(r"(apples|plums)/\d+\.png,", line) for line in lines[1:])


def test_without_out_a_folder_gives_its_name_to_the_run(pictures):
    for expected in ("fruit", "fruit-2"):
        answer = call("train", pictures, "--size", 8, "--epochs", 1, "--quiet", *SMALL)
        assert answer.code == 0
        assert f"The run folder is runs/{expected}." in answer.out
        assert Path("runs", expected, "test.json").is_file()


def test_a_broken_picture_is_listed_and_skipped(tmp_path):
    folder = fruit(tmp_path / "fruit", 8)
    (folder / "plums" / "7.png").write_bytes(b"no picture")
    answer = call("train", folder, "--size", "8x12", "--epochs", 1, *SMALL)
    assert answer.code == 0
    assert "1 file" in answer.err
    assert "plums/7.png" in answer.err
    assert (experiment("runs/fruit")["model"]["height"], experiment("runs/fruit")["model"]["width"]) == (8, 12)


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


def test_on_a_cpu_the_precision_is_fp32_unless_asked_otherwise(toy):
    assert call("train", "toy", "--epochs", 1, "--quiet").code == 0
    assert experiment("runs/toy")["training"]["precision"] == "fp32"


def test_quiet_says_nothing_but_the_result(toy):
    answer = call("train", "toy", "--epochs", 1, "--quiet")
    assert answer.err == ""
    assert [line.split()[0] for line in answer.out.splitlines()] == ["Test", "The"]


def test_the_same_command_gives_the_same_weights(toy):
    for out in ("one", "two"):
        assert call("train", "toy", "--out", out, "-q").code == 0
    assert call("train", "toy", "--out", "three", "-q", "--seed", 1).code == 0
    assert same_weights(Path("one/best.safetensors"), Path("two/best.safetensors"))
    assert not same_weights(Path("one/best.safetensors"), Path("three/best.safetensors"))


# ── again ──


@pytest.mark.parametrize("target", ["first", "first/experiment.json"])
def test_a_run_is_repeated_from_its_folder_alone(toy, target):
    settings = ("--set", "model.levels.0.capsules=2", "--seed", 3, "--precision", "bf16")
    assert call("train", "toy", "--out", "first", "-q", *settings).code == 0
    precision = () if target == "first" else ("--precision", "bf16")
    assert call("train", target, "--out", "again", "-q", *precision).code == 0
    assert experiment("again") == experiment("first")
    assert same_weights(Path("first/last.safetensors"), Path("again/last.safetensors"))


def test_a_repeated_run_takes_a_free_name_and_its_changes(toy):
    assert call("train", "toy", "-q").code == 0
    answer = call("train", "runs/toy", "-q", "--seed", 9)
    assert "The run folder is runs/toy-2." in answer.out
    assert experiment("runs/toy-2")["training"]["seed"] == 9
    assert experiment("runs/toy")["training"]["seed"] == 0


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


def test_an_existing_run_is_never_written_over(toy):
    assert call("train", "toy", "--out", "mine", "-q").code == 0
    before = {file: file.stat().st_mtime_ns for file in Path("mine").iterdir()}
    said = sentence(call("train", "toy", "--out", "mine", "-q", "--seed", 1))
    assert "mine already holds a run" in said
    assert "wcapsnet train --resume mine" in said
    assert {file: file.stat().st_mtime_ns for file in Path("mine").iterdir()} == before


def test_a_folder_that_is_in_the_way_is_said_before_the_data_are_read(toy, monkeypatch):
    Path("mine").mkdir()
    Path("mine", "notes.txt").touch()
    reads = []
    load = hub.load_dataset
    monkeypatch.setattr(hub, "load_dataset", lambda *args, **kwargs: (reads.append(1), load(*args, **kwargs))[1])
    assert "mine already exists" in sentence(call("train", "toy", "--out", "mine"))
    assert not reads


# ── stopped and resumed ──


def press_ctrl_c(monkeypatch, epoch, step):
    """During the run, through the progress that the command line makes."""

    class Pressing(Progress):
        interval = 0.0

        def batch(self, at, epochs, done, *rest):
            if (at, done) == (epoch, step):
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(api, "make_progress", lambda *args: Pressing())


def test_ctrl_c_saves_says_how_to_resume_and_exits_130(toy):
    assert call("train", "toy", "--out", "whole", "-q").code == 0
    with pytest.MonkeyPatch.context() as patch:
        press_ctrl_c(patch, 1, 1)
        answer = call("train", "toy", "--out", "broken", "-q")
    assert answer.code == 130
    assert answer.err == ""
    assert "Stopped and saved. Resume with: wcapsnet train --resume broken" in answer.out
    assert not Path("broken/test.json").exists()
    assert "not finished" in call("list", "runs", "--runs", ".").out
    resumed = call("train", "--resume", "broken")
    assert resumed.code == 0
    assert "resumed after epoch" in resumed.out
    recorded = json.loads(Path("broken/environment.json").read_text())
    assert recorded["computed_by"] == "plain PyTorch"
    (again,) = recorded["resumed"]
    assert again["command"] == ["wcapsnet", "train", "--resume", "broken"]
    assert again["after_epoch"] == 1
    assert "data_dir" not in again
    assert same_weights(Path("broken/best.safetensors"), Path("whole/best.safetensors"))
    assert same_weights(Path("broken/state.safetensors"), Path("whole/state.safetensors"))
    one, two = (metrics_without_timings(run) for run in ("broken", "whole"))
    assert one == two
    assert Path("broken/predictions.csv").read_bytes() == Path("whole/predictions.csv").read_bytes()


def test_the_command_that_is_proposed_for_resuming_can_be_pasted(toy):
    with pytest.MonkeyPatch.context() as patch:
        press_ctrl_c(patch, 0, 1)
        answer = call("train", "toy", "--out", "my run [b] 1", "-q")
    command = answer.out.partition("Resume with: ")[2].strip()
    words = shlex.split(command)
    assert words == ["wcapsnet", "train", "--resume", "my run [b] 1"]
    assert call(*words[1:], "-q").code == 0
    assert Path("my run [b] 1", "test.json").exists()


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


def test_a_finished_run_has_nothing_to_resume(toy):
    assert call("train", "toy", "--out", "mine", "-q").code == 0
    answer = call("train", "--resume", "mine")
    assert answer.code == 0
    assert "is finished" in answer.out


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


@pytest.mark.parametrize(
    "options",
    [
        ("toy",),
        ("--epochs", 3),
        ("--batch-size", 3),
        ("--lr", 0.1),
        ("--seed", 0),
        ("--size", 8),
        ("--model", "wcapsnet"),
        ("--precision", "bf16"),
        ("--out", "x"),
        ("--set", "training.lr=1"),
    ],
)
def test_resuming_goes_on_as_begun_and_says_so_when_asked_for_something_else(toy, options):
    with pytest.MonkeyPatch.context() as patch:
        press_ctrl_c(patch, 0, 1)
        assert call("train", "toy", "--out", "broken", "-q").code == 130
    said = sentence(call("train", "--resume", "broken", *options))
    assert "--resume" in said
    assert str(options[0]) in said or options[0] == "toy"
    assert not Path("broken/test.json").exists()


def test_ctrl_c_while_data_are_read_exits_130_and_leaves_nothing(toy, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(hub, "load_dataset", interrupted)
    answer = call("train", "toy")
    assert answer.code == 130
    assert "Traceback" not in answer.err
    assert not Path("runs").exists()


@pytest.mark.slow
def test_a_real_ctrl_c_in_a_process_of_its_own(pictures):
    options = ["--size", "8", "--epochs", "15", "--seed", "2", "--lr", "0.05", *SMALL]
    command = [sys.executable, "-m", "wcapsnet", "train", str(pictures), "--out", "broken", *options]
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    ) as process:
        heard = []
        for line in process.stdout:
            heard.append(line)
            if line.startswith("epoch"):
                process.send_signal(signal.SIGINT)
                break
        rest, errors = process.communicate(timeout=60)
    said = "".join(heard) + rest
    assert process.returncode == 130, said + errors
    assert "Stopped and saved. Resume with: wcapsnet train --resume broken" in said
    assert errors == ""
    done = len(Path("broken/metrics.jsonl").read_text().splitlines())
    assert 1 <= done < 15
    resumed = call("train", "--resume", "broken", "-q")
    assert resumed.code == 0
    assert Path("broken/test.json").is_file()
    assert len(Path("broken/metrics.jsonl").read_text().splitlines()) == 15
    assert call("train", pictures, "--out", "whole", "-q", *options).code == 0
    assert same_weights(Path("broken/best.safetensors"), Path("whole/best.safetensors"))
    assert same_weights(Path("broken/last.safetensors"), Path("whole/last.safetensors"))


# ── divergence ──


def test_divergence_is_one_sentence_and_the_last_good_checkpoint_stays(toy):
    honest, steps = engine_module.objective, []

    def poisoned(*args):
        steps.append(1)
        terms = honest(*args)
        return terms._replace(total=terms.total * (float("nan") if len(steps) > 3 else 1))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_module, "objective", poisoned)
        said = sentence(call("train", "toy", "--out", "mine", "-q"))
    assert "diverged in epoch 2" in said
    assert "--lr 0.005" in said
    assert "The last good checkpoint is kept" in said
    assert wcapsnet.load("mine").predict([]) == []
    assert call("evaluate", "mine", "--json").code == 0
    assert call("train", "--resume", "mine", "-q").code == 0


@pytest.mark.parametrize("batch_size", [16, 64], ids=["several steps an epoch", "one step an epoch"])
def test_a_learning_rate_beyond_all_measure_stops_with_one_sentence(toy, batch_size):
    answer = call("train", "toy", "--out", "mine", "-q", "--lr", "1e6", "--batch-size", batch_size, "--epochs", 3)
    said = sentence(answer)
    assert "Training diverged in epoch 1 " in said
    assert "checkpoint is kept" not in said  # no checkpoint yet
    assert not list(Path("mine").glob("*.safetensors"))
    assert "--lr 0.1." in said, "a rate that is known to work, not a tenth of this one"


# ── demo ──


def test_demo_trains_and_shows_accuracy_routing_weights_and_the_run_folder(toy):
    answer = call("demo")
    assert answer.code == 0, answer
    facts = json.loads(Path("runs/demo/test.json").read_text())
    assert f"Test accuracy {facts['accuracy']:.2%}" in answer.out
    assert "The run folder is runs/demo" in answer.out
    assert "wcapsnet predict runs/demo" in answer.out
    for name, row in zip(("top", "middle", "bottom"), facts["mean_weights"][0], strict=True):
        shown = next(line for line in answer.out.splitlines() if re.match(rf"\W*{name}\W", line))
        assert [float(w) for w in re.findall(r"0\.\d{3}", shown)] == pytest.approx(row, abs=6e-4)
        marked = re.search(r"(0\.\d{3}) ◀", shown).group(1)
        assert float(marked) == pytest.approx(max(row), abs=6e-4)


def test_demo_takes_epochs_and_out_and_the_next_free_name(toy):
    assert call("demo", "--epochs", 1, "-q").code == 0
    answer = call("demo", "--epochs", 1, "-q")
    assert "runs/demo-2" in answer.out
    assert len(Path("runs/demo-2/metrics.jsonl").read_text().splitlines()) == 1
    assert call("demo", "--epochs", 1, "-q", "--out", "there").code == 0
    assert Path("there/test.json").is_file()


def test_demo_can_be_interrupted_and_resumed_as_any_run(toy):
    with pytest.MonkeyPatch.context() as patch:
        press_ctrl_c(patch, 0, 1)
        assert "wcapsnet train --resume runs/demo" in call("demo").out
    assert call("train", "--resume", "runs/demo").code == 0


def test_demo_with_a_single_level_still_ends_well(toy, monkeypatch):
    base = RECIPES["toy"]()
    single = replace(base, name="demo", model=replace(base.model, levels=base.model.levels[:1]))
    monkeypatch.setitem(RECIPES, "demo", lambda: single)
    assert call("demo", "--epochs", 1).code == 0


# ── two at once ──


def test_a_run_is_not_trained_by_two_processes_at_once(toy):
    with pytest.MonkeyPatch.context() as patch:
        press_ctrl_c(patch, 1, 1)
        assert call("train", "toy", "--out", "mine", "-q").code == 130
    before = {path: path.read_bytes() for path in Path("mine").glob("*.*") if path.is_file()}
    holding = "import sys; from filelock import FileLock\n"
    holding += "lock = FileLock(sys.argv[1] + '/.lock'); lock.acquire(); print('held', flush=True); input()"
    other = subprocess.Popen(
        [sys.executable, "-c", holding, Path("mine").resolve()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
        text=True,
    )
    with other:
        assert other.stdout.readline() == "held\n"
        said = sentence(call("train", "--resume", "mine", "-q"))
        other.kill()  # and so it lets go
    assert said == "Another process is training mine; wait for it to finish, or stop it."
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
    assert sentence(call("train", "--resume", "mine")).endswith("Bring it back, or delete mine and train again.")
    Path("mine/state.safetensors").unlink()
    said = "mine cannot be resumed: state.safetensors is missing; restore it, or delete mine and train again."
    assert sentence(call("train", "--resume", "mine")) == said
    assert Path("mine/metrics.jsonl").read_bytes() == before
