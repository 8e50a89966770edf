"""How steep critics are: against constants worked out by hand, explicit matrices and finite differences."""

import json

import pytest
import torch
import torch.nn.functional as F
from explain_toys import random_images
from hypothesis import given, settings
from hypothesis import strategies as st

from twins import tiny
from wcapsnet import InputError, RoutingConfig, WCapsNet
from wcapsnet.explanations import critics, recalibrated
from wcapsnet.explanations.lipschitz import _before_norm, operator_norm
from wcapsnet.network.critic import BlockCritic, Critic, VectorCritic


def network(seed=3, gamma=30.0, **fields):
    torch.manual_seed(seed)
    made = WCapsNet(tiny(**fields)).eval()
    with torch.no_grad():
        for router in made.routers:
            router.critic.norm.weight.fill_(gamma)
            router.critic.norm.running_var.fill_(0.25)
            for layer in router.critic.layers:
                layer.bias.normal_(std=0.3)
    return made


@torch.no_grad()
def capsules(net, x):
    """c of every level"""
    return net(x).capsules


def said_by(critic, x):
    """Before the batch norm, without dropout"""
    *hidden, last = critic.layers
    for layer in hidden:
        x = F.relu(layer(x))
    return last(x)


@pytest.mark.parametrize(
    ("channels", "out", "kernel", "stride", "size"),
    [(2, 3, 3, 2, (5, 6)), (2, 3, 3, 2, (8, 8)), (1, 1, 3, 2, (2, 2)), (3, 2, 1, 1, (3, 4)), (2, 2, 3, 1, (4, 4))],
)
def test_the_norm_of_a_convolution_is_that_of_its_matrix(channels, out, kernel, stride, size):
    torch.manual_seed(0)
    w = torch.randn(out, channels, kernel, kernel, dtype=torch.float64)
    basis = torch.eye(channels * size[0] * size[1], dtype=torch.float64).unflatten(1, (channels, *size))
    matrix = F.conv2d(basis, w, None, stride, kernel // 2).flatten(1).mT
    norm = operator_norm(w, stride, kernel // 2, size)
    assert norm == pytest.approx(float(torch.linalg.matrix_norm(matrix, 2)), rel=1e-6)


def test_a_kernel_of_norm_one_can_be_a_convolution_of_norm_two():
    # Inputs of odd row and column meet the four corners of the kernel, each in another output.
    w = torch.zeros(4, 1, 3, 3)
    for out, corner in enumerate([(0, 0), (0, 2), (2, 0), (2, 2)]):
        w[out, 0][corner] = 1
    assert float(torch.linalg.matrix_norm(w.flatten(1), 2)) == 1
    assert operator_norm(w, 2, 1, (8, 8)) == pytest.approx(2, rel=1e-6)


def test_the_slope_of_a_single_convolution_is_gamma_over_sigma():
    """a = sigmoid(γ (w·c − μ)/σ) with |w| = 1: the logit is as steep as γ/σ everywhere, a as ¼ γ/σ where it is ½."""
    net = WCapsNet(tiny(critic_dropout=0.0)).eval()
    level = net.config.levels[-1]
    net.routers[-1].critic = critic = Critic([level.dimension, 1], 1, 1, 0.0).eval()
    split = random_images(6)
    with torch.no_grad():
        critic.layers[0].weight.copy_(torch.arange(1.0, level.dimension + 1).view(1, -1, 1, 1))
        for _ in range(3):
            critic.layers[0]._power_iteration()
        critic.norm.weight.fill_(-12)
        critic.norm.running_var.fill_(0.09 - critic.norm.eps)
        w = F.normalize(torch.arange(1.0, level.dimension + 1), dim=0)
        value = torch.einsum("k,mnkij->mnij", w, capsules(net, split.take(slice(None))[0])[-1])
        critic.norm.running_mean.fill_(value.flatten()[7])  # where a is ½
    one = critics(net, split).levels[-1]
    assert (one.level, one.judged) == (len(net.config.levels), value[0].numel())
    assert (*one.kernel_norms, *one.operator_norms) == pytest.approx((1, 1))
    assert (one.gamma, one.gain) == (-12, pytest.approx(40, rel=1e-5))
    assert (one.logit_bound, one.logit_slope_max, one.logit_slope_mean) == pytest.approx((40, 40, 40), rel=1e-5)
    assert (one.bound, one.slope_max) == pytest.approx((10, 10), rel=1e-5)
    a = torch.sigmoid(-40 * (value - value.flatten()[7]))
    assert one.slope_mean == pytest.approx(float((40 * a * (1 - a)).mean()), rel=1e-4)
    assert (one.low, one.high) == (float((a < 0.02).double().mean()), float((a > 0.98).double().mean()))
    assert one.always_low == float((a < 0.02).all(0).double().mean())
    assert one.always_high == float((a > 0.98).all(0).double().mean())
    expected = (float(value.mean()), float((value.var(correction=0) + critic.norm.eps).sqrt()))
    assert one.plain == one.dropping
    assert one.plain == pytest.approx(expected, rel=1e-4)
    assert one.running == pytest.approx((float(value.flatten()[7]), 0.3), rel=1e-5)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), gamma=st.floats(0.5, 100))
