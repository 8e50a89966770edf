"""Critic, weights and weighted sum of a level by the kernels: network/critic.py and routing.py are the truth."""

import math

import pytest
import torch
from kernel_helpers import (
    Report,
    assert_drawn_apart,
    bf16,
    error,
    from_chunks,
    fused_critic,
    hidden_values,
    judged,
    one_of_five,
    probe,
    rounded,
    shaken,
    three,
    to_vectors,
)

from wcapsnet.kernels.critic import FusedRouter, routed
from wcapsnet.kernels.level import to_chunks
from wcapsnet.network.critic import BlockCritic, VectorCritic
from wcapsnet.network.routing import (
    Router,
    Routing,
    at_each_position,
    normalized_weights,
    route,
    sharpen,
    softmax_weights,
)

SEED = torch.tensor([0x123456789ABCDEF])
# images, capsules, k, height, width, critic's channels, weighting, stop_gradient, sharpness, weights per position
ROUTERS = [
    (3, 2, 16, 8, 8, 8, softmax_weights, False, 1.0, False),
    (2, 4, 8, 16, 16, 16, softmax_weights, False, 5.0, False),
    (5, 3, 24, 7, 5, 8, normalized_weights, False, 1.0, False),
    (4, 2, 40, 4, 3, 8, softmax_weights, True, 3.0, False),
    (3, 5, 8, 1, 1, 8, normalized_weights, True, 0.5, False),
    (7, 1, 8, 3, 18, 24, softmax_weights, False, 1.0, False),
    (2, 4, 48, 16, 16, 16, softmax_weights, False, 6.0, True),  # several thread blocks per image
    (3, 3, 24, 7, 5, 8, normalized_weights, False, 1.0, True),
    (4, 2, 16, 3, 4, 8, softmax_weights, True, 3.0, True),
    (2, 1, 8, 1, 3, 8, softmax_weights, False, 1.0, True),
]


def name_of(case):
    m, n, k, height, width, base, weighting, detach, sharpness, per_position = case
    words = ["stopped"] * detach + ["per-position"] * per_position
    return "-".join([f"{m}x{n}x{k}x{height}x{width}-{base}-{weighting.__name__}-{sharpness}", *words])


class Fused:
    """A router with its kernels."""

    def __init__(self, router, height, width, detach=False, dropout=0.0):
        self.size = (height, width)
        self.critic, self.spectral = fused_critic(router.critic, height, width)
        self.router = FusedRouter(router, self.critic, detach, dropout, 9)

    def __call__(self, c, training=True, seed=SEED):
        """c (m, n, position, k) in bf16 → routing, x (m, k, i, j), its sums"""
        self.spectral.forward(training)
        routing, x, sums = routed(self.router, c, training, seed)
        if self.router.per_position:
            routing = Routing(*(one.unflatten(2, self.size) for one in routing))
        return routing, from_chunks(x, *self.size), sums


def make(k, height, width, base, weighting, dropout=0.0, share=0.0, std=0.5, sharpness=1.0, per_position=False):
    critic = VectorCritic(k, base, dropout) if per_position else BlockCritic(k, height, width, base, dropout)
    return Router(shaken(critic), weighting, share, std, sharpness, per_position)


def plain(router, c, detach):
    routing = router(c)
    return routing, route(routing.weights.detach() if detach else routing.weights, c)


def play(case):
    m, n, k, height, width, base, weighting, detach, sharpness, per_position = case
    router = make(k, height, width, base, weighting, sharpness=sharpness, per_position=per_position)
    fused = Fused(router, height, width, detach)
    c = torch.zeros(m, n, height * width, k, dtype=torch.bfloat16).requires_grad_()
    fused(c)[1].float().sum().backward()
    fused(c, training=False)


@pytest.fixture(scope="module")
def compiled(emulator):
    emulator.compile_together([lambda case=case: play(case) for case in ROUTERS])


