"""The live page's server: its numbers are those of `wcapsnet.explain`."""

import io

import numpy as np
import pytest
import torch
from explore_helpers import array, classifier_of, images_of, normalized, serving, text
from PIL import Image

from twins import tiny
from wcapsnet.explanations import decode, explain_image
from wcapsnet.network import Level, RoutingConfig

NETWORKS = {
    "plain": {},
    "colour, not square": {"channels": 3, "height": 10, "width": 16},
    "a hundred classes": {"classes": 100, "channels": 3},
    "two classes, no extra one": {"classes": 2, "extra_class": False},
    "one level": {"levels": (Level(3, 2, 4, 2),)},
    "four levels": {"levels": (Level(5, 2, 3, 2), Level(1, 2, 3, 1), Level(2, 2, 3, 1), Level(4, 2, 3, 1))},
    "random": {"routing": RoutingConfig(fitness="random", weighting="normalized")},
    "uniform": {"routing": RoutingConfig(fitness="constant")},
    "normalized": {"routing": RoutingConfig(weighting="normalized")},
    "per position": {"routing": RoutingConfig(per_position=True, sharpness=(2.0, 3.0))},
    "squash": {"nonlinearity": "squash"},
}


def same_as_python(facts, one, target=None):
    target = one.predicted if target is None else target
    assert facts["probabilities"] == one.probabilities.tolist()
    assert facts["predicted"] == one.predicted
    assert facts["target"] == target
    assert facts["logit"] == float(one.logits[target])
    for level, said in enumerate(facts["levels"]):
        assert said["weights"] == one.block_weights(level).tolist()
        assert said["winners"] == list(one.winners[level])
    for said, a in zip(facts["levels"], one.fitness, strict=True):
        assert said["fitness"] == (a.flatten(1).amax(1) if a.dim() > 1 else a).tolist()
    assert torch.equal(array(facts["weights"], facts["map"]), one.weights[-1])
    parts = array(facts["contributions"], facts["map"])
    assert torch.equal(parts, one.contributions[target])
    assert facts["block_contributions"] == pytest.approx(parts.sum((1, 2)).tolist(), rel=1e-4, abs=1e-5)
    assert facts["vector"] == one.vector.tolist()
    assert facts["position"] == one.position.tolist()
    assert facts["place"] == list(one.place)
    assert facts["tied"] == one.tied.nonzero().tolist()
    assert facts["place"] in facts["tied"]


@pytest.mark.parametrize("name", NETWORKS)
def test_an_image_is_explained_as_python_explains_it(name):
    classifier = classifier_of(**NETWORKS[name])
    test = images_of(classifier, 2)
    with serving(classifier, test) as asker:
        one = explain_image(classifier.network, normalized(classifier, test.images[1]), without=False)
        facts = asker.ask("/api/explain", {"pixels": text(test.images[1])})
        same_as_python(facts, one)
        rebuilt = (classifier.pixels(one.reconstruction) * 255).round().to(torch.uint8)
        assert torch.equal(array(facts["reconstruction"], list(rebuilt.shape), "u1"), rebuilt)
        last = classifier.config.classes - 1
        same_as_python(asker.ask("/api/explain", {"test": 1, "class": last}), one, last)
        block = asker.ask("/api/block", {"test": 1, "block": [len(classifier.config.levels) - 1, 0]})
        output = classifier.network(normalized(classifier, test.images[1])[None])
        torch.testing.assert_close(array(block["maps"], block["map"]), output.capsules[-1][0, 0].detach())


def test_a_test_image_comes_with_its_pixels_and_label(asker):
    facts = asker.ask("/api/explain", {"test": 4})
    assert torch.equal(array(facts["pixels"], [1, 8, 8], "u1"), asker.explorer.test.images[4])
    assert facts["label"] == 1
    assert "label" not in asker.ask("/api/explain", {"pixels": text(asker.explorer.test.images[4])})


def test_blocks_are_switched_off_as_python_switches_them_off(asker, classifier):
    keep = [torch.tensor([False, True, False]), torch.tensor([True, False])]
    pixels = asker.explorer.test.images[3]
    one = explain_image(classifier.network, normalized(classifier, pixels), keep=keep, without=False)
    facts = asker.ask("/api/explain", {"test": 3, "off": [[0, 2], [1, 1], [0, 0], [0, 2]]})
    same_as_python(facts, one)
    assert facts["levels"][0]["weights"] == [0, 1, 0]


