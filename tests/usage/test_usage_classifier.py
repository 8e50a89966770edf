"""A classifier answers any picture, and comes back from its file as it went in."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import wcapsnet
from wcapsnet import Classifier, InputError
from wcapsnet.classifier import METADATA, load_tensors, save_tensors, weights_checksum


def same(one, other):
    return (
        one.label == other.label
        and one.probability == pytest.approx(other.probability, rel=1e-5)
        and one.winners == other.winners
    )


# ── pictures of every kind ──


def test_a_picture_gets_one_answer_in_whatever_form_it_comes(classifier, picture, pixels, tmp_path):
    path = tmp_path / "pic.png"
    picture.save(path)
    expected = classifier.predict(picture)
    assert expected.source is None
    for form in (str(path), path, path.read_bytes(), pixels):
        assert same(classifier.predict(form), expected)
    with path.open("rb") as file:
        assert same(classifier.predict(file), expected)
    assert classifier.predict(path).source == str(path)


def test_a_list_gets_a_list_in_its_order(classifier, pixels):
    pictures = [np.roll(pixels, shift % 7, axis=1) for shift in range(69)] + [255 - pixels]  # more than a batch
    answers = classifier.predict(pictures)
    assert len(answers) == 70
    assert all(same(answers[at], classifier.predict(pictures[at])) for at in (0, 1, 2, 63, 64, 69))
    assert len({answer.probability for answer in answers}) > 3
    assert len(classifier.predict(tuple(pictures[:2]))) == 2
    assert classifier.predict([]) == []


def test_preprocessing_is_the_normalisation_of_training(classifier, pixels):
    images = classifier.preprocess([pixels])
    by_hand = (pixels.transpose(2, 0, 1) / 255 - np.array([0.5, 0.4, 0.3])[:, None, None]) / np.array([0.2, 0.3, 0.1])[
        :, None, None
    ]
    assert images.shape == (1, 3, 8, 12)
    np.testing.assert_allclose(images[0].numpy(), by_hand, rtol=1e-5, atol=1e-5)
    back = classifier.pixels(images)[0]
    torch.testing.assert_close(back, torch.from_numpy(pixels).permute(2, 0, 1) / 255, atol=1e-6, rtol=0)
    assert classifier.pixels(torch.full((2, 5, 3, 8, 12), 99.0)).max() == 1


def test_arrays_and_tensors_of_bytes_or_floats_from_0_to_1_get_the_answer_of_the_picture(classifier, picture, pixels):
    expected, tensor = classifier.predict(picture), torch.from_numpy(pixels).permute(2, 0, 1)
    floats = pixels / 255
    for form in (floats, floats.astype(np.float32), tensor, tensor / 255, (tensor / 255).double().requires_grad_()):
        assert same(classifier.predict(form), expected)
        batch = form[None].repeat(2, 0) if isinstance(form, np.ndarray) else form[None].repeat(2, 1, 1, 1)
        first, second = classifier.predict(batch)
        assert same(first, expected)
        assert same(second, expected)
    gray = tensor[:1]
    assert same(classifier.predict(gray), classifier.predict(gray[0] / 255))
    assert classifier.predict(tensor[None][:0]) == []


@pytest.mark.parametrize(
    ("form", "says"),
    [
        (np.zeros((8, 8, 2), np.uint8), r"\(h, w, ch\).* not uint8 \(8, 8, 2\)"),
        (np.zeros((3, 8, 8), np.uint8), r"\(3, 8, 8\)"),
        (torch.zeros(8, 8, 3), r"\(ch, h, w\).* not float32 \(8, 8, 3\)"),
        (np.zeros(8, np.uint8), r"\(8,\)"),
        (torch.tensor(3.0), r"\(\)"),
        (np.zeros((8, 8), np.int64), "int64"),
        ([np.zeros((1, 8, 8, 3), np.uint8)], r"\(1, 8, 8, 3\)"),
        (np.zeros((0, 8, 3), np.uint8), r"\(0, 8, 3\) has no pixels"),
        (np.zeros((0, 0)), "no pixels"),
        (Image.new("RGB", (0, 5)), "no pixels"),
        (np.full((8, 8), 255.0), "0 to 1, not from 255 to 255"),
        (torch.full((3, 8, 8), -0.5), "0 to 1"),
        (np.full((8, 8), np.nan), "nan"),
        (torch.full((8, 8), torch.inf), "inf"),
    ],
)
def test_an_array_that_is_no_picture_is_refused_with_its_shape_or_range(classifier, form, says):
    with pytest.raises(InputError, match=says):
        classifier.predict(form)


# ── answers ──


def test_probabilities_are_over_the_real_classes_and_sum_to_one(classifier, picture):
    assert classifier.config.extra_class
    with torch.no_grad():
        output = classifier(classifier.preprocess([picture]))
    probabilities = classifier.probabilities(output)
    assert output.logits.shape == (1, 4)
    assert probabilities.shape == (1, 3)
    assert float(probabilities.sum()) == pytest.approx(1)
    torch.testing.assert_close(probabilities, output.logits[:, :3].softmax(1))
    answer = classifier.predict(picture)
    assert sum(p for _, p in answer.top) == pytest.approx(1)
    assert answer.label == classifier.classes[int(probabilities.argmax())]
    assert answer.probability == pytest.approx(float(probabilities.max()))


def test_none_of_these_is_never_an_answer(classifier, picture):
    with torch.no_grad():
        classifier.network.projection.zero_()
        classifier.network.projection[:, 3] = 1e3  # the extra output, either way
        for sign in (1, -1):
            classifier.network.projection.mul_(sign)
            answer = classifier.predict(picture)
            assert answer.label in classifier.classes
            assert answer.probability == pytest.approx(1 / 3)


@pytest.mark.parametrize(("top", "shown"), [(1, 1), (2, 2), (3, 3), (10, 3), (0, 1)])
def test_top_is_as_many_as_asked_best_first(classifier, picture, top, shown):
    answer = classifier.predict(picture, top=top)
    assert len(answer.top) == shown
    assert answer.top[0] == (answer.label, answer.probability)
    values = [p for _, p in answer.top]
    assert values == sorted(values, reverse=True)
    assert len({name for name, _ in answer.top}) == shown


def test_the_winning_capsules_are_those_with_the_largest_weights(classifier, pixels):
    for shift in range(5):
        answer = classifier.predict(np.roll(pixels, shift, axis=1))
        feature, last = answer.routing
        assert feature.shape == (3,)
        assert last.shape == (2, 4, 6)
        assert float(feature.sum()) == pytest.approx(1, abs=1e-5)
        assert float(last.sum()) == pytest.approx(1, abs=1e-5)
        blocks = last.sum((1, 2))
        expected = [[n for n, b in enumerate(level) if b >= 0.99 * level.max()] for level in (feature, blocks)]
        assert answer.winners == tuple(map(tuple, expected))


def test_prediction_leaves_the_classifier_in_training_and_untouched(classifier, picture):
    classifier.train()
    before = {name: tensor.clone() for name, tensor in classifier.state_dict().items()}
    one, two = classifier.predict(picture), classifier.predict(picture)
    assert classifier.training
    assert classifier.network.training
    assert one.probability == two.probability  # no dropout
    assert all(torch.equal(tensor, before[name]) for name, tensor in classifier.state_dict().items())
    with pytest.raises(InputError):
        classifier.predict(b"broken")
    assert classifier.training


# ── files ──


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-50]), "not a readable safetensors file"),
        (lambda path: path.write_bytes(b""), "not a readable safetensors file"),
        (lambda path: path.write_bytes(b"PK\x03\x04 something else"), "not a readable safetensors file"),
        (lambda path: save_file({"weight": torch.ones(2)}, path, {"format": "pt"}), "not written by wcapsnet"),
        (lambda path: save_file({"weight": torch.ones(2)}, path, {METADATA: "[]"}), "not written by wcapsnet"),
        (lambda path: save_tensors(path, {"sums": torch.ones(2)}, {"state": {}}), "does not hold a classifier"),
        (lambda path: save_tensors(path, *_with_another_network(path)), "do not fit the network"),
    ],
)
def test_a_file_that_holds_no_whole_classifier_is_refused(classifier, tmp_path, content, words):
    path = tmp_path / "x.safetensors"
    classifier.save(path)
    content(path)
    with pytest.raises(InputError, match=words) as error:
        wcapsnet.load(path)
    assert "\n" not in str(error.value)


def _with_another_network(path):
    tensors, facts = load_tensors(path)
    facts["model"]["dense_layers"] = 3
    return tensors, facts


def test_what_is_saved_is_what_is_loaded(classifier, pixels, tmp_path):
    path = tmp_path / "cats.safetensors"
    names, exact = ("a", "b", "ü"), ((0.1 + 0.2, 0.4, 0.3), (1 / 3, 0.3, 0.1))  # to the last bit
    classifier = Classifier(classifier.network, names, *exact).eval()
    with pytest.raises(InputError, match="2 class names were given for 3 classes"):
        Classifier(classifier.network, names[:2], *exact)
    classifier.save(path, epoch=7)
    loaded = wcapsnet.load(path)
    assert not loaded.training
    assert loaded.classes == classifier.classes
    assert loaded.config == classifier.config
    assert loaded.normalization == classifier.normalization
    for name, tensor in classifier.network.state_dict().items():
        assert torch.equal(loaded.network.state_dict()[name], tensor), name
    one, two = classifier.predict(pixels), loaded.predict(pixels)
    assert (one.top, one.winners) == (two.top, two.winners)
    assert all(torch.equal(a, b) for a, b in zip(one.routing, two.routing, strict=True))
    loaded.save(tmp_path / "again.safetensors", epoch=7)
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()
    assert json.dumps(load_tensors(path)[1]["epoch"]) == "7"


@pytest.mark.parametrize("place", ["weights", "description"])
def test_a_flipped_bit_in_a_file_is_noticed(classifier, tmp_path, place):
    path = tmp_path / "best.safetensors"
    classifier.save(path)
    content = bytearray(path.read_bytes())
    at = len(content) - 7 if place == "weights" else content.index(b"tilt")
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"best\.safetensors is damaged"):
        Classifier.load(path)


def rewritten(classifier, path, change):
    """The classifier's file after a change of tensors and facts, with a matching checksum"""
    tensors, facts = dict(classifier.network.state_dict()), classifier.description()
    change(tensors, facts)
    save_tensors(path, tensors, facts)