@pytest.mark.usefixtures("compiled", "guarded")
@pytest.mark.parametrize("case", ROUTERS, ids=name_of)
@one_of_five
def test_critic_and_routing_agree_with_their_modules(case):
    m, n, k, height, width, base, weighting, detach, sharpness, per_position = case
    router = make(k, height, width, base, weighting, sharpness=sharpness, per_position=per_position)
    router, truth, half = three(router)
    fused = Fused(router, height, width, detach)
    c = rounded(m, n, k, height, width)
    report = Report()

    exact = c.double().requires_grad_()
    expected, expected_x = plain(truth, exact, detach)
    dx, da, db = rounded(m, k, height, width), probe(expected.fitness), torch.randn_like(expected.weights).float()
    leaf = to_vectors(c).bfloat16().requires_grad_()
    routing, x, sums = fused(leaf)
    torch.autograd.backward([x, routing.fitness, routing.weights], [dx.bfloat16(), da, db])
    torch.autograd.backward(
        [expected_x, expected.fitness, expected.weights], [dx.double(), da, db.to(expected.weights.dtype)]
    )
    rough = c.clone().requires_grad_()
    with bf16():
        yardstick, yardstick_x = plain(half, rough, detach)
    torch.autograd.backward([yardstick_x, yardstick.fitness, yardstick.weights], [dx.to(yardstick_x.dtype), da, db])

    report.add("a", routing.fitness, expected.fitness, yardstick.fitness)
    report.add("b", routing.weights, expected.weights, yardstick.weights)
    report.add("x", x, expected_x, yardstick_x)
    report.add("dc", leaf.grad, to_vectors(exact.grad), to_vectors(rough.grad))
    report.add("Σx", sums[0], x.double().sum((0, 2, 3)), 0.0)
    report.add("Σx²", sums[1], x.double().square().sum((0, 2, 3)), 0.0)
    # What the batch norm takes away again, and what one capsule alone does not depend on, has no gradient.
    report.gradients(router, truth, half, scale=2e-3, slack=0.06)
    report.buffers(router, truth, half)
    for name, u, v in zip(
        *(list(zip(*one.critic.named_buffers(), strict=True))[i] for one, i in ((router, 0), (router, 1), (truth, 1))),
        strict=True,
    ):
        if name.endswith((".u", ".v")):
            assert error(u, v) < 1e-5, name

    for module in (router, truth, half):
        module.eval()
    before = {name: value.clone() for name, value in router.state_dict().items()}
    with torch.no_grad():
        with bf16():
            yardstick, yardstick_x = plain(half, c, detach)
        expected, expected_x = plain(truth, c.double(), detach)
        routing, x, _ = fused(leaf.detach(), training=False)
    report.add("a in evaluation", routing.fitness, expected.fitness, yardstick.fitness)
    report.add("x in evaluation", x, expected_x, yardstick_x)
    report.check()
    for name, value in router.state_dict().items():
        assert torch.equal(value, before[name]), name


# ── chance ──


@pytest.mark.usefixtures("guarded")
@pytest.mark.parametrize("per_position", [False, True])
def test_a_growing_sharpness_is_read_at_every_step_of_training(per_position):
    router = make(8, 2, 2, 8, softmax_weights, sharpness=5.0, per_position=per_position)
    fused, c = Fused(router, 2, 2), to_vectors(rounded(4, 3, 8, 2, 2)).bfloat16()

    def agrees(routing, sharpness):
        a = routing.fitness.detach() * sharpness
        expected = at_each_position(softmax_weights, a) if per_position else softmax_weights(a)
        assert error(routing.weights, expected) < 1e-5

    for share, sharpness in ((0.0, 1.0), (0.5, 3.0)):
        sharpen(router, share, c.device)
        agrees(fused(c.clone().requires_grad_())[0], sharpness)
    router.eval()
    with torch.no_grad():
        agrees(fused(c, training=False)[0], 5.0)


@pytest.fixture
def crowd(guarded):
    """64 capsules of 64 samples, their critic with neither dropout nor a hidden layer."""
    m, n, k, side = 64, 64, 8, 2
    c = to_vectors(rounded(m, n, k, side, side)).bfloat16()

    def ask(weighting=softmax_weights, seed=1, dropout=0.0, **noise):
        torch.manual_seed(7)
        fused = Fused(make(k, side, side, 8, weighting, **noise), side, side, dropout=dropout)
        leaf = c.clone().requires_grad_()
        return (*fused(leaf, seed=torch.tensor([seed])), leaf, fused)

    return ask


