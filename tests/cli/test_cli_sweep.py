"""`wcapsnet sweep` and `wcapsnet ablate`; and tools/campaign.py, which trains a sweep of its own."""

import csv
import importlib.util
import json
import re
import shlex
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cli_helpers import SMALL, call, same_weights, sentence
from filelock import FileLock

import wcapsnet.hub as hub
import wcapsnet.sweeps.plan as sweep_module
import wcapsnet.sweeps.run as runs_module
from wcapsnet import device as precision
from wcapsnet.data import DATASETS, types
from wcapsnet.recipes import ABLATIONS, PAPER, RECIPES, ROWS
from wcapsnet.recipes.ablations import variant
from wcapsnet.recipes.published import PAPER_TABLES
from wcapsnet.sweeps import product
from wcapsnet.training.console import Board, Progress

GRID = ("--grid", "training.lr=0.05,0.1", "--seeds", 2, "--epochs", 1)
FOLDERS = [f"lr={lr},seed={seed}" for lr in ("0.05", "0.1") for seed in (0, 1)]


def change_images(monkeypatch, part):
    """Others from now on, in the same place"""
    info = DATASETS["toy"]

    def other(root):
        raw = info.read(root)
        getattr(raw, part).images[0] = 0
        return raw

    monkeypatch.setitem(DATASETS, "toy", replace(info, read=other))


def content(folder="runs/toy-sweep"):
    return json.loads(Path(folder, "sweep.json").read_text())


def press_ctrl_c(patch, name, at=(0, 1)):
    class Pressing(Progress):
        interval = 0.0

        def batch(self, epoch, epochs, step, *rest):
            if (epoch, step) == at:
                signal.raise_signal(signal.SIGINT)

    class PressingBoard(Board):
        def row(self, run):
            return Pressing() if run.path.name == name else super().row(run)

    patch.setattr(runs_module, "make_board", lambda *args: PressingBoard())


# ── what is run ──


def test_a_sweep_is_every_combination_a_run_folder_each_and_a_table(toy):
    answer = call("sweep", "toy", *GRID)
    assert answer.code == 0, answer
    assert answer.err == ""
    folder = Path("runs/toy-sweep")
    assert sorted(path.name for path in folder.iterdir()) == [*FOLDERS, "sweep.csv", "sweep.json"]
    assert "4 runs in runs/toy-sweep" in answer.out
    for name in FOLDERS:
        facts = json.loads((folder / name / "test.json").read_text())
        asked = json.loads((folder / name / "experiment.json").read_text())["training"]
        assert name == f"lr={asked['lr']},seed={asked['seed']}"
        assert f"{name}  test accuracy {facts['accuracy']:.2%}" in answer.out
    assert "±" in answer.out
    assert call("evaluate", folder / FOLDERS[0], "--json").code == 0


def test_the_record_of_a_sweep_holds_settings_and_figures_of_every_run(toy):
    assert call("sweep", "toy", *GRID, "-q").code == 0
    runs, means = content()["runs"], content()["means"]
    assert [run["run"] for run in runs] == FOLDERS
    assert runs[2]["settings"] == {"lr": "0.1", "seed": "0"}
    for run in runs:
        facts = json.loads(Path("runs/toy-sweep", run["run"], "test.json").read_text())
        assert run["state"] == "finished"
        assert run["test_accuracy"] == facts["accuracy"]
        assert (run["validation_accuracy"], run["epochs"]) == (facts["validation_accuracy"], 1)
    with Path("runs/toy-sweep/sweep.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["run"], row["lr"], row["seed"]) for row in rows] == [
        (run["run"], run["settings"]["lr"], run["settings"]["seed"]) for run in runs
    ]
    assert [float(row["test_accuracy"]) for row in rows] == [run["test_accuracy"] for run in runs]
    for mean, pair in zip(means, (runs[:2], runs[2:]), strict=True):
        one, two = (run["test_accuracy"] for run in pair)
        assert mean["settings"] == {"lr": pair[0]["settings"]["lr"]}
        assert mean["test_accuracy"] == pytest.approx((one + two) / 2)
        assert mean["test_accuracy_std"] == pytest.approx(abs(one - two) / 2**0.5)


def test_a_run_of_a_sweep_is_the_run_that_train_gives(toy):
    assert call("sweep", "toy", "--seeds", "3,4", "--grid", "model.nonlinearity=squash", "-q").code == 0
    options = ("--set", "model.nonlinearity=squash", "--seed", 4, "-q")
    assert call("train", "toy", "--out", "alone", *options).code == 0
    one, other = Path("runs/toy-sweep/nonlinearity=squash,seed=4"), Path("alone")
    assert (one / "experiment.json").read_text() == (other / "experiment.json").read_text()
    for name in ("best.safetensors", "state.safetensors"):
        assert same_weights(one / name, other / name)


