"""`wcapsnet sweep` and `wcapsnet ablate`; and tools/campaign.py, which trains a sweep of its own."""

import csv
import json
import re
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cli_helpers import SMALL, call, press_ctrl_c, same_weights, sentence
from filelock import FileLock
from training_helpers import assert_same_run

import campaign as campaign_script
import wcapsnet.hub as hub
import wcapsnet.sweeps.plan as sweep_module
import wcapsnet.sweeps.run as runs_module
from wcapsnet.data import DATASETS, types
from wcapsnet.recipes import RECIPES, RECORDED, ROWS
from wcapsnet.recipes.ablations import variant
from wcapsnet.recipes.published import PAPER_TABLES
from wcapsnet.reports import records
from wcapsnet.sweeps import product
from wcapsnet.training.run_folder import Run

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


# ── what is run ──


def test_a_sweep_is_every_combination_a_run_folder_each_and_a_table(toy):
    answer = call("sweep", "toy", *GRID, "--parallel", 2)
    assert (answer.code, answer.err) == (0, "")
    assert "On a CPU, runs are trained one after another" in answer.out
    assert "±" in answer.out
    folder = Path("runs/toy-sweep")
    assert sorted(path.name for path in folder.iterdir()) == [*FOLDERS, "sweep.csv", "sweep.json"]
    runs, means = content()["runs"], content()["means"]
    assert [run["run"] for run in runs] == FOLDERS
    assert runs[2]["settings"] == {"lr": "0.1", "seed": "0"}
    listed = call("list", "runs").out
    for run in runs:
        facts = json.loads((folder / run["run"] / "test.json").read_text())
        asked = json.loads((folder / run["run"] / "experiment.json").read_text())["training"]
        assert run["run"] == f"lr={asked['lr']},seed={asked['seed']}"
        assert (run["state"], run["epochs"]) == ("finished", 1)
        assert run["test_accuracy"] == facts["accuracy"]
        assert f"{run['run']}  test accuracy {facts['accuracy']:.2%}" in answer.out
        assert str(folder / run["run"]) in listed
    with Path("runs/toy-sweep/sweep.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["lr"], row["seed"]) for row in rows] == [tuple(run["settings"].values()) for run in runs]
    assert [float(row["test_accuracy"]) for row in rows] == [run["test_accuracy"] for run in runs]
    for mean, pair in zip(means, (runs[:2], runs[2:]), strict=True):
        one, two = (run["test_accuracy"] for run in pair)
        assert mean["settings"] == {"lr": pair[0]["settings"]["lr"]}
        assert mean["test_accuracy"] == pytest.approx((one + two) / 2)
        assert mean["test_accuracy_std"] == pytest.approx(abs(one - two) / 2**0.5)


def test_a_run_of_a_sweep_is_the_run_that_train_gives(toy):
    options = ("--epochs", 1, "--batch-size", 8, "--lr", 0.01, "--precision", "bf16", "--set", "training.patience=3")
    answer = call("sweep", "toy", "--seeds", "3,4", "--grid", "model.nonlinearity=squash", *options, "-q")
    assert answer.code == 0
    assert "epoch   1" not in answer.out, "quiet"
    options += ("--set", "model.nonlinearity=squash", "--seed", 4, "--out", "alone", "-q")
    assert call("train", "toy", *options).code == 0
    one, other = Path("runs/toy-sweep/nonlinearity=squash,seed=4"), Path("alone")
    assert (one / "experiment.json").read_text() == (other / "experiment.json").read_text()
    for name in ("best.safetensors", "state.safetensors"):
        assert same_weights(one / name, other / name)


def test_a_folder_of_pictures_and_a_run_can_be_swept(pictures):
    assert call("sweep", pictures, "--size", 8, "--seeds", 2, "--epochs", 1, "-q", *SMALL).code == 0
    assert Path("runs/fruit-sweep/seed=1/test.json").is_file()
    answer = call("sweep", "runs/fruit-sweep/seed=1", "--grid", "data.mirror=true,false", "--out", "again", "-q")
    assert answer.code == 0, answer
    assert Path("again/mirror=false,seed=1/test.json").is_file()
    assert same_weights(
        Path("again/mirror=true,seed=1/best.safetensors"), Path("runs/fruit-sweep/seed=1/best.safetensors")
    )


def test_images_are_read_and_hashed_once_for_all_runs(toy, monkeypatch):
    reads, hashed = [], []
    load, digest = hub.load_dataset, types.checksum
    monkeypatch.setattr(hub, "load_dataset", lambda *args, **kwargs: (reads.append(1), load(*args, **kwargs))[1])
    monkeypatch.setattr(types, "checksum", lambda split: (hashed.append(split), digest(split))[1])
    grids = ("--grid", "data.mirror=true,false", "--grid", "data.normalization=unit,standardize")
    for _ in range(2):  # the second time there is nothing to do
        assert call("sweep", "toy", *grids, "--epochs", 1, "-q").code == 0
        assert (len(reads), len(hashed)) == (1, 3), "training, validation and test images"
    change_images(monkeypatch, "test")
    said = sentence(call("sweep", "toy", *grids, "--seeds", 2, "--epochs", 1))
    assert "test images of toy are not those" in said, "they were read again"
    assert not list(Path("runs/toy-sweep").glob("*seed=1")), "runs on other images are not in one table"


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
    for seeds, every in ((2, (0, 1)), (1, (0, 1)), ("4,3", (0, 1, 3, 4))):
        assert call("ablate", "nonlinearity", "toy", "--seeds", seeds, *options).code == 0
        names = [f"row={row},seed={seed}" for row in ("squash", "tilt") for seed in every]
        assert lines_of("runs/toy-nonlinearity") == [(name, "finished") for name in names]
        assert [mean["finished"] for mean in content("runs/toy-nonlinearity")["means"]] == [len(every)] * 2


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


def test_ctrl_c_saves_and_the_proposed_command_goes_on_to_the_same_end(toy):
    assert call("sweep", "toy", "--seeds", 3, "--out", "whole", "-q").code == 0
    with pytest.MonkeyPatch.context() as patch:
        press_ctrl_c(patch, 1, 1, "seed=1")
        answer = call("sweep", "toy", "--seeds", 3, "--out", "my [b] sweep", "-q")
    assert answer.code == 130
    assert answer.err == ""
    assert [run["state"] for run in content("my [b] sweep")["runs"]] == ["finished", "begun", "not begun"]
    words = shlex.split(answer.out.partition("Resume with: ")[2])
    assert words == ["wcapsnet", "sweep", "toy", "--seeds", "3", "--out", "my [b] sweep", "-q"]
    assert call(*words[1:]).code == 0
    for seed in range(3):
        one, other = (Run.open(Path(folder, f"seed={seed}")) for folder in ("my [b] sweep", "whole"))
        assert_same_run(one, other)
        environment = one.facts("environment")
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
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_leaves_nothing_behind(toy, case):
    command, says = BAD[case]
    assert says in sentence(call("sweep", *command))
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("routing", "cifr10"), "did you mean"),
        (("routing", "toy", "--seeds", "x"), "--seeds must be"),
        (("routing", "mnist-uniform"), "model.routing.fitness is constant, but it must be critic"),
        (("IV", "mnist-ce"), "objective.wasserstein is 0.0, but it must be above zero"),
        (("IV", "mnist-ws"), "model.routing.stop_gradient is true, but it must be false"),
        (("III", "mnist-squash"), "model.nonlinearity is squash, but it must be tilt"),
        (("II", "mnist-normalized"), "model.routing.weighting is normalized, but it must be softmax"),
    ],
)
def test_what_cannot_be_ablated_is_one_sentence(toy, command, says):
    assert says in sentence(call("ablate", *command))
    assert list(Path().iterdir()) == []