def applied(c, x):
    """b̃ by least squares from x = Σ_n b̃_n c_n: (m, n); needs as many values as capsules."""
    return torch.linalg.lstsq(c.double().flatten(2).mT, x.double().permute(0, 2, 3, 1).flatten(1)[..., None])[0][..., 0]


def noise_of(routing):
    """What was added to a before the softmax, in units of the largest a; most of it is zero, so the median is."""
    difference = routing.weights.double().log() - routing.fitness.double()
    difference = difference - difference.median(1, keepdim=True)[0]
    return (difference / routing.fitness.double().amax(1, keepdim=True)).detach()


def test_noise_falls_on_its_share_of_the_fitness_values_with_mean_zero_and_its_deviation(crowd):
    quiet = crowd()[0]
    assert float(noise_of(quiet).abs().max()) < 1e-5
    routing, *_ = crowd(share=0.3, std=0.5)
    assert torch.equal(routing.fitness, quiet.fitness)  # told without noise
    noise = noise_of(routing)
    hit = noise.abs() > 1e-5
    assert_drawn_apart(hit, 0.3)
    drawn = noise[hit]
    assert abs(drawn.mean()) < 4 * 0.5 / math.sqrt(len(drawn))
    assert abs(drawn.std() - 0.5) < 4 * 0.5 / math.sqrt(2 * len(drawn))
    assert abs((drawn / 0.5).pow(4).mean() - 3) < 0.8  # a normal distribution's
    torch.testing.assert_close(routing.weights.sum(1), torch.ones(64))


def test_the_same_seed_repeats_and_another_one_does_not(crowd):
    noise = {"share": 0.3, "std": 0.5, "dropout": 0.2}
    one, again, other, far = (crowd(seed=seed, **noise) for seed in (5, 5, 6, 5 + 2**40))
    assert torch.equal(one[0].weights, again[0].weights)
    assert torch.equal(one[1], again[1])
    for another in (other, far):
        assert not torch.equal(one[0].weights, another[0].weights)
        agree = ((noise_of(one[0]).abs() > 1e-5) == (noise_of(another[0]).abs() > 1e-5)).double().mean()
        assert abs(agree - (0.3**2 + 0.7**2)) < 0.04  # as chance has it


def test_evaluation_has_neither_noise_nor_dropout(emulator):
    fused = Fused(make(8, 2, 2, 8, softmax_weights, 0.5, 0.9, 3.0), 2, 2, dropout=0.5)
    fused.router.router.eval()
    c = to_vectors(rounded(4, 3, 8, 2, 2)).bfloat16()
    with torch.no_grad():
        one, two = (fused(c, training=False, seed=torch.tensor([seed])) for seed in (1, 2))
    assert torch.equal(one[0].weights, two[0].weights)
    assert torch.equal(one[1], two[1])
    torch.testing.assert_close(one[0].weights, one[0].fitness.softmax(1))


