"""`wcapsnet evaluate`, `predict`, `list`, `--version` and `--help`."""

import csv
import inspect
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cli_helpers import COLORS, call, environment, picture, sentence

import wcapsnet
from wcapsnet import api, cli
from wcapsnet.cli import ablate, console, sweep, train
from wcapsnet.data import DATASETS
from wcapsnet.formatting import percent
from wcapsnet.parts import model as MODELS
from wcapsnet.recipes import PAPER, RECIPES


@pytest.fixture
def photos(tmp_path):
    """a folder with two pictures"""
    folder = tmp_path / "photos"
    folder.mkdir()
    picture(COLORS["apples"], 100, (30, 20)).save(folder / "a.png")
    picture(COLORS["plums"], 101, (20, 30)).save(folder / "b [bold].jpg")  # brackets are markup to rich
    (folder / "notes.txt").write_text("not a picture")
    return folder


# ── evaluate ──


def test_evaluate_reproduces_the_figures_of_the_run(run):
    recorded = json.loads((run / "test.json").read_text())
    answer = call("evaluate", run, "--json")
    assert answer.code == 0
    facts = json.loads(answer.out)
    assert facts["split"] == "test"
    assert facts["run"] == str(run)
    for name in ("accuracy", "errors", "images", "confusion", "per_class"):
        assert facts[name] == recorded[name], name
    # The run was measured in other batches, by the pass that its report is made from: sums are rounded elsewhere.
    assert facts["cross_entropy"] == pytest.approx(recorded["cross_entropy"], rel=1e-6)
    assert [torch.tensor(level).shape for level in facts["mean_weights"]] == [(2, 3), (2, 2)]
    for one, other in zip(facts["mean_weights"], recorded["mean_weights"], strict=True):
        torch.testing.assert_close(torch.tensor(one), torch.tensor(other), rtol=0, atol=2e-6)
    validation = json.loads(call("evaluate", run, "--split", "validation", "--json").out)
    assert validation["accuracy"] == recorded["validation_accuracy"]
    best = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][recorded["best_epoch"] - 1]
    assert validation["accuracy"] == best["validation_accuracy"]
    assert validation["cross_entropy"] == pytest.approx(best["validation_loss"], rel=1e-6)
    assert json.loads(call("evaluate", run, "--split", "train", "--json").out)["images"] == 28
    assert json.loads(call("evaluate", run, "--json", "--precision", "bf16").out)["images"] == 6
    assert wcapsnet.evaluate(run, quiet=True).accuracy == facts["accuracy"]


def test_evaluate_shows_accuracy_and_classes_and_writes_nothing(run, tmp_path):
    own = Path(shutil.copytree(run, tmp_path / "own"))
    before = {file: file.stat().st_mtime_ns for file in own.rglob("*")}
    shown = call("evaluate", own).out
    assert f"{json.loads((run / 'test.json').read_text())['accuracy']:.2%} on 6 images" in shown
    assert all(name in shown for name in ("apples", "plums"))
    assert "not finished" not in shown
    assert {file: file.stat().st_mtime_ns for file in own.rglob("*")} == before
    (own / "test.json").unlink()
    assert "after 12 of 12 epochs" in call("evaluate", own).out, "the run is not finished"


# ── predict ──


def test_predict_as_json_carries_class_probability_top_winners_and_routing(run, photos):
    model = wcapsnet.load(run)
    found = json.loads(call("predict", run, photos, "--json", "--top", 2).out)
    assert [Path(entry["source"]).name for entry in found] == ["a.png", "b [bold].jpg"]
    assert [entry["class"] for entry in found] == ["apples", "plums"]
    shown = call("predict", run, photos).out
    for entry in found:
        expected = model.predict(entry["source"])
        assert entry["probability"] == pytest.approx(expected.probability, rel=1e-4)
        assert entry["winners"] == [list(winners) for winners in expected.winners]
        assert [(t["class"], pytest.approx(t["probability"], rel=1e-3)) for t in entry["top"]] == list(expected.top)
        assert sum(entry["routing"][0]) == pytest.approx(1, abs=1e-5)
        row = next(line for line in shown.splitlines() if Path(entry["source"]).name in line)
        assert f"{percent(expected.probability, 1)}%" in row
        assert row.split("│")[-2].strip() == " → ".join(map(console._ranges, expected.winners))
    assert console._ranges((0, 1, 2, 5, 7, 8)) == "0–2 5 7–8"


def test_predict_reads_standard_input_and_takes_a_weights_file(run, photos):
    data = (photos / "a.png").read_bytes()
    found = json.loads(call("predict", run / "last.safetensors", "-", "--json", stdin=data).out)
    assert (found[0]["source"], found[0]["class"]) == ("-", "apples")


@pytest.mark.parametrize(("top", "columns"), [(1, 1), (2, 2), (5, 2)])
def test_predict_as_csv(run, photos, top, columns):
    answer = call("predict", run, photos, "--csv", "--top", top)
    header, *rows = csv.reader(io.StringIO(answer.out))
    ranked = [name for rank in range(1, columns + 1) for name in (f"class_{rank}", f"probability_{rank}")]
    assert header == ["source", *ranked, "capsule_1", "capsule_2"]
    assert [row[1] for row in rows] == ["apples", "plums"]
    assert all(len(row) == len(header) for row in rows)
    for row, expected in zip(rows, wcapsnet.load(run).predict([row[0] for row in rows]), strict=True):
        assert [tuple(map(int, cell.split())) for cell in row[-2:]] == list(expected.winners)
    if columns == 2:
        assert all(float(row[2]) + float(row[4]) == pytest.approx(1, abs=1e-5) for row in rows)