@pytest.mark.parametrize("level", [0, 1])
def test_the_maps_of_a_block_are_what_it_put_out(asker, classifier, level):
    pixels = asker.explorer.test.images[2]
    off = [[0, 0]]
    keep = [torch.tensor([False, True, True]), None]
    seen = []
    hook = classifier.network.capsules[level].register_forward_hook(lambda module, given, c: seen.append(c))
    with torch.no_grad():
        network = classifier.network
        network(normalized(classifier, pixels)[None], routes=network.keeping(keep))
    hook.remove()
    facts = asker.ask("/api/block", {"test": 2, "off": off, "block": [level, 1]})
    torch.testing.assert_close(array(facts["maps"], facts["map"]), seen[0][0, 1])
    length = array(facts["length"], facts["map"][1:])
    torch.testing.assert_close(length, seen[0][0, 1].norm(dim=0))


def test_a_block_says_what_becomes_of_the_prediction_without_it(asker):
    facts = asker.ask("/api/block", {"test": 2, "block": [0, 1]})
    without = asker.ask("/api/explain", {"test": 2, "off": [[0, 1]]})
    assert facts["without"]["predicted"] == without["predicted"]
    assert facts["without"]["probability"] == max(without["probabilities"])


def test_the_last_block_of_a_level_has_no_without(asker):
    facts = asker.ask("/api/block", {"test": 2, "off": [[0, 0], [0, 2]], "block": [0, 1]})
    assert facts["without"] is None


def test_large_maps_are_averaged_down():
    classifier = classifier_of(height=150, width=140)
    with serving(classifier, images_of(classifier, 1)) as asker:
        facts = asker.ask("/api/block", {"test": 0, "block": [0, 0]})
    assert facts["map"] == [4, 64, 64]  # of 75×70


def test_a_vector_is_decoded_as_python_decodes_it(asker, classifier):
    facts = asker.ask("/api/decode", {"vector": [0.5, -1, 2], "position": [0, 0.25]})
    image = decode(classifier.network, torch.tensor([[0.5, -1, 2]]), torch.tensor([[0, 0.25]]))[0]
    expected = (classifier.pixels(image) * 255).round().to(torch.uint8)
    assert torch.equal(array(facts["reconstruction"], [1, 8, 8], "u1"), expected)


def png(pixels, **more):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, more.pop("format", "PNG"), **more)
    return file.getvalue()


@pytest.mark.parametrize("channels", [1, 3])
def test_an_uploaded_picture_becomes_what_predict_makes_of_it(channels):
    classifier = classifier_of(channels=channels, height=8, width=12)
    photo = np.random.default_rng(1).integers(0, 256, (30, 50, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    data = png(photo, format="JPEG", exif=exif)
    with serving(classifier) as asker:
        pixels = array(asker.ask("/api/picture", data)["pixels"], [channels, 8, 12], "u1")
        answer = asker.ask("/api/explain", {"pixels": text(pixels)})
    expected = classifier.preprocess([data])
    torch.testing.assert_close((pixels.float() / 255 - 0.3) / 0.4, expected[0])
    predicted = classifier.predict(data)
    assert classifier.classes[answer["predicted"]] == predicted.label
    assert max(answer["probabilities"]) == pytest.approx(predicted.probability, abs=1e-6)


def test_the_page_is_told_what_the_network_is(asker):
    facts = asker.get("/api/about").facts
    assert facts["classes"] == ["zero", "one", "two"]
    assert (facts["channels"], facts["height"], facts["width"], facts["cell"]) == (1, 8, 8, 2)
    assert [level["capsules"] for level in facts["levels"]] == [3, 2]
    assert [level["per_position"] for level in facts["levels"]] == [False, True]
    with serving(classifier_of(routing=RoutingConfig(per_position=True))) as other:
        assert [level["per_position"] for level in other.get("/api/about").facts["levels"]] == [True, True]
    assert facts["test"] == {"images": 20, "labels": [m % 3 for m in range(20)]}


@pytest.mark.parametrize(
    ("changes", "source", "draw"),
    [
        ({}, "mnist", {"dark": True, "center": True}),
        ({}, "flowers", {"dark": True, "center": False}),
        ({"channels": 3}, "", None),
        ({"height": 65}, "", None),
        ({"height": 64, "width": 40}, "", {"dark": True, "center": False}),
    ],
)
def test_small_gray_networks_can_be_drawn_for(changes, source, draw):
    with serving(classifier_of(**changes), source=source) as asker:
        assert asker.get("/api/about").facts["draw"] == draw


def test_ink_is_dark_where_the_images_are_light(classifier):
    light = images_of(classifier, 4)
    light.images.clamp_(min=200)
    with serving(classifier, light) as asker:
        assert asker.get("/api/about").facts["draw"]["dark"] is False


def test_a_test_image_is_served_as_it_is(asker):
    answer = asker.get("/api/test/7.png")
    assert answer.headers["Content-Type"] == "image/png"
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(answer.content))), asker.explorer.test.images[7, 0])


def test_networks_for_other_than_gray_and_colour_are_refused():
    with pytest.raises(ValueError, match="takes 2 channels"), serving(classifier_of(channels=tiny().channels)):
        pass