def test_a_place_that_is_taken_is_one_sentence(toy):
    assert call("train", "toy", "--out", "mine", "-q").code == 0
    assert "mine is the folder of a single run" in sentence(call("sweep", "toy", "--out", "mine"))
    Path("other/seed=0").mkdir(parents=True)
    Path("other/seed=0/notes.txt").touch()
    assert "other/seed=0 already exists" in sentence(call("sweep", "toy", "--out", "other"))
    assert not Path("other/sweep.json").exists()
    Path("afile").touch()
    assert "afile is a file" in sentence(call("ablate", "routing", "toy", "--out", "afile"))


# ── ablations ──


def test_ablate_trains_every_row_of_a_table_with_every_seed(toy):
    answer = call("ablate", "iv", "toy", "--seeds", 2, "--epochs", 1, "-q")
    assert answer.code == 0, answer
    folder = Path("runs/toy-routing")
    rows = ["WS+CE", "WS", "CE", "Random", "Uniform"]
    assert [run["run"] for run in content(folder)["runs"]] == [f"row={row},seed={n}" for row in rows for n in (0, 1)]
    assert [mean["settings"] for mean in content(folder)["means"]] == [{"row": row} for row in rows]
    for row in rows:
        asked = json.loads((folder / f"row={row},seed=1" / "experiment.json").read_text())
        assert asked["name"] == f"toy-{row.lower()}"
        assert asked["objective"]["wasserstein"] == (0.2 if row.startswith("WS") else 0.0)
        assert asked["model"]["routing"]["stop_gradient"] is (row == "WS")
        assert row in answer.out
    again = call("ablate", "routing", "toy", "--seeds", 2, "--epochs", 1)
    assert "10 runs in runs/toy-routing, 10 of them already finished" in again.out


