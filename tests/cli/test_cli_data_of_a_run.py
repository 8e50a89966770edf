"""A run keeps to the images it was started with, and to its own folder."""

from __future__ import annotations

import html
import json
import os
import shutil
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cli_helpers import SMALL, SRC, call, fruit, sentence

from wcapsnet import __version__
from wcapsnet.atomic import _umask, write_text
from wcapsnet.data import DATASETS, datasets
from wcapsnet.data.datasets import Archive
from wcapsnet.experiment import Experiment
from wcapsnet.explore import Server
from wcapsnet.training.run_folder import Run


@pytest.fixture
def own(tmp_path) -> Path:
    """A folder of pictures that may be changed, with a finished run `mine` on it."""
    folder = fruit(tmp_path / "fruit", 12)
    assert call("train", folder, "--size", 8, "--epochs", 1, "--out", "mine", "-q", *SMALL).code == 0
    return folder


def refused(answer, *words: str) -> None:
    assert answer.code == 2
    assert answer.err.count("error:") == 1
    for word in words:
        assert word in answer.err


def test_a_run_keeps_to_its_images(own):
    assert call("evaluate", "mine").code == 0
    first, second = sorted(own.iterdir())
    shutil.copy(next(first.glob("*.png")), first / "new.png")
    refused(call("evaluate", "mine"), "images of fruit are not those", "mine")
    (first / "new.png").rename(next(second.glob("*.png")))
    Path("mine/test.json").unlink()
    refused(call("train", "--resume", "mine"), "are not those")
    first.rename(own / "zzz")
    refused(call("evaluate", "mine"), "classes of fruit have changed", "zzz")


def test_pictures_that_moved_are_found_with_data_dir(own):
    before = json.loads(call("evaluate", "mine", "--json").out)["accuracy"]
    moved = own.rename(own.with_name("mnist"))  # a folder, even if it has the name of a dataset
    refused(call("evaluate", "mine"), "no folder", "--data-dir")
    assert json.loads(call("evaluate", "mine", "--data-dir", moved, "--json").out)["accuracy"] == before


@pytest.mark.parametrize(
    "command", [["train"], ["train", "--resume"], ["sweep", "--seeds", "1"], ["ablate", "nonlinearity", "--seeds", "1"]]
)
def test_a_run_on_pictures_that_moved_is_repeated_with_data_dir(own, command):
    Path("mine/test.json").unlink()  # so that it can be resumed too
    own.rename("moved")
    refused(call(*command, "mine", "-q"), "no folder", "--data-dir")
    more = [] if "--resume" in command else ["--out", "again"]
    assert call(*command, "mine", "--data-dir", "moved", "-q", *more).code == 0
    for record in Path("again").rglob("experiment.json"):  # it can be used from anywhere
        assert json.loads(record.read_text())["data"]["source"] == str(Path("moved").resolve())


@pytest.mark.parametrize("command", ["train", "evaluate", "explore"])
@pytest.mark.parametrize("name", ["nope", "mnist"])
def test_for_a_run_on_pictures_data_dir_is_their_folder_and_no_data_set(own, command, name):
    refused(call(command, "mine", "--data-dir", name), f"no folder {name}; --data-dir must be the folder")


def test_training_from_within_the_folder_of_pictures_can_be_repeated_and_evaluated(own, monkeypatch):
    monkeypatch.chdir(own)
    for _ in range(2):
        assert call("train", ".", "--size", 8, "--epochs", 1, "-q", *SMALL).code == 0
    assert call("evaluate", "runs/fruit").code == 0
    assert call("evaluate", "runs/fruit-2").code == 0


def test_of_two_runs_that_begin_at_once_each_gets_a_folder(tmp_path):
    experiment = Experiment("race")
    first, second = (Run.next_free(tmp_path / "race", experiment) for _ in range(2))
    first.begin({})
    second.begin({})
    assert {first.path.name, second.path.name} == {"race", "race-2"}


@pytest.fixture(params=["size", "classes"])
def mixed(own, request) -> str:
    """The run `mine` with the best weights of another one; how that is told."""
    other = own if request.param == "size" else Path("other")
    if request.param == "classes":
        shutil.copytree(own, other)
        (other / "apples").rename(other / "pears")
    size = 16 if request.param == "size" else 8
    assert call("train", other, "--size", size, "--epochs", 1, "--out", "strange", "-q", *SMALL).code == 0
    shutil.copy("strange/best.safetensors", "mine")
    place, end = Path("mine/best.safetensors"), "restore the run's own file, or train again."
    how = "model.height is 16, not 8" if request.param == "size" else "its classes are pears, plums, not apples, plums"
    return f"{place} belongs to another network ({how}); {end}"


def test_the_weights_of_another_run_are_refused(mixed, own):
    picture = next(own.rglob("*.png"))
    asked = (["evaluate", "mine"], ["explain", "mine"], ["explain", "mine", picture], ["predict", "mine", picture])
    for command in (*asked, ["explore", "mine", "--no-browser"]):
        assert sentence(call(*command)) == mixed
    Path("mine/test.json").unlink()
    assert sentence(call("train", "--resume", "mine", "-q")) == mixed
    assert not Path("mine/test.json").exists()


def test_a_report_shows_nothing_of_another_runs_weights(mixed):
    answer = call("report", "mine", "--out", "page.html")
    assert answer.code == 0
    assert f"No pictures: {mixed}" in answer.err
    assert "pears" not in html.unescape(Path("page.html").read_text()).replace(mixed, "")


@pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")
def test_every_file_of_a_run_can_be_read_by_others(own):
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in Path("mine").iterdir() if path.is_file()}
    assert set(modes.values()) == {0o666 & ~_umask()}, modes


def test_stopping_early_is_said(toy):
    answer = call("train", "toy", "--lr", 1e-9, "--epochs", 9, "--set", "training.patience=1", "--out", "mine")
    assert "Stopped early: validation has not improved for 1 epoch." in answer.out


def test_the_command_settles_openmp_and_onednn_before_torch_is_loaded():
    code = (
        "import os, sys, wcapsnet.__main__ as m; assert 'torch' not in sys.modules\n"
        "sys.argv = ['wcapsnet', '--version']\n"
        "try: m.main()\nexcept SystemExit: pass\n"
        "print(os.environ['GOMP_SPINCOUNT'], os.environ['ONEDNN_MAX_CPU_ISA'])"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "ONEDNN_MAX_CPU_ISA")}
    environment["PYTHONPATH"] = str(SRC)
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.startswith(f"wcapsnet {__version__}")
    assert said.stdout.splitlines()[-1] == "10000 AVX512_CORE_BF16"


def test_what_looks_at_a_run_fetches_its_data_if_asked(toy, monkeypatch):
    archive = Archive("toy.txt", ("https://example.org/toy.txt",), "0" * 32)
    monkeypatch.setitem(DATASETS, "toy", replace(DATASETS["toy"], archives=(archive,)))
    monkeypatch.setattr(datasets, "fetch", lambda urls, path, **_: write_text(path, "here"))
    monkeypatch.setattr(Server, "serve_forever", lambda server: None)
    assert call("train", "toy", "--out", "mine", "-q").code == 0
    for number, command in enumerate((["explain"], ["report"], ["explore", "--no-browser", "--port", 0])):
        name, *more = command
        place = Path(f"place-{number}")
        assert "--download" in call(name, "mine", *more, "--data-dir", place).err
        assert call(name, "mine", *more, "--data-dir", place, "--download").code == 0
        assert (place / "toy.txt").exists()