def test_options_and_settings_reach_every_run(toy):
    options = ("--epochs", 1, "--batch-size", 8, "--lr", 0.01, "--precision", "bf16", "--kernels", "plain")
    answer = call("sweep", "toy", *options, "--set", "training.patience=3", "--out", "here", "-q")
    assert answer.code == 0, answer
    assert [path.name for path in Path("here").iterdir() if path.is_dir()] == ["seed=0"]
    asked = json.loads(Path("here/seed=0/experiment.json").read_text())["training"]
    wanted = {"epochs": 1, "batch_size": 8, "lr": 0.01, "precision": "bf16", "kernels": "plain", "patience": 3}
    assert asked == {**asked, **wanted}


def test_quiet_shows_the_tables_alone(toy):
    answer = call("sweep", "toy", "--epochs", 1, "-q")
    assert answer.err == ""
    assert "epoch   1" not in answer.out
    assert "in runs/toy-sweep;" not in answer.out
    assert "The figures are in runs/toy-sweep/sweep.csv" in answer.out


def test_a_folder_of_pictures_and_a_run_can_be_swept(pictures):
    assert call("sweep", pictures, "--size", 8, "--seeds", 2, "--epochs", 1, "-q", *SMALL).code == 0
    assert Path("runs/fruit-sweep/seed=1/test.json").is_file()
    answer = call("sweep", "runs/fruit-sweep/seed=1", "--grid", "data.mirror=true,false", "--out", "again", "-q")
    assert answer.code == 0, answer
    assert Path("again/mirror=false,seed=1/test.json").is_file()
    assert same_weights(
        Path("again/mirror=true,seed=1/best.safetensors"), Path("runs/fruit-sweep/seed=1/best.safetensors")
    )


def test_the_runs_of_a_sweep_are_listed(toy):
    assert call("train", "toy", "-q", "--epochs", 1).code == 0
    assert call("sweep", "toy", "--seeds", 2, "--epochs", 1, "-q").code == 0
    listed = call("list", "runs").out
    for path in ("runs/toy ", "runs/toy-sweep/seed=0", "runs/toy-sweep/seed=1"):
        assert path in listed


def test_on_a_cpu_runs_follow_one_another_and_it_is_said(toy):
    answer = call("sweep", "toy", "--seeds", 2, "--epochs", 1, "--parallel", 4)
    assert "On a CPU, runs are trained one after another" in answer.out
    assert answer.code == 0


def test_data_are_read_once_for_all_runs_on_the_same_images(toy, monkeypatch):
    reads = []
    load = hub.load_dataset
    monkeypatch.setattr(hub, "load_dataset", lambda *args, **kwargs: (reads.append(1), load(*args, **kwargs))[1])
    grids = ("--grid", "data.mirror=true,false", "--grid", "data.normalization=unit,standardize")
    assert call("sweep", "toy", *grids, "--epochs", 1, "-q").code == 0
    assert len(reads) == 1
    assert call("sweep", "toy", *grids, "--epochs", 1, "-q").code == 0
    assert len(reads) == 1  # nothing to do, nothing to read


def test_images_are_hashed_once_for_all_runs_and_anew_when_they_are_read_anew(toy, monkeypatch):
    hashed = []
    digest = types._digest
    monkeypatch.setattr(types, "_digest", lambda split: (hashed.append(split), digest(split))[1])
    assert call("sweep", "toy", "--seeds", 3, "--epochs", 1, "-q").code == 0
    assert len(hashed) == 3, "training, validation and test images"
    assert call("sweep", "toy", "--seeds", 4, "--epochs", 1, "-q").code == 0
    assert len(hashed) == 6, "they were read again, and might have been others"
    change_images(monkeypatch, "test")
    assert "test images of toy are not those" in sentence(call("sweep", "toy", "--seeds", 5, "--epochs", 1))


# ── again ──


def test_the_same_command_skips_what_is_finished_and_more_seeds_are_added(toy):
    assert call("sweep", "toy", *GRID, "-q").code == 0
    before = {path: path.stat().st_mtime_ns for path in Path("runs/toy-sweep").glob("*/*")}
    answer = call("sweep", "toy", *GRID)
    assert answer.code == 0
    assert "4 runs in runs/toy-sweep, 4 of them already finished" in answer.out
    assert {path: path.stat().st_mtime_ns for path in Path("runs/toy-sweep").glob("*/*")} == before
    more = call("sweep", "toy", *GRID[:2], "--seeds", 3, "--epochs", 1)
    assert "6 runs in runs/toy-sweep, 4 of them already finished" in more.out
    assert len(content()["runs"]) == 6
    assert {path: path.stat().st_mtime_ns for path in before} == before


