"""Sections III-C and III-F: correctness (Eq. 9), the Wasserstein loss (Eq. 4, 8, 10-12), the total (Eq. 15)."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import tensor

from twins import (
    centred_twin,
    class_information_twin,
    close,
    correctness_twin,
    information_twin,
    objective_twin,
    wasserstein_twin,
)
from wcapsnet.errors import InputError
from wcapsnet.network import BestCapsule, Output, Routing
from wcapsnet.network.routing import normalized_weights, softmax_weights
from wcapsnet.objective import (
    PAPER,
    Objective,
    centred_wasserstein,
    class_information,
    correctness,
    cross_entropy,
    information,
    l2,
    label_smoothing,
    objective,
    wasserstein,
    wasserstein_loss,
)


def routing(m=3, n=4, *position, dtype=torch.float32, grad=False):
    a = torch.rand(m, n, *position, dtype=dtype)
    b = torch.rand(m, n, *position, dtype=dtype).flatten(1).softmax(1).view_as(a)
    return Routing(a.requires_grad_(grad), b.requires_grad_(grad))


def output(logits, *routings, images=None):
    m = len(logits)
    best = BestCapsule(torch.zeros(m, 1), torch.zeros(m, 2), torch.zeros(m, 3, dtype=torch.long))
    return Output(logits, torch.zeros(m, 1, 2, 2) if images is None else images, routings, best, ())


# Eq. 9


def test_correctness_worked_by_hand():
    # p = (3, 4)/7: ‖p‖ = 5/7, so cos θ is 3/5 for the first class and 4/5 for the second
    logits = tensor([[3.0, 4.0], [3.0, 4.0]]).log()
    close(correctness(logits, tensor([0, 1])), tensor([0.6, 0.8]), 1e-6)


def test_correctness_uses_the_probabilities_of_all_outputs():
    # p = (1, 2, 2)/5: ‖p‖ = 3/5; the third output, "none of these", counts too (D5)
    close(correctness(tensor([[1.0, 2.0, 2.0]]).log(), tensor([0])), tensor([1 / 3]), 1e-6)


@given(st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=8), st.integers(0, 7))
def test_correctness_lies_between_zero_and_one_and_agrees_with_its_twin(row, label):
    label %= len(row)
    cos = correctness(tensor([row]), tensor([label]))
    assert 0 <= cos.item() <= 1
    close(cos, tensor([correctness_twin(row, label)]), 1e-4, 1e-6)


def test_a_right_and_certain_answer_has_correctness_one_a_wrong_and_certain_one_zero():
    logits = tensor([[1e4, -1e4, 0.0]]).repeat(2, 1)
    assert correctness(logits, tensor([0, 1])).tolist() == [1, 0]


def test_a_more_certain_right_answer_is_more_correct():
    logits = torch.stack([torch.linspace(-5, 5, 20), torch.zeros(20), torch.zeros(20)], 1)
    assert (correctness(logits, torch.zeros(20, dtype=torch.long)).diff() > 0).all()


# Eq. 4, 8, 10-12


def test_wasserstein_loss_worked_by_hand():
    #              a           b            cos θ
    # sample 1   .9  .1     .75 .25          .8     F_s = .70   F_ns = .30
    # sample 2   .4  .6     .50 .50          .2     F_s = .50   F_ns = .50
    # N_p = N_h = 1;  E_p = .8·.70 + .2·.50 = .66;  E_h = ½(.2·.70 + .8·.50) + ½(.8·.30 + .2·.50) = .27 + .17
    a, b = tensor([[0.9, 0.1], [0.4, 0.6]]), tensor([[0.75, 0.25], [0.5, 0.5]])
    close(wasserstein_loss(Routing(a, b), tensor([0.8, 0.2])), tensor(-0.22), 1e-5)


def test_not_selected_capsules_are_averaged_over_the_others_worked_by_hand():
    # one right answer, three capsules, a = (.9, .6, .3), b = (1, 0, 0): F_s = .9, F_ns = (.6 + .3) / 2 = .45
    # N_h = 0:  L = ½ · .45 - .9
    loss = wasserstein_loss(Routing(tensor([[0.9, 0.6, 0.3]]), tensor([[1.0, 0.0, 0.0]])), tensor([1.0]))
    close(loss, tensor(-0.675), 1e-6)


def test_a_wrong_answer_lowers_what_was_selected_worked_by_hand():
    # N_p = 0:  L = ½ · F_s = ½ · (.75 · .9 + .25 · .1) = .35
    loss = wasserstein_loss(Routing(tensor([[0.9, 0.1]]), tensor([[0.75, 0.25]])), tensor([0.0]))
    close(loss, tensor(0.35), 1e-6)


@given(st.floats(-3, 3), st.integers(0, 10_000))
def test_a_constant_added_to_the_critic_leaves_the_loss_unchanged(constant, seed):
    torch.manual_seed(seed)
    said, cos = routing(5, 4), torch.rand(5).clamp(0.01, 0.99)
    shifted = Routing(said.fitness + constant, said.weights)
    close(wasserstein_loss(shifted, cos), wasserstein_loss(said, cos), 1e-4, 1e-5)


@given(st.floats(0, 1), st.integers(2, 6))
def test_a_critic_that_cannot_tell_capsules_apart_scores_zero(value, n):
    said = Routing(torch.full((4, n), value), routing(4, n).weights)
    close(wasserstein_loss(said, tensor([0.1, 0.9, 0.5, 0.3])), tensor(0.0), atol=1e-6)


def test_the_order_of_each_images_capsules_does_not_matter_to_the_loss():
    said, cos, order = routing(5, 6), torch.rand(5), torch.rand(5, 6).argsort(1)
    close(
        wasserstein_loss(Routing(said.fitness.gather(1, order), said.weights.gather(1, order)), cos),
        wasserstein_loss(said, cos),
        1e-5,
        1e-6,
    )


# What a critic gains that judges every image alike (docs/results.md)


def alike(a, weighting):
    """L̃_WS of each row of a, given to every image, whatever the answers: one right, one half right, one wrong"""
    cos = tensor([1.0, 0.5, 0.0])
    return torch.stack([wasserstein_loss(Routing(one.expand(3, -1), weighting(one.expand(3, -1))), cos) for one in a])


def fit(n):
    """Fitness 1 for 1, 2 … n capsules and 0 for the others"""
    return torch.ones(n, n).tril()


@given(seed=st.integers(0, 10_000))
def test_the_loss_is_what_selection_gains_where_answers_are_right_and_how_far_it_goes_with_them(seed):
    """L̃_WS = ½ E_p[F_ns − F_s] + ½ (E_h[F_s] − E_p[F_s])"""
    torch.manual_seed(seed)
    (a, b), cos = routing(6, 5), torch.rand(6).clamp(0.01, 0.99)
    selected, others = (b * a).sum(1), ((1 - b) * a).sum(1) / 4
    right, wrong = cos / cos.sum(), (1 - cos) / (1 - cos).sum()
    expected = ((right * (others - selected)).sum() + ((wrong - right) * selected).sum()) / 2
    close(wasserstein_loss(Routing(a, b), cos), expected, 1e-4, 1e-5)


@pytest.mark.parametrize("weighting", [softmax_weights, normalized_weights])
@given(seed=st.integers(0, 10_000))
def test_judging_every_image_alike_is_worth_half_of_what_selection_gains(weighting, seed):
    torch.manual_seed(seed)
    a, cos = torch.rand(1, 5).expand(4, -1), torch.rand(4).clamp(0.01, 0.99)
    b = weighting(a)
    selected, others = (b * a).sum(1)[0], ((1 - b) * a).sum(1)[0] / 4
    close(wasserstein_loss(Routing(a, b), cos), (others - selected) / 2, 1e-4, 1e-5)


@pytest.mark.parametrize(
    ("n", "k", "least"), [(16, 6, -0.131), (8, 3, -0.140), (4, 2, -0.154), (128, 48, -0.123), (98, 37, -0.124)]
)
def test_judging_alike_is_best_with_a_fixed_number_of_fit_capsules(n, k, least):
    losses = alike(fit(n), softmax_weights)
    assert losses.argmin() + 1 == k
    assert abs(k - n / (1 + math.exp(0.5))) < 0.5
    assert losses.min() == pytest.approx(least, abs=5e-4)


def test_sure_answers_are_worth_most_with_most_capsules_fit_if_right_and_none_if_wrong():
    every = torch.cat([torch.zeros(1, 16), fit(16)])  # 0 to 16 capsules
    for cos, best in ((1.0, 12), (0.0, 0)):
        pairs = [torch.stack([one, torch.zeros(16)]) for one in every]  # beside an image of the other kind
        losses = [wasserstein_loss(Routing(a, softmax_weights(a)), tensor([cos, 1 - cos])) for a in pairs]
        assert torch.stack(losses).argmin() == best


@pytest.mark.parametrize("n", [4, 8, 16])
def test_no_fitness_between_zero_and_one_does_better(n):
    """Along each capsule's fitness it bends downwards, so it is least at an end"""
    torch.manual_seed(0)
    a = torch.rand(50, n, dtype=torch.double)
    for j in range(n):
        low, high = a.clone(), a.clone()
        low[:, j], high[:, j] = 0.9 * a[:, j], 1.1 * a[:, j]
        assert ((gain(low) + gain(high)) / 2 < gain(a)).all()