def test_ablate_holds_rows_against_the_reference_row(toy):
    answer = call("ablate", "nonlinearity", "toy", "--seeds", 2, "--epochs", 1)
    assert answer.code == 0, answer
    means = {mean["settings"]["row"]: mean["test_accuracy"] for mean in content("runs/toy-nonlinearity")["means"]}
    line = next(line for line in answer.out.splitlines() if "squash" in line and "noise" in line)
    assert f"{100 * (means['squash'] - means['tilt']):+.2f}".replace("-", "−") in line
    assert re.search(r"squash\W+2\W+1\W", line), "seeds and epochs"
    assert "from tilt" in answer.out
    assert "from the paper" not in answer.out
    failed = Path("runs/toy-nonlinearity/row=squash,seed=1")
    (failed / "test.json").unlink()
    (failed / "failed.json").write_text('{"failure": "Training diverged."}')
    answer = call("ablate", "nonlinearity", "toy", "--seeds", 1, "--epochs", 1)
    assert re.search(r"squash +│ 1, 1 failed +│", answer.out), "the mean says how many runs it leaves out"


def test_the_papers_figures_stand_beside_its_own_experiments_alone(toy, monkeypatch):
    monkeypatch.setattr(records, "_rows", records._rows.__wrapped__)  # no rows from before
    monkeypatch.setitem(RECORDED, ("toy", "wcapsnet"), RECIPES["toy"])
    monkeypatch.setitem(RECORDED, ("toy", "squash"), lambda: variant(RECIPES["toy"](), ROWS["squash"], "toy-squash"))
    for row, figure in (("squash", 40.0), ("tilt", 41.25)):
        monkeypatch.setitem(PAPER_TABLES["III"].rows[row], "toy", figure)
    monkeypatch.setitem(PAPER_TABLES["II"].rows["softmax"], "toy", 42.5)
    whole = call("ablate", "nonlinearity", "toy", "--seeds", 1, "-q").out
    assert all(words in whole for words in ("from the paper", "40.00 %", "41.25 %"))
    shorter = call("ablate", "nonlinearity", "toy", "--seeds", 1, "--epochs", 1, "--out", "short", "-q").out
    assert "41.25 %" not in shorter
    assert call("train", "toy", "--set", "model.nonlinearity=squash", "--out", "squash", "-q").code == 0
    other = call("ablate", "weighting", "squash", "--seeds", 1, "--out", "other", "-q")
    assert (other.code, "42.50 %" in other.out) == (0, False), "another network"


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


def test_a_damaged_result_of_a_finished_run_is_a_sentence(toy):
    assert call("ablate", "nonlinearity", "toy", "--seeds", 1, "--epochs", 1, "-q").code == 0
    Path("runs/toy-nonlinearity/row=tilt,seed=0/test.json").write_text("{}")
    said = sentence(call("ablate", "nonlinearity", "toy", "--seeds", 2, "--epochs", 1))
    assert "row=tilt,seed=0/test.json is damaged: it has no images" in said
    assert not Path("runs/toy-nonlinearity/row=squash,seed=1").exists(), "it is said before anything is trained"
    Path("runs/toy-nonlinearity/row=tilt,seed=0/test.json").unlink()  # as the sentence says
    assert call("ablate", "nonlinearity", "toy", "--seeds", 1, "--epochs", 1, "-q").code == 0