def lines_of(folder):
    with Path(folder, "sweep.csv").open(newline="") as file:
        return [(row["run"], row["state"]) for row in csv.DictReader(file)]


def test_seeds_that_are_not_asked_for_again_stay_in_the_table(toy):
    options = ("--epochs", 1, "-q")
    assert call("ablate", "nonlinearity", "toy", "--seeds", 3, *options).code == 0
    before = content("runs/toy-nonlinearity")
    for seeds in (1, "4,3"):
        answer = call("ablate", "nonlinearity", "toy", "--seeds", seeds, *options)
        assert answer.code == 0, answer
        every = (0, 1, 2) if seeds == 1 else (0, 1, 2, 3, 4)
        names = [f"row={row},seed={seed}" for row in ("squash", "tilt") for seed in every]
        assert lines_of("runs/toy-nonlinearity") == [(name, "finished") for name in names]
        now = content("runs/toy-nonlinearity")
        assert [mean["finished"] for mean in now["means"]] == [len(every)] * 2
        line = next(line for line in answer.out.splitlines() if "squash" in line and "noise" in line)
        assert re.search(rf"squash\W+{len(every)}\W+1\W", line), "seeds and epochs"
        if seeds == 1:
            assert (now["runs"], now["means"]) == (before["runs"], before["means"])


def test_a_sweep_never_replaces_the_table_of_another(toy):
    assert call("sweep", "toy", *GRID, "-q").code == 0
    table = Path("runs/toy-sweep/sweep.csv").read_text()
    for other in (("--grid", "training.lr=0.1"), ("--grid", "training.batch_size=8,16"), ("--seeds", 2)):
        said = sentence(call("sweep", "toy", *other, "--epochs", 1, "-q"))
        assert "runs/toy-sweep holds another sweep" in said
        assert "--out" in said
    assert Path("runs/toy-sweep/sweep.csv").read_text() == table
    assert sorted(p.name for p in Path("runs/toy-sweep").iterdir() if p.is_dir()) == sorted(FOLDERS)


def test_of_other_runs_in_the_folder_only_those_of_the_same_settings_that_are_over_stay(toy):
    assert call("sweep", "toy", "--seeds", "1,2", "--epochs", 1, "-q").code == 0
    folder = Path("runs/toy-sweep")
    assert call("sweep", "toy", "--seeds", "3,4", "--epochs", 2, "--out", "other", "-q").code == 0
    for name in ("seed=3", "seed=4"):
        shutil.copytree(Path("other", name), folder / name)
    shutil.copytree(folder / "seed=1", folder / "seed=1 copy")
    shutil.copytree(folder / "seed=1", folder / ".seed=9.1.partial")
    (folder / "seed=2/test.json").unlink()
    assert call("sweep", "toy", "--epochs", 1, "-q").code == 0
    assert lines_of(folder) == [("seed=0", "finished"), ("seed=1", "finished")]
    (folder / "seed=2/failed.json").write_text('{"failure": "Training diverged."}')
    (folder / "seed=4/experiment.json").write_text("broken")
    answer = call("sweep", "toy", "--epochs", 1, "-q")
    assert (answer.code, answer.err) == (0, ""), "the requested runs succeeded"
    assert lines_of(folder) == [("seed=0", "finished"), ("seed=1", "finished"), ("seed=2", "failed")]
    assert re.search(r"│ 2 of 3 +│", answer.out), "the mean says how many runs it covers"
    (folder / "seed=2/failed.json").write_text("broken")
    assert call("sweep", "toy", "--epochs", 1, "-q").code == 0, "somebody else's trouble"
    assert lines_of(folder) == [("seed=0", "finished"), ("seed=1", "finished")]


def test_seeds_on_other_images_do_not_stay_in_the_table(toy, monkeypatch):
    assert call("sweep", "toy", "--seeds", "1,2", "--epochs", 1, "-q").code == 0
    change_images(monkeypatch, "train")
    said = sentence(call("sweep", "toy", "--epochs", 1, "-q"))
    assert "images of toy are not those that runs/toy-sweep/seed=1 started with" in said
    assert not Path("runs/toy-sweep/seed=0").exists()


