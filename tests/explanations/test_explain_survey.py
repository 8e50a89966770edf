"""One pass over a data set, and what it says of specialisation."""

import io
import math
import re

import pytest
import scipy.stats
import torch
from explain_toys import LAST, Partial, quadrants, split_of, toy
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from twins import close, tiny
from wcapsnet import Classifier, InputError, Level, RoutingConfig, WCapsNet
from wcapsnet.classifier import load_tensors, save_tensors
from wcapsnet.cli import explain_console
from wcapsnet.explanations import Probe, Specialization, Survey, probe_levels, specialization, survey
from wcapsnet.explanations.specialization import (
    confidence_margin,
    effective_number,
    level_specialization,
    normalized_information,
    student_t,
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
@pytest.mark.parametrize("fitness", ["critic", "random", "constant"])
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
        assert math.isfinite(level.information)
    assert found.map_mean[1].isnan().all()
    assert found.map_margin[2].isnan().all()


def test_progress_is_told_and_the_mode_is_left_as_it_was():
    network = WCapsNet(tiny())
    network.train()
    done = []
    survey(network, random_split(network.config, 10), batch_size=4, progress=done.append)
    assert done == [4, 8, 10]
    assert network.training


def test_a_survey_of_nothing_is_refused():
    with pytest.raises(InputError, match="no images"):
        survey(WCapsNet(tiny()), split_of(torch.rand(0, 2, 8, 8), []))


def test_what_stops_a_survey_leaves_the_threads_as_they_were():
    before = torch.get_num_threads()
    torch.set_num_threads(2)

    def stop(done):
        raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt):
            survey(WCapsNet(tiny()), random_split(tiny()), batch_size=2, progress=stop)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


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


def test_a_survey_of_another_version_is_refused(tmp_path):
    path = tmp_path / "seen.safetensors"
    seen = survey(WCapsNet(tiny()).eval(), random_split(tiny()))
    seen.save(path)
    tensors, facts = load_tensors(path)
    del facts["format"]  # as before ties in the last level were ties (D31)
    save_tensors(path, tensors, facts)
    with pytest.raises(InputError, match="another version"):
        Survey.load(path)


def test_a_file_that_holds_no_survey_is_refused(tmp_path):
    Classifier(WCapsNet(tiny()), ("a", "b", "c"), (0.5,) * 2, (0.5,) * 2).save(tmp_path / "weights.safetensors")
    with pytest.raises(InputError, match="does not hold a survey"):
        Survey.load(tmp_path / "weights.safetensors")


# ── information ──


def test_information_worked_by_hand():
    # P(capsule | class) = (¾, ¼) and (¼, ¾): I = ln 2 − H(¼) = .1308, H(class) = ln 2
    joint = torch.tensor([[3.0, 1.0], [1.0, 3.0]])
    assert normalized_information(joint) == pytest.approx(1 - 0.811278, abs=1e-5)
    # a capsule for each class; every capsule alike; classes that share capsules in pairs: ln 2 / min(ln 4, ln 2)
    assert normalized_information(torch.eye(3)) == pytest.approx(1)
    assert normalized_information(torch.ones(3, 5)) == pytest.approx(0, abs=1e-9)
    assert normalized_information(torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 1]])) == pytest.approx(1)
    # four capsules, two in use, for two classes: the winner says everything about the class
    assert normalized_information(torch.tensor([[1.0, 0, 0, 0], [0, 0, 1, 0]])) == pytest.approx(1)


@pytest.mark.parametrize("joint", [torch.ones(3, 1), torch.tensor([[1.0, 2.0], [0.0, 0.0]])])
def test_with_one_capsule_or_one_class_there_is_nothing_to_say(joint):
    assert normalized_information(joint) == 0


@given(st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=2, max_size=5))
def test_information_is_a_share_and_does_not_depend_on_the_order_of_capsules(rows):
    joint = torch.tensor(rows) + 1e-3
    value = normalized_information(joint)
    assert 0 <= value <= 1
    assert normalized_information(joint[:, [2, 0, 1]]) == pytest.approx(value, abs=1e-9)


