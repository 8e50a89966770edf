"""One pass over a data set, and what it says of specialisation."""

import math

import pytest
import torch
from explain_toys import LAST, Partial, quadrants, split_of, toy
from hypothesis import given
from hypothesis import strategies as st

from twins import close, tiny
from wcapsnet import Classifier, InputError, Level, RoutingConfig, WCapsNet
from wcapsnet.classifier import load_tensors, save_tensors
from wcapsnet.explanations import Specialization, Survey, specialization, survey
from wcapsnet.explanations.specialization import (
    confidence_margin,
    effective_number,
    information_unit,
    level_specialization,
    normalized_information,
)
from wcapsnet.network.routing import heaviest
from wcapsnet.training.evaluate import evaluate

BRIGHT, DARK = quadrants(1, 1, 1, 0), quadrants(-1, 0, -1, -1)


def choosy():
    """The toy network, whose first level prefers capsule 0 for bright images and capsule 1 for dark ones"""
    network = toy()
    network.routers[0].critic = Partial()
    return network


def random_split(config, m=23):
    torch.manual_seed(3)
    images = torch.rand(m, config.channels, config.height, config.width) * 2 - 1
    return split_of(images, (torch.arange(m) % config.classes).tolist())


def level_of(b, labels, classes=2, level=0):
    return level_specialization(level, b, heaviest(b), torch.tensor(labels), classes)


# ── the pass ──


def test_mean_weights_of_each_class_worked_by_hand():
    # class 0: two dark images, b = (¼, ¾) each; class 1: a bright one, (¾, ¼), and a dark one, (¼, ¾)
    seen = survey(choosy(), split_of(torch.stack([DARK, DARK, BRIGHT, DARK]), [0, 0, 1, 1]))
    first, last = specialization(seen).levels
    close(first.mean, torch.tensor([[0.25, 0.75], [0.5, 0.5]]), 1e-6)
    # class 1: s = ½·√½, t = 12.706, √m = √2: 12.706·¼ = 3.1766
    close(first.margin, torch.tensor([[0.0, 0.0], [3.1766, 3.1766]]), 1e-3)
    close(first.usage, torch.tensor([0.375, 0.625]), 1e-6)
    close(first.chosen, torch.tensor([[0.0, 1.0], [0.5, 0.5]]), 0)
    close(first.chosen_overall, torch.tensor([0.25, 0.75]), 0)
    close(last.mean, torch.full((2, 2), 0.5), 1e-6)
    close(specialization(seen).map_mean, (LAST / 20).expand(2, 2, 2, 2), 1e-6)
    close(specialization(seen).map_margin, torch.zeros(2, 2, 2, 2), 1e-5, 1e-6)


@pytest.mark.parametrize("batch_size", [None, 1, 7, 100])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_survey_agrees_with_evaluation_however_it_is_shared_out(batch_size, threads):
    torch.manual_seed(0)
    network = WCapsNet(tiny(channels=3, height=9)).eval()
    split = random_split(network.config)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        seen = survey(network, split, batch_size=batch_size)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    mine, theirs = seen.evaluation(), evaluate(network, split)
    assert torch.equal(mine.labels, theirs.labels)
    assert torch.equal(mine.predicted, theirs.predicted)
    for a, b in zip(mine.winners, theirs.winners, strict=True):
        assert torch.equal(a, b)
    assert mine.loss == pytest.approx(theirs.loss, rel=1e-5)
    assert seen.accuracy == theirs.accuracy
    close(mine.probability, theirs.probability, 1e-5, 1e-6)
    for a, b in zip(mine.mean_weights, theirs.mean_weights, strict=True):
        close(a, b, 1e-5, 1e-6)