@pytest.mark.usefixtures("guarded")
@pytest.mark.parametrize("weighting", [softmax_weights, normalized_weights])
@one_of_five
def test_backward_meets_the_noise_and_the_dropout_of_forward(weighting):
    m, n, k, side, keep = 16, 12, 8, 4, 0.7
    router, truth, _ = three(make(k, side, side, 8, weighting, dropout=0.3, share=0.3, std=0.8))
    fused = Fused(router, side, side, dropout=1 - keep)
    c = rounded(m, n, k, side, side)
    leaf = to_vectors(c).bfloat16().requires_grad_()
    kept = []
    forward = fused.critic.forward

    def watching(*arguments):
        answer = forward(*arguments)
        kept.append(answer[1][0])
        return answer

    fused.critic.forward = watching
    routing, x, _ = fused(leaf)

    # What chance did, from what came out: of the critic's hidden layers, of b, of a.
    hidden = hidden_values(kept[0], fused.critic.maps, router.critic)
    masks = [(value != 0).double() / 0.7 for value in hidden]
    a_truth = judged(truth.critic, c.double().flatten(0, 1), masks).view(m, n)
    assert error(routing.fitness, a_truth) < 0.02
    share = torch.cat([(value != 0).double().flatten() for value in hidden]).mean()
    assert 0.1 < share < 0.6  # of what ReLU and dropout let through
    b = routing.weights.detach().double()
    b_applied = applied(leaf.detach(), x.detach())
    mask = (b_applied.abs() > 0.02 * b.abs()) / keep
    assert bool((b > 0.01).any())
    assert error(b_applied, b * mask) < 0.02
    with torch.no_grad():
        noisy = _noisy(routing, weighting)
    exact = c.double().requires_grad_()
    a = a_truth
    weights = weighting(a + (noisy - routing.fitness.double()).detach())
    expected = torch.einsum("mn,mnkij->mkij", weights * mask, exact)
    dx, da, db = rounded(m, k, side, side), probe(a), torch.randn(m, n)
    torch.autograd.backward([expected, a, weights], [dx.double(), da.double(), db.double()])
    torch.autograd.backward([x, routing.fitness, routing.weights], [dx.bfloat16(), da, db])
    assert error(routing.weights, weights) < 0.03
    assert error(x, expected) < 0.03
    assert error(leaf.grad, to_vectors(exact.grad)) < 0.03
    for (name, p), q in zip(router.named_parameters(), truth.parameters(), strict=True):
        if q.grad.norm() > 1e-6:
            assert error(p.grad, q.grad) < 0.08, name


@pytest.mark.usefixtures("guarded")
@one_of_five
def test_backward_meets_the_noise_and_the_dropout_of_forward_at_every_position():
    m, n, k, height, width, keep = 16, 4, 16, 5, 3, 0.7
    router, truth, _ = three(make(k, height, width, 8, softmax_weights, share=0.3, std=0.8, per_position=True))
    fused = Fused(router, height, width, dropout=1 - keep)
    c = rounded(m, n, k, height, width)
    leaf = to_vectors(c).bfloat16().requires_grad_()
    routing, x, _ = fused(leaf)

    # What chance did, from what came out: b̃ of a position solves x = Σ_n b̃_n c_n, and log b is a with its noise.
    exact = c.double().requires_grad_()
    a = truth.critic(exact)
    assert error(routing.fitness, a) < 0.02
    b = routing.weights.detach().double() * height * width
    vectors = c.double().permute(0, 3, 4, 2, 1)  # (m, i, j, k, n)
    b_applied = torch.linalg.lstsq(vectors, x.detach().double().permute(0, 2, 3, 1)[..., None])[0][..., 0].movedim(3, 1)
    kept = b_applied.abs() > 0.1 * b
    assert_drawn_apart(kept, keep)
    moved = b.log() - routing.fitness.detach().double()
    spread = moved - moved.median(1, keepdim=True)[0]
    assert 0.1 < (spread.abs() > 1e-3).double().mean() < 0.6  # noise on 3 of 10
    weights = softmax_weights((a + moved).movedim(1, 3).flatten(0, 2)).view(m, height, width, n).movedim(3, 1)
    expected = torch.einsum("mnij,mnkij->mkij", weights * kept / keep, exact)
    dx, da, db = rounded(m, k, height, width), probe(a), torch.randn(m, n, height, width)
    torch.autograd.backward([expected, a, weights / (height * width)], [dx.double(), da.double(), db.double()])
    torch.autograd.backward([x, routing.fitness, routing.weights], [dx.bfloat16(), da, db])
    assert error(b, weights) < 0.03
    assert error(x, expected) < 0.03
    assert error(leaf.grad, to_vectors(exact.grad)) < 0.03
    for (name, p), q in zip(router.named_parameters(), truth.parameters(), strict=True):
        if q.grad.norm() > 1e-6:
            assert error(p.grad, q.grad) < 0.08, name


