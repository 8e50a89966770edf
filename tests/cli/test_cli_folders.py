"""Folders as people have them: imbalanced, half broken, with strange names; and new pictures for a trained network."""

import json
import shutil
from pathlib import Path
from unittest.mock import ANY

import pytest
from cli_helpers import COLORS, SMALL, call, fruit, picture, same_weights, sentence

import wcapsnet

QUICK = ("--size", 8, "--epochs", 1, "--set", "training.lr=0.01", *SMALL)


@pytest.fixture
def lopsided(tmp_path):
    """100 pictures of one class, 2 of another."""
    folder = fruit(tmp_path / "fruit", 100)
    for file in (folder / "plums").glob("*[0-9].png"):
        if file.name not in ("0.png", "1.png"):
            file.unlink()
    return folder


def test_an_accuracy_without_one_of_the_classes_is_not_left_to_stand_alone(lopsided):
    answer = call("train", lopsided, "--out", "run", *QUICK)
    assert answer.code == 0
    assert "'plums' (2)" in answer.err
    assert "nothing about 'plums'" in answer.err
    assert "drawn equally often" in answer.err
    assert "; balanced accuracy " in answer.out
    assert "majority class 100.00%" in answer.out
    facts = json.loads(Path("run/test.json").read_text())
    assert (facts["balanced_accuracy"], facts["majority"]) == (facts["accuracy"], 1.0)
    assert "majority class 100.00%" in call("evaluate", "run").out


def test_balanced_pictures_need_no_more_than_their_accuracy(trained, run):
    assert "majority" not in trained[1].out + call("evaluate", run).out
    assert json.loads((run / "test.json").read_text())["majority"] == 0.5


def test_files_that_were_left_out_are_named_in_training_even_if_quiet_and_not_again_later(tmp_path):
    folder = fruit(tmp_path / "fruit", 10)
    (folder / "plums" / "7.png").write_bytes(b"no picture")
    answer = call("train", folder, "-q", "--out", "mine", *QUICK)
    assert answer.code == 0
    assert "1 file was skipped" in answer.err
    assert "plums/7.png" in answer.err
    assert call("evaluate", "mine") == (0, ANY, "")


def test_broken_classes_are_listed_together_and_can_be_left_out_for_good(tmp_path):
    folder = fruit(tmp_path / "fruit", 10)
    (folder / "empty").mkdir()
    (folder / "broken").mkdir()
    (folder / "broken" / "1.png").write_bytes(b"no picture")
    said = sentence(call("train", folder, *QUICK))
    assert "'broken' has no readable picture" in said
    assert "'empty' holds no pictures" in said
    assert "--exclude broken --exclude empty" in said
    left_out = ("--exclude", "broken", "--exclude", "empty")
    assert call("train", folder, "--out", "one", "-q", *left_out, *QUICK).code == 0
    assert json.loads(Path("one/experiment.json").read_text())["data"]["exclude"] == ["broken", "empty"]
    assert call("evaluate", "one").code == 0
    assert call("train", "one", "--out", "two", "-q").code == 0  # repeats the run
    assert same_weights(Path("one/last.safetensors"), Path("two/last.safetensors"))
    assert "--exclude" in sentence(call("train", "--resume", "one", *left_out))
    assert "did you mean 'empty'" in sentence(call("train", folder, "--exclude", "emty", *QUICK))


@pytest.mark.slow
@pytest.mark.parametrize("command", [("sweep", "--seeds", 1), ("ablate", "nonlinearity", "--seeds", 1)])
def test_a_stray_folder_beside_train_and_test_is_left_out_of_sweeps_too(tmp_path, command):
    fruit(tmp_path / "fruit" / "train", 10)
    fruit(tmp_path / "fruit" / "test", 2)
    (tmp_path / "fruit" / "raw").mkdir()
    assert "--exclude raw" in sentence(call(*command, tmp_path / "fruit", *QUICK))
    assert call(*command, tmp_path / "fruit", "-q", "--exclude", "raw", *QUICK).code == 0


@pytest.mark.parametrize("name", ["\x1b[31mred\x07.png", "two\nlines.png", "\u202egnp.png"])
def test_control_characters_in_file_names_do_not_reach_the_terminal(run, tmp_path, name):
    good, bad = tmp_path / name, tmp_path / f"bad {name}"
    picture(COLORS["apples"], 1).save(good, "PNG")
    bad.write_bytes(b"no picture")
    answer = call("predict", run, good, bad)
    printed = answer.out + answer.err
    assert not any(c in printed for c in "\x1b\x07\u202e")
    assert len(answer.err.strip().splitlines()) == 1
    assert name.encode("unicode_escape").decode() in answer.out
    assert json.loads(call("predict", run, good, "--json").out)[0]["source"] == str(good)


# ── evaluate RUN FOLDER ──


@pytest.fixture
def others(tmp_path):
    """New pictures: more apples than plums, and a class that no network here knows."""
    folder = fruit(tmp_path / "others", 6)
    for i in range(4):
        (folder / "plums" / f"{i}.png").unlink()
    shutil.copytree(folder / "apples", folder / "pears")
    return folder


def test_a_network_is_evaluated_on_new_pictures_by_the_names_of_their_classes(run, others):
    answer = call("evaluate", run, others)
    assert answer.code == 0
    assert "does not know 'pears'" in answer.err
    assert "on 8 images; balanced accuracy" in answer.out
    assert "majority class 75.00%" in answer.out
    facts = json.loads(call("evaluate", run, others, "--json").out)
    assert (facts["images"], facts["unknown"], facts["missing"]) == (8, ["pears"], [])
    model = wcapsnet.load(run)
    answers = {kind: model.predict(sorted((others / kind).glob("*.png"))) for kind in COLORS}
    right = sum(answer.label == kind for kind, found in answers.items() for answer in found)
    assert facts["accuracy"] == right / 8
    found = wcapsnet.evaluate(run, data=others)
    assert (found.accuracy, found.unknown) == (facts["accuracy"], ("pears",))


def test_classes_without_pictures_are_named_and_not_counted(run, others):
    shutil.rmtree(others / "plums")
    answer = call("evaluate", run, others)
    assert "no pictures of 'plums'" in answer.err
    assert json.loads(call("evaluate", run, others, "--json").out)["missing"] == ["plums"]


def test_a_shipped_network_is_evaluated_on_a_folder(tmp_path):
    folder = fruit(tmp_path / "digits", 2)
    (folder / "apples").rename(folder / "7")
    answer = call("evaluate", "wcapsnet-mnist", folder)
    assert answer.code == 0
    assert "on 2 images" in answer.out
    assert "model card" not in answer.out


def test_a_folder_that_cannot_be_evaluated_is_one_sentence(run, tmp_path):
    assert "no folder" in sentence(call("evaluate", run, tmp_path / "none"))
    strangers = fruit(tmp_path / "strangers", 1)
    for kind in COLORS:
        (strangers / kind).rename(strangers / f"wild {kind}")
    assert "'wild apples', 'wild plums', but the network knows 'apples'" in sentence(call("evaluate", run, strangers))
    assert "--data-dir" in sentence(call("evaluate", run, strangers, "--data-dir", strangers))
