"""A classifier answers any picture, and comes back from its file as it went in."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import wcapsnet
from twins.tiny import tiny
from wcapsnet import Classifier, InputError, WCapsNet
from wcapsnet.classifier import METADATA, load_tensors, save_tensors


def encoded(picture, kind="PNG"):
    file = io.BytesIO()
    picture.save(file, kind)
    return file.getvalue()


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
    pictures = [np.roll(pixels, shift, axis=1) for shift in range(6)] + [255 - pixels]
    answers = classifier.predict(pictures)
    assert len(answers) == 7
    assert all(same(answer, classifier.predict(one)) for answer, one in zip(answers, pictures, strict=True))
    assert len({answer.probability for answer in answers}) > 3
    assert len(classifier.predict(tuple(pictures[:2]))) == 2
    assert classifier.predict([]) == []


def test_more_pictures_than_a_batch_are_all_answered(classifier, pixels):
    pictures = [np.roll(pixels, shift % 7, axis=0) for shift in range(70)]
    answers = classifier.predict(pictures)
    assert len(answers) == 70
    assert same(answers[69], classifier.predict(pictures[69]))


def test_gray_alpha_and_large_pictures_are_brought_to_the_network(classifier, pixels):
    for form in (pixels[:, :, 0], np.dstack([pixels, pixels[:, :, :1]]), np.zeros((300, 200), np.uint8)):
        answer = classifier.predict(form)
        assert answer.label in classifier.classes


def test_preprocessing_is_the_normalisation_of_training(classifier, pixels):
    images = classifier.preprocess([pixels])
    by_hand = (pixels.transpose(2, 0, 1) / 255 - np.array([0.5, 0.4, 0.3])[:, None, None]) / np.array([0.2, 0.3, 0.1])[
        :, None, None
    ]
    assert images.shape == (1, 3, 8, 12)
    np.testing.assert_allclose(images[0].numpy(), by_hand, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((8, 8), np.float32),
        np.zeros((8, 8, 2), np.uint8),
        np.zeros((3, 8, 8), np.uint8),
        np.zeros((1, 8, 8, 3), np.uint8),
        np.zeros(8, np.uint8),
    ],
)
def test_an_array_that_is_no_picture_is_refused_with_its_shape(classifier, array):
    with pytest.raises(InputError, match="uint8 of shape") as error:
        classifier.predict(array)
    assert str(array.shape) in str(error.value)


@pytest.mark.parametrize("bad", ["nowhere.png", b"", b"not a picture at all"])
def test_a_picture_that_cannot_be_read_is_refused(classifier, bad):
    with pytest.raises(InputError, match="Cannot read the picture"):
        classifier.predict(bad)


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


def test_an_answer_reads_as_class_and_probability(classifier, picture):
    answer = classifier.predict(picture)
    assert str(replace(answer, probability=0.4567)) == f"{answer.label} (45.7%)"
    assert str(replace(answer, probability=0.99996)) == f"{answer.label} (>99.9%)"
    assert str(replace(answer, probability=1.0)) == f"{answer.label} (100.0%)"


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


def test_as_many_names_as_classes(classifier):
    with pytest.raises(InputError, match="2 class names were given for 3 classes"):
        Classifier(classifier.network, ("a", "b"), (0.0,) * 3, (1.0,) * 3)


# ── files ──


def test_what_is_saved_is_what_is_loaded(classifier, pixels, tmp_path):
    path = tmp_path / "cats.safetensors"
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


def test_normalisation_survives_to_the_last_bit(tmp_path):
    network = WCapsNet(tiny(channels=1))
    exact = (0.1 + 0.2,), (1 / 3,)
    Classifier(network, ("a", "b", "ü"), *exact).save(tmp_path / "x.safetensors")
    loaded = Classifier.load(tmp_path / "x.safetensors")
    assert loaded.normalization == exact
    assert loaded.classes == ("a", "b", "ü")


def test_half_a_file_is_refused(classifier, tmp_path):
    path = tmp_path / "x.safetensors"
    classifier.save(path)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(InputError, match=r"x\.safetensors is not a readable safetensors file"):
        wcapsnet.load(path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 something else", b"\x00" * 64])
def test_a_file_of_another_kind_is_refused(tmp_path, content):
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(InputError, match="not a readable safetensors file") as error:
        wcapsnet.load(tmp_path / "x.safetensors")
    assert "\n" not in str(error.value)


def test_a_safetensors_file_of_somebody_else_is_refused(tmp_path):
    save_file({"weight": torch.ones(2)}, tmp_path / "x.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match="was not written by wcapsnet"):
        wcapsnet.load(tmp_path / "x.safetensors")


@pytest.mark.parametrize("facts", ["{", "[]", "3", "{}", '{"state": {"epoch": 1}}', '{"model": {}, "classes": 3}'])
def test_a_file_that_says_nothing_of_its_network_is_refused(tmp_path, facts):
    # a run's own state.safetensors is one of these
    save_file({"weight": torch.ones(2)}, tmp_path / "x.safetensors", {METADATA: facts})
    with pytest.raises(InputError, match=r"x\.safetensors"):
        wcapsnet.load(tmp_path / "x.safetensors")


def test_weights_of_another_network_are_refused(classifier, tmp_path):
    classifier.save(tmp_path / "x.safetensors")
    tensors, facts = load_tensors(tmp_path / "x.safetensors")
    facts["model"]["dense_layers"] = 3
    save_tensors(tmp_path / "y.safetensors", tensors, facts)
    with pytest.raises(InputError, match="do not fit the network they describe"):
        wcapsnet.load(tmp_path / "y.safetensors")


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
    """The classifier's file as an earlier version wrote it, without a checksum, after a change of tensors and facts"""
    tensors, facts = dict(classifier.network.state_dict()), classifier.description()
    change(tensors, facts)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, {METADATA: json.dumps(facts)})


def test_a_file_of_an_earlier_version_without_a_checksum_is_loaded(classifier, tmp_path, pixels):
    rewritten(classifier, tmp_path / "old.safetensors", lambda tensors, facts: None)
    assert same(Classifier.load(tmp_path / "old.safetensors").predict(pixels), classifier.predict(pixels))


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


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF"])
def test_every_format_is_understood_from_its_bytes(classifier, picture, kind):
    assert classifier.predict(encoded(picture, kind)).label in classifier.classes


def test_a_palette_picture_is_its_colours(classifier, picture):
    palette = picture.quantize(8)
    assert palette.mode == "P"
    assert same(classifier.predict(palette), classifier.predict(palette.convert("RGB")))
    assert isinstance(palette, Image.Image)


def test_pixels_are_what_was_preprocessed(classifier, pixels):
    back = classifier.pixels(classifier.preprocess([pixels]))
    assert back.shape == (1, 3, 8, 12)
    torch.testing.assert_close(back[0], torch.from_numpy(pixels).permute(2, 0, 1) / 255, atol=1e-6, rtol=0)
    assert classifier.pixels(torch.full((2, 5, 3, 8, 12), 99.0)).max() == 1
