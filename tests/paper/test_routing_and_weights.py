"""Sections III-C to III-F: fitness → weights (Eq. 6, 7), noise, routing (Eq. 13), prediction (Eq. 14)."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from twins import QUIET, close, normalized_twin, predict_twin, route_twin, softmax_twin, tiny
from wcapsnet.errors import InputError
from wcapsnet.network import Routing, RoutingConfig, WCapsNet
from wcapsnet.network.routing import (
    Router,
    add_noise,
    at_each_position,
    block_weights,
    kept,
    normalized_weights,
    predict,
    route,
    sharpen,
    softmax_weights,
    winners,
)
from wcapsnet.parts import weighting as weightings

both = pytest.mark.parametrize("weighting", weightings.values(), ids=weightings)


@st.composite
def fitnesses(draw, least=-1.0):
    """(m, n) of a feature level or (m, n, i, j) of the last; below zero only where noise may have put it"""
    shape = draw(st.sampled_from([(1, 1), (3, 1), (1, 4), (3, 5), (2, 2, 1, 1), (2, 3, 2, 3), (1, 1, 4, 4)]))
    values = draw(st.lists(st.floats(least, 1.5, width=32), min_size=math.prod(shape), max_size=math.prod(shape)))
    return torch.tensor(values).view(shape)


# Eq. 6 and 7


def test_softmax_weights_worked_by_hand():
    # a = (0, ln 3): e^a = (1, 3)
    close(softmax_weights(torch.tensor([[0.0, math.log(3)]])), torch.tensor([[0.25, 0.75]]), 1e-6)


def test_normalized_weights_worked_by_hand():
    # a = (.2, .6) sums to .8
    close(normalized_weights(torch.tensor([[0.2, 0.6]])), torch.tensor([[0.25, 0.75]]), 1e-5)


def test_in_the_last_level_the_softmax_runs_over_capsules_and_positions_worked_by_hand():
    # ñ = n × i × j:  e^a = 1, 2 for the first capsule, 3, 4 for the second; the sum is 10
    a = torch.tensor([[[[1.0, 2.0]], [[3.0, 4.0]]]]).log()
    close(softmax_weights(a), torch.tensor([[[[0.1, 0.2]], [[0.3, 0.4]]]]), 1e-6)


@both
@given(a=fitnesses())
def test_weights_sum_to_one_and_none_is_negative(weighting, a):
    b = weighting(a)
    assert b.shape == a.shape
    assert (b >= 0).all()
    close(b.flatten(1).sum(1), torch.ones(len(a)), 1e-5)


@both
@given(a=fitnesses(least=0.0))
def test_a_fitter_capsule_never_weighs_less(weighting, a):
    a, b = a.flatten(1), weighting(a).flatten(1)
    fitter = a[:, :, None] > a[:, None, :]
    assert (b[:, :, None] >= b[:, None, :])[fitter].all()


@both
def test_the_order_of_capsules_does_not_matter_to_the_weights(weighting):
    a, order = torch.rand(4, 6), torch.randperm(6)
    close(weighting(a[:, order]), weighting(a)[:, order], 1e-6)


@both
def test_one_sample_does_not_change_the_weights_of_another(weighting):
    a = torch.rand(4, 6)
    close(weighting(a)[2:3], weighting(a[2:3]), 1e-6)


@both
@pytest.mark.parametrize("value", [0.0, -1.0])
def test_where_no_capsule_is_fit_all_weigh_the_same_and_the_gradient_is_finite(weighting, value):
    a = torch.full((2, 4), value, requires_grad=True)
    b = weighting(a)
    (b * torch.randn(2, 4)).sum().backward()
    close(b, torch.full((2, 4), 0.25), 1e-6)
    assert a.grad.isfinite().all()


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 2, 2)])
def test_softmax_weights_agree_with_their_twin(shape):
    a = torch.rand(shape, dtype=torch.float64, requires_grad=True)
    probe = torch.randn(shape, dtype=torch.float64)
    b, expected = softmax_weights(a), softmax_twin(a)
    close(b, expected)
    close(torch.autograd.grad((b * probe).sum(), a)[0], torch.autograd.grad((expected * probe).sum(), a)[0])


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 2, 2)])
def test_normalized_weights_agree_with_their_twin_up_to_the_guard_against_zero(shape):
    a = torch.rand(shape, dtype=torch.float64).add(0.2).requires_grad_()
    probe = torch.randn(shape, dtype=torch.float64)
    b, expected = normalized_weights(a), normalized_twin(a)
    close(b, expected, 1e-4, 1e-5)
    close(
        torch.autograd.grad((b * probe).sum(), a)[0],
        torch.autograd.grad((expected * probe).sum(), a)[0],
        1e-4,
        1e-5,
    )


# Noise (III-F, D8)


def test_noise_touches_five_percent_of_the_values():
    a, share = torch.full((400, 1000), 0.5), 0.05
    touched = (add_noise(a, share, 0.5) != a).sum().item()
    spread = math.sqrt(a.numel() * share * (1 - share))
    assert abs(touched - a.numel() * share) < 5 * spread


def test_noise_has_the_standard_deviation_times_the_largest_fitness_of_its_sample():
    a = torch.rand(4, 100_000) * torch.tensor([[0.1], [0.4], [0.7], [1.0]])
    noise = add_noise(a, 1.0, 0.5) - a
    expected = 0.5 * a.amax(1)
    # the spread of a standard deviation measured from n normal values is σ / √(2n), of their mean σ / √n
    assert ((noise.std(1) - expected).abs() < 5 * expected / math.sqrt(200_000)).all()
    assert (noise.mean(1).abs() < 5 * expected / math.sqrt(100_000)).all()


def test_in_the_last_level_the_largest_fitness_is_over_capsules_and_positions():
    a = torch.zeros(1, 2, 300, 300)
    a[0, 1, 0, 0] = 1.0
    noise = (add_noise(a, 1.0, 0.5) - a)[0, 0]  # the first capsule's own largest fitness is 0
    assert abs(noise.std().item() - 0.5) < 5 * 0.5 / math.sqrt(180_000)


def test_a_fitness_moves_through_noise_with_gradient_one():
    a = torch.rand(3, 5, requires_grad=True)
    add_noise(a, 1.0, 0.5).sum().backward()
    close(a.grad, torch.ones(3, 5))


class Says(nn.Module):
    """A critic that always says the same."""

    def __init__(self, a):
        super().__init__()
        self.a = a

    def forward(self, c):
        return self.a


@both
def test_the_router_reports_clean_fitness_and_noisy_weights_in_training_only(weighting):
    a = torch.rand(50, 8)
    router = Router(Says(a), weighting, noise_share=1.0, noise_std=0.5)
    training, evaluated = router(torch.zeros(1)), router.eval()(torch.zeros(1))
    assert isinstance(training, Routing)
    assert torch.equal(training.fitness, a)
    assert torch.equal(evaluated.fitness, a)
    assert torch.equal(evaluated.weights, weighting(a))
    assert (training.weights != evaluated.weights).any(1).all()
    close(training.weights.sum(1), torch.ones(50), 1e-5)


def test_without_noise_training_weights_are_the_clean_ones():
    a = torch.rand(5, 8)
    assert torch.equal(Router(Says(a), softmax_weights, 0.0, 0.5)(a).weights, softmax_weights(a))


@pytest.mark.parametrize(("share", "sharpness"), [(0.0, 1.0), (0.5, 3.0), (1.0, 5.0)])
def test_a_sharpness_of_5_that_has_grown_by_half_is_3_in_training_and_5_in_evaluation(share, sharpness):
    a = torch.rand(3, 4)
    router = Router(Says(a), softmax_weights, 0.0, 0.5, sharpness=5.0)
    sharpen(router, share, a.device)
    close(router(a).weights, softmax_weights(sharpness * a), 1e-6)
    close(router.eval()(a).weights, softmax_weights(5 * a), 1e-6)


@pytest.mark.parametrize("weighting", [softmax_weights, normalized_weights])
def test_the_router_weighs_the_fitness_times_the_sharpness(weighting):
    a = torch.rand(3, 4)
    routing = Router(Says(a), weighting, 0.0, 0.5, sharpness=6.0)(a)
    assert torch.equal(routing.fitness, a)
    close(routing.weights, weighting(6 * a), 1e-6)


def test_the_sharpness_of_every_level_grows_to_its_own_value():
    network = WCapsNet(tiny(routing=RoutingConfig(sharpness=tuple(range(1, len(tiny().levels) + 1)))))
    for share in (0.0, 0.5):
        network.sharpen(share)
    assert [float(router.growing) for router in network.routers] == [1 + n / 2 for n in range(len(tiny().levels))]


class Temperature(nn.Module):
    """b = softmax(a / T_n), one learned T for each capsule"""

    def __init__(self, shape):
        super().__init__()
        self.log = nn.Parameter(torch.zeros(shape))

    def forward(self, a):
        return (a * (-self.log).exp()).flatten(1).softmax(1).view_as(a)


@pytest.mark.parametrize("per_position", [False, True])
def test_a_weighting_with_parameters_is_a_module_that_every_level_has_and_trains(monkeypatch, per_position):
    monkeypatch.setitem(weightings, "temperature", Temperature)
    config = tiny(routing=RoutingConfig(weighting="temperature", per_position=per_position))
    network = WCapsNet(config)
    network(torch.randn(4, config.channels, config.height, config.width)).logits.logsumexp(1).sum().backward()
    learned = [router.weighting.log for router in network.routers]
    *feature_levels, last = zip(config.levels, config.maps(), strict=True)
    shapes = [(level.capsules,) for level, _ in feature_levels]
    assert [tuple(log.shape) for log in learned] == [*shapes, (last[0].capsules, *last[1])]
    assert all(log.grad.abs().sum() > 0 for log in learned)
    assert set(map(id, learned)) <= set(map(id, network.parameters()))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [(lambda a: a.softmax(1), "sum to 20 for"), (lambda a: a.flatten(1).softmax(1), r"into \(2, 60\); keep")],
)
def test_a_weighting_whose_weights_do_not_sum_to_one_is_refused(monkeypatch, wrong, said):
    monkeypatch.setitem(weightings, "wrong", wrong)
    drawn = torch.random.get_rng_state()
    with pytest.raises(InputError, match=rf"model\.routing\.weighting is 'wrong', but .*{said}"):
        tiny(routing=RoutingConfig(weighting="wrong"))
    assert torch.equal(drawn, torch.random.get_rng_state())


def test_sharpness_is_one_number_for_all_levels_or_one_for_each():
    def sharpness(*values):
        return [router.sharpness for router in WCapsNet(tiny(routing=RoutingConfig(sharpness=values))).routers]

    levels = len(tiny().levels)
    assert sharpness(3.0) == [3.0] * levels
    assert sharpness(*range(1, levels + 1)) == list(range(1, levels + 1))
    for wrong in ((1.0,) * (levels + 1), (0.0,), (math.inf,), ("2",), ()):
        with pytest.raises(InputError, match=r"routing\.sharpness"):
            sharpness(*wrong)


def test_the_network_of_the_paper_adds_noise_of_half_the_largest_to_five_percent():
    routers = WCapsNet(tiny()).routers
    assert [(router.noise_share, router.noise_std) for router in routers] == [(0.05, 0.5)] * 2


# Dropout of b and before W (III-F)


def share_of_zeros(x):
    return (x == 0).double().mean().item()


def test_dropout_of_a_tenth_falls_on_b_in_training_only():
    network = WCapsNet(tiny())
    b = torch.full((100_000, 4), 0.25)
    applied = network.applied(b)
    assert abs(share_of_zeros(applied) - 0.1) < 5 * math.sqrt(0.1 * 0.9 / b.numel())
    close(applied[applied != 0].unique(), torch.tensor([0.25 / 0.9]), 1e-6)
    assert torch.equal(network.eval().applied(b), b)


def test_the_weights_in_the_answer_are_those_before_dropout():
    network = WCapsNet(tiny(RoutingConfig(dropout=0.9)))
    for routing in network(torch.randn(6, 2, 8, 8)).routings:  # D2
        close(routing.weights.flatten(1).sum(1), torch.ones(6), 1e-5)


def captured(monkeypatch, network, images):
    """What `predict` was handed."""
    from wcapsnet.network import wcapsnet as module

    seen = []
    monkeypatch.setattr(module, "predict", lambda *given: seen.append(given) or predict(*given))
    network(images)
    return seen[0]


def test_dropout_of_three_tenths_falls_on_the_vectors_before_the_projection(monkeypatch):
    network = WCapsNet(tiny())
    _, c, _ = captured(monkeypatch, network, torch.randn(100, 2, 8, 8))
    assert abs(share_of_zeros(c) - 0.3) < 5 * math.sqrt(0.3 * 0.7 / c.numel())
    _, c, _ = captured(monkeypatch, network.eval(), torch.randn(10, 2, 8, 8))
    assert share_of_zeros(c) == 0


def test_the_decoder_is_handed_the_best_vector_as_it_was_before_dropout():
    best = WCapsNet(tiny(projection_dropout=0.9))(torch.randn(20, 2, 8, 8)).best
    assert share_of_zeros(best.vector) == 0


# Eq. 13


def test_routing_worked_by_hand():
    # ¼ · (1, 2) + ¾ · (5, -2)
    c = torch.tensor([[1.0, 2.0], [5.0, -2.0]]).view(1, 2, 2, 1, 1)
    close(route(torch.tensor([[0.25, 0.75]]), c).flatten(), torch.tensor([4.0, -1.0]), 1e-6)


def test_one_hot_weights_select_one_capsule():
    c = torch.randn(2, 3, 4, 5, 6)
    b = torch.eye(3)[[2, 0]]
    assert torch.equal(route(b, c), torch.stack([c[0, 2], c[1, 0]]))


def test_the_order_of_capsules_does_not_matter_to_the_routing():
    b, c, order = torch.rand(2, 5), torch.randn(2, 5, 3, 2, 2), torch.randperm(5)
    close(route(b[:, order], c[:, order]), route(b, c), 1e-5, 1e-6)


def test_capsules_that_agree_are_routed_unchanged():
    one = torch.randn(2, 1, 3, 4, 4)
    close(route(softmax_weights(torch.rand(2, 6)), one.expand(-1, 6, -1, -1, -1)), one[:, 0], 1e-5, 1e-6)


def test_routing_agrees_with_its_twin():
    b = torch.rand(3, 4, dtype=torch.float64, requires_grad=True)
    c = torch.randn(3, 4, 2, 3, 5, dtype=torch.float64, requires_grad=True)
    probe = torch.randn(3, 2, 3, 5, dtype=torch.float64)
    x, expected = route(b, c), route_twin(b, c)
    close(x, expected)
    for one, other in zip(
        torch.autograd.grad((x * probe).sum(), (b, c)),
        torch.autograd.grad((expected * probe).sum(), (b, c)),
        strict=True,
    ):
        close(one, other)


def test_weights_in_float32_route_capsules_of_half_precision():
    assert route(torch.rand(2, 3), torch.randn(2, 3, 4, 2, 2, dtype=torch.bfloat16)).dtype == torch.bfloat16


# Eq. 14


def test_prediction_worked_by_hand():
    # two vectors (1, 2) and (3, -1), weights ¼ and ¾, W = [[1, 0, 2], [0, 1, 1]]
    # projected: (1, 2, 4) and (3, -1, 5);  p = ¼ (1, 2, 4) + ¾ (3, -1, 5)
    c = torch.tensor([[1.0, 2.0], [3.0, -1.0]]).view(1, 2, 2, 1, 1)
    b = torch.tensor([0.25, 0.75]).view(1, 2, 1, 1)
    w = torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, 1.0]])
    close(predict(b, c, w), torch.tensor([[2.5, -0.25, 4.75]]), 1e-6)


def test_a_one_hot_weight_predicts_from_one_vector():
    c, w = torch.randn(1, 2, 3, 2, 4), torch.randn(3, 5)
    b = torch.zeros(1, 2, 2, 4)
    b[0, 1, 1, 2] = 1
    close(predict(b, c, w)[0], c[0, 1, :, 1, 2] @ w, 1e-5, 1e-6)


def test_projecting_the_routed_vector_is_routing_the_projected_ones():
    b, c, w = torch.rand(2, 3, 1, 1), torch.randn(2, 3, 4, 1, 1), torch.randn(4, 5)
    close(predict(b, c, w), route(b.flatten(1), c).flatten(1) @ w, 1e-5, 1e-6)


def test_prediction_agrees_with_its_twin(double):
    b = torch.rand(2, 2, 2, 3, dtype=torch.float64, requires_grad=True)
    c = torch.randn(2, 2, 4, 2, 3, dtype=torch.float64, requires_grad=True)
    w = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    probe = torch.randn(2, 3, dtype=torch.float64)
    p, expected = predict(b, c, w), predict_twin(b, c, w)
    close(p, expected)
    for one, other in zip(
        torch.autograd.grad((p * probe).sum(), (b, c, w)),
        torch.autograd.grad((expected * probe).sum(), (b, c, w)),
        strict=True,
    ):
        close(one, other)


def test_a_quiet_routing_has_no_chance_in_it():
    assert (QUIET.noise_share, QUIET.dropout) == (0, 0)


# Winners (D31)


def test_blocks_within_one_percent_of_the_heaviest_win_and_positions_of_the_last_level_add_up():
    first = torch.tensor([0.2, 0.397, 0.4, 0.003])
    last = torch.tensor([[[0.1, 0.2]], [[0.35, 0.35]]])  # blocks of weight 0.3 and 0.7
    assert winners([first, last]) == ((1, 2), (1,))


# Weights per position (D39)


def test_weights_per_position_worked_by_hand():
    # two blocks on a 1×2 map: a = (0, ln 3) at the first position, (0, 0) at the second; each position has 1/2 to share
    a = torch.tensor([[[[0.0, 0.0]], [[math.log(3), 0.0]]]])
    b = at_each_position(softmax_weights, a)
    close(b, torch.tensor([[[[1 / 8, 1 / 4]], [[3 / 8, 1 / 4]]]]), 1e-6)
    close(block_weights(b), torch.tensor([[3 / 8, 5 / 8]]), 1e-6)
    c = torch.tensor([8.0, 4.0]).view(1, 2, 1, 1, 1).expand(1, 2, 1, 1, 2)
    close(route(b, c), torch.tensor([[[[5.0, 6.0]]]]), 1e-6)  # ¼·8 + ¾·4, ½·8 + ½·4


@both
def test_every_position_is_routed_as_an_image_of_its_own(weighting):
    a, c = torch.rand(2, 3, 2, 4), torch.randn(2, 3, 5, 2, 4)
    b = at_each_position(weighting, a)
    close(b.flatten(1).sum(1), torch.ones(2), 1e-6)
    routed = route(b, c)
    for i in range(2):
        for j in range(4):
            here = route_twin(weighting(a[:, :, i, j]), c[:, :, :, i : i + 1, j : j + 1])
            close(routed[:, :, i : i + 1, j : j + 1], here, 1e-5, 1e-6)


@both
def test_the_same_fitness_everywhere_routes_as_one_weight_per_block(weighting):
    a, c = torch.rand(2, 3), torch.randn(2, 3, 5, 2, 4)
    everywhere = at_each_position(weighting, a[..., None, None].expand(-1, -1, 2, 4))
    close(route(everywhere, c), route(weighting(a), c), 1e-5, 1e-6)
    close(block_weights(everywhere), weighting(a), 1e-6)


def test_a_block_switched_off_leaves_its_share_to_the_others_at_every_position():
    b = at_each_position(softmax_weights, torch.randn(2, 3, 2, 2))
    left = kept(b, torch.tensor([True, False, True]), per_position=True)
    assert (left[:, 1] == 0).all()
    close(left.sum(1), torch.full((2, 2, 2), 0.25), 1e-6)
    close(left[:, 0] / left[:, 2], b[:, 0] / b[:, 2], 1e-5)


@pytest.mark.parametrize("fitness", ["critic", "joint", "random", "constant"])
def test_a_network_with_weights_per_position_trains_its_critics_at_every_position(fitness):
    network = WCapsNet(tiny(RoutingConfig(per_position=True, fitness=fitness)))
    output = network(torch.randn(4, 2, 8, 8))
    assert output.routings[0].weights.shape == (4, 3, 4, 4)
    output.logits.square().sum().backward()
    trained = [p.grad is not None and bool((p.grad != 0).any()) for p in network.routers.parameters()]
    assert all(trained)
    assert len(trained) > 0 or fitness in ("random", "constant")


def test_a_configuration_can_be_made_where_tensors_have_no_values(monkeypatch):
    class Own(Temperature): ...  # not tried before

    monkeypatch.setitem(weightings, "temperature", Own)
    with torch.device("meta"):
        tiny(routing=RoutingConfig(weighting="temperature"))