def gain(a):
    """½ (F_ns − F_s) of each row, in double precision"""
    b = softmax_weights(a)
    return (((1 - b) * a).sum(1) / (a.shape[1] - 1) - (b * a).sum(1)) / 2


def test_with_normalised_weights_judging_alike_is_best_with_a_single_fit_capsule():
    losses = alike(fit(16), normalized_weights)
    assert losses.argmin() == 0
    assert losses.min() == pytest.approx(-0.5, abs=1e-4)


def test_the_order_and_the_number_of_copies_of_the_samples_do_not_matter_to_the_loss():
    said, cos, order = routing(5, 6), torch.rand(5), torch.randperm(5).repeat(3)
    copies = Routing(said.fitness[order], said.weights[order])
    close(wasserstein_loss(copies, cos[order]), wasserstein_loss(said, cos), 1e-5, 1e-6)


def test_the_loss_does_not_depend_on_how_many_answers_are_right():
    # "invariant with respect to the amount of correct and incorrect predictions": 1 : 1 or 9 : 1
    said, cos = routing(2, 4), tensor([1.0, 0.0])
    often = [0] * 9 + [1]
    close(
        wasserstein_loss(Routing(said.fitness[often], said.weights[often]), cos[often]),
        wasserstein_loss(said, cos),
        1e-5,
        1e-6,
    )


