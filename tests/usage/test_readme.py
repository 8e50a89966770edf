"""README, quickstart and guide are run: their Python blocks as they stand, their commands on small data."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import sentence
from documents import blocks, run, text
from PIL import Image

from twins import tiny
from wcapsnet.bench import contenders, measure
from wcapsnet.bench import suite as bench
from wcapsnet.data import datasets
from wcapsnet.errors import InputError
from wcapsnet.explore import Server
from wcapsnet.recipes import RECIPES, quick

PAGES = ("README.md", "docs/quickstart.md", "docs/guide.md")


def python(page: str) -> list[str]:
    return blocks(text(page), "python")


def commands(*pages: str) -> list[str]:
    lines = [line for page in pages for block in blocks(text(page), "") for line in block.splitlines()]
    return [re.split(r"\s+#", line)[0].strip() for line in lines if line.startswith("wcapsnet ")]


COMMANDS = list(dict.fromkeys(commands(*PAGES)))
OWN = [command for command in COMMANDS if "photos" in command]


def picture(path: Path, value: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(value).integers(0, 60, (16, 16, 3), dtype=np.uint8)
    Image.fromarray(pixels + np.uint8(value)).save(path)


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


@pytest.fixture
def photos(place):
    for number in range(12):
        picture(Path(f"photos/cats/{number}.png"), 10)
        picture(Path(f"photos/dogs/{number}.png"), 180)
    picture(Path("new-photos/cats/1.png"), 20)
    picture(Path("holiday/one.png"), 180)
    picture(Path("photo.jpg"), 90)
    return place


def test_the_readme_is_short_and_every_page_has_commands_and_python():
    assert len(text("README.md").splitlines()) <= 150
    assert [command.split()[1] for command in commands("README.md")] == ["explore", "predict", "train"]
    assert [len(python(page)) for page in PAGES] == [1, 1, 2]


def test_the_two_commands_of_the_readme_are_targets_of_the_makefile():
    targets = re.findall(r"^make (\w+)", "".join(blocks(text("README.md"), "")), re.MULTILINE)
    makefile = text("Makefile")
    assert targets == ["demo", "test"]
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_the_readmes_python_runs_on_a_folder_of_pictures(photos):
    names: dict = {}
    for block in python("README.md"):
        exec(block, names)
    assert names["trained"].path == Path("runs/photos")
    assert names["answer"].label in ("cats", "dogs")
    assert len(names["answer"].winners) == len(names["model"].config.levels)
    output = names["output"]
    assert output.logits.shape == (2, 11)
    assert output.reconstruction.shape == (2, 3, 32, 32)
    assert output.routings[0].weights.shape == (2, 16)
    assert repr(names["trained"]).startswith("Trained('runs/photos', accuracy=")
    assert len(repr(names["answer"])) < 200, "without its tensors"


def test_the_quickstarts_python_runs_on_a_folder_of_pictures(photos, capsys):
    names: dict = {}
    exec(python("docs/quickstart.md")[0], names)
    assert names["answer"].routing[-1].dim() == 3
    assert names["page"] == names["trained"].report == Path("runs/photos/report.html")
    assert names["result"].accuracy == names["trained"].accuracy
    assert names["one"].predicted in (0, 1)
    assert names["all_of_them"].classes == ("cats", "dogs")


def test_the_guides_python_switches_a_block_off():
    names: dict = {}
    exec(next(block for block in python("docs/guide.md") if "keeping" in block), names)
    assert [tuple(routing.weights.shape) for routing in names["output"].routings] == [(5, 4), (5, 4), (5, 2, 7, 7)]
    assert not names["without"].routings[0].weights[:, 2].any()
    assert names["output"].routings[0].weights[:, 2].all()


def test_the_guides_python_shares_a_network(place):
    names: dict = {}
    exec(next(block for block in python("docs/guide.md") if "save_pretrained" in block), names)
    assert names["again"].classes == names["model"].classes


def test_the_commands_for_own_pictures_run(photos, monkeypatch):
    used = {"train", "sweep", "evaluate", "predict", "explain", "report", "explore"}
    assert {command.split()[1] for command in OWN} == used
    assert sum(command.startswith("wcapsnet explain") for command in OWN) == 6
    monkeypatch.setattr(Server, "serve_forever", ctrl_c)
    monkeypatch.setattr("webbrowser.open", lambda url: None)
    said = ""
    for command in OWN:
        if "photos-2" in command:
            shutil.copytree("runs/photos", "runs/photos-2", dirs_exist_ok=True)
        if "animals" in command:
            shutil.copytree("runs/photos", "runs/animals", dirs_exist_ok=True)
        answer = run(command)
        assert answer.code == 0, answer
        said += answer.out
    assert "holiday/one.png" in said
    assert Path("runs/photos/report.html").is_file()
    assert Path("runs/comparison.html").is_file()
    assert Path("figures/confusion.pdf").is_file()


def test_every_file_of_a_run_is_in_the_guide(photos):
    assert run("wcapsnet train photos/ --quiet").code == 0
    guide = text("docs/guide.md").partition("## The run folder")[2].partition("## ")[0]
    for path in Path("runs/photos").iterdir():
        assert f"`{path.name}{'/' if path.is_dir() else ''}`" in guide
    header = Path("runs/photos/predictions.csv").read_text(encoding="utf-8").splitlines()[0]
    assert "capsule_1" in header.split(",")


@pytest.mark.parametrize("command", [c for c in COMMANDS if "wcapsnet-" in c])
def test_the_commands_for_shipped_networks_run(command, photos, monkeypatch):
    monkeypatch.setattr(Server, "serve_forever", ctrl_c)
    monkeypatch.setattr("webbrowser.open", lambda url: None)
    assert run(command).code == 0


@pytest.mark.parametrize(
    "command", [c for c in COMMANDS if c.split()[1] in ("train", "sweep", "ablate") and c not in OWN]
)
def test_every_recipe_command_gets_as_far_as_its_data(command, place, monkeypatch):
    def no_network(*_, **__):
        raise InputError("nobody is connected here.")

    monkeypatch.setattr(datasets, "fetch", no_network)
    said = sentence(run(command))
    assert "not found" in said or "nobody is connected" in said
    assert not Path("runs").exists()


def test_the_benchmarks_run(place, monkeypatch):
    def no_compiler(device):
        raise InputError("no compiler here.")

    monkeypatch.setattr(contenders, "check_compiler", no_compiler)
    monkeypatch.setattr(bench, "in_turns", lambda calls, device, *_: measure.in_turns(calls, device, 1, 0.0))
    monkeypatch.setattr(bench, "SCALINGS", {"capsules": (1, 2)})
    small = replace(quick.demo(), model=tiny(), training=replace(quick.demo().training, batch_size=2))
    for name in ("cifar10", "quick"):
        monkeypatch.setitem(RECIPES, name, lambda: small)
    speed = [command for command in COMMANDS if command.split()[1] == "bench"]
    assert {command.split()[2] for command in speed} == {"train", "infer", "level", "plot"}
    for command in speed:
        assert run(command).code == 0
    assert {"capsules.json", "capsules.svg"} <= {path.name for path in place.iterdir()}