@pytest.mark.parametrize("weighting", ["softmax", "normalized"])
@pytest.mark.parametrize("fitness", ["critic", "joint", "random", "constant"])
@pytest.mark.parametrize("levels", [1, 2, 3])
def test_a_survey_keeps_what_every_image_gave(weighting, fitness, levels):
    torch.manual_seed(0)
    shape = (Level(3, 2, 4, 2), Level(1, 2, 3, 1), Level(2, 2, 5, 2))[:levels]
    config = tiny(RoutingConfig(fitness=fitness, weighting=weighting), levels=shape, classes=5, width=11)
    network = WCapsNet(config).eval()
    split = random_split(config)
    seen = survey(network, split, routed=True)
    images, labels = split.take(slice(None))
    with torch.no_grad():
        output = network(images)
        handed_on = [
            network.handed_on(level, routing.weights, c)
            for level, (routing, c) in enumerate(zip(output.routings, output.capsules, strict=True))
        ]
    assert torch.equal(seen.labels, labels)
    close(seen.probabilities, network.class_logits(output).softmax(1), 1e-5, 1e-6)
    for b, routing in zip(seen.weights, output.routings, strict=True):
        close(b, routing.weights.flatten(2).sum(2) if routing.weights.dim() > 2 else routing.weights, 1e-5, 1e-6)
        close(b.sum(1), torch.ones(len(b)), 1e-5, 1e-6)
    close(seen.vectors, output.best.vector, 1e-5, 1e-6)
    assert torch.equal(seen.places, output.best.place)
    last = output.routings[-1].weights.flatten(1)
    assert seen.tied.tolist() == [int((b >= 0.99 * b.max()).sum()) for b in last]
    for b, winners in zip(seen.weights, seen.winners, strict=True):
        assert winners.tolist() == [(row >= 0.99 * row.max()).tolist() for row in b]
    close(seen.positions, output.best.position, 0)
    close(seen.squared_error, (output.reconstruction - images).square().mean((1, 2, 3)), 1e-5, 1e-6)
    for r in range(config.classes):
        of_class = output.routings[-1].weights[labels == r].double()
        close(seen.map_mean[r], of_class.mean(0).float(), 1e-6)
        close(seen.map_variance[r], of_class.var(0).float(), 1e-6)
    assert [x.shape[0] for x in seen.routed] == [len(split)] * levels
    # what the last level routes on is what W turns into the logits
    close(seen.routed[-1] @ network.projection, output.logits, 1e-4)
    for x, routed in zip(seen.routed[:-1], handed_on[:-1], strict=True):
        places = min(4, routed.shape[2]) * min(4, routed.shape[3])
        assert x.shape[1] == routed.shape[1] * places
        means = x.unflatten(1, (routed.shape[1], places)).mean(2)
        if routed.shape[2] % 4 == routed.shape[3] % 4 == 0:  # cells of the same size
            close(means, routed.mean((2, 3)), 1e-5, 1e-6)


def test_a_class_without_images_and_one_with_a_single_image_are_said_to_be_unknown():
    network = WCapsNet(tiny(classes=4)).eval()
    seen = survey(network, split_of(torch.rand(3, 2, 8, 8), [0, 0, 2]))
    found = specialization(seen)
    for level in found.levels:
        assert level.counts.tolist() == [2, 0, 1, 0]
        assert level.mean[[1, 3]].isnan().all()
        assert level.mean[[0, 2]].isfinite().all()
        assert level.margin[1:].isnan().all()
        assert level.margin[0].isfinite().all()
        assert math.isfinite(level.information.value)
    assert found.map_mean[1].isnan().all()
    assert found.map_margin[2].isnan().all()


def test_progress_is_told_and_the_mode_is_left_as_it_was():
    network = WCapsNet(tiny())
    network.train()
    done = []
    survey(network, random_split(network.config, 10), batch_size=4, progress=done.append)
    assert done == [4, 8, 10]
    assert network.training


def test_a_survey_is_kept_in_a_file_with_what_it_is_of(tmp_path):
    network = WCapsNet(tiny(levels=(Level(2, 2, 4, 2),) * 3, height=16, width=16)).eval()
    for routed in (False, True):
        seen = survey(network, random_split(network.config), routed=routed)
        seen.save(tmp_path / "seen.safetensors", split="test", images="abc")
        same, facts = Survey.load(tmp_path / "seen.safetensors")
        assert facts == {"split": "test", "images": "abc"}
        assert vars(same).keys() == vars(seen).keys()
        for name, value in vars(seen).items():
            one, other = (v if isinstance(v, tuple) else (v,) for v in (value, getattr(same, name)))
            assert len(one) == len(other)
            assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True)), name


