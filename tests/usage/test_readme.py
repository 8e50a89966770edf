"""The README is run: its Python blocks as they stand, its commands on small data."""

import re
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from twins import tiny
from wcapsnet import cli
from wcapsnet.bench import contenders, measure
from wcapsnet.bench import run as bench
from wcapsnet.data import datasets
from wcapsnet.errors import InputError
from wcapsnet.explore import Server
from wcapsnet.recipes import RECIPES, quick

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)
PYTHON = [text for language, text in BLOCKS if language == "python"]
COMMANDS = [
    re.split(r"\s+#", line)[0].strip()
    for language, text in BLOCKS
    if not language
    for line in text.splitlines()
    if line.startswith("wcapsnet ")
]


def picture(path: Path, value: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(value).integers(0, 60, (16, 16, 3), dtype=np.uint8)
    Image.fromarray(pixels + np.uint8(value)).save(path)


def run(command: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


def ctrl_c(server: Server) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WCAPSNET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("WCAPSNET_DATA", raising=False)
    plain = quick.folder
    monkeypatch.setattr(
        quick, "folder", lambda *given: replace(plain(*given), training=plain(*given).training.with_epochs(2))
    )
    return tmp_path


def test_the_readme_has_commands_and_python():
    assert len(PYTHON) == 2
    assert len(COMMANDS) >= 8


def test_the_first_python_block_runs():
    names: dict = {}
    exec(PYTHON[0], names)
    out = names["out"]
    assert out.logits.shape == (2, 11)
    assert out.reconstruction.shape == (2, 3, 32, 32)
    assert out.routings[0].weights.shape == (2, 16)


def test_the_commands_for_own_pictures_run_and_then_the_second_python_block(place, monkeypatch, capsys):
    for number in range(12):
        picture(Path(f"photos/cats/{number}.png"), 10)
        picture(Path(f"photos/dogs/{number}.png"), 180)
    picture(Path("holiday/one.png"), 180)
    picture(Path("digit.png"), 10)
    own = [command for command in COMMANDS if "photos" in command]
    assert [command.split()[1] for command in own] == [
        "train",
        "evaluate",
        "predict",
        *["explain"] * 5,
        *["report"] * 3,
        "explore",
    ]
    monkeypatch.setattr(Server, "serve_forever", ctrl_c)
    monkeypatch.setattr("webbrowser.open", lambda url: None)
    for command in own:
        if "photos-2" in command:
            shutil.copytree("runs/photos", "runs/photos-2")
        assert run(command, monkeypatch) == 0, capsys.readouterr()
    assert "holiday/one.png" in capsys.readouterr().out
    assert Path("runs/photos/report.html").is_file()
    assert Path("runs/comparison.html").is_file()
    assert Path("figures/confusion.pdf").is_file()

    names: dict = {}
    exec(PYTHON[1].replace("runs/demo", "runs/photos"), names)
    assert names["answer"].label in ("cats", "dogs")
    assert names["answer"].routing[-1].dim() == 3


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.split()[1] == "train" and "photos" not in c])
def test_every_recipe_command_gets_as_far_as_its_data(command, place, monkeypatch, capsys):
    def no_network(*_, **__):
        raise InputError("nobody is connected here.")

    monkeypatch.setattr(datasets, "fetch", no_network)
    assert run(command, monkeypatch) == 2
    said = capsys.readouterr().err
    assert "are not there" in said or "nobody is connected" in said
    assert not Path("runs").exists()


def test_the_benchmarks_run(place, monkeypatch, capsys):
    def no_compiler(device):
        raise InputError("no compiler here.")

    monkeypatch.setattr(contenders, "_check_compiler", no_compiler)
    monkeypatch.setattr(bench, "in_turns", lambda calls, device, *_: measure.in_turns(calls, device, 1, 0.0))
    monkeypatch.setattr(bench, "SCALINGS", {"capsules": (1, 2)})
    small = replace(quick.demo(), model=tiny(), training=replace(quick.demo().training, batch_size=2))
    for name in ("cifar10", "quick"):
        monkeypatch.setitem(RECIPES, name, lambda: small)
    commands = [command for command in COMMANDS if command.split()[1] == "bench"]
    assert {command.split()[2] for command in commands} == {"train", "infer", "level", "plot"}
    for command in commands:
        assert run(command, monkeypatch) == 0, capsys.readouterr()
    assert {"capsules.json", "capsules.svg"} <= {path.name for path in place.iterdir()}


def test_the_tables_are_printed(place, monkeypatch, capsys):
    (command,) = [command for command in COMMANDS if command.split()[1] == "tables"]
    assert run(command, monkeypatch) == 0
    said = capsys.readouterr().out
    for figure in ("93.43", "70.39", "96.46", "99.68"):
        assert figure in said


def test_list_shows_what_the_readme_names(place, monkeypatch, capsys):
    assert run("wcapsnet list", monkeypatch) == 0
    said = capsys.readouterr().out
    assert "mnist" in said
    assert "wcapsnet-quick" in said