def _noisy(routing, weighting):
    """a after noise, up to what the weights do not depend on (a constant, or for Eq. 7 what is below zero)."""
    a, b = routing.fitness.double(), routing.weights.double()
    if weighting is softmax_weights:
        difference = b.log() - a
        return b.log() - difference.median(1, keepdim=True)[0]
    ratio = b / (a + 1e-6)  # 1/Σ where there is no noise: the value that most agree on
    agreeing = ((ratio[:, :, None] / ratio[:, None, :] - 1).abs() < 1e-4).sum(2)
    assert bool((agreeing.amax(1) > 2).all())
    noisy = b / ratio.gather(1, agreeing.argmax(1, keepdim=True)) - 1e-6
    return torch.where(noisy < 1e-4, -torch.ones_like(noisy), noisy)


@pytest.mark.usefixtures("guarded")
def test_dropout_in_a_critic_keeps_its_share_and_makes_up_for_the_rest():
    m, n, k, side, keep = 32, 4, 8, 8, 0.7
    router = make(k, side, side, 16, softmax_weights, dropout=1 - keep)
    with torch.no_grad():
        for index, layer in enumerate(router.critic.layers):
            layer.bias += 10 * 100**index  # ReLU lets all of it through
    fused = Fused(router, side, side)
    c = to_vectors(rounded(m, n, k, side, side)).bfloat16().view(m * n, side * side, k)
    fused.spectral.forward(False)
    quiet, _ = _values(fused, c, training=False)
    loud, seeds = _values(fused, c, training=True), {}
    first = quiet[0]
    mask = loud[0][0] != 0
    assert_drawn_apart(mask, keep)
    assert error(loud[0][0][mask], first[mask] / keep) < 5e-3
    for seed in (1, 2):
        seeds[seed] = _values(fused, c, True, seed)[0][0] != 0
        assert torch.equal(seeds[seed], _values(fused, c, True, seed)[0][0] != 0)
    agree = (seeds[1] == seeds[2]).double().mean()
    assert abs(agree - (keep**2 + (1 - keep) ** 2)) < 0.02
    second = loud[0][1] != 0  # the next layer, with draws of its own
    assert_drawn_apart(second, keep)
    same = (mask.flatten(1)[:, : second[0].numel()] == second.flatten(1)).double().mean()
    assert abs(same - (keep**2 + (1 - keep) ** 2)) < 0.02


def _values(fused, c, training, seed=3):
    from wcapsnet.kernels.layout import SumsAt

    sums = torch.zeros(16)
    at = SumsAt(sums.data_ptr(), sums.data_ptr() + 32, 0)
    _, saved = fused.critic.forward(c, training, torch.tensor([seed]), at, None)
    return hidden_values(saved[0], fused.critic.maps, fused.critic.critic), saved


@pytest.mark.usefixtures("guarded")
def test_dropout_of_weights_keeps_its_share_and_makes_up_for_the_rest():
    m, n, k, side, keep = 400, 8, 8, 2, 0.8
    fused = Fused(make(k, side, side, 8, softmax_weights), side, side, dropout=1 - keep)
    c = to_vectors(rounded(m, n, k, side, side)).bfloat16()
    routing, x, _ = fused(c.requires_grad_())
    b, b_applied = routing.weights.detach().double(), applied(c.detach(), x.detach())
    mask = b_applied > 0.3 * b
    assert_drawn_apart(mask, keep)
    assert error(b_applied, b * mask / keep) < 0.02


@pytest.mark.usefixtures("guarded")
def test_negative_fitness_counts_as_none_in_normalized_weights():
    """Noise can push a fitness below zero; Eq. 7 needs weights that sum to one (routing.py)."""
    m, n, k, side = 64, 4, 8, 2
    fused = Fused(make(k, side, side, 8, normalized_weights, share=0.9, std=3.0), side, side)
    c = to_vectors(rounded(m, n, k, side, side)).bfloat16().requires_grad_()
    routing, x, _ = fused(c)
    assert bool((routing.weights >= 0).all())
    torch.testing.assert_close(routing.weights.sum(1), torch.ones(m))
    assert bool((routing.weights < 1e-4).any())
    x.float().sum().backward()
    assert bool(c.grad.isfinite().all())


def test_chunks_are_laid_out_as_the_modules_have_them():
    x = rounded(2, 16, 3, 4)
    assert torch.equal(from_chunks(to_chunks(x), 3, 4).float(), x)