def test_a_run_that_another_process_trains_is_left_to_it(toy):
    with pytest.MonkeyPatch.context() as patch:
        press_ctrl_c(patch, 0, 1, "seed=0")
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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(CAMPAIGN), *map(str, words)])
        try:
            campaign_script.main()
        except SystemExit as end:
            return end.code
    return 0


def test_the_campaign_trains_runs_by_name_and_seed_and_goes_on_after_ctrl_c(toy, capsys):
    with pytest.MonkeyPatch.context() as patch:
        press_ctrl_c(patch, 0, 1, "recipe=toy,seed=1")
        assert campaign("--out", "all of it", "toy:0,1") == 130
    said = capsys.readouterr().out
    words = shlex.split(said.partition("Stopped and saved. Resume with: ")[2])
    assert words == ["python", str(CAMPAIGN), "--out", "all of it", "toy:0,1"]  # as it was called, wherever one is
    assert content("all of it")["command"] == ["python", "tools/campaign.py", *words[2:]]
    assert campaign(*words[2:]) == 0
    assert lines_of("all of it") == [(f"recipe=toy,seed={seed}", "finished") for seed in (0, 1)]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("toy:x",), 2, "RECIPE:SEED,SEED"),
        (("mnist:0", "--data-dir", "nowhere"), 2, "not found"),
        (("toy:0", "toy:0,1"), 2, "recipe=toy,seed=0 is given twice"),
        (("--parallel", -1, "toy:0"), 2, "--parallel is -1; 1 to 32"),
        (("wild:0",), 1, "recipe=wild,seed=0: Training diverged"),
    ],
)
def test_the_campaign_ends_as_the_command_line_does(toy, capsys, monkeypatch, words, code, says):
    base = RECIPES["toy"]()
    monkeypatch.setitem(RECIPES, "wild", lambda: replace(base, training=replace(base.training, lr=1e6)))
    assert campaign("--out", "out", *words) == code
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert says in said
    assert Path("out").exists() == (code == 1)


def test_the_campaign_stops_in_time_goes_on_and_takes_settings(toy, capsys):
    # long enough for the timer, which starts at once
    words = ("--out", "out", "--set", "training.epoch_steps=1", "--set", "training.epochs=50", "toy:0")
    assert campaign("--minutes", 0, *words) == 130
    assert campaign(*words) == 0
    assert lines_of("out") == [("recipe=toy,seed=0", "finished")]
    asked = json.loads(Path("out/recipe=toy,seed=0/experiment.json").read_text())
    assert asked["training"]["epoch_steps"] == 1


def test_the_campaign_knows_the_runs_of_its_groups():
    for name in {name for group in campaign_script.GROUPS.values() for name in group}:
        (first, *_) = campaign_script.planned(name, "bf16", ["training.minutes=2"])
        assert first.experiment.training.precision == "bf16"


# ── plans ──


@pytest.mark.parametrize(
    ("grids", "seeds", "names"),
    [
        ((), None, ["seed=0"]),
        ((), "3", ["seed=0", "seed=1", "seed=2"]),
        ((), "7, 9", ["seed=7", "seed=9"]),
        (("data.split_seed=1",), "2", ["split_seed=1,seed=0", "split_seed=1,seed=1"]),
        (("training.milestones=[1],[1,2]",), None, ["milestones=1,seed=0", "milestones=1,2,seed=0"]),
        (("name=a b,a:b",), None, ["name=a-b,seed=0", "name=a-b,seed=0-2"]),
        (
            ("model.levels.0.capsules=2", "model.levels.1.capsules=3"),
            None,
            ["levels.0.capsules=2,levels.1.capsules=3,seed=0"],
        ),
    ],
)
def test_folders_are_named_by_what_tells_runs_apart(toy, tmp_path, grids, seeds, names):
    sweep = sweep_module.Sweep(tmp_path, product(RECIPES["toy"](), list(grids), seeds))
    assert [run.path.name for run in sweep.runs] == names