def test_ctrl_c_saves_and_the_proposed_command_goes_on_to_the_same_end(toy):
    assert call("sweep", "toy", "--seeds", 3, "--out", "whole", "-q").code == 0
    with pytest.MonkeyPatch.context() as patch:
        press_ctrl_c(patch, "seed=1", (1, 1))
        answer = call("sweep", "toy", "--seeds", 3, "--out", "my [b] sweep", "-q")
    assert answer.code == 130
    assert answer.err == ""
    assert [run["state"] for run in content("my [b] sweep")["runs"]] == ["finished", "begun", "not begun"]
    words = shlex.split(answer.out.partition("Resume with: ")[2])
    assert words == ["wcapsnet", "sweep", "toy", "--seeds", "3", "--out", "my [b] sweep", "-q"]
    assert call(*words[1:]).code == 0
    for seed in range(3):
        one, other = Path("my [b] sweep", f"seed={seed}"), Path("whole", f"seed={seed}")
        for name in ("best.safetensors", "state.safetensors"):
            assert same_weights(one / name, other / name)
        assert (one / "predictions.csv").read_bytes() == (other / "predictions.csv").read_bytes()
        environment = json.loads((one / "environment.json").read_text())
        assert environment["computed_by"] == "plain PyTorch"
        again = environment.get("resumed", [])
        assert [(r["after_epoch"], r["computed_by"]) for r in again] == [(1, "plain PyTorch")] * (seed == 1)


def test_a_run_begun_with_other_settings_is_not_gone_on_with(toy):
    assert call("sweep", "toy", "--epochs", 1, "-q").code == 0
    said = sentence(call("sweep", "toy", "--epochs", 2, "--seeds", 2))
    assert "runs/toy-sweep/seed=0 was started with another training.epochs (1, not 2)" in said
    assert not Path("runs/toy-sweep/seed=1").exists()


def test_divergence_of_one_run_is_told_and_remembered_and_resuming_tries_again(toy):
    command = ("sweep", "toy", "--grid", "training.lr=1e6,0.05", "--epochs", 1, "-q")
    for _ in range(2):
        answer = call(*command)
        assert answer.code == 1
        assert answer.err.startswith("error: lr=1e6,seed=0: Training diverged in epoch 1")
        assert len(answer.err.splitlines()) == 1
        assert [run["state"] for run in content()["runs"]] == ["failed", "finished"]
        assert "diverged" in content()["runs"][0]["failure"]
    assert "diverged" in sentence(call("train", "--resume", "runs/toy-sweep/lr=1e6,seed=0", "-q"))


# ── bad input ──

