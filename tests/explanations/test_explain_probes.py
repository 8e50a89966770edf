"""Linear probes: what can be read from a level."""

from dataclasses import replace

import pytest
import scipy.stats
import torch
from explain_toys import quadrants, split_of, toy
from hypothesis import given
from hypothesis import strategies as st

from twins import close
from wcapsnet import InputError
from wcapsnet.explanations import probe_levels, survey
from wcapsnet.explanations.probes import LinearProbe, share_interval


def surveys(features, labels, test_features, test_labels):
    """Two surveys of a network that is not asked: only labels and what is routed on matter to a probe."""
    base = survey(toy(), split_of(torch.stack([quadrants(1, 0, 0, 1)]), [0]), routed=True)

    def make(x, y):
        y = torch.tensor(y)
        return replace(base, labels=y, probabilities=torch.zeros(len(y), 2), routed=(x, torch.zeros(len(y), 1)))

    return make(features, labels), make(test_features, test_labels)


def test_a_class_that_lies_on_one_side_is_read_and_a_constant_is_not():
    torch.manual_seed(0)
    labels = [0, 1] * 50
    side = torch.tensor(labels).float()[:, None] * 2 - 1
    x = torch.cat([side + 0.1 * torch.randn(100, 1), torch.randn(100, 3)], dim=1)
    fit, test = surveys(x[:60], labels[:60], x[60:], labels[60:])
    first, second = probe_levels(fit, test)
    assert first.accuracy == 1
    assert (first.features, second.features) == (4, 1)
    assert second.accuracy == second.by_chance == 0.5


def test_a_probe_is_the_minimum_of_its_loss():
    # two images at ±1 of two classes: w₁ = −w₀ = w;  loss = ln(1 + e^(−2w)) + λ w²,  so w = 1/(λ (1 + e^(2w)))
    probe = LinearProbe(torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1]), 2).fit(0.1)
    w = float(probe.weight[0, 1])
    assert float(probe.weight[0, 0]) == pytest.approx(-w, abs=1e-4)
    assert w == pytest.approx(1 / (0.1 * (1 + torch.tensor(2 * w).exp().item())), rel=1e-2)


def test_probes_do_not_depend_on_the_scale_of_features():
    torch.manual_seed(0)
    labels = torch.randint(0, 3, (200,))
    x = torch.randn(200, 5) + labels[:, None]
    one = LinearProbe(x, labels, 3).fit(0.01)
    other = LinearProbe(x * 1000 + 5, labels, 3).fit(0.01)
    close(one.scores(x), other.scores(x * 1000 + 5), 1e-2)


def test_a_level_of_a_network_is_read():
    # class 1 is bright: level 1 routes on 2.5 times the image, and the toy's last vector holds its quadrants
    torch.manual_seed(0)
    labels = [0, 1] * 30
    images = torch.stack([quadrants(*(torch.rand(4) * 0.5 + (0.5 if y else -1)).tolist()) for y in labels])
    fit = survey(toy(), split_of(images[:30], labels[:30]), routed=True)
    test = survey(toy(), split_of(images[30:], labels[30:]), routed=True)
    assert [probe.accuracy for probe in probe_levels(fit, test)] == [1, 1]


@given(st.integers(1, 10_000).flatmap(lambda images: st.tuples(st.integers(0, images), st.just(images))))
def test_the_interval_of_a_share_is_scipys(counts):
    right, images = counts
    expected = scipy.stats.binomtest(right, images).proportion_ci(method="wilson")
    assert share_interval(right / images, images) == pytest.approx((expected.low, expected.high), abs=1e-7)


def test_surveys_that_kept_no_features_and_single_images_are_refused():
    images = torch.stack([quadrants(1, 0, 0, 1)] * 2)
    with_features = survey(toy(), split_of(images, [0, 1]), routed=True)
    with pytest.raises(ValueError, match="routed=True"):
        probe_levels(survey(toy(), split_of(images, [0, 1])), with_features)
    with pytest.raises(InputError, match="at least two"):
        probe_levels(survey(toy(), split_of(images[:1], [0]), routed=True), with_features)