def test_a_right_answer_raises_the_selected_and_lowers_the_rest_a_wrong_one_lowers_the_selected():
    a = torch.full((2, 3), 0.5, requires_grad=True)
    b = tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    wasserstein_loss(Routing(a, b), tensor([1.0, 0.0])).backward()
    # E_p: -1 on the selected of the right one; E_h: ½ · ½ on each of its others, ½ on the selected of the wrong one
    close(a.grad, tensor([[-1.0, 0.25, 0.25], [0.0, 0.5, 0.0]]), 1e-6)


def test_positions_of_the_last_level_are_capsules_of_their_own():
    said, cos = routing(3, 2, 4, 5), torch.rand(3)
    flat = Routing(said.fitness.flatten(1), said.weights.flatten(1))
    assert torch.equal(wasserstein_loss(said, cos), wasserstein_loss(flat, cos))
    expected = wasserstein_twin(flat.fitness.tolist(), flat.weights.tolist(), cos.tolist())
    close(wasserstein_loss(said, cos), tensor(expected), 1e-4, 1e-6)


def test_a_level_of_one_capsule_has_nothing_to_choose_and_scores_zero():
    a = torch.rand(3, 1, requires_grad=True)
    loss = wasserstein_loss(Routing(a, torch.ones(3, 1)), torch.rand(3))
    loss.backward()
    assert loss == 0
    assert (a.grad == 0).all()