BAD = {
    "nothing": ((), "what to train"),
    "unknown recipe": (("tooy",), "tooy"),
    "unknown field": (("toy", "--grid", "training.lrr=1,2"), "did you mean 'training.lr'"),
    "wrong value": (("toy", "--grid", "training.epochs=1,few"), "training.epochs must be a whole number"),
    "impossible value": (("toy", "--grid", "training.lr=0.1,-1"), "training.lr is -1"),
    "no values": (("toy", "--grid", "training.lr"), "FIELD=VALUE,VALUE"),
    "empty value": (("toy", "--grid", "training.lr=0.1,"), "FIELD=VALUE,VALUE"),
    "value twice": (("toy", "--grid", "training.lr=0.1,0.10"), "given twice"),
    "field twice": (("toy", "--grid", "training.lr=0.1", "--grid", "training.lr=0.2"), "names a field twice"),
    "seed in a grid": (("toy", "--grid", "training.seed=1,2"), "--seeds"),
    "seeds": (("toy", "--seeds", "some"), "--seeds must be"),
    "no seeds": (("toy", "--seeds", "0"), "--seeds must be"),
    "seed twice": (("toy", "--seeds", "1,2,1"), "names a seed twice"),
    "a seed as a number of seeds": (("toy", "--seeds", "20261115"), "20261115 runs"),
    "network for other images": (("toy", "--grid", "model.height=8,16"), "model.height is 16"),
    "no images to train on": (("toy", "--grid", "data.validation=12,48"), "data.validation"),
    "kernels": (("toy", "--grid", "training.kernels=plain,fused"), "fused kernels cannot be used"),
    "missing data": (("mnist", "--data-dir", "nowhere"), "--download"),
    "device": (("toy", "--device", "tpu"), "There is no device 'tpu'"),
    "size of a recipe": (("toy", "--size", "8"), "--size and --model are for folders"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_leaves_nothing_behind(toy, case):
    command, says = BAD[case]
    assert says in sentence(call("sweep", *command))
    assert list(Path().iterdir()) == []


def test_a_place_that_is_taken_is_one_sentence(toy):
    assert call("train", "toy", "--out", "mine", "-q").code == 0
    assert "mine is the folder of a single run" in sentence(call("sweep", "toy", "--out", "mine"))
    Path("other/seed=0").mkdir(parents=True)
    Path("other/seed=0/notes.txt").touch()
    assert "other/seed=0 already exists" in sentence(call("sweep", "toy", "--out", "other"))
    assert not Path("other/sweep.json").exists()
    Path("afile").touch()
    answer = call("ablate", "routing", "toy", "--out", "afile")
    assert sentence(answer) == "afile is a file; choose a folder with --out."
    assert answer.out == ""


def test_wrong_usage_is_explained(toy):
    for options in (("--parallel", 0), ("--parallel", 99), ("--epochs", 0)):
        answer = call("sweep", "toy", *options)
        assert answer.code == 2
        assert "Usage" in answer.err
    assert list(Path().iterdir()) == []


# ── ablations ──


def test_ablate_trains_every_row_of_a_table_with_every_seed(toy):
    answer = call("ablate", "routing", "toy", "--seeds", 2, "--epochs", 1, "-q")
    assert answer.code == 0, answer
    folder = Path("runs/toy-routing")
    rows = ["WS+CE", "WS", "CE", "Random", "Uniform"]
    runs = content(folder)["runs"]
    assert [run["run"] for run in runs] == [f"row={row},seed={seed}" for row in rows for seed in (0, 1)]
    assert [mean["settings"] for mean in content(folder)["means"]] == [{"row": row} for row in rows]
    for row in rows:
        asked = json.loads((folder / f"row={row},seed=1" / "experiment.json").read_text())
        assert asked["name"] == f"toy-{row.lower()}"
        assert asked["objective"]["wasserstein"] == (0.2 if row.startswith("WS") else 0.0)
        assert asked["model"]["routing"]["stop_gradient"] is (row == "WS")
        assert row in answer.out
    again = call("ablate", "routing", "toy", "--seeds", 2, "--epochs", 1)
    assert "10 runs in runs/toy-routing, 10 of them already finished" in again.out


def test_ablate_works_for_pictures_and_goes_on_after_ctrl_c(pictures):
    options = ("--size", 8, "--seeds", 1, "--epochs", 1, "--lr", 0.05, "--batch-size", 16)
    with pytest.MonkeyPatch.context() as patch:
        press_ctrl_c(patch, "row=tilt,seed=0")
        stopped = call("ablate", "nonlinearity", pictures, *options, "-q")
    assert stopped.code == 130, stopped
    words = shlex.split(stopped.out.partition("Resume with: ")[2])
    assert call(*words[1:]).code == 0
    runs = content("runs/fruit-nonlinearity")["runs"]
    assert [run["settings"]["row"] for run in runs] == ["squash", "tilt"]
    assert all(run["state"] == "finished" for run in runs)


def test_a_table_can_be_named_by_its_numeral(toy):
    assert call("ablate", "iii", "toy", "--seeds", 1, "--epochs", 1, "-q").code == 0
    assert [run["settings"]["row"] for run in content("runs/toy-nonlinearity")["runs"]] == ["squash", "tilt"]


def test_ablate_holds_rows_against_the_reference_row(toy):
    answer = call("ablate", "nonlinearity", "toy", "--seeds", 2, "--epochs", 1)
    assert answer.code == 0, answer
    means = {mean["settings"]["row"]: mean for mean in content("runs/toy-nonlinearity")["means"]}
    line = next(line for line in answer.out.splitlines() if "squash" in line and "noise" in line)
    difference = 100 * (means["squash"]["test_accuracy"] - means["tilt"]["test_accuracy"])
    assert f"{difference:+.2f}".replace("-", "−") in line
    assert "from tilt" in answer.out
    assert re.search(r"squash\W+2\W+1\W", line), "seeds and epochs"
    assert "Student's t-test" in answer.out
    assert "95 % interval" in answer.out
    assert "from the paper" not in answer.out
    failed = Path("runs/toy-nonlinearity/row=squash,seed=1")
    (failed / "test.json").unlink()
    (failed / "failed.json").write_text('{"failure": "Training diverged."}')
    answer = call("ablate", "nonlinearity", "toy", "--seeds", 1, "--epochs", 1)
    assert re.search(r"squash +│ 1, 1 failed +│", answer.out), "the mean says how many runs it leaves out"


def test_the_papers_figures_stand_beside_its_experiments_in_full_length_alone(toy, monkeypatch):
    monkeypatch.setitem(PAPER, "toy", RECIPES["toy"])
    monkeypatch.setitem(ABLATIONS, "toy-squash", lambda: variant(RECIPES["toy"](), ROWS["squash"], "toy-squash"))
    for row, figure in (("squash", 40.0), ("tilt", 41.25)):
        monkeypatch.setitem(PAPER_TABLES["III"].rows[row], "toy", figure)
    whole = call("ablate", "nonlinearity", "toy", "--seeds", 1, "-q")
    assert whole.code == 0, whole
    assert "from the paper" in whole.out
    assert "40.00 %" in whole.out
    assert "41.25 %" in whole.out
    shorter = call("ablate", "nonlinearity", "toy", "--seeds", 1, "--epochs", 1, "--out", "short", "-q")
    assert "from the paper" not in shorter.out
    assert "41.25 %" not in shorter.out


def test_the_row_that_tables_share_is_trained_once(toy):
    assert call("ablate", "routing", "toy", "--seeds", 2, "-q").code == 0
    trained = []
    with pytest.MonkeyPatch.context() as patch:
        together = runs_module.train_together
        patch.setattr(
            runs_module, "train_together", lambda runs, *rest: (trained.extend(runs), together(runs, *rest))[1]
        )
        answer = call("ablate", "weighting", "toy", "--seeds", 2)
    assert answer.code == 0, answer
    assert [run.path.name for run in trained] == [f"row=normalized,seed={seed}" for seed in (0, 1)]
    assert "row=softmax,seed=1 was already trained as runs/toy-routing/row=WS+CE,seed=1" in answer.out
    assert [run["state"] for run in content("runs/toy-weighting")["runs"]] == ["finished"] * 4
    one, other = Path("runs/toy-weighting/row=softmax,seed=0"), Path("runs/toy-routing/row=WS+CE,seed=0")
    assert same_weights(one / "best.safetensors", other / "best.safetensors")
    assert json.loads((one / "experiment.json").read_text())["name"] == "toy-softmax"
    assert call("evaluate", one, "--json").code == 0
    again = call("ablate", "weighting", "toy", "--seeds", 2)
    assert "4 runs in runs/toy-weighting, 4 of them already finished" in again.out
    assert "was already trained as" not in again.out


def test_a_run_on_other_images_or_one_that_cannot_be_read_is_not_taken(toy, monkeypatch):
    assert call("ablate", "routing", "toy", "--seeds", 1, "--epochs", 1, "-q").code == 0
    Path("runs/toy-routing/row=WS,seed=0/experiment.json").write_text("broken")
    change_images(monkeypatch, "train")
    answer = call("ablate", "weighting", "toy", "--seeds", 1, "--epochs", 1)
    assert answer.code == 0, answer
    assert "was already trained as" not in answer.out
    assert all(run["state"] == "finished" for run in content("runs/toy-weighting")["runs"])


def test_runs_on_other_images_do_not_come_into_one_table(pictures, tmp_path):
    pictures = shutil.copytree(pictures, tmp_path / "own" / "fruit")
    options = ("--size", 8, "--epochs", 1, "--lr", 0.05, "--batch-size", 16, "-q")
    assert call("ablate", "nonlinearity", pictures, *options, "--seeds", 1).code == 0
    before = content("runs/fruit-nonlinearity")
    extra = sorted(Path(pictures).rglob("*.png"))[0]
    for number in range(9):
        shutil.copy(extra, extra.with_name(f"more-{number}.png"))
    said = sentence(call("ablate", "nonlinearity", pictures, *options, "--seeds", 2))
    assert "images of fruit are not those that runs/fruit-nonlinearity/row=squash,seed=0 started with" in said
    assert said.endswith("restore them, or choose another folder with --out.")
    assert content("runs/fruit-nonlinearity") == before
    assert not Path("runs/fruit-nonlinearity/row=squash,seed=1").exists()


def test_ablate_changes_nothing_but_what_the_row_is_about(toy):
    settings = ("model.nonlinearity=squash", "objective.wasserstein=0.7", "model.routing.noise_share=0.3")
    change = [word for setting in settings for word in ("--set", setting)]
    assert call("train", "toy", "--epochs", 1, "--out", "mine", *change, "-q").code == 0
    assert call("ablate", "routing", "mine", "--seeds", 1, "-q").code == 0
    asked = {
        row: json.loads(Path(f"runs/toy-routing/row={row},seed=0/experiment.json").read_text())
        for row in ("WS+CE", "WS", "CE", "Random", "Uniform")
    }
    assert {one["model"]["nonlinearity"] for one in asked.values()} == {"squash"}
    found = {
        row: (one["objective"]["wasserstein"], one["model"]["routing"]["noise_share"]) for row, one in asked.items()
    }
    kept, without = (0.7, 0.3), (0.0, 0.0)
    assert found == {"WS+CE": kept, "WS": kept, "CE": (0.0, 0.3), "Random": without, "Uniform": without}


@pytest.mark.parametrize(
    ("table", "recipe", "says"),
    [
        ("routing", "mnist-uniform", "WS+CE of Table IV: model.routing.fitness is constant, but it must be critic."),
        ("IV", "mnist-ce", "WS+CE of Table IV: objective.wasserstein is 0.0, but it must be above zero."),
        ("IV", "mnist-ws", "WS+CE of Table IV: model.routing.stop_gradient is true, but it must be false."),
        ("III", "mnist-squash", "tilt of Table III: model.nonlinearity is squash, but it must be tilt."),
        (
            "II",
            "mnist-normalized",
            "softmax of Table II: model.routing.weighting is normalized, but it must be softmax.",
        ),
        (
            "II",
            "mnist-uniform",
            "softmax of Table II: model.routing.fitness is constant, but it must be critic or random.",
        ),
    ],
)
def test_what_lacks_the_reference_row_is_not_ablated(toy, table, recipe, says):
    said = sentence(call("ablate", table, recipe, "--seeds", 1))
    assert said == f"{recipe} cannot be the row {says}"
    assert list(Path().iterdir()) == []


def test_the_papers_figures_do_not_stand_beside_another_network(toy, monkeypatch):
    monkeypatch.setitem(PAPER, "toy", RECIPES["toy"])
    monkeypatch.setitem(ABLATIONS, "toy-squash", lambda: variant(RECIPES["toy"](), ROWS["squash"], "toy-squash"))
    monkeypatch.setitem(PAPER_TABLES["II"].rows["softmax"], "toy", 41.25)
    answer = call("ablate", "weighting", "toy", "--seeds", 1, "-q")
    assert "41.25 %" in answer.out, answer
    assert call("train", "toy", "--set", "model.nonlinearity=squash", "--out", "squash", "-q").code == 0
    answer = call("ablate", "weighting", "squash", "--seeds", 1, "--out", "other", "-q")
    assert answer.code == 0, answer
    assert "41.25 %" not in answer.out


def test_a_damaged_result_of_a_finished_run_is_a_sentence(toy):
    assert call("ablate", "nonlinearity", "toy", "--seeds", 1, "--epochs", 1, "-q").code == 0
    Path("runs/toy-nonlinearity/row=tilt,seed=0/test.json").write_text("{}")
    said = sentence(call("ablate", "nonlinearity", "toy", "--seeds", 2, "--epochs", 1))
    assert "row=tilt,seed=0/test.json is damaged: it has no images" in said
    assert not Path("runs/toy-nonlinearity/row=squash,seed=1").exists(), "it is said before anything is trained"
    Path("runs/toy-nonlinearity/row=tilt,seed=0/test.json").unlink()  # as the sentence says
    assert call("ablate", "nonlinearity", "toy", "--seeds", 1, "--epochs", 1, "-q").code == 0


def test_a_run_that_another_process_has_finished_meanwhile_is_left_as_it_is(toy):
    assert call("sweep", "toy", "--seeds", 1, "--epochs", 1, "-q").code == 0
    before = {path: path.read_bytes() for path in Path("runs/toy-sweep/seed=0").iterdir() if path.is_file()}
    with pytest.MonkeyPatch.context() as patch:  # as it was when the sweep was planned
        patch.setattr(sweep_module.Sweep, "unfinished", property(lambda sweep: sweep.runs))
        assert call("sweep", "toy", "--seeds", 1, "--epochs", 1, "-q").code == 0
    assert {path: path.read_bytes() for path in before} == before
    with FileLock("runs/toy-sweep/seed=0/.lock", blocking=False):  # it was let go
        pass


@pytest.mark.parametrize("command", [("everything", "toy"), ("routing",)])
def test_wrong_usage_of_ablate_is_explained(toy, command):
    answer = call("ablate", *command)
    assert answer.code == 2
    assert "Usage" in answer.err
    assert list(Path().iterdir()) == []


def test_bad_input_to_ablate_is_one_sentence_and_leaves_nothing_behind(toy):
    assert "did you mean" in sentence(call("ablate", "routing", "cifr10"))
    assert "--seeds must be" in sentence(call("ablate", "routing", "toy", "--seeds", "x"))
    assert list(Path().iterdir()) == []


def test_a_run_that_another_process_trains_is_left_to_it(toy):
    with pytest.MonkeyPatch.context() as patch:
        press_ctrl_c(patch, "seed=0")
        assert call("sweep", "toy", "--seeds", 2, "--epochs", 1, "-q").code == 130
    lock = FileLock("runs/toy-sweep/seed=0/.lock")
    lock.acquire()
    answer = call("sweep", "toy", "--seeds", 2, "--epochs", 1, "-q")
    lock.release()
    assert answer.code == 1
    assert answer.err.startswith("error: seed=0: Another process is training runs/toy-sweep/seed=0;")
    assert [run["state"] for run in content()["runs"]] == ["begun", "finished"]
    assert call("sweep", "toy", "--seeds", 2, "--epochs", 1, "-q").code == 0


# ── tools/campaign.py ──

CAMPAIGN = Path(__file__).parents[2] / "tools" / "campaign.py"


def campaign(*words):
    """`python tools/campaign.py WORDS`: its exit code."""
    spec = importlib.util.spec_from_file_location("campaign", CAMPAIGN)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(CAMPAIGN), *map(str, words)])
        try:
            script.main()
        except SystemExit as end:
            return end.code
    return 0