def test_a_file_of_an_earlier_version_without_a_checksum_is_loaded(classifier, tmp_path, pixels):
    facts = {METADATA: json.dumps(classifier.description())}
    save_file(classifier.network.state_dict(), tmp_path / "old.safetensors", facts)
    loaded = Classifier.load(tmp_path / "old.safetensors")
    assert same(loaded.predict(pixels), classifier.predict(pixels))
    loaded.save(tmp_path / "new.safetensors")
    assert loaded.facts["checksum"] == weights_checksum(tmp_path / "new.safetensors")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t, f: t.update(projection=t["projection"] * torch.nan), "network.projection is not finite"),
        (lambda t, f: t.update(projection=t["projection"] / 0), "network.projection is not finite"),
        (lambda t, f: t.update(projection=t["projection"].double() + 1e300), "network.projection is not finite"),
        (lambda t, f: t.update(projection=t["projection"].to(torch.int8)), "projection is torch.int8"),
        (lambda t, f: t.update(projection=t["projection"].bool()), "projection is torch.bool"),
        (lambda t, f: f.update(mean=[float("nan")] * 3), "mean is not finite"),
        (lambda t, f: f.update(std=[0.0] * 3), "do not fit"),
        (lambda t, f: f.update(mean=[0.5], std=[0.5]), "do not fit"),
        (lambda t, f: f.update(mean="abc"), "do not fit"),
        (lambda t, f: f.update(classes=7), "do not fit"),
        (lambda t, f: f.update(plugins=[3]), "its list of plugins"),
        (lambda t, f: f.update(model=[]), "model must be a table"),
        (lambda t, f: f["model"].update(classes=10**12), "memory"),
    ],
)
def test_a_broken_network_is_refused_and_what_is_broken_is_named(classifier, tmp_path, change, says):
    rewritten(classifier, tmp_path / "broken.safetensors", change)
    with pytest.raises(InputError, match=says):
        Classifier.load(tmp_path / "broken.safetensors")


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_may_be_stored_in_any_floating_point_type(classifier, tmp_path, kind):
    def change(tensors, facts):
        tensors["projection"] = tensors["projection"].to(kind)

    rewritten(classifier, tmp_path / "other.safetensors", change)
    loaded = Classifier.load(tmp_path / "other.safetensors").network.projection
    torch.testing.assert_close(loaded, classifier.network.projection.to(kind).float())


def test_saving_that_fails_keeps_the_old_file(classifier, tmp_path, monkeypatch):
    path = tmp_path / "x.safetensors"
    classifier.save(path)
    before = path.read_bytes()

    def half(self, content):
        self.write_text("half")
        raise OSError("No space left on device")

    monkeypatch.setattr(type(path), "write_bytes", half)
    with pytest.raises(OSError, match="No space"):
        classifier.save(path)
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_weights_that_may_not_be_read_are_not_called_missing(classifier, tmp_path, monkeypatch):
    classifier.save(tmp_path / "x.safetensors")

    def refuse(path, *mode):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # a test run by root cannot be refused by the system
    with pytest.raises(InputError, match=r"Cannot read .*x\.safetensors: Permission denied"):
        wcapsnet.load(tmp_path / "x.safetensors")