def test_the_effective_number_worked_by_hand():
    assert effective_number(torch.tensor([0.25] * 4)) == pytest.approx(4)
    assert effective_number(torch.tensor([1.0, 0, 0])) == pytest.approx(1)
    # H(½, ¼, ¼) = 1.5 ln 2
    assert effective_number(torch.tensor([0.5, 0.25, 0.25])) == pytest.approx(2**1.5)


def test_weights_and_choices_are_told_apart():
    # weights that hardly differ, but always in favour of the same capsule for the same class
    b = torch.tensor([[0.51, 0.49], [0.49, 0.51]]).repeat(50, 1)
    level = level_of(b, [0, 1] * 50)
    assert level.information_chosen == pytest.approx(1)
    assert level.information < 0.001
    assert level.information > 3 * level.information_by_chance
    assert level.information_chosen_by_chance < 0.05
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
    assert equal.information_chosen == pytest.approx(turned.information_chosen)
    assert 0.1 < equal.information_chosen < 0.9
    assert equal.information_set == pytest.approx(1)  # the set says all of it, ln 2
    assert equal.information_set_by_chance < 0.2


def test_one_winner_and_the_set_of_winners_are_on_one_scale_worked_by_hand():
    # one winner an image: the set says what the winner says. 4 classes, 2 blocks, classes in pairs: ln 2 nats are 1
    b = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.1, 0.9], [0.1, 0.9]]).repeat(25, 1)
    level = level_of(b, [0, 1, 2, 3] * 25, 4)
    assert level.unit == pytest.approx(math.log(2))
    assert level.information_chosen == pytest.approx(1)
    assert level.information_set == pytest.approx(1)
    # three sets of two blocks tell three classes apart, which one winner cannot: ln 3 / ln 2 = 1.585
    b = torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.1, 0.9]]).repeat(30, 1)
    level = level_of(b, [0, 1, 2] * 30, 3)
    assert level.information_set == pytest.approx(math.log(3) / math.log(2))
    # drawn evenly: P(class, block) = (⅓, 0; ⅙, ⅙; 0, ⅓), I = ln 2 − ⅓ ln 2
    assert level.information_chosen == pytest.approx(2 / 3)
    # more blocks than classes: the entropy of the classes is the scale
    wide = level_of(torch.eye(5)[[0, 3] * 20], [0, 1] * 20)
    assert wide.unit == pytest.approx(math.log(2))
    assert wide.information_set == pytest.approx(1)


def test_a_tie_of_the_last_levels_blocks_is_a_tie():
    # the toy's blocks weigh ½ each: both win every image, so that they say nothing about the class
    seen = survey(toy(), split_of(torch.stack([BRIGHT, DARK] * 20), [0, 1] * 20))
    last = specialization(seen).levels[-1]
    assert (last.leaders, last.shared) == (2, 1)
    close(last.chosen_overall, torch.ones(2), 0)
    assert last.information_chosen == pytest.approx(0, abs=1e-9)
    assert last.information_set == pytest.approx(0, abs=1e-9)


def test_shuffled_labels_give_no_more_than_chance():
    torch.manual_seed(0)
    b, labels = torch.rand(400, 6).softmax(1), torch.randint(0, 10, (400,)).tolist()
    level = level_of(b, labels, 10)
    assert level.information < 2 * level.information_by_chance
    assert level.information_chosen < 2 * level.information_chosen_by_chance


@given(st.integers(3, 2000))
def test_the_quantile_of_students_distribution_is_near_the_exact_one(degrees):
    assert student_t(degrees) == pytest.approx(scipy.stats.t.ppf(0.975, degrees), rel=0.01)


def test_the_quantile_of_students_distribution_for_few_images():
    assert math.isnan(student_t(0))
    for degrees in (1, 2):
        assert student_t(degrees) == pytest.approx(scipy.stats.t.ppf(0.975, degrees), rel=1e-4)