@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 6))
def test_wasserstein_loss_agrees_with_its_twin(seed, m, n):
    torch.manual_seed(seed)
    said, cos = routing(m, n), torch.rand(m)
    expected = wasserstein_twin(said.fitness.tolist(), said.weights.tolist(), cos.tolist())
    close(wasserstein_loss(said, cos), tensor(expected), 1e-4, 1e-6)


def test_the_gradient_on_fitness_and_weights_is_the_slope_of_the_twin(double):
    said, cos, step = routing(3, 4, dtype=torch.float64, grad=True), torch.rand(3, dtype=torch.float64), 1e-6
    wasserstein_loss(said, cos).backward()  # D6: through b as well
    a, b = said.fitness.tolist(), said.weights.tolist()
    for values, gradient in ((a, said.fitness.grad), (b, said.weights.grad)):
        for m in range(3):
            for n in range(4):
                kept = values[m][n]
                values[m][n] = kept + step
                above = wasserstein_twin(a, b, cos.tolist())
                values[m][n] = kept - step
                below = wasserstein_twin(a, b, cos.tolist())
                values[m][n] = kept
                assert gradient[m, n].item() == pytest.approx((above - below) / (2 * step), abs=1e-7)


@pytest.mark.parametrize("gap", [5.0, 20.0, 40.0, 80.0])
def test_an_almost_certainly_wrong_answer_still_scores_as_equation_12_says(gap):
    # N_p is tiny, not zero: both of its fractions are still averages over the sample
    logits, labels, said = tensor([[0.0, -gap, 0.0]]), tensor([1]), routing(1, 4)
    cos = correctness(logits, labels)
    assert cos > 0
    expected = wasserstein_twin(said.fitness.tolist(), said.weights.tolist(), cos.tolist())
    close(wasserstein_loss(said, cos), tensor(expected), 1e-4, 1e-5)


@pytest.mark.parametrize("excess", [0.0, 1.2e-7, 2.4e-7])
def test_a_correctness_a_rounding_error_above_one_does_not_blow_up_the_loss(excess):
    # an approximate square root or division (a compiled kernel) need not give p_t / ‖p‖ ≤ 1
    cos = torch.ones(4) + excess
    assert -1 <= wasserstein_loss(routing(4, 3), cos) <= 1


# The centred loss (D38)

SURE = tensor([[1e4, 0.0], [0.0, 1e4]])  # of the first class, of the second


def centred(a, b, logits=SURE, labels=(0, 0)):
    return centred_wasserstein(output(logits, Routing(a, b)), None, tensor(labels))


def test_the_centred_loss_worked_by_hand():
    # a − ā = ±0.2. The first answer is right, the second wrong: F_s = 0.1, 0; F_ns = −0.1, 0; L = 0 + ½(−0.1) − 0.1
    a, b = tensor([[0.8, 0.2], [0.4, 0.6]]), tensor([[0.75, 0.25], [0.5, 0.5]])
    close(centred(a, b), tensor(-0.15), 1e-6)


@given(st.integers(0, 99), st.integers(2, 6), st.integers(2, 5))
def test_a_critic_that_ignores_the_image_gains_nothing_by_the_centred_loss(seed, m, n):
    torch.manual_seed(seed)
    mask = torch.rand(n, requires_grad=True)
    a = mask.expand(m, n)
    logits, labels = torch.randn(m, 3), torch.randint(0, 3, (m,))
    loss = centred(a, softmax_weights(a), logits, labels.tolist())
    (slope,) = torch.autograd.grad(loss, mask)
    close(loss, tensor(0.0), atol=1e-6)
    close(slope, torch.zeros(n), atol=1e-6)
    assert wasserstein_loss(Routing(a, softmax_weights(a)), correctness(logits, labels)) < 0  # the paper's rewards it