def test_what_cannot_be_surveyed_or_read_is_refused(tmp_path):
    path = tmp_path / "seen.safetensors"
    survey(WCapsNet(tiny()).eval(), random_split(tiny())).save(path)
    tensors, facts = load_tensors(path)
    save_tensors(path, tensors, {"survey": facts["survey"]})  # as before ties in the last level were ties (D31)
    with pytest.raises(InputError, match="another version"):
        Survey.load(path)
    Classifier(WCapsNet(tiny()), ("a", "b", "c"), (0.5,) * 2, (0.5,) * 2).save(path)
    with pytest.raises(InputError, match="does not hold a survey"):
        Survey.load(path)
    with pytest.raises(InputError, match="no images"):
        survey(WCapsNet(tiny()), split_of(torch.rand(0, 2, 8, 8), []))


# ── information ──


def information(joint):
    return normalized_information(joint, information_unit(joint))


def test_information_worked_by_hand():
    # P(capsule | class) = (¾, ¼) and (¼, ¾): I = ln 2 − H(¼) = .1308, H(class) = ln 2
    joint = torch.tensor([[3.0, 1.0], [1.0, 3.0]])
    assert information(joint) == pytest.approx(1 - 0.811278, abs=1e-5)
    # a capsule for each class; every capsule alike; classes that share capsules in pairs: ln 2 / min(ln 4, ln 2)
    assert information(torch.eye(3)) == pytest.approx(1)
    assert information(torch.ones(3, 5)) == pytest.approx(0, abs=1e-9)
    assert information(torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 1]])) == pytest.approx(1)
    # four capsules, two in use, for two classes: the winner says everything about the class
    assert information(torch.tensor([[1.0, 0, 0, 0], [0, 0, 1, 0]])) == pytest.approx(1)
    # one capsule, or one class: there is nothing to say
    assert information(torch.ones(3, 1)) == information(torch.tensor([[1.0, 2], [0, 0]])) == 0


@given(st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=2, max_size=5))
def test_information_is_a_share_and_does_not_depend_on_the_order_of_capsules(rows):
    joint = torch.tensor(rows) + 1e-3
    value = information(joint)
    assert 0 <= value <= 1 + 1e-9
    assert information(joint[:, [2, 0, 1]]) == pytest.approx(value, abs=1e-9)


def test_the_effective_number_worked_by_hand():
    assert effective_number(torch.tensor([0.25] * 4)) == pytest.approx(4)
    assert effective_number(torch.tensor([1.0, 0, 0])) == pytest.approx(1)
    # H(½, ¼, ¼) = 1.5 ln 2
    assert effective_number(torch.tensor([0.5, 0.25, 0.25])) == pytest.approx(2**1.5)


def test_weights_and_choices_are_told_apart():
    # weights that hardly differ, but always in favour of the same capsule for the same class
    b = torch.tensor([[0.51, 0.49], [0.49, 0.51]]).repeat(50, 1)
    level = level_of(b, [0, 1] * 50)
    assert level.information_chosen.value == pytest.approx(1)
    assert level.information.value < 0.001
    assert level.information.value > 3 * level.information.by_chance
    assert level.information_chosen.by_chance < 0.05
    assert level.effective == pytest.approx(2)
    assert level.effective_chosen == pytest.approx(2)
    assert level.effective_per_image == pytest.approx(2, abs=1e-3)


