"""docs/extending.md is run: its files as they stand, its commands on small data."""

import json
import re
import sys
from dataclasses import replace
from functools import partial
from hashlib import sha256
from importlib.util import module_from_spec, spec_from_file_location
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
from documents import ROOT, blocks, run, text
from PIL import Image

import wcapsnet
from twins import tiny
from wcapsnet import cli
from wcapsnet.data import DATASETS
from wcapsnet.data.formats import Arrays, RawData
from wcapsnet.experiment import TrainingConfig, stored_experiment
from wcapsnet.parts import Kind
from wcapsnet.recipes import RECIPES, quick

PAGE = text("docs/extending.md")
SECTIONS = dict(re.findall(r"^#{2,3} (.*?)\n(.*?)(?=^#{2,3} |\Z)", PAGE, re.DOTALL | re.M))


def file_of(section: str) -> tuple[str, str]:
    """The name and content of a section's file; the name is its first line"""
    (code,) = blocks(SECTIONS[section], "python")
    return re.match(r"# (\S+)\n", code)[1], code


def commands_of(section: str) -> list[str]:
    found = [
        line for block in blocks(SECTIONS[section], "") for line in block.splitlines() if line.startswith("wcapsnet ")
    ]
    assert found
    return found


def forget(before: list[dict]) -> None:
    """As a new process is: nothing of a plugin is known."""
    for kind, known in zip(Kind.every, before, strict=True):
        kind.clear()
        kind.update(known)
    for name in [name for name in sys.modules if name.startswith("wcapsnet_plugin_")]:
        del sys.modules[name]


@pytest.fixture
def registered():
    before = [dict(kind) for kind in Kind.every]
    yield before
    forget(before)


class SmallSample:
    """Not a function: a function of this file would count as a plugin."""

    def __call__(self, folder: Path) -> RawData:
        random = np.random.default_rng(0)
        images = random.integers(0, 256, (150, 1, 28, 28), dtype=np.uint8)
        digits = Arrays(images, np.arange(150) % 10)
        return RawData(digits, Arrays(images[:100], digits.labels[:100]))