def test_the_centred_loss_falls_when_fitness_follows_right_answers():
    b = torch.full((2, 2), 0.5)
    follows, opposes = tensor([[0.9, 0.9], [0.1, 0.1]]), tensor([[0.1, 0.1], [0.9, 0.9]])
    assert centred(follows, b) < 0 < centred(opposes, b)


@given(st.integers(0, 99), st.integers(1, 5), st.integers(1, 5))
def test_the_centred_loss_agrees_with_its_twin(seed, m, n):
    torch.manual_seed(seed)
    levels = [routing(m, n), routing(m, n, 2, 1)]
    logits, labels = torch.randn(m, 4), torch.randint(0, 4, (m,))
    cos = correctness(logits, labels).tolist()
    twins = [
        wasserstein_twin(centred_twin(r.fitness.flatten(1).tolist()), r.weights.flatten(1).tolist(), cos)
        for r in levels
    ]
    close(centred_wasserstein(output(logits, *levels), None, labels), tensor(sum(twins) / 2), 1e-4, 1e-5)


def test_on_a_centred_fitness_both_losses_agree():
    level = routing(6, 3)
    level = level._replace(fitness=level.fitness - level.fitness.mean(0))
    answer, labels = output(torch.randn(6, 3), level), torch.randint(0, 3, (6,))
    close(centred_wasserstein(answer, None, labels), wasserstein(answer, None, labels), 1e-4, 1e-6)


# D40


def told(*weights):
    return information(output(torch.zeros(len(weights[0]), 2), *(Routing(b, b) for b in weights)), None, None)


def test_the_information_of_a_level_worked_by_hand():
    # mean b = (½, ½): ln 2, less H(¾, ¼) = ¾ ln 4/3 + ¼ ln 4
    b = tensor([[0.75, 0.25], [0.25, 0.75]])
    close(told(b), tensor(0.75 * math.log(4 / 3) + 0.25 * math.log(4) - math.log(2)), 1e-6)


@pytest.mark.parametrize("n", [1, 2, 4])
def test_one_block_for_each_image_and_all_blocks_in_use_has_the_most_information(n):
    b = torch.eye(n).repeat(3, 1).requires_grad_()
    loss = told(b)
    loss.backward()
    close(loss, tensor(-math.log(n)), 1e-6, 1e-6)
    assert b.grad.isfinite().all()


@given(st.integers(0, 99), st.integers(2, 6), st.integers(2, 5))
def test_weights_that_ignore_the_image_have_no_information_and_no_gradient(seed, m, n):
    torch.manual_seed(seed)
    a = torch.rand(n, requires_grad=True)
    loss = told(softmax_weights(a.expand(m, n)))
    loss.backward()
    close(loss, tensor(0.0), atol=1e-6)
    close(a.grad, torch.zeros(n), atol=1e-6)


@given(st.integers(0, 99), st.integers(1, 5), st.integers(1, 5))
def test_the_information_term_is_the_mean_over_levels_of_its_twin_with_positions_added_up(seed, m, n):
    torch.manual_seed(seed)
    levels = [routing(m, n).weights, routing(m, n, 2, 3).weights]
    twins = [information_twin(levels[0].tolist()), information_twin(levels[1].sum((2, 3)).tolist())]
    close(told(*levels), tensor(-sum(twins) / 2), 1e-4, 1e-5)


def test_following_the_gradient_makes_weights_depend_on_the_image_and_keeps_all_blocks_in_use():
    torch.manual_seed(0)
    a = (0.1 * torch.randn(12, 3)).requires_grad_()
    for _ in range(200):
        (slope,) = torch.autograd.grad(told(softmax_weights(a)), a)
        a = (a - 5 * slope).detach().requires_grad_()
    b = softmax_weights(a)
    assert b.amax(1).min() > 0.8
    assert b.mean(0).min() > 0.15