def test_no_slope_is_above_the_bound(seed, gamma):
    for one in critics(network(seed, gamma), random_images(8, seed)).levels:
        assert 0 <= one.slope_mean <= one.slope_max <= one.bound * (1 + 1e-5)
        assert 0 <= one.logit_slope_mean <= one.logit_slope_max <= one.logit_bound * (1 + 1e-5)
        assert one.slope_max <= one.logit_slope_max / 4 * (1 + 1e-5)


def test_a_slope_is_how_far_the_fitness_moves_along_its_gradient():
    net, split = network(gamma=3.0), random_images(1)
    found = critics(net, split)
    for one, router, c in zip(found.levels, net.routers, capsules(net, split.take(slice(None))[0]), strict=True):
        critic = router.critic.double()
        c = c.double().requires_grad_()

        def judge(c, critic=critic):  # (n, i', j')
            return said_by(critic, c[0])[:, 0]

        y = judge(c)
        slopes = []
        for place in torch.cartesian_prod(*map(torch.arange, y.shape)).tolist():
            (g,) = torch.autograd.grad(y[tuple(place)], c, retain_graph=True)
            step = 1e-5 * g / g.norm().clamp_min(1e-9)  # all ReLUs may be off
            with torch.no_grad():
                slopes.append(one.gain * float((judge(c + step) - judge(c - step))[tuple(place)] / 2e-5))
        assert one.judged == len(slopes)
        assert one.logit_slope_max == pytest.approx(max(slopes), rel=1e-3)
        assert one.logit_slope_mean == pytest.approx(sum(slopes) / len(slopes), rel=1e-3)


def test_dropout_widens_what_the_batch_norm_gets():
    found = critics(network(critic_dropout=0.6), random_images(40))
    assert critics(network(critic_dropout=0.6), random_images(40)) == found, (
        "what is dropped does not change from call to call"
    )
    for one in found.levels:
        assert one.dropping.std > 1.05 * one.plain.std
    for one in critics(network(critic_dropout=0.0), random_images(40)).levels:
        assert one.dropping == one.plain


def test_measuring_changes_nothing_and_tells_its_progress():
    net, told = network(critic_dropout=0.3).train(), []
    before = {name: value.clone() for name, value in net.state_dict().items()}
    found = critics(net, random_images(20), progress=told.append)
    assert net.training, "left in the mode it was in"
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert (told, found.images) == ([16, 20], 20)
    assert all(parameter.grad is None for parameter in net.parameters())
    one = json.loads(json.dumps(found.summary()))["levels"][0]
    assert one["running"]["std"] == found.levels[0].running.std
    assert (one["gain"], one["bound"]) == (found.levels[0].gain, found.levels[0].bound)
    with torch.no_grad():
        assert critics(net, random_images(20)) == found


@pytest.mark.parametrize(
    ("routing", "count", "words"),
    [*((name, 4, f"fitness .* is {name}") for name in ("constant", "random", "joint")), ("critic", 0, "no images")],
)
def test_what_cannot_be_measured_is_refused(routing, count, words):
    with pytest.raises(InputError, match=words):
        critics(WCapsNet(tiny(RoutingConfig(fitness=routing))), random_images(count))


# ── recalibrated ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_recalibrated_critics_have_the_mean_and_variance_of_what_they_say_of_the_random_images():
    net, split = network(critic_dropout=0.5), random_images(21)
    x, _ = split.take(slice(None))
    new = recalibrated(net, (split.take(slice(start, start + 8))[0] for start in (0, 8, 16)))
    for router, c in zip(new.routers, capsules(new, x), strict=True):  # as the new critics before it route
        with torch.no_grad():
            y = said_by(router.critic, c.flatten(0, 1)).double()
        assert float(router.critic.norm.running_mean) == pytest.approx(float(y.mean()), rel=1e-5)
        assert float(router.critic.norm.running_var) == pytest.approx(float(y.var()), rel=1e-4)
    found = critics(new, split)
    for one in found.levels:
        assert one.running == pytest.approx(one.plain, rel=0.01)


def test_recalibration_leaves_everything_else_alone():
    net = network().train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    x, _ = random_images(9).take(slice(None))
    new = recalibrated(net, [x])
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert net.training
    assert new.training
    changed = {name for name, value in new.state_dict().items() if not torch.equal(value, before[name])}
    levels, statistics = range(len(net.routers)), ("running_mean", "running_var")
    assert changed == {f"routers.{level}.critic.norm.{one}" for level in levels for one in statistics}
    last = recalibrated(net, [x], levels={len(net.routers) - 1}).state_dict()
    changed = {name for name, value in last.items() if not torch.equal(value, before[name])}
    assert changed == {f"routers.{len(net.routers) - 1}.critic.norm.{one}" for one in statistics}
    with pytest.raises(InputError, match="at least one image"):
        recalibrated(net, [])


@pytest.mark.parametrize("critic", [BlockCritic(2, 7, 5, 3, 0.3), VectorCritic(2, 3, 0.3)])
def test_the_value_before_the_norm_is_the_critics_own(critic):
    c = torch.randn(2, 3, 2, 7, 5)
    value, logit, fitness = _before_norm(critic.eval(), c)
    torch.testing.assert_close(critic.norm(value.flatten(0, 1)), logit.flatten(0, 1))
    torch.testing.assert_close(logit.sigmoid(), fitness)
    assert critic(c).flatten().equal(fitness.flatten())
    assert not critic.norm._forward_hooks
