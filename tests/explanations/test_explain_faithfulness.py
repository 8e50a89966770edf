"""Deletion and insertion: whether what is pointed at is what matters."""

import math
import sys

import pytest
import torch
from explain_toys import Fixed, quadrants, toy

from twins import close, tiny
from wcapsnet import InputError, Level, WCapsNet
from wcapsnet.explanations import available_methods, faithfulness, mean_and_margin
from wcapsnet.explanations.faithfulness import BASELINES, METHODS, _cells, _over_pixels, _ranks

OURS = ("routing", "contributions", "random")


def corner():
    """The toy with nearly all weight on capsule 0 at the top left: only that quadrant counts, and for class 0 alone."""
    network = toy()
    a = torch.full((2, 2, 2), -20.0)
    a[0, 0, 0] = 0.0
    network.routers[1].critic = Fixed(a)
    return network


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def test_deletion_and_insertion_worked_by_hand():
    # logits (2.5 q, 0) with q the top left quadrant: 4 in the image; the mean of the image is 1.
    # The routing points at it, so the first of four steps takes it away, or brings it back.
    with_it, without_it = sigmoid(2.5 * 4), sigmoid(2.5 * 1)
    curves = faithfulness(corner(), quadrants(4, 0, 0, 0)[None], ("routing",), baseline="mean", steps=4)["routing"]
    close(curves.removed, torch.tensor([0, 0.25, 0.5, 0.75, 1]), 0)
    close(curves.deletion, torch.tensor([[with_it, *[without_it] * 4]]), 1e-5)
    close(curves.insertion, torch.tensor([[without_it, *[with_it] * 4]]), 1e-5)
    # trapezoids: the first quarter is half-way, three quarters are level
    area = 0.25 * (with_it + without_it) / 2 + 0.75 * without_it
    assert float(curves.deletion_area) == pytest.approx(area, abs=1e-5)
    assert float(curves.insertion_area) == pytest.approx(with_it + without_it - area, abs=1e-5)


def test_every_method_finds_the_only_region_that_counts_and_chance_does_not():
    pytest.importorskip("captum")
    torch.manual_seed(0)
    images = torch.stack([quadrants(4, *torch.rand(3).tolist()) for _ in range(12)])
    found = faithfulness(corner(), images, baseline="mean", steps=4)
    assert set(found) == set(METHODS)
    for method in ("routing", "contributions", "integrated gradients", "grad-cam"):
        assert (found[method].deletion[:, 1] < found[method].deletion[:, 0] - 0.02).all(), method
    # in a random order the corner comes first in a quarter of the images, as the seed has it
    early = (found["random"].deletion[:, 1] < found["random"].deletion[:, 0] - 0.02).sum()
    assert 0 < early < 9
    assert found["random"].deletion_area.mean() > found["routing"].deletion_area.mean()
    assert found["random"].insertion_area.mean() < found["routing"].insertion_area.mean()


def test_captum_agrees_with_the_gradient_worked_by_hand():
    pytest.importorskip("captum")
    # p_0 = 2.5 q: a gradient of 2.5/16 in each pixel of the quadrant, along the whole line: (image − baseline)·2.5/16
    images = quadrants(4, 0, 0, 0)[None]
    relevance = METHODS["integrated gradients"](corner(), images, torch.tensor([0]), torch.zeros_like(images))
    close(relevance, torch.tensor([[[4 * 2.5 / 16, 0.0], [0.0, 0.0]]]), 1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"channels": 3, "height": 9, "width": 13},
        {"levels": (Level(3, 2, 4, 2),), "channels": 1, "classes": 2, "extra_class": False},
        {"levels": (Level(1, 2, 4, 2), Level(2, 2, 4, 2), Level(1, 2, 3, 2)), "classes": 100},
    ],
    ids=["sides that strides do not divide", "one level", "one cell"],
)
@pytest.mark.parametrize("baseline", BASELINES)
def test_curves_begin_and_end_where_they_must(changes, baseline):
    torch.manual_seed(0)
    network = WCapsNet(tiny(**changes)).eval()
    torch.nn.init.normal_(network.projection, std=3.0)
    images = torch.randn(3, network.config.channels, network.config.height, network.config.width)
    with torch.no_grad():
        whole = network.class_logits(network(images)).softmax(1)
        nothing = network.class_logits(network(BASELINES[baseline](images))).softmax(1)
    predicted = whole.argmax(1, keepdim=True)
    for curves in faithfulness(network, images, baseline=baseline, steps=5).values():
        close(curves.deletion[:, 0], whole.gather(1, predicted)[:, 0], 1e-5)
        close(curves.insertion[:, -1], curves.deletion[:, 0], 1e-5)
        close(curves.deletion[:, -1], nothing.gather(1, predicted)[:, 0], 1e-5)
        close(curves.insertion[:, 0], curves.deletion[:, -1], 1e-5)
        assert curves.removed[0] == 0
        assert curves.removed[-1] == 1
        assert len(curves.removed) == min(5, math.prod(network.config.maps()[-1])) + 1


def test_cells_are_the_pixels_below_a_position_of_the_last_level():
    network = WCapsNet(tiny(height=9, width=8, levels=(Level(1, 2, 2, 2), Level(1, 2, 2, 2))))
    assert network.config.maps()[-1] == (3, 2)  # of 4 × 4 pixels; the last row has one row of pixels
    pixels = _over_pixels(network, torch.arange(6)[None])[0, 0]
    assert pixels[:, 0].tolist() == [0, 0, 0, 0, 2, 2, 2, 2, 4]
    assert pixels[0].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    relevance = torch.zeros(1, 9, 8)
    relevance[0, 8, 4:] = 3.0
    close(_cells(network, relevance), torch.tensor([[[0.0, 0.0], [0.0, 0.0], [0.0, 3.0]]]), 1e-6)


def test_ranks_follow_relevance_and_equals_are_drawn():
    relevance = torch.tensor([[0.1, 0.9, 0.5]]).expand(200, 3)
    assert torch.equal(_ranks(relevance, torch.Generator().manual_seed(0)), torch.tensor([[2, 0, 1]]).expand(200, 3))
    drawn = _ranks(torch.zeros(3000, 3), torch.Generator().manual_seed(0))
    assert torch.equal(drawn.sort(1).values, torch.arange(3).expand(3000, 3))
    assert ((drawn == 0).double().mean(0) - 1 / 3).abs().max() < 0.05


def test_without_captum_its_methods_are_left_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "captum", None)
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    assert available_methods() == OURS
    assert tuple(faithfulness(toy(), torch.randn(1, 1, 8, 8))) == OURS
    with pytest.raises(InputError, match=r"wcapsnet\[explain\]"):
        faithfulness(toy(), torch.randn(1, 1, 8, 8), ("grad-cam",))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"methods": ("guess",)}, "no method 'guess'"),
        ({"baseline": "blue"}, "did you mean 'blur'"),
        ({"steps": 0}, "at least 1"),
    ],
)
def test_what_is_not_there_is_refused(options, words):
    with pytest.raises(InputError, match=words):
        faithfulness(toy(), torch.randn(1, 1, 8, 8), **options)


def test_mean_and_margin_worked_by_hand():
    # s = √2, t = 12.706 for one degree of freedom, √m = √2
    mean, margin = mean_and_margin(torch.tensor([1.0, 3.0]))
    assert (mean, margin) == (2.0, pytest.approx(12.706, abs=1e-2))
    assert math.isnan(mean_and_margin(torch.tensor([1.0]))[1])