def test_confidence_intervals_cover_the_mean_as_often_as_they_say():
    torch.manual_seed(0)
    samples = torch.randn(4000, 5)
    margin = confidence_margin(samples.var(1), torch.full((4000,), 5))
    covered = (samples.mean(1).abs() <= margin).double().mean()
    assert 0.93 < covered < 0.97


# ── collapse ──


def test_nothing_is_said_of_a_level_that_selects():
    b = torch.tensor([[0.6, 0.4], [0.4, 0.6]]).repeat(10, 1)
    assert level_of(b, [0, 1] * 10).findings == ()


def test_a_capsule_that_always_wins_is_named():
    b = torch.tensor([[0.2, 0.5, 0.3], [0.1, 0.6, 0.3]]).repeat(20, 1)
    (finding,) = level_of(b, [0, 1] * 20).findings
    assert finding == "Level 1 has collapsed: capsule 1 wins in 100.0% of 40 images."


def test_capsules_that_always_win_together_are_named():
    b = torch.tensor([[0.4, 0.2, 0.4], [0.45, 0.1, 0.45]]).repeat(20, 1)
    (finding,) = level_of(b, [0, 1] * 20).findings
    assert finding == "Level 1 has collapsed: capsules 0 and 2 win together in 100.0% of 40 images."
    alike = torch.full((40, 4), 0.25) + 1e-4 * torch.rand(40, 4)
    (finding,) = level_of(alike, [0, 1] * 20).findings
    assert finding == "Level 1 hardly selects: to within 1 %, all capsules have the same weight in 100.0% of images."
    # one that is always among the winners is no collapse: the others still say something
    b = torch.tensor([[0.4, 0.2, 0.4], [0.4, 0.4, 0.2]]).repeat(20, 1)
    assert level_of(b, [0, 1] * 20).findings == ()


def test_capsules_that_never_win_are_named():
    b = torch.tensor([[0.2, 0.5, 0.1, 0.2], [0.2, 0.1, 0.1, 0.6]]).repeat(20, 1)
    (finding,) = level_of(b, [0, 1] * 20).findings
    assert finding == "Level 1: capsules 0 and 2 never win in 40 images."
    (finding,) = level_of(b[:, [0, 1, 3]], [0, 1] * 20).findings
    assert finding == "Level 1: capsule 0 never wins in 40 images."


def test_of_a_few_images_no_collapse_is_said():
    b = torch.tensor([[0.2, 0.5, 0.3], [0.1, 0.6, 0.3]])
    for images in (1, 2, 3, 29):
        assert level_of(b.repeat(15, 1)[:images], ([0, 1] * 15)[:images]).findings == ()
    assert len(level_of(b.repeat(15, 1), [0, 1] * 15).findings) == 1


def test_a_level_that_does_not_look_at_the_image_is_found_out():
    for fitness, words in {
        "constant": "all capsules have the same weight",
        "random": "do not depend on the image",
    }.items():
        torch.manual_seed(0)
        network = WCapsNet(tiny(RoutingConfig(fitness=fitness, weighting="normalized"))).eval()
        findings = specialization(survey(network, random_split(network.config))).findings
        assert len(findings) == 2
        assert all(words in finding for finding in findings), findings


def test_an_only_capsule_has_not_collapsed():
    level = level_of(torch.ones(4, 1), [0, 1, 0, 1])
    assert level.findings == ()
    assert level.information == 0
    assert level.effective == 1


# ── in words ──


