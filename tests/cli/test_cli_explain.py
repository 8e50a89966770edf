"""`wcapsnet explain`: one image, a data set, a capsule, faithfulness, exchanged weights."""

import json

import pytest
import torch
from cli_helpers import COLORS, SMALL, call, picture, sentence

import wcapsnet
from wcapsnet.explanations import explain_image
from wcapsnet.formatting import mean_and_deviation


@pytest.fixture
def photo(tmp_path):
    path = tmp_path / "plum.png"
    picture(COLORS["plums"], 7).save(path)
    return path


def facts_of(*args):
    answer = call("explain", *args, "--json")
    assert answer.code == 0, answer.err
    return json.loads(answer.out)


def test_one_image_is_explained_as_python_explains_it(run, photo):
    facts = facts_of(run, photo)
    classifier = wcapsnet.load(run)
    one = explain_image(classifier.network, classifier.preprocess([photo])[0])
    assert facts["source"] == str(photo)
    assert facts["class"] == facts["explained"] == classifier.classes[one.predicted]
    assert facts["class"] == classifier.predict(photo).label
    for level, b in zip(facts["levels"], one.weights, strict=True):
        torch.testing.assert_close(torch.tensor(level["weights"]), b)
    assert facts["levels"][0]["probability_without"] == pytest.approx(one.without[0][:, one.predicted].tolist())
    total = sum(value for block in facts["contributions"] for row in block for value in row)
    assert total == pytest.approx(facts["logits"][facts["class"]], rel=1e-4, abs=1e-5)


def test_what_is_printed_of_one_image_is_what_json_says(run, photo):
    facts = facts_of(run, photo)
    answer = call("explain", run, photo)
    assert answer.code == 0, answer.err
    assert facts["class"] in answer.out
    for level in facts["levels"]:
        for weight in level["block_weights"]:
            assert f"{weight:.3f}" in answer.out
    assert f"The logit of {facts['class']} is {facts['logits'][facts['class']]:.4f}" in answer.out


def test_another_class_can_be_asked_about(run, photo):
    predicted = facts_of(run, photo)["class"]
    (other,) = set(COLORS) - {predicted}
    facts = facts_of(run, photo, "--class", other)
    assert facts["class"] == predicted
    assert facts["explained"] == other
    total = sum(value for block in facts["contributions"] for row in block for value in row)
    assert total == pytest.approx(facts["logits"][other], rel=1e-4, abs=1e-5)


def test_the_nearest_training_images_are_named(run, photo):
    near = facts_of(run, photo, "--nearest", 3)["nearest"]
    assert len(near) == 3
    assert [one["distance"] for one in near] == sorted(one["distance"] for one in near)
    assert {one["class"] for one in near} <= set(COLORS)
    assert all(one["file"].startswith(f"{one['class']}/") for one in near)
    assert near[0]["file"] in call("explain", run, photo, "--nearest", 3).out
    assert "nearest training images" in call("explain", run, photo, "--nearest", 3).out


def test_an_image_comes_from_standard_input_and_the_weights_from_a_file(run, photo):
    answer = call("explain", run / "best.safetensors", "-", "--json", stdin=photo.read_bytes())
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["class"] == facts_of(run, photo)["class"]


def test_a_data_set_is_explained(run):
    facts = facts_of(run)
    recorded = json.loads((run / "test.json").read_text())
    assert facts["images"] == recorded["images"]
    assert facts["accuracy"] == recorded["accuracy"]
    for level, mean in zip(facts["levels"], recorded["mean_weights"], strict=True):
        for row, expected in zip(level["mean"], mean, strict=True):
            assert row == pytest.approx(expected, abs=1e-5)
        assert 0 <= level["information"] <= 1
        assert 1 <= level["effective"] <= level["capsules"] + 1e-6
    assert [probe["level"] for probe in facts["probes"]] == [0, 1]
    assert all(0 <= probe["accuracy"] <= 1 for probe in facts["probes"])
    assert facts["probes_taught_by"] == "validation"
    assert facts_of(run, "--split", "validation")["probes_taught_by"] == "train"  # never test images
    answer = call("explain", run)
    assert answer.code == 0, answer.err
    assert f"{facts['images']} test images, accuracy {facts['accuracy']:.2%}" in answer.out
    for level in facts["levels"]:
        assert f"{level['information']:.3f} ({level['information_by_chance']:.3f})" in answer.out
        assert f"{level['information_set']:.3f} ({level['information_set_by_chance']:.3f})" in answer.out
        for finding in level["findings"]:
            assert finding in answer.out


