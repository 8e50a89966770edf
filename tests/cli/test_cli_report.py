"""`wcapsnet report`, and the reports that `train` and `demo` leave."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from cli_helpers import call, press_ctrl_c, sentence

from wcapsnet.cli import report as report_command
from wcapsnet.data import DATASETS
from wcapsnet.data.device_data import DeviceSplit
from wcapsnet.explanations import Survey


def text(path):
    return Path(path).read_text(encoding="utf-8")


def test_train_writes_a_report_and_says_where(trained):
    path, answer = trained
    assert answer.out.splitlines()[-1] == f"The report is {path / 'report.html'}."
    accuracy = json.loads(text(path / "test.json"))["accuracy"]
    assert f"{100 * accuracy:.2f}\u202f%" in text(path / "report.html")
    assert "apples/" in text(path / "report.html"), "pictures are named by their files"
    assert (path / "survey.safetensors").stat().st_size < 100_000


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_report_that_cannot_be_written_leaves_the_run(toy, monkeypatch, error):
    def fails(*given, **more):
        raise error

    monkeypatch.setattr("wcapsnet.reports.gather", fails)
    answer = call("train", "toy", "--out", "mine")
    assert answer.code == 0
    assert ("could not be written" in answer.err) == (error is OSError)
    assert Path("mine/test.json").is_file()
    assert not Path("mine/report.html").exists()


def test_the_test_images_are_passed_once_for_the_result_and_the_report(toy, monkeypatch):
    passed, take = [], DeviceSplit.take
    monkeypatch.setattr(
        DeviceSplit, "take", lambda split, at: (passed.append(split.labels.tolist()), take(split, at))[1]
    )
    assert call("train", "toy", "--out", "mine", "-q").code == 0
    found, _ = Survey.load(Path("mine/survey.safetensors"))
    assert passed.count(found.labels.tolist()) == 1, "fifteen images in one batch"
    assert found.accuracy == json.loads(text("mine/test.json"))["accuracy"]


def test_report_makes_the_same_page_again(run, tmp_path):
    own = Path(shutil.copytree(run, tmp_path / "own"))
    answer = call("report", own)
    assert answer.code == 0
    assert answer.out == f"The report is {own / 'report.html'}.\n"
    first = text(own / "report.html")
    (own / "survey.safetensors").unlink()
    assert call("report", own, "--out", tmp_path / "again.html").code == 0
    assert text(tmp_path / "again.html") == first
    assert (own / "survey.safetensors").exists()


def test_an_interrupted_run_leaves_a_report_of_what_there_is(toy, monkeypatch):
    with pytest.MonkeyPatch.context() as patch:
        press_ctrl_c(patch, 1, 1)
        answer = call("train", "toy", "--out", "broken")
    assert answer.code == 130
    assert "The report is broken/report.html." in answer.out
    assert "Resume with: wcapsnet train --resume broken" in answer.out
    page = text("broken/report.html")
    assert "This run is not finished: 1 of 2 epochs are done." in page
    assert "test accuracy" not in page
    assert call("train", "--resume", "broken", "-q").code == 0
    assert "This run is not finished" not in text("broken/report.html")


def test_a_network_without_routing_is_trained_and_reported_without_it(toy):
    dense = {"architecture": "densenet", "classes": 3, "channels": 1, "height": 8, "width": 8, "depth": 10}
    settings = ("--set", f"model={json.dumps(dense)}", "--set", 'objective={"cross_entropy": 1}')
    assert call("train", "toy", "--out", "dense", "--epochs", 1, "-q", *settings).code == 0
    answer = call("report", "dense")
    assert answer.code == 0, answer.err
    assert answer.err == ""
    assert "DenseNet has no critics" in text("dense/report.html")
    accuracy = json.loads(text("dense/test.json"))["accuracy"]
    assert f"{100 * accuracy:.2f}\u202f%" in text("dense/report.html")


def test_several_runs_are_compared(toy):
    for seed in (0, 1):
        assert call("train", "toy", "--out", f"runs/{seed}", "--seed", seed, "-q").code == 0
    answer = call("report", "runs/0", "runs/1")
    assert answer.code == 0
    assert answer.out == "The report is runs/comparison.html.\n"
    assert "2 runs compared" in text("runs/comparison.html")


def test_a_sweep_stands_for_its_runs(toy):
    assert call("sweep", "toy", "--grid", "training.lr=0.05,0.01", "--out", "rates", "-q").code == 0
    answer = call("report", "rates")
    assert answer.code == 0, answer.err
    assert answer.out == "The report is rates/comparison.html.\n"
    page = text("rates/comparison.html")
    assert "2 runs compared" in page
    assert page.index("lr=0.05") < page.index("lr=0.01")  # as in the sweep, whose first run is the reference
    Path("rates/sweep.json").write_text("{}")
    assert "sweep.json is damaged" in sentence(call("report", "rates"))
    Path("rates/sweep.json").write_text('{"runs": [{"run": "lr=1"}]}')
    assert "No run of the sweep in rates has begun" in sentence(call("report", "rates"))


@pytest.mark.slow
def test_figures_are_written_beside(run, tmp_path):
    pytest.importorskip("typst")
    answer = call("report", run, "--out", tmp_path / "page.html", "--figures", tmp_path / "figures")
    assert answer.code == 0
    assert (tmp_path / "figures" / "confusion.pdf").is_file()
    assert f"figures are in {tmp_path / 'figures'}" in answer.out


def test_without_typst_figures_are_svg_only_and_that_is_said(run, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "typst", None)
    answer = call("report", run, "--out", tmp_path / "page.html", "--figures", tmp_path / "figures")
    assert answer.code == 0
    assert "wcapsnet[plots]" in answer.err
    assert {path.suffix for path in (tmp_path / "figures").iterdir()} == {".svg"}


def test_a_moved_data_set_is_said_on_the_page(toy, monkeypatch):
    assert call("train", "toy", "--out", "mine", "-q").code == 0
    monkeypatch.delitem(DATASETS, "toy")
    whole = text("mine/report.html")
    answer = call("report", "mine")
    assert answer.code == 2
    assert answer.err.startswith("No pictures: ")
    assert "mine/report.html was not replaced" in answer.err
    assert text("mine/report.html") == whole
    assert call("report", "mine", "--out", "other.html").code == 0
    assert "The pictures cannot be shown." in text("other.html")
    Path("mine/report.html").unlink()
    answer = call("report", "mine")
    assert answer.code == 0
    Path("mine/report.html").unlink()
    assert call("report", "mine", "-q").err == ""
    assert "The pictures cannot be shown." in text("mine/report.html")
    assert "mean weight" in text("mine/report.html")


def test_bad_input_is_one_sentence(run, tmp_path):
    (tmp_path / "file").write_text("")
    own = Path(shutil.copytree(run, tmp_path / "own"))
    for arguments, says in {
        ("nowhere",): "There is no run folder nowhere",
        (".",): "is not a run folder",
        (run.parent,): "name one or more of those",
        (run, "--out", tmp_path): "is a folder",
        (run, "--figures", tmp_path / "file"): "must be a folder",
    }.items():
        assert says in sentence(call("report", *arguments))
    (own / "test.json").write_text("{}")
    assert "test.json is damaged" in sentence(call("report", own))
    (own / "test.json").unlink()
    (own / "metrics.jsonl").write_text("{\n")
    assert "metrics.jsonl is damaged" in sentence(call("report", own))


def test_who_may_only_read_a_run_gets_a_report_elsewhere(run, tmp_path, monkeypatch):
    own = Path(shutil.copytree(run, tmp_path / "own"))
    (own / "survey.safetensors").unlink()

    def refused(self, path, **facts):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Survey, "save", refused)
    assert call("report", own, "--out", tmp_path / "page.html").code == 0
    assert "mean weight" in text(tmp_path / "page.html")
    assert not (own / "survey.safetensors").exists()


def test_open_opens_a_browser_where_there_is_a_display(run, monkeypatch, tmp_path):
    opened = []
    monkeypatch.setattr(report_command.webbrowser, "open", lambda place: opened.append(place) or True)
    monkeypatch.setattr(report_command.sys, "platform", "linux")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    page = tmp_path / "a page.html"
    answer = call("report", run, "--out", page, "--open")
    assert answer.code == 0
    assert "there is no display" in answer.err
    assert opened == []
    monkeypatch.setenv("DISPLAY", ":0")
    assert call("report", run, "--out", page, "--open").err == ""
    assert opened == [page.as_uri()]