def test_whether_deeper_levels_specialise_more_is_said():
    def found(*shares):
        """Levels in which that share of the images chooses the capsule of its class, and the others the other's"""
        levels = []
        for level, share in enumerate(shares):
            right = round(50 * share)
            b = torch.tensor([[0.9, 0.1]] * right + [[0.1, 0.9]] * (50 - right))
            levels.append(level_of(torch.cat([b, b.flip(1)]), [0] * 50 + [1] * 50, level=level))
        return Specialization(tuple(levels), torch.zeros(0), torch.zeros(0)).trend

    # I = 1 − H(share), in bits: shares of .8, .9 and 1 say .278, .531 and 1, about .010 by chance
    said = found(0.8, 0.9, 1.0)
    assert said.startswith("What the winning capsule says about the class, less chance, rises with every level: 0.26")
    assert said.endswith(" → 0.990.")
    assert "less chance, falls with every level: 0.990 → 0.5" in found(1.0, 0.9)
    assert "less chance, rises from level 1 to 2 and falls from level 2 to 3: 0.26" in found(0.8, 1.0, 0.9)
    assert "does not change from level to level by more than the noise: 0.990 → 0.990." in found(1.0, 1.0)
    assert "rises from level 1 to 2 (otherwise within the noise): 0.26" in found(0.8, 0.9, 0.9)
    assert "falls from level 2 to 3 (otherwise within the noise): 0.5" in found(0.9, 0.9, 0.8)
    assert "rises from level 1 to 2 and from level 3 to 4 (otherwise within the noise)" in found(0.7, 0.9, 0.9, 1.0)
    assert "nothing can be said" in found(0.9)
    # 27 of 50 say .005, which shuffles give too
    assert found(0.5, 0.54) == "What the winning capsule says about the class is not above chance in any level."
    assert "less chance, by level: 0.990 → not above chance → not above chance." in found(1.0, 0.54, 0.5)


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
    assert float(told.mean()) == pytest.approx(level.information_chosen) == pytest.approx(1 - 0.811278, abs=1e-5)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=40))
def test_information_is_the_mean_of_what_each_image_tells(images):
    labels, leads = [r for r, _, _ in images], torch.zeros(len(images), 4, dtype=torch.bool)
    for row, (_, first, second) in zip(leads, images, strict=True):
        row[[first, second]] = True  # winners that share
    level = level_specialization(0, leads / leads.sum(1, keepdim=True), leads, torch.tensor(labels), 3)
    assert float(level.information_chosen_by_image.mean()) == pytest.approx(level.information_chosen, abs=1e-9)


def test_levels_that_tell_the_same_are_seldom_told_to_differ():
    torch.manual_seed(0)
    labels = torch.arange(120) % 3
    chances = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.7, 0.2], [0.2, 0.1, 0.7]])[labels]
    told = 0
    for _ in range(100):
        first, second = (torch.multinomial(chances, 1).flatten().tolist() for _ in range(2))
        (step,) = two_levels(first, second, labels.tolist(), 3).steps
        told += step.told
    assert 0 < told <= 12  # 5 are expected


def test_what_few_images_tell_by_chance_is_not_told_as_a_finding():
    levels = tuple(level_of(torch.tensor(b), [0, 1]) for b in ([[0.9, 0.1], [0.1, 0.9]], [[0.5, 0.5], [0.5, 0.4]]))
    said = Specialization(levels, torch.zeros(0), torch.zeros(0)).trend
    assert said == (
        "What the winning capsule says about the class is not above chance in any level. "
        "All winners of an image together: not above chance in any level."
    )


@pytest.mark.parametrize("classes", [2, 10, 100])
def test_a_data_set_is_shown_however_many_its_classes(classes, capsys):
    torch.manual_seed(0)
    network = WCapsNet(tiny(classes=classes, levels=(Level(20, 2, 2, 2), Level(1, 2, 3, 1), Level(3, 2, 3, 1)))).eval()
    seen = survey(network, random_split(network.config, 23), routed=True)
    names = [f"[class {r}]" for r in range(classes)]  # brackets are rich's own language
    explain_console.dataset(specialization(seen), probe_levels(seen, seen), seen, names)
    said = capsys.readouterr().out
    assert "[class 1]" in said
    assert "Level 1: mean weights" in said
    assert "Level 2: mean weights" not in said
    assert "Level 3: mean weights" in said


def shown(width, classes, levels, monkeypatch, m=60):
    """What is printed of a random network, and what it is of"""
    torch.manual_seed(0)
    network = WCapsNet(tiny(classes=len(classes), levels=tuple(Level(n, 2, 3, 1) for n in levels))).eval()
    seen = survey(network, random_split(network.config, m), routed=True)
    found, probes, paper = specialization(seen), probe_levels(seen, seen), io.StringIO()
    monkeypatch.setattr(explain_console, "out", Console(file=paper, width=width, highlight=False, force_terminal=True))
    explain_console.dataset(found, probes, seen, classes, "test images")
    return re.sub(r"\x1b\[[0-9;]*m", "", paper.getvalue()), found, probes