def test_some_images_of_a_sorted_data_set_are_of_all_classes(run):
    answer = call("explain", run, "--split", "train", "--images", 4)
    assert answer.code == 0, answer.err
    assert "4 training images, accuracy" in answer.out
    assert "no images" not in answer.out


def test_one_capsule_is_explained(run):
    facts = facts_of(run, "--capsule", "1.2")
    assert (facts["level"], facts["capsule"]) == (1, 2)
    weights = [one["weight"] for one in facts["favourites"]]
    assert weights == sorted(weights, reverse=True)
    wins = sum(facts_of(run, "--capsule", f"1.{n}")["wins"] for n in range(3))
    assert wins == facts["images"]
    printed = call("explain", run, "--capsule", "1.2").out
    assert f"Capsule 2 of level 1 wins {facts['wins']} of {facts['images']} images" in printed
    assert facts["favourites"][0]["file"] in printed
    assert all(one["file"].startswith(f"{one['class']}/") for one in facts["favourites"])


def test_a_capsule_of_the_last_level_is_traversed(run):
    answers = [facts_of(run, "--capsule", f"2.{n}") for n in range(2)]
    assert sum(facts["decoded"] for facts in answers) == answers[0]["images"]  # one vector an image
    assert sum(facts["wins"] for facts in answers) >= answers[0]["images"]
    for n, facts in enumerate(answers):
        assert ("traversal" in facts) == (facts["decoded"] > 0)
        if "traversal" in facts:
            assert len(facts["traversal"]["change"]) == 4
            assert all(
                low <= high for low, high in zip(facts["traversal"]["low"], facts["traversal"]["high"], strict=True)
            )
            printed = call("explain", run, "--capsule", f"2.{n}").out
            assert f"Capsule {n} of level 2 wins {facts['wins']} of {facts['images']} images" in printed
            assert f"One of its vectors is decoded in {facts['decoded']}." in printed
            if facts["decoded"] == 1:
                assert "one image has no range" in printed
                continue
            assert f"{max(facts['traversal']['change']):.4f}" in printed


def test_faithfulness_is_measured_and_a_single_image_has_no_margin(run):
    facts = facts_of(run, "--faithfulness", 1)
    assert facts["images"] == 1
    assert {"routing", "contributions", "random"} <= facts["methods"].keys()
    for method in facts["methods"].values():
        assert 0 <= method["deletion"]["area"] <= 1
        assert method["deletion"]["margin"] is None
        assert (method["removed"][0], method["removed"][-1]) == (0, 1)
    alone = call("explain", run, "--faithfulness", 1).out
    assert "one image" in alone
    assert "nan" not in alone
    assert "±" not in alone
    assert "±" in call("explain", run, "--faithfulness", 2).out