# D43


def told_of_classes(labels, *weights):
    routings = [Routing(b, b) for b in weights]
    return class_information(output(torch.zeros(len(labels), 2), *routings), None, tensor(labels))


def test_the_information_about_the_class_worked_by_hand():
    # class 0 has the mean weights (¾, ¼), class 1 (¼, ¾), all of them (½, ½): ln 2, less H(¾, ¼) = ¾ ln 4/3 + ¼ ln 4
    b = tensor([[1.0, 0.0], [0.5, 0.5], [0.25, 0.75], [0.25, 0.75]])
    close(told_of_classes([0, 0, 1, 1], b, b), tensor(0.75 * math.log(4 / 3) + 0.25 * math.log(4) - math.log(2)), 1e-6)


@given(st.integers(0, 99), st.integers(1, 8), st.integers(1, 5))
def test_the_information_about_the_class_is_its_twin_with_positions_added_up(seed, m, n):
    torch.manual_seed(seed)
    b, labels = routing(m, n, 2, 3).weights, torch.randint(3, (m,)).tolist()
    expected = class_information_twin(b.sum((2, 3)).tolist(), labels)
    close(told_of_classes(labels, routing(m, n).weights, b, routing(m, n, 2, 3).weights), tensor(-expected), 1e-4, 1e-5)


@given(st.integers(0, 99), st.integers(1, 8), st.integers(1, 5))
def test_blocks_know_no_more_about_the_class_than_about_the_image(seed, m, n):
    torch.manual_seed(seed)
    b, labels = routing(m, n).weights, torch.randint(3, (m,)).tolist()
    assert information(output(torch.zeros(m, 2), Routing(b, b)), None, None) <= told_of_classes(labels, b) + 1e-6
    assert told_of_classes(labels, b) <= 1e-6


def test_only_the_last_feature_level_is_asked_to_specialise():
    levels = [torch.rand(4, 3).softmax(1).requires_grad_() for _ in range(3)]
    told_of_classes([0, 0, 1, 1], *levels).backward()
    assert [b.grad is not None for b in levels] == [False, True, False]


def test_half_precision_does_not_change_the_information_about_the_class():
    torch.manual_seed(0)
    b, labels = (0.25 + 0.01 * torch.randn(64, 4)).requires_grad_(), torch.randint(10, (64,)).tolist()
    exact = torch.autograd.grad(told_of_classes(labels, b), b)[0]
    with torch.autocast("cpu", torch.bfloat16):
        loss = told_of_classes(labels, b)
    close(torch.autograd.grad(loss, b)[0], exact, 1e-5)


@pytest.mark.parametrize("term", [wasserstein, centred_wasserstein, information, class_information])
def test_a_term_about_routing_says_that_a_network_has_none(term):
    with pytest.raises(InputError, match="need the routing of a WCapsNet; set them to null"):
        term(SimpleNamespace(logits=torch.zeros(2, 3)), None, tensor([0, 1]))


def test_following_its_gradient_gives_every_class_a_block():
    torch.manual_seed(0)
    labels = [0, 1, 2] * 4
    a = (0.1 * torch.randn(12, 3)).requires_grad_()
    for _ in range(300):
        b = softmax_weights(a)
        (slope,) = torch.autograd.grad(told_of_classes(labels, b, b), a)
        a = (a - 5 * slope).detach().requires_grad_()
    chosen = softmax_weights(a).argmax(1).view(4, 3)
    assert (chosen == chosen[0]).all()
    assert sorted(chosen[0].tolist()) == [0, 1, 2]


# Eq. 15