def test_the_campaign_trains_runs_by_name_and_seed_and_goes_on_after_ctrl_c(toy, capsys):
    with pytest.MonkeyPatch.context() as patch:
        press_ctrl_c(patch, "recipe=toy,seed=1")
        assert campaign("--out", "all of it", "toy:0,1") == 130
    said = capsys.readouterr().out
    words = shlex.split(said.partition("Stopped and saved. Resume with: ")[2])
    assert words == ["python", str(CAMPAIGN), "--out", "all of it", "toy:0,1"]  # as it was called, wherever one is
    assert content("all of it")["command"] == ["python", "tools/campaign.py", *words[2:]]
    assert campaign(*words[2:]) == 0
    assert lines_of("all of it") == [(f"recipe=toy,seed={seed}", "finished") for seed in (0, 1)]


def test_the_campaign_ends_as_the_command_line_does(toy, capsys, monkeypatch):
    assert campaign("--out", "out", "toy:x") == 2
    assert capsys.readouterr().err.startswith("error: A run is asked for as RECIPE:SEED,SEED")
    assert campaign("--out", "out", "mnist:0", "--data-dir", "nowhere") == 2
    assert "not found" in capsys.readouterr().err
    assert campaign("--out", "out", "toy:0", "toy:0,1") == 2
    assert "recipe=toy,seed=0 is given twice" in capsys.readouterr().err
    assert campaign("--out", "out", "toy:0,00") == 2
    assert "is given twice" in capsys.readouterr().err
    assert campaign("--out", "out", "--parallel", -1, "toy:0") == 2
    assert capsys.readouterr().err == "error: --parallel is -1; 1 to 32 runs can be trained at a time.\n"
    assert not Path("out").exists()
    toy_experiment = RECIPES["toy"]()
    wild = replace(toy_experiment, training=replace(toy_experiment.training, lr=1e6))
    monkeypatch.setitem(RECIPES, "toy", lambda: wild)
    assert campaign("--out", "out", "toy:0") == 1
    assert capsys.readouterr().err.startswith("error: recipe=toy,seed=0: Training diverged")


