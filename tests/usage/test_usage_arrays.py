"""Arrays and tensors are pictures too; weights that cannot be read are not missing."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import wcapsnet
from wcapsnet import InputError


def same(one, other):
    return one.label == other.label and one.probability == pytest.approx(other.probability, rel=1e-5)


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


def test_weights_that_may_not_be_read_are_not_called_missing(classifier, tmp_path, monkeypatch):
    classifier.save(tmp_path / "x.safetensors")

    def refuse(path, *mode):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # a test run by root cannot be refused by the system
    with pytest.raises(InputError, match=r"Cannot read .*x\.safetensors: Permission denied"):
        wcapsnet.load(tmp_path / "x.safetensors")