def test_the_total_worked_by_hand():
    # two outputs with logits (ln 3, ln 1), label 0:  CE = -ln ¾;  p = (¾, ¼), cos θ = 3/√10
    # one level, a = (1, 0), b = (½, ½): F_s = F_ns = ½, so L_WS = ½·½ + ½·½ - ½ = 0
    # second level, a = (1, 0), b = (1, 0): F_s = 1, F_ns = 0:  L_WS = ½ - 1
    # mean over levels (D7): L_WS = -¼
    # reconstruction 0 of an image of 2s: L_R = 4.   Total: CE + .2 · (-.25) + .1 · 4
    a = tensor([[1.0, 0.0]])
    answer = output(tensor([[math.log(3), 0.0]]), Routing(a, tensor([[0.5, 0.5]])), Routing(a, a))
    terms = objective(answer, torch.full((1, 1, 2, 2), 2.0), tensor([0]), PAPER)
    close(terms.named["cross_entropy"], tensor(-math.log(0.75)), 1e-6)
    close(terms.named["wasserstein"], tensor(-0.25), 1e-5)
    close(terms.named["reconstruction"], tensor(4.0), 1e-6)
    close(terms.total, tensor(-math.log(0.75) - 0.05 + 0.4), 1e-5)


def test_the_scaling_factors_are_those_of_the_paper():
    assert dict(PAPER) == {"cross_entropy": 1.0, "wasserstein": 0.2, "reconstruction": 0.1}


@pytest.mark.parametrize("term", ["cross_entropy", "wasserstein", "reconstruction"])
@pytest.mark.parametrize("value", [-0.1, -math.inf, math.nan, math.inf, "0.2", True])
def test_a_wrong_scaling_factor_is_refused_in_one_sentence_that_names_it(term, value):
    with pytest.raises(ValueError, match=rf"^objective\.{term} is .*\.$"):
        Objective(**{term: value})


def test_an_unknown_loss_term_is_refused_with_the_nearest_known_one():
    with pytest.raises(ValueError, match="did you mean 'wasserstein'"):
        Objective(cross_entropy=1.0, waserstein=0.2)


def test_the_names_of_earlier_versions_are_read():
    assert dict(Objective(lambda_ws=0.3, lambda_r=0.4)) == {"wasserstein": 0.3, "reconstruction": 0.4}


@pytest.mark.parametrize("term", ["cross_entropy", "wasserstein", "reconstruction"])
def test_a_scaling_factor_of_zero_leaves_its_term_out(term):
    answer, images, labels = output(torch.randn(3, 4), routing()), torch.randn(3, 1, 2, 2), tensor([0, 1, 2])
    terms = objective(answer, images, labels, Objective({**PAPER, term: 0}))
    close(terms.total, sum(PAPER[name] * value for name, value in terms.named.items() if name != term), 1e-6)
    without = objective(answer, images, labels, Objective({name: PAPER[name] for name in PAPER if name != term}))
    assert set(without.named) == set(PAPER) - {term}
    close(without.total, terms.total, 1e-6)


def test_the_wasserstein_loss_is_averaged_over_levels():
    logits, labels, images = torch.randn(3, 4), tensor([0, 1, 2]), torch.zeros(3, 1, 2, 2)
    levels = [routing(3, 4), routing(3, 2), routing(3, 2, 2, 2)]
    alone = [objective(output(logits, one), images, labels, PAPER).named["wasserstein"] for one in levels]
    together = objective(output(logits, *levels), images, labels, PAPER).named["wasserstein"]
    close(together, sum(alone) / 3, 1e-5, 1e-6)  # D7


def test_the_wasserstein_loss_takes_the_prediction_as_given():
    logits = torch.randn(3, 4, requires_grad=True)
    answer = output(logits, routing(grad=True))
    terms = objective(answer, torch.zeros(3, 1, 2, 2), tensor([0, 1, 2]), PAPER)
    assert torch.autograd.grad(terms.named["wasserstein"], logits, retain_graph=True, allow_unused=True) == (
        None,
    )  # D1
    assert torch.autograd.grad(terms.named["cross_entropy"], logits)[0].abs().sum() > 0