@pytest.fixture
def place(tmp_path, monkeypatch, registered):
    """A folder where `demo` takes a second: a hundred images, a tiny network, one epoch."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WCAPSNET_CACHE", str(tmp_path / "cache"))
    demo = replace(
        quick.demo(),
        data=replace(quick.demo().data, validation=50),
        model=tiny(classes=10, channels=1, height=28, width=28),
        training=TrainingConfig(epochs=1, batch_size=50, milestones=()),
    )
    info = replace(DATASETS["sample"], train_images=150, test_images=100, read=SmallSample())
    monkeypatch.setitem(DATASETS, "sample", info)
    monkeypatch.setitem(RECIPES, "demo", partial(replace, demo))
    return tmp_path


def try_section(section: str) -> str:
    name, code = file_of(section)
    Path(name).write_text(code, encoding="utf-8")
    answers = [run(command) for command in commands_of(section)]
    assert not any(answer.code for answer in answers), answers
    return "".join(answer.out for answer in answers)


def written(run_folder: str) -> dict:
    return json.loads(Path(run_folder, "experiment.json").read_text(encoding="utf-8"))


def test_every_file_named_on_the_page_exists():
    for path in re.findall(r"`(src/[\w/]+\.py)`|\]\(\.\./([\w/.]+)\)", PAGE):
        assert (ROOT / (path[0] or path[1])).exists(), path
    for path in re.findall(r"`((?:training|cli)/\w+\.py|\w+\.py)`", PAGE):
        assert (ROOT / "src/wcapsnet" / path).exists(), path


def test_a_new_weighting_its_record_and_its_refusal(place):
    section, before = "A new weighting", [dict(kind) for kind in Kind.every]
    try_section(section)
    name, _ = file_of(section)
    facts = written("runs/sharper")
    assert facts["model"]["routing"]["weighting"] == "sharper"
    assert facts["plugins"] == [{"path": str(place / name), "sha256": sha256(Path(name).read_bytes()).hexdigest()}]

    page = Path("runs/sharper/report.html").read_text(encoding="utf-8")
    for command in ("train", "report"):
        assert f"wcapsnet {command} runs/sharper --plugin {place / name}" in page

    forget(before)
    answer = run("wcapsnet evaluate runs/sharper")
    assert answer.code == 2
    promised = re.search(r"^error: .*$", SECTIONS["Plugins"], re.M)[0].replace("/home/me/sharper.py", str(place / name))
    assert " ".join(answer.err.split()) == promised

    assert run(f"wcapsnet evaluate runs/sharper --plugin {name} --json").code == 0
    forget(before)
    Path(name).write_text(Path(name).read_text() + "# a remark\n")
    answer = run(f"wcapsnet evaluate runs/sharper --plugin {name} --json")
    assert answer.code == 0
    assert "has changed since" in " ".join(answer.err.split())


def test_a_weighting_with_parameters_is_saved_and_loaded(place):
    try_section("A weighting with parameters")
    network = wcapsnet.load("runs/temperature").network
    learned = [router.weighting.log for router in network.routers]
    assert any(float(log.detach()) for log in learned)


def test_a_dataset_in_its_own_format(place):
    random = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 40), ("test", 10)):
        arrays[f"{part}_images"] = random.integers(0, 256, (count, 1, 16, 16), dtype=np.uint8)
        arrays[f"{part}_labels"] = np.arange(count) % 2
    Path("data").mkdir()
    np.savez("data/leaves.npz", **arrays)
    said = try_section("A dataset in its own format")
    assert "birch" in said
    assert written("runs/leaves")["data"]["source"] == "leaves"


def test_a_loss_term(place):
    said = try_section("A loss term")
    assert re.search(r"^epoch .* balance 0\.\d+", said, re.M)
    page = Path("runs/balance/report.html").read_text(encoding="utf-8")
    assert "the mean over levels: lowest when a batch uses all capsules equally." in page
    assert written("runs/balance")["objective"]["balance"] == 0.1
    (epoch,) = Path("runs/balance/metrics.jsonl").read_text().splitlines()
    assert 0 < json.loads(epoch)["balance"] < 1


def test_an_augmentation(place):
    try_section("An augmentation")
    assert written("runs/speckle")["data"]["augment"] == {"speckle": 0.3}


def test_a_command(place):
    name, code = file_of("A command")
    file = Path(name)
    file.parent.mkdir(parents=True)
    file.write_text(code, encoding="utf-8")
    cli.load_commands()
    before = list(cli.app.registered_commands)
    try:
        spec = spec_from_file_location("wcapsnet.cli.classes", file)
        spec.loader.exec_module(module_from_spec(spec))  # as a file of that folder is
        (command,) = commands_of("A command")
        assert run(command).out.split() == [str(digit) for digit in range(10)]
        cli.app.registered_commands[:] = before
        outside = code.replace("from ..", "from wcapsnet.").replace("from .", "from wcapsnet.cli.")
        exec(compile(outside, "classes.py", "exec"), {"__name__": "classes"})
        assert "airplane" in run("wcapsnet classes wcapsnet-cifar10").out
    finally:
        cli.app.registered_commands[:] = before


def test_another_critic(place):
    try_section("Another critic")
    assert written("runs/linear")["model"]["routing"]["fitness"] == "linear"


def test_another_network_trains_with_its_own_loss(place):
    for name, shade in (("dark", 40), ("light", 200)):
        Path("photos", name).mkdir(parents=True)
        for n in range(12):
            Image.new("L", (12, 12), shade + n).save(Path("photos", name, f"{n}.png"))
    said = try_section("Another network")
    assert f"wcapsnet evaluate runs/cnn --plugin {place / 'small_cnn.py'}\n" in said
    assert "wcapsnet explore" not in said
    facts = written("runs/cnn")
    assert (facts["model"]["architecture"], facts["objective"]) == ("small-cnn", {"cross_entropy": 1.0})
    del facts["objective"], facts["version"], facts["plugins"]
    assert dict(stored_experiment(facts).objective) == {"cross_entropy": 1.0}


def test_every_command_that_names_a_recipe_a_model_or_a_run_takes_plugins():
    cli.load_commands()
    for command in cli.app.registered_commands:
        named = {"target", "dataset", "model", "models", "run", "runs"} & set(signature(command.callback).parameters)
        assert not named or "plugin" in signature(command.callback).parameters, command.callback.__name__


def test_the_table_of_parts_has_every_kind():
    listed = re.findall(r"^\| `@(\w+)`", SECTIONS["Other parts"], re.M)
    assert len(listed) == len(Kind.every)