def test_an_unreadable_picture_does_not_keep_the_others_from_their_answers(run, photos):
    (photos / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    (photos / "empty").mkdir()
    answer = call("predict", run, photos, photos / "none.png", photos / "empty", "--json")
    assert answer.code == 1
    assert [Path(entry["source"]).name for entry in json.loads(answer.out)] == ["a.png", "b [bold].jpg"]
    lines = answer.err.strip().splitlines()
    for line, words in zip(lines, ("no pictures in", "broken.png", "none.png: there is no such file"), strict=True):
        assert line.startswith("error: ")
        assert words in line
    assert "--csv or --json" in sentence(call("predict", run, photos, "--csv", "--json"))


# ── list ──


def test_list_shows_recipes_models_data_sets_and_runs(run):
    answer = call("list", "--runs", run.parent)
    assert answer.code == 0
    for name in (*PAPER, "quick", "demo", *MODELS, *DATASETS, "squash", "uniform"):
        assert name in answer.out, name
    assert "densenet" in call("list", "parts").out
    assert "PLACEHOLDER" not in answer.out
    test = json.loads((run / "test.json").read_text())["accuracy"]
    row = next(line for line in answer.out.splitlines() if run.name in line)
    assert "12/12" in row
    assert f"{test:.2%}" in row


def test_list_runs_says_which_runs_need_a_plugin(run, tmp_path):
    own = Path(shutil.copytree(run, tmp_path / "own"))
    facts = json.loads((own / "experiment.json").read_text())
    facts["plugins"] = [{"path": "/home/me/sharper.py", "sha256": "0" * 64}]
    (own / "experiment.json").write_text(json.dumps(facts))
    said = call("list", "runs", "--runs", tmp_path).out
    assert "needs --plugin /home/me/sharper.py" in said
    assert "unreadable" not in said


def test_list_recipes_includes_those_of_plugins(monkeypatch):
    def own():
        """Two kinds of leaves."""
        return RECIPES["quick"]()

    monkeypatch.setitem(RECIPES, "leaves", own)
    said = call("list", "recipes").out
    assert re.search(r"leaves .*Two kinds of leaves\.", said)
    assert "svhn-ws" not in said, "ablations are summarised"


def test_list_runs_survives_a_run_it_cannot_read(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "none in runs" in call("list", "runs").out
    runs = Path("runs")
    for name, text in (("corrupt", "{"), ("empty", "{}"), ("other", '{"name": "x", "what": 1}')):
        (runs / name).mkdir(parents=True)
        (runs / name / "experiment.json").write_text(text)
    (runs / "no run").mkdir()
    answer = call("list", "runs", "--runs", runs)
    assert answer.code == 0
    assert answer.out.count("unreadable") == 3
    assert "no run" not in answer.out
    own = Path(shutil.copytree(run, runs / "own"))
    (own / "test.json").write_text("broken")
    assert re.search(r"unreadable: \S*test\.json", call("list", "runs", "--runs", runs).out), "which file"
    (own / "test.json").unlink()
    (own / "test.json").mkdir()
    assert call("list", "runs", "--runs", runs).out.count("unreadable") == 4
    (own / "test.json").rmdir()
    (own / "failed.json").write_text('{"failure": "Training diverged."}')
    row = next(line for line in call("list", "runs", "--runs", runs).out.splitlines() if "own" in line)
    assert "failed" in row


# ── help ──


def test_all_files_are_searched_for_a_command_that_has_no_file_of_its_name(monkeypatch):
    searched = []
    monkeypatch.setattr(sys.modules["wcapsnet.cli.app"], "load_commands", lambda name=None: searched.append(name))
    assert "No such command" in call("two-words").err
    assert searched[:2] == ["two-words", None]


def test_every_command_explains_itself_with_examples():
    cli.load_commands()
    for command in cli.app.registered_commands:
        name = command.name or command.callback.__name__
        answer = call(name, "-h")
        assert answer.code == 0
        assert "Examples" in answer.out
        assert f"wcapsnet {name}" in answer.out.partition("Examples")[2]
        assert all(name in call(*args).out for args in ((), ("--help",)))


@pytest.mark.parametrize("function", [api.train, api.sweep, train.train, sweep.sweep, ablate.ablate])
def test_help_spells_out_the_options_that_training_commands_share(function):
    shown = inspect.signature(function).parameters
    assert {*api.ExperimentOptions.__annotations__, "device", "data_dir", "download", "quiet"} <= shown.keys()
    known = inspect.signature(api.experiment_for).parameters
    assert all(shown[name].default == known[name].default for name in api.ExperimentOptions.__annotations__)
    assert "options" not in shown


# ── processes of their own ──


def test_a_reader_that_leaves_is_no_error_worth_a_traceback():
    with subprocess.Popen(
        [sys.executable, "-m", "wcapsnet", "list", "models"],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stdout.close()
        errors = process.stderr.read()
        process.wait(timeout=60)
    assert errors == b""