def test_the_objective_agrees_with_its_twin():
    logits, labels = torch.randn(4, 5), tensor([0, 3, 2, 1])
    levels = [routing(4, 5), routing(4, 3), routing(4, 2, 2, 2)]
    images, reconstruction = torch.randn(4, 2, 3, 3), torch.randn(4, 2, 3, 3)
    config = Objective(cross_entropy=1.0, wasserstein=0.7, reconstruction=0.3)
    terms = objective(output(logits, *levels, images=reconstruction), images, labels, config)
    expected = objective_twin(
        logits.tolist(),
        labels.tolist(),
        [one.fitness.flatten(1).tolist() for one in levels],
        [one.weights.flatten(1).tolist() for one in levels],
        reconstruction.tolist(),
        images.tolist(),
        config["wasserstein"],
        config["reconstruction"],
    )
    close(torch.stack([terms.total, *terms.named.values()]), tensor(expected), 1e-5, 1e-6)


CASES = {
    "all right": ([[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0]], [0, 1]),
    "all wrong": ([[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0]], [1, 0]),
    "all undecided": ([[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]], [0, 1]),
    "one right": ([[1e4, -1e4, 0.0]], [0]),
    "one wrong": ([[1e4, -1e4, 0.0]], [1]),
    "one almost right": ([[17.0, 0.0, 0.0]], [0]),
    "one almost wrong": ([[17.0, 0.0, 0.0]], [1]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("case", CASES)
def test_the_objective_and_its_gradients_are_finite_and_of_sane_size(case, n, dtype):
    rows, labels = CASES[case]
    logits = tensor(rows, dtype=dtype, requires_grad=True)
    m = len(rows)
    a = torch.rand(m, n).to(dtype).requires_grad_()
    b = torch.rand(m, n).softmax(1).to(dtype).requires_grad_()
    image = torch.randn(m, 1, 2, 2).to(dtype).requires_grad_()
    terms = objective(output(logits, Routing(a, b), images=image), torch.zeros(m, 1, 2, 2), tensor(labels), PAPER)
    terms.total.backward()
    for term in (terms.total, *terms.named.values()):
        assert term.dtype == torch.float32
        assert term.isfinite()
    assert terms.named["wasserstein"].abs() <= 1.01  # fitness and weights are in [0, 1]
    for leaf in (logits, a, image) if n == 1 else (logits, a, b, image):  # the weight of an only capsule is 1
        assert leaf.grad.isfinite().all()
        assert leaf.grad.abs().max() <= 10


def test_l2_worked_by_hand():
    # ½ (1 + 4 + 9)
    close(l2([tensor([1.0, -2.0]), tensor([[3.0]])]), tensor(7.0))


def test_the_gradient_of_l2_is_the_weight_itself_as_weight_decay_adds_it():
    w, step = torch.randn(5, dtype=torch.float64), 1e-3
    for at in range(5):
        moved = torch.zeros_like(w)
        moved[at] = step
        slope = (l2([w + moved]) - l2([w - moved])) / (2 * step)
        close(slope, w[at].float(), 1e-2, 1e-3)


# Label smoothing


def test_label_smoothing_of_probabilities_one_half_and_two_quarters_is_their_mean_surprise():
    output = SimpleNamespace(logits=torch.tensor([[0.5, 0.25, 0.25]]).log())
    smoothing = float(label_smoothing(output, None, None))
    assert smoothing == pytest.approx((math.log(2) + 2 * math.log(4)) / 3)


def test_label_smoothing_beside_the_cross_entropy_is_a_cross_entropy_with_smoothed_targets():
    output, labels = SimpleNamespace(logits=torch.randn(5, 4)), torch.tensor([0, 1, 2, 3, 1])
    weight = 0.25
    both = cross_entropy(output, None, labels) + weight * label_smoothing(output, None, labels)
    smoothed = torch.nn.functional.cross_entropy(output.logits, labels, label_smoothing=weight / (1 + weight))
    torch.testing.assert_close(both, (1 + weight) * smoothed)