@pytest.mark.parametrize("width", [80, 100, 200])
@pytest.mark.parametrize(
    "classes", [("cat", "dog"), ("airplane", "a class of a long name", "x" * 50), tuple("0123456789")]
)
def test_a_data_set_is_shown_whole_at_80_columns(width, classes, monkeypatch):
    text, found, probes = shown(width, classes, (16, 8, 4, 1, 2), monkeypatch)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    first, *_ = text.partition("Level 1: mean weights")
    for level, probe in zip(found.levels, probes, strict=True):
        numbers = [f"{level.effective_chosen:.2f}", f"{level.leaders:.2f}", f"{level.effective:.2f}"]
        for name in ("information", "information_chosen", "information_set"):
            numbers.append(f"{getattr(level, name):.3f} ({getattr(level, f'{name}_by_chance'):.3f})")
        assert all(number in first for number in [*numbers, f"{probe.accuracy:.1%} ("])


def test_every_column_but_level_and_capsules_is_explained_in_a_line(monkeypatch):
    text, *_ = shown(80, tuple("0123456789"), (16, 4), monkeypatch)
    headings = [line for line in text.splitlines() if line.startswith("┃ level")]
    assert len(headings) == 2
    columns = [name.strip() for line in headings for name in line.strip("┃").split("┃")]
    for name in sorted(set(columns) - {"level", "capsules"}):
        (line,) = [line for line in text.splitlines() if re.match(f"{name}  +[a-z]", line)]
        following = text.splitlines()[text.splitlines().index(line) + 1]
        assert not following.startswith(" "), f"{name} takes more than a line"


def test_what_a_winner_gains_is_shown_where_there_is_something_to_compare(capsys):
    labels = [0] * 50 + [1] * 50
    found = two_levels([0] * 45 + [1] * 50 + [0] * 5, labels, labels)
    explain_console._levels_further(found)
    said = capsys.readouterr().out
    (step,) = found.steps
    assert f"+{step.change:.3f} ± {step.margin:.3f}" in said
    assert "winner gains  on the level before" in said
    explain_console._levels_further(two_levels([0, 1] * 50, labels, labels))
    assert "winner gains" not in capsys.readouterr().out


def test_intervals_of_mean_weights_have_room_or_are_told_above(monkeypatch):
    classes = tuple("0123456789")
    wide, found, _ = shown(200, classes, (16, 8), monkeypatch)
    narrow, *_ = shown(80, classes, (16, 8), monkeypatch)
    level = found.levels[1]
    cell = f"{level.mean[3, 5]:.3f}±{level.margin[3, 5]:.3f}".replace("±0.", "±.")
    assert cell in wide
    assert cell not in narrow.partition("Level 2")[2]
    assert f"{level.mean[3, 5]:.3f}" in narrow.partition("Level 2")[2]
    assert f"Level 2: mean weights (equal: 0.125), 95 % confidence intervals up to ±{level.margin.max():.3f}" in narrow
    assert wide.count("then") > narrow.count("then") > 0  # of level 1 as many classes as have room


def test_no_probe_is_said_to_read_more_than_everything(capsys):
    torch.manual_seed(0)
    network = WCapsNet(tiny(levels=(Level(2, 2, 2, 2), Level(3, 2, 3, 1)))).eval()
    seen = survey(network, random_split(network.config, 2), routed=True)
    probes = [Probe(level, 4, 1.0, 0.43, 0.0, 1.0) for level in range(2)]
    explain_console.dataset(specialization(seen), probes, seen, [str(r) for r in range(network.config.classes)])
    said = " ".join(re.sub("[│┃]", " ", capsys.readouterr().out).split())
    assert "± 43" not in said
    assert "to 100.0" in said
