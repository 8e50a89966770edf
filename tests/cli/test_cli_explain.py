"""`wcapsnet explain` is `wcapsnet.explain`: an image, a dataset, a capsule, faithfulness, other weights, critics."""

import json
from pathlib import Path

import pytest
import torch
from cli_helpers import COLORS, SMALL, call, picture, sentence

import wcapsnet
from wcapsnet.baselines.densenet import DenseNet, DenseNetConfig


@pytest.fixture
def photo(tmp_path):
    path = tmp_path / "plum.png"
    picture(COLORS["plums"], 7).save(path)
    return path


@pytest.fixture(scope="module")
def inside(trained):
    return wcapsnet.explain(trained[0], quiet=True)


def both(*args):
    """The numbers and what is printed"""
    answers = [call("explain", *args, *more) for more in (("--json",), ())]
    assert [(answer.code, answer.err) for answer in answers] == [(0, "")] * 2
    return json.loads(answers[0].out), answers[1].out


def total(facts):
    return sum(value for block in facts["contributions"] for row in block for value in row)


def test_one_image_is_explained_as_python_explains_it(run, photo):
    facts, printed = both(run, photo)
    classifier = wcapsnet.load(run)
    one = wcapsnet.explain(run, photo)
    assert facts == {"source": str(photo), **one.summary(classifier.classes)}
    assert facts["class"] == facts["explained"] == classifier.predict(photo).label
    for level in facts["levels"]:
        assert all(f"{weight:.3f}" in printed for weight in level["block_weights"])
    assert f"{facts['logits'][facts['class']]:.4f}" in printed
    same = wcapsnet.explain(classifier, photo)
    torch.testing.assert_close(same.contributions, one.contributions)


def test_another_class_can_be_asked_about(run, photo):
    (other,) = set(COLORS) - {wcapsnet.load(run).predict(photo).label}
    facts, _ = both(run, photo, "--class", other)
    assert (facts["class"] == other, facts["explained"]) == (False, other)
    assert total(facts) == pytest.approx(facts["logits"][other], rel=1e-4, abs=1e-5)


def test_the_nearest_training_images_are_named(run, photo):
    facts, printed = both(run, photo, "--nearest", 3)
    near = facts["nearest"]
    assert [one["distance"] for one in near] == sorted(one["distance"] for one in near)
    assert all(one["file"].startswith(f"{one['class']}/") for one in near)
    assert all(one["file"] in printed for one in near)
    training = wcapsnet.explain(run, split="train", quiet=True)
    found = training.nearest(wcapsnet.explain(run, photo).vector, 3)
    assert found.summary(training.survey, training.classes, training.files) == near


def test_an_image_comes_from_standard_input_and_the_weights_from_a_file(run, photo):
    answer = call("explain", run / "best.safetensors", "-", "--json", stdin=photo.read_bytes())
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["class"] == wcapsnet.load(run).predict(photo).label


def test_a_dataset_is_explained(run, inside):
    facts, printed = both(run)
    recorded = json.loads((run / "test.json").read_text())
    assert facts == {"run": str(run), "split": "test", "images": 6, **json.loads(json.dumps(inside.summary()))}
    assert facts["accuracy"] == inside.survey.accuracy == recorded["accuracy"]
    for level, mean in zip(inside.specialization.levels, recorded["mean_weights"], strict=True):
        torch.testing.assert_close(level.mean, torch.tensor(mean), atol=1e-5, rtol=0)
    assert [probe.level for probe in inside.probes] == [0, 1]
    assert (facts["probes_taught_by"], facts["probe_images"]) == ("validation", 6)
    assert wcapsnet.explain(run, split="validation").other == "train", "never test images"
    assert f"6 test images, accuracy {facts['accuracy']:.2%}" in printed
    for level in facts["levels"]:
        assert f"{level['information']:.3f} ({level['information_by_chance']:.3f})" in printed
        assert all(finding in printed for finding in level["findings"])


def test_some_images_of_a_sorted_dataset_are_of_all_classes(run):
    some = wcapsnet.explain(run, split="train", images=4)
    assert some.part.labels.tolist() == [0, 0, 1, 1]
    assert [name.split("/")[0] for name in some.files] == ["apples"] * 2 + ["plums"] * 2


def test_one_capsule_is_explained(run, inside):
    facts, printed = both(run, "--capsule", "1.2")
    one = inside.capsule("1.2")
    assert (
        (facts["level"], facts["capsule"], facts["wins"]) == (one.level + 1, one.capsule, one.wins) == (1, 2, one.wins)
    )
    assert [f["weight"] for f in facts["favourites"]] == one.weights.tolist() == sorted(one.weights, reverse=True)
    assert sum(inside.capsule(f"1.{n}").wins for n in range(3)) >= 6
    assert f"wins {facts['wins']} of 6 images" in printed
    assert facts["favourites"][0]["file"] in printed
    assert all(one["file"].startswith(f"{one['class']}/") for one in facts["favourites"])