def test_the_campaign_advises_no_option_that_it_does_not_have(toy, capsys, monkeypatch):
    def full(*args):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(precision, "choose_device", full)
    assert campaign("--out", "out", "toy:0") == 1
    assert capsys.readouterr().err == "error: The device is out of memory; close other programs that use it.\n"


def test_ctrl_c_before_training_is_a_sentence_too(toy, capsys, monkeypatch):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(hub, "load_dataset", interrupted)
    assert campaign("--out", "out", "toy:0") == 130
    assert capsys.readouterr().err == "error: Interrupted; what was saved before is kept.\n"


# ── plans ──


def labels(*grids, seeds=None):
    return [sweep_module._label(one.settings) for one in product(RECIPES["toy"](), list(grids), seeds)]


def test_folders_are_named_by_what_tells_fields_apart(toy):
    assert labels("model.levels.0.capsules=2", "model.levels.1.capsules=2,3") == [
        "levels.0.capsules=2,levels.1.capsules=2,seed=0",
        "levels.0.capsules=2,levels.1.capsules=3,seed=0",
    ]
    assert labels("data.split_seed=1", seeds="2") == ["split_seed=1,seed=0", "split_seed=1,seed=1"]
    assert labels("training.milestones=[1],[1,2]") == ["milestones=1,seed=0", "milestones=1,2,seed=0"]


def test_names_that_would_be_the_same_are_numbered(toy, tmp_path):
    planned = product(RECIPES["toy"](), ["name=a b,a:b"], None)
    sweep = sweep_module.Sweep(tmp_path, planned)
    assert [run.path.name for run in sweep.runs] == ["name=a-b,seed=0", "name=a-b,seed=0-2"]


def test_seeds_are_a_number_or_a_list(toy):
    assert labels(seeds="3") == ["seed=0", "seed=1", "seed=2"]
    assert labels(seeds="7, 9") == ["seed=7", "seed=9"]
    assert labels() == ["seed=0"]
