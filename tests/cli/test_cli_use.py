"""`wcapsnet evaluate`, `predict`, `list`, `--version` and `--help`."""

import csv
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
from wcapsnet.cli import console
from wcapsnet.data import DATASETS
from wcapsnet.formatting import percent
from wcapsnet.parts import model as MODELS
from wcapsnet.recipes import PAPER


@pytest.fixture
def photos(tmp_path):
    """a folder with two pictures"""
    folder = tmp_path / "photos"
    folder.mkdir()
    picture(COLORS["apples"], 100, (30, 20)).save(folder / "a.png")
    picture(COLORS["plums"], 101, (20, 30)).save(folder / "b.jpg")
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


def test_evaluate_shows_accuracy_and_classes(run):
    answer = call("evaluate", run)
    assert answer.code == 0
    accuracy = json.loads((run / "test.json").read_text())["accuracy"]
    assert f"test accuracy {accuracy:.2%} on 6 images" in answer.out
    assert "apples" in answer.out
    assert "plums" in answer.out


def test_evaluate_says_if_a_run_is_not_finished(run, tmp_path):
    assert "not finished" not in call("evaluate", run).out
    own = Path(shutil.copytree(run, tmp_path / "own"))
    (own / "test.json").unlink()
    said = "The run is not finished: these are the best weights after 12 of 12 epochs."
    assert said in call("evaluate", own).out


def test_evaluate_writes_nothing(run):
    before = {file: file.stat().st_mtime_ns for file in run.rglob("*")}
    call("evaluate", run, "--split", "train")
    assert {file: file.stat().st_mtime_ns for file in run.rglob("*")} == before


def test_evaluate_in_bf16(run):
    assert json.loads(call("evaluate", run, "--json", "--precision", "bf16").out)["images"] == 6


# ── predict ──


def test_predict_answers_a_file(run, photos):
    answer = call("predict", run, photos / "a.png")
    assert answer.code == 0
    assert answer.err == ""
    expected = wcapsnet.load(run).predict(photos / "a.png")
    row = next(line for line in answer.out.splitlines() if "a.png" in line)
    assert "apples" in row
    assert f"{percent(expected.probability, 1)}%" in row
    assert row.split("│")[-2].strip() == " → ".join(map(console._ranges, expected.winners))


def test_predict_as_json_carries_class_probability_top_winners_and_routing(run, photos):
    answer = call("predict", run, photos / "b.jpg", photos / "a.png", "--json")
    assert answer.code == 0
    found = json.loads(answer.out)
    assert [entry["source"] for entry in found] == [str(photos / "b.jpg"), str(photos / "a.png")]
    assert [entry["class"] for entry in found] == ["plums", "apples"]
    model = wcapsnet.load(run)
    for entry in found:
        expected = model.predict(entry["source"])
        assert entry["probability"] == pytest.approx(expected.probability, rel=1e-4)
        assert entry["winners"] == [list(winners) for winners in expected.winners]
        assert [(t["class"], pytest.approx(t["probability"], rel=1e-3)) for t in entry["top"]] == list(expected.top)
        assert sum(entry["routing"][0]) == pytest.approx(1, abs=1e-5)


def test_predict_answers_every_picture_of_a_folder(run, photos):
    found = json.loads(call("predict", run, photos, "--json").out)
    assert [Path(entry["source"]).name for entry in found] == ["a.png", "b.jpg"]


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


@pytest.mark.parametrize("top", [1, 2])
def test_predict_shows_as_many_classes_as_asked(run, photos, top):
    found = json.loads(call("predict", run, photos / "a.png", "--json", "--top", top).out)
    assert len(found[0]["top"]) == top
    shown = call("predict", run, photos / "a.png", "--top", top).out
    assert ("plums" in shown) is (top == 2)


def test_predict_reads_standard_input(run, photos):
    data = (photos / "a.png").read_bytes()
    found = json.loads(call("predict", run, "-", "--json", stdin=data).out)
    assert (found[0]["source"], found[0]["class"]) == ("-", "apples")


def test_predict_takes_a_weights_file(run, photos):
    found = json.loads(call("predict", run / "last.safetensors", photos / "a.png", "--json").out)
    assert found[0]["class"] == "apples"