def test_a_capsule_of_the_last_level_is_traversed(run, inside):
    decoded = [inside.capsule(f"2.{n}").decoded for n in range(2)]
    assert sum(decoded) == 6, "one vector for each image"
    most = decoded.index(max(decoded))
    facts, printed = both(run, "--capsule", f"2.{most}")
    walk = inside.traversal(f"2.{most}")
    assert facts["traversal"]["change"] == walk.change.tolist()
    assert (walk.values[:, 0] <= walk.values[:, -1]).all()
    assert f"{max(facts['traversal']['change']):.4f}" in printed
    with pytest.raises(wcapsnet.InputError, match="last level"):
        inside.traversal("1.0")


def test_faithfulness_is_measured_and_a_single_image_has_no_margin(run, inside):
    facts, printed = both(run, "--faithfulness", 1)
    assert facts["images"] == 1
    assert {"routing", "contributions", "random"} <= facts["methods"].keys()
    assert all(method["deletion"]["margin"] is None for method in facts["methods"].values())
    assert ("nan" in printed, "±" in printed) == (False, False)
    curves = inside.faithfulness(2, ["routing"])["routing"]
    assert curves.deletion.shape == (2, len(curves.removed))


def test_the_routing_can_be_exchanged_for_others(run, inside):
    facts, printed = both(run, "--reroute")
    assert (facts["mean_of"], facts["mean_images"]) == ("validation", 6)
    assert facts.items() >= inside.rerouted().summary().items()
    assert set(facts["rerouted"]) == {"mean", "other", "equal"}, "its critics have no dropout"
    for one in facts["rerouted"].values():
        for part in (one["all_levels"], *one["one_level"]):
            assert f"{100 * part['difference']:+.2f} ± {100 * part['margin']:.2f}".replace("-", "−") in printed
    fewer = json.loads(call("explain", run, "--reroute", "--images", 3, "--split", "validation", "--json").out)
    assert (fewer["images"], fewer["mean_of"]) == (3, "train"), "never of test images"


def test_random_weights_can_be_exchanged_for_other_draws(pictures, tmp_path):
    random = ("--set", "model.routing.fitness=random", "--set", "model.routing.weighting=normalized")
    answer = call("train", pictures, "--size", 8, "--epochs", 1, "--out", tmp_path / "random", *SMALL, *random)
    assert answer.code == 0, answer.err
    facts, printed = both(tmp_path / "random", "--reroute")
    assert "mean_of" not in facts
    assert facts["draws"]["number"] == 8
    assert "Over the 8 draws" in printed


def test_the_critics_are_measured(run, inside):
    facts, printed = both(run, "--critics")
    assert facts["levels"] == json.loads(json.dumps(inside.critics().summary()))["levels"]
    for level in facts["levels"]:
        assert level["slope_max"] <= level["bound"]
        assert all(f"{level[name]:.2f}" in printed for name in ("gamma", "gain", "bound", "slope_max"))
    assert wcapsnet.explain(run, split="train", images=2).critics().images == 2


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["{run}", "--critics", "--reroute"], "one of --reroute and --critics."),
        (["{run}", "{photo}", "--critics"], "--critics is for a dataset"),
        (["{run}", "--reroute", "--images", "1"], "at least two images"),
        (["nowhere"], "There is no run folder nowhere, nor a shipped network"),
        (["{run}", "missing.png"], "missing.png"),
        (["{run}", "{photo}", "--class", "plum"], "did you mean 'plums'"),
        (["{run}", "{photo}", "--split", "test"], "--split is for a dataset"),
        (["{run}", "--nearest", "3"], "for one image"),
        (["{run}", "--capsule", "first"], "LEVEL.CAPSULE"),
        (["{run}", "--capsule", "3.0"], "levels 1 to 2"),
        (["{run}", "--capsule", "0.0"], "levels 1 to 2"),
        (["{run}", "--capsule", "1.3"], "blocks 0 to 2"),
        (["{run}", "--capsule", "1.0", "--images", "2"], "cannot be used with --images"),
        (["{run}/best.safetensors"], "does not say what it was trained on; use the run folder"),
        (["{run}/best.safetensors", "{photo}", "--nearest", "2"], "does not say what it was trained on"),
    ],
)
def test_bad_input_gets_one_sentence(run, photo, args, words):
    args = [str(arg).replace("{run}", str(run)).replace("{photo}", str(photo)) for arg in args]
    assert words in sentence(call("explain", *args))


def test_of_a_network_without_routing_the_prediction_is_shown_and_what_there_is_not(photo):
    network = DenseNet(DenseNetConfig(classes=2, height=8, width=8, depth=10))
    wcapsnet.Classifier(network, ("a", "b"), (0.5,) * 3, (0.5,) * 3).save(Path("dense.safetensors"))
    shown = call("explain", "dense.safetensors", photo)
    assert shown.code == 0, shown.err
    assert "DenseNet has no critics" in shown.out
    facts = json.loads(call("explain", "dense.safetensors", photo, "--json").out)
    assert sum(one["probability"] for one in facts["top"]) == pytest.approx(1)
    with pytest.raises(wcapsnet.InputError, match="no critics"):
        wcapsnet.explain("dense.safetensors", photo)