def test_capsules_of_nearly_the_largest_weight_share_the_win():
    b = torch.tensor([[0.4, 0.3995, 0.2005], [0.4, 0.2, 0.4], [0.5, 0.3, 0.2], [0.2, 0.6, 0.2]])
    assert heaviest(b).tolist() == [
        [True, True, False],
        [True, False, True],
        [True, False, False],
        [False, True, False],
    ]
    level = level_of(b, [0, 0, 1, 1])
    close(level.chosen_overall, torch.tensor([3.0, 2.0, 1.0]) / 4, 1e-6)
    close(level.chosen, torch.tensor([[1.0, 0.5, 0.5], [0.5, 0.5, 0.0]]), 1e-6)
    assert (level.leaders, level.shared) == (1.5, 0.5)
    # shares of the wins: 2, 1.5 and 0.5 of 4
    assert level.effective_chosen == pytest.approx(effective_number(torch.tensor([2, 1.5, 0.5])))
    # drawing among ties must not depend on the order of capsule numbers
    equal = level_of(torch.tensor([[0.45, 0.45, 0.1], [0.45, 0.1, 0.45]]).repeat(20, 1), [0, 1] * 20)
    turned = level_of(torch.tensor([[0.1, 0.45, 0.45], [0.45, 0.1, 0.45]]).repeat(20, 1), [0, 1] * 20)
    assert equal.information_chosen.value == pytest.approx(turned.information_chosen.value)
    assert 0.1 < equal.information_chosen.value < 0.9
    assert equal.information_set.value == pytest.approx(1)  # the set says all of it, ln 2
    assert equal.information_set.by_chance < 0.2


def test_one_winner_and_the_set_of_winners_are_on_one_scale_worked_by_hand():
    # one winner an image: the set says what the winner says. 4 classes, 2 blocks, classes in pairs: ln 2 nats are 1
    b = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.1, 0.9], [0.1, 0.9]]).repeat(25, 1)
    level = level_of(b, [0, 1, 2, 3] * 25, 4)
    assert level.unit == pytest.approx(math.log(2))
    assert level.information_chosen.value == pytest.approx(1)
    assert level.information_set.value == pytest.approx(1)
    # three sets of two blocks tell three classes apart, which one winner cannot: ln 3 / ln 2 = 1.585
    b = torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.1, 0.9]]).repeat(30, 1)
    level = level_of(b, [0, 1, 2] * 30, 3)
    assert level.information_set.value == pytest.approx(math.log(3) / math.log(2))
    # drawn evenly: P(class, block) = (⅓, 0; ⅙, ⅙; 0, ⅓), I = ln 2 − ⅓ ln 2
    assert level.information_chosen.value == pytest.approx(2 / 3)
    # more blocks than classes: the entropy of the classes is the scale
    wide = level_of(torch.eye(5)[[0, 3] * 20], [0, 1] * 20)
    assert wide.unit == pytest.approx(math.log(2))
    assert wide.information_set.value == pytest.approx(1)


def test_confidence_intervals_cover_the_mean_as_often_as_they_say():
    torch.manual_seed(0)
    samples = torch.randn(4000, 5)
    margin = confidence_margin(samples.var(1), torch.full((4000,), 5))
    covered = (samples.mean(1).abs() <= margin).double().mean()
    assert 0.93 < covered < 0.97


# ── collapse ──


@pytest.mark.parametrize(
    ("rows", "images", "words"),
    [
        ([[0.6, 0.4], [0.4, 0.6]], 40, None),  # it selects
        ([[0.2, 0.5, 0.3], [0.1, 0.6, 0.3]], 40, "collapsed: block 1 wins in 100.0% of 40"),
        ([[0.2, 0.5, 0.3], [0.1, 0.6, 0.3]], 29, None),  # too few to tell
        ([[0.4, 0.2, 0.4], [0.45, 0.1, 0.45]], 40, "collapsed: blocks 0 and 2 win together"),
        ([[0.25, 0.25, 0.25, 0.25], [0.251, 0.249, 0.25, 0.25]], 40, "hardly selects"),
        ([[0.4, 0.2, 0.4], [0.4, 0.4, 0.2]], 40, None),  # one always wins, but the others still say something
        ([[0.2, 0.5, 0.1, 0.2], [0.2, 0.1, 0.1, 0.6]], 40, "blocks 0 and 2 never win in 40"),
        ([[0.2, 0.5, 0.3], [0.2, 0.2, 0.6]], 40, "block 0 never wins"),
        ([[1.0], [1.0]], 40, None),  # an only capsule
    ],
)
def test_a_level_that_does_not_select_is_found_out(rows, images, words):
    findings = level_of(torch.tensor(rows).repeat(20, 1)[:images], ([0, 1] * 20)[:images]).findings
    assert len(findings) == (words is not None)
    assert words is None or words in findings[0]