def test_the_routing_can_be_exchanged_for_others(run):
    facts = facts_of(run, "--reroute")
    parts = json.loads((run / "data.json").read_text())["images"]
    assert (facts["mean_of"], facts["mean_images"]) == ("validation", parts["validation"])
    assert set(facts["rerouted"]) == {"mean", "other", "equal", "dropout"}
    assert facts["accuracy"] == json.loads((run / "test.json").read_text())["accuracy"]
    printed = call("explain", run, "--reroute").out
    assert f"Mean: over {parts['validation']} validation images" in printed
    assert "Dropout: their own" in printed
    assert f"{facts['images']} test images, accuracy {facts['accuracy']:.2%} with their own weights" in printed
    for one in facts["rerouted"].values():
        everywhere = one["all_levels"]
        for part in (everywhere, *one["one_level"]):
            assert f"{100 * part['difference']:+.2f} ± {100 * part['margin']:.2f}".replace("-", "−") in printed
        assert f"{everywhere['accuracy']:.2%}" in printed
        assert f"{everywhere['changed'] / facts['images']:.1%}" in printed
        assert len(one["one_level"]) == 2
    fewer = facts_of(run, "--reroute", "--images", 3, "--split", "validation")
    assert (fewer["images"], fewer["mean_of"]) == (3, "train"), "never of test images"
    assert fewer["mean_images"] == parts["train"]


def test_random_weights_can_be_exchanged_for_other_draws(pictures, tmp_path):
    random = ("--set", "model.routing.fitness=random", "--set", "model.routing.weighting=normalized")
    place = tmp_path / "random"
    answer = call("train", pictures, "--size", 8, "--epochs", 1, "--out", place, *SMALL, *random)
    assert answer.code == 0, answer.err
    facts = facts_of(place, "--reroute")
    assert "mean_of" not in facts
    accuracies = [one["all_levels"]["accuracy"] for kind, one in facts["rerouted"].items() if kind != "equal"]
    assert facts["draws"]["number"] == len(accuracies) == 8
    assert f"Over the 8 draws: accuracy {mean_and_deviation(accuracies)} %" in call("explain", place, "--reroute").out


def test_the_critics_are_measured(run):
    facts = facts_of(run, "--critics")
    assert (facts["split"], len(facts["levels"])) == ("test", 2)
    printed = call("explain", run, "--critics").out
    assert f"The critics on {facts['images']} test images" in printed
    for level in facts["levels"]:
        assert level["slope_max"] <= level["bound"]
        for name in ("gamma", "gain", "bound", "slope_max", "logit_slope_max"):
            assert f"{level[name]:.2f}" in printed
        assert f"{level['running']['std']:.3f}" in printed
    assert facts_of(run, "--critics", "--images", 2, "--split", "train")["images"] == 2


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["{run}", "--critics", "--reroute"], "one of --reroute and --critics."),
        (["{run}", "{photo}", "--critics"], "--critics is for a dataset"),
        (["{run}", "--reroute", "--capsule", "1.0"], "one of --capsule and --reroute."),
        (["{run}", "{photo}", "--reroute"], "for a dataset"),
        (["{run}", "--reroute", "--images", "1"], "at least two images"),
        (["nowhere"], "There is no run folder nowhere, nor a shipped network"),
        (["{run}", "missing.png"], "missing.png"),
        (["{run}", "{photo}", "--class", "plum"], "did you mean 'plums'"),
        (["{run}", "{photo}", "--capsule", "1.0"], "for a dataset"),
        (["{run}", "{photo}", "--split", "train"], "--split is for a dataset; leave out the image."),
        (["{run}", "{photo}", "--split", "test"], "--split is for a dataset"),
        (["{run}", "--nearest", "3"], "for one image"),
        (["{run}", "--capsule", "first"], "LEVEL.CAPSULE"),
        (["{run}", "--capsule", "3.0"], "levels 1 to 2"),
        (["{run}", "--capsule", "0.0"], "levels 1 to 2"),
        (["{run}", "--capsule", "1.3"], "capsules 0 to 2"),
        (["{run}", "--capsule", "1.0", "--images", "2"], "cannot be used with --images"),
        (["{run}/best.safetensors"], "does not say what it was trained on; use the run folder"),
        (["{run}/best.safetensors", "{photo}", "--nearest", "2"], "does not say what it was trained on"),
    ],
)
def test_bad_input_gets_one_sentence(run, photo, args, words):
    args = [str(arg).replace("{run}", str(run)).replace("{photo}", str(photo)) for arg in args]
    assert words in sentence(call("explain", *args))