def test_an_unreadable_picture_does_not_keep_the_others_from_their_answers(run, photos):
    (photos / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    answer = call("predict", run, photos, photos / "none.png", "--json")
    assert answer.code == 1
    assert [Path(entry["source"]).name for entry in json.loads(answer.out)] == ["a.png", "b.jpg"]
    lines = answer.err.strip().splitlines()
    assert len(lines) == 2
    assert all(line.startswith("error: Cannot read the picture ") for line in lines)
    assert "broken.png" in lines[0]
    assert "none.png: there is no such file" in lines[1]


@pytest.mark.parametrize("option", [(), ("--csv",), ("--json",)])
def test_a_picture_that_does_not_exist_is_one_sentence(run, option):
    assert "none.png: there is no such file" in sentence(call("predict", run, "none.png", *option))


def test_names_are_shown_as_they_are(run, tmp_path):
    # square brackets are markup to rich
    path = tmp_path / "cat [bold] [1].png"
    picture(COLORS["apples"], 1).save(path)
    assert "cat [bold] [1].png" in call("predict", run, path).out
    strange = tmp_path / "x[" / "bold].png"
    strange.parent.mkdir()
    picture(COLORS["apples"], 1).save(strange)
    answer = call("predict", run, strange)
    assert answer.code == 0
    assert "x[/bold].png" in answer.out


def test_a_folder_without_pictures_is_one_sentence(run, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "There are no pictures in" in sentence(call("predict", run, tmp_path / "empty"))


def test_csv_and_json_at_once_is_one_sentence(run, photos):
    assert "--csv or --json" in sentence(call("predict", run, photos, "--csv", "--json"))


# ── list ──


def test_list_shows_recipes_models_data_sets_and_runs(run):
    answer = call("list", "--runs", run.parent)
    assert answer.code == 0
    for name in (*PAPER, "quick", "demo", *MODELS, *DATASETS, "squash", "uniform"):
        assert name in answer.out, name
    assert "PLACEHOLDER" not in answer.out
    test = json.loads((run / "test.json").read_text())["accuracy"]
    row = next(line for line in answer.out.splitlines() if run.name in line)
    assert "12/12" in row
    assert f"{test:.2%}" in row


def test_list_runs_survives_a_run_it_cannot_read(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
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
    (own / "failed.json").write_text('{"failure": "Training diverged."}')
    row = next(line for line in call("list", "runs", "--runs", runs).out.splitlines() if "own" in line)
    assert "failed" in row


def test_list_without_runs_says_so():
    answer = call("list", "runs")
    assert answer.code == 0
    assert "none in runs" in answer.out


# ── help ──


def test_version():
    answer = call("--version")
    assert answer.code == 0
    assert answer.out.startswith(f"wcapsnet {wcapsnet.__version__}")


@pytest.mark.parametrize(
    ("command", "example"),
    [
        ("demo", "wcapsnet demo --out"),
        ("train", "wcapsnet train --resume"),
        ("evaluate", "wcapsnet evaluate runs/demo"),
        ("predict", "wcapsnet predict runs/demo digit.png"),
        ("list", "wcapsnet list runs"),
    ],
)
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_every_command_explains_itself_with_examples(command, example, option):
    answer = call(command, option)
    assert answer.code == 0
    assert "Examples" in answer.out
    assert example in answer.out


def test_the_options_of_train_are_all_there():
    text = call("train", "--help").out
    for option in (
        *("--epochs", "--batch-size", "--lr", "--seed", "--size", "--device", "--precision", "--data-dir"),
        *("--download", "--out", "--resume", "--set"),
    ):
        assert option in text, option


@pytest.mark.parametrize("args", [(), ("--help",)])
def test_without_a_command_there_is_help(args):
    answer = call(*args)
    for command in ("demo", "train", "evaluate", "predict", "list"):
        assert command in answer.out


# ── processes of their own ──


def test_python_m_wcapsnet_version():
    answer = subprocess.run(
        [sys.executable, "-m", "wcapsnet", "--version"], env=environment(), capture_output=True, text=True, timeout=60
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.startswith(f"wcapsnet {wcapsnet.__version__}")


def test_a_picture_through_a_pipe(run, photos):
    answer = subprocess.run(
        [sys.executable, "-m", "wcapsnet", "predict", str(run), "-", "--csv"],
        env=environment(),
        input=(photos / "b.jpg").read_bytes(),
        capture_output=True,
        timeout=60,
    )
    assert (answer.returncode, answer.stderr) == (0, b"")
    assert answer.stdout.decode().splitlines()[1].startswith("-,plums,")


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


@pytest.mark.parametrize(
    ("numbers", "said"), [((4,), "4"), ((0, 1), "0–1"), ((0, 1, 2, 5, 7, 8), "0–2 5 7–8"), (tuple(range(16)), "0–15")]
)
def test_winners_are_said_in_short(numbers, said):
    assert console._ranges(numbers) == said