def test_a_level_that_does_not_look_at_the_image_is_found_out():
    for fitness, words in {
        "constant": "all blocks have the same weight",
        "random": "do not depend on the image",
    }.items():
        torch.manual_seed(0)
        network = WCapsNet(tiny(RoutingConfig(fitness=fitness, weighting="normalized"))).eval()
        findings = specialization(survey(network, random_split(network.config))).findings
        assert len(findings) == 2
        assert all(words in finding for finding in findings), findings


# ── in words ──


def chosen_by(share, level):
    """That share of the images of each class chooses the capsule of its class, and the others the other's"""
    right = round(50 * share)
    b = torch.tensor([[0.9, 0.1]] * right + [[0.1, 0.9]] * (50 - right))
    return level_of(torch.cat([b, b.flip(1)]), [0] * 50 + [1] * 50, level=level)


@pytest.mark.parametrize(
    ("shares", "words"),  # I = 1 − H(share), in bits: shares of .8, .9 and 1 say .278, .531 and 1, about .010 by chance
    [
        ((0.8, 0.9, 1.0), "rises with every level: 0.26"),
        ((1.0, 0.9), "falls with every level: 0.990 → 0.5"),
        ((0.8, 1.0, 0.9), "rises from level 1 to 2 and falls from level 2 to 3"),
        ((1.0, 1.0), "does not change from level to level by more than the noise"),
        ((0.8, 0.9, 0.9), "rises from level 1 to 2 (otherwise within the noise)"),
        ((0.9,), "cannot be compared"),
        ((0.5, 0.54), "In no level"),  # 27 of 50 say .005, which shuffles give too
        ((1.0, 0.54, 0.5), "by level: 0.990 → not above chance → not above chance"),
    ],
)
def test_whether_deeper_levels_specialise_more_is_said(shares, words):
    levels = tuple(chosen_by(share, level) for level, share in enumerate(shares))
    assert words in Specialization(levels, torch.zeros(0), torch.zeros(0)).trend


def two_levels(first, second, labels, classes=2):
    """The capsule that each image chooses in each case"""
    of = [torch.nn.functional.one_hot(torch.tensor(chosen), classes).double() for chosen in (first, second)]
    levels = tuple(level_of(b, labels, classes, level) for level, b in enumerate(of))
    return Specialization(levels, torch.zeros(0), torch.zeros(0))


def test_a_change_within_its_interval_is_told_as_none():
    # 41 and 42 of 50 in either class: one image more a class is no rise
    def chosen(right):
        return [0] * right + [1] * 50 + [0] * (50 - right)

    labels = [0] * 50 + [1] * 50
    same = two_levels(chosen(41), [0] * 42 + [1] * 8 + [0] * 8 + [1] * 42, labels)
    (step,) = same.steps
    assert (step.before, step.after) == (0, 1)
    assert abs(step.change) < step.margin
    assert "does not change from level to level by more than the noise" in same.trend
    assert same.summary()["steps"] == [{"from": 1, "to": 2, "change": step.change, "margin": step.margin}]


def test_what_each_image_tells_worked_by_hand():
    # of each class ¾ choose its capsule: P(r, n) / P(r)P(n) = 3/2 or 1/2, in bits .585 and −1; mean ¾ · .585 − ¼
    labels = [0] * 8 + [1] * 8
    level = two_levels([0] * 6 + [1] * 8 + [0] * 2, labels, labels).levels[0]
    told = level.information_chosen_by_image
    assert told[[0, 7, 8, 15]].tolist() == pytest.approx([math.log2(1.5), -1, math.log2(1.5), -1])
    assert float(told.mean()) == pytest.approx(level.information_chosen.value) == pytest.approx(1 - 0.811278, abs=1e-5)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=40))
def test_information_is_the_mean_of_what_each_image_tells(images):
    labels, leads = [r for r, _, _ in images], torch.zeros(len(images), 4, dtype=torch.bool)
    for row, (_, first, second) in zip(leads, images, strict=True):
        row[[first, second]] = True  # winners that share
    level = level_specialization(0, leads / leads.sum(1, keepdim=True), leads, torch.tensor(labels), 3)
    assert float(level.information_chosen_by_image.mean()) == pytest.approx(level.information_chosen.value, abs=1e-9)
