"""The last level's prediction and best capsule by the kernels: Eq. 14 and network/decoder.py are the truth."""

import math

import pytest
import torch
from kernel_helpers import (
    Report,
    assert_drawn_apart,
    bf16,
    error,
    fused_critic,
    one_of_five,
    probe,
    rounded,
    shaken,
    three,
    to_vectors,
)
from torch import nn

from wcapsnet.kernels.head import FusedHead, predicted
from wcapsnet.network.critic import VectorCritic
from wcapsnet.network.decoder import best_capsule
from wcapsnet.network.routing import Router, normalized_weights, predict, softmax_weights

SEED = torch.tensor([-0x123456789ABCDEF])
# images, capsules, k, height, width, outputs, weighting, stop_gradient, sharpness
HEADS = [
    (4, 2, 8, 4, 4, 5, softmax_weights, False, 1.0),
    (3, 1, 24, 7, 5, 41, normalized_weights, False, 2.0),
    (5, 3, 40, 1, 2, 2, softmax_weights, True, 4.0),
    (2, 2, 16, 9, 18, 11, normalized_weights, True, 1.0),
]


def name_of(case):
    m, n, k, height, width, outputs, weighting, detach, sharpness = case
    return f"{m}x{n}x{k}x{height}x{width}-{outputs}-{weighting.__name__}-{sharpness}" + ("-stopped" if detach else "")


class Last(nn.Module):
    """A router and W, as the end of network/wcapsnet.py has them."""

    def __init__(self, k, outputs, weighting, base=8, dropout=0.0, share=0.0, std=0.5, sharpness=1.0):
        super().__init__()
        self.router = Router(shaken(VectorCritic(k, base, dropout)), weighting, share, std, sharpness)
        self.projection = nn.Parameter(torch.randn(k, outputs) * k**-0.5)

    def best(self, fitness, c):
        """By the weights without noise; the last output stands for "none of these"."""
        return best_capsule(self.router.weights(fitness.detach()), c, self.projection[:, :-1])

    def forward(self, c, detach):
        routing = self.router(c)
        with torch.autocast("cpu", enabled=False):
            b = routing.weights.detach() if detach else routing.weights
            logits = torch.einsum("mnij,mnkij,kr->mr", b.to(self.projection), c.to(self.projection), self.projection)
        return routing, logits, self.best(routing.fitness, c)


class Fused:
    def __init__(self, last, height, width, detach=False, dropout=0.0, projection_dropout=0.0):
        self.critic, self.spectral = fused_critic(last.router.critic, height, width)
        self.head = FusedHead(
            last.router, self.critic, last.projection, last.projection.shape[1] - 1, height, width, detach, dropout,
            projection_dropout, 300,
        )  # fmt: skip

    def __call__(self, c, training=True, seed=SEED):
        self.spectral.forward(training)
        return predicted(self.head, c, training, seed)


def play(case):
    m, n, k, height, width, outputs, weighting, detach, sharpness = case
    fused = Fused(Last(k, outputs, weighting, sharpness=sharpness), height, width, detach)
    c = torch.zeros(m, n, height * width, k, dtype=torch.bfloat16).requires_grad_()
    fused(c)[1].sum().backward()
    fused(c, training=False)


@pytest.fixture(scope="module")
def compiled(emulator):
    emulator.compile_together([lambda case=case: play(case) for case in HEADS])


@pytest.mark.usefixtures("compiled", "guarded")
@pytest.mark.parametrize("case", HEADS, ids=name_of)
@one_of_five
def test_prediction_and_best_capsule_agree_with_their_modules(case):
    m, n, k, height, width, outputs, weighting, detach, sharpness = case
    last, truth, half = three(Last(k, outputs, weighting, sharpness=sharpness))
    fused = Fused(last, height, width, detach)
    c = rounded(m, n, k, height, width)
    shape = (m, n, height, width)
    dlogits, dvector, db = torch.randn(m, outputs), torch.randn(m, k), torch.randn(shape)
    exact = c.double().requires_grad_()
    expected = truth(exact, detach)
    da = probe(expected[0].fitness)
    report = Report()

    def backward(routing, logits, best):
        answers = [logits, best.vector, routing.fitness, routing.weights]
        given = [d.to(y.dtype) for d, y in zip((dlogits, dvector, da, db), answers, strict=True)]
        torch.autograd.backward(answers, given)

    leaf = to_vectors(c).bfloat16().requires_grad_()
    answer = fused(leaf)
    backward(*answer)
    rough = c.clone().requires_grad_()
    with bf16():
        yardstick = half(rough, detach)
    backward(*yardstick)

    routing, logits, best = answer
    report.add("a", routing.fitness, expected[0].fitness, yardstick[0].fitness)
    report.add("b", routing.weights, expected[0].weights, yardstick[0].weights)
    report.add("logits", logits, expected[1], yardstick[1])
    # The best of its own weights; rounding may make another one the best of the truth's.
    own = last.best(routing.fitness, c)
    assert torch.equal(best.place, own.place)
    torch.testing.assert_close(best.position, own.position)
    assert torch.equal(best.vector, own.vector)
    chosen = truth_of_place(exact, best.place)
    backward(expected[0], expected[1], expected[2]._replace(vector=chosen))
    of_others = torch.ones(m, n, height * width, dtype=torch.bool)
    of_others[
        torch.arange(m), yardstick[2].place[:, 0], yardstick[2].place[:, 1] * width + yardstick[2].place[:, 2]
    ] = False
    of_others[torch.arange(m), best.place[:, 0], best.place[:, 1] * width + best.place[:, 2]] = False
    dc, dc_truth, dc_half = leaf.grad, to_vectors(exact.grad), to_vectors(rough.grad)
    report.add("dc", dc, dc_truth, 5e-3)
    report.add("dc of the others", dc[of_others], dc_truth[of_others], dc_half[of_others])
    report.gradients(last, truth, half, scale=1e-3, slack=0.06)
    report.buffers(last, truth, half)

    for module in (last, truth, half):
        module.eval()
    before = {name: value.clone() for name, value in last.state_dict().items()}
    with torch.no_grad():
        with bf16():
            yardstick = half(c, detach)
        expected = truth(c.double(), detach)
        routing, logits, best = fused(leaf.detach(), training=False)
    report.add("logits in evaluation", logits, expected[1], yardstick[1])
    assert torch.equal(best.place, last.best(routing.fitness, c).place)
    report.check()
    for name, value in last.state_dict().items():
        assert torch.equal(value, before[name]), name


def truth_of_place(c, place):
    return c[torch.arange(len(c)), place[:, 0], :, place[:, 1], place[:, 2]]


@pytest.mark.usefixtures("guarded")
@one_of_five
def test_without_gradients_of_fitness_weights_and_vector():
    """Only the logits are trained: what is not asked for is not read."""
    last, truth, half = three(Last(8, 5, softmax_weights))
    c, d = rounded(4, 2, 8, 4, 4), torch.randn(4, 5)
    leaf, exact, rough = to_vectors(c).bfloat16().requires_grad_(), c.double().requires_grad_(), c.requires_grad_()
    (Fused(last, 4, 4)(leaf)[1] * d).sum().backward()
    (truth(exact, False)[1] * d).sum().backward()
    with bf16():
        (half(rough, False)[1] * d).sum().backward()
    report = Report()
    report.add("dc", leaf.grad, to_vectors(exact.grad), to_vectors(rough.grad))
    report.gradients(last, truth, half, scale=1e-3, slack=0.06)
    report.check()


@pytest.mark.usefixtures("guarded")
def test_identical_vectors_decode_to_the_first_of_them():
    last = Last(8, 5, softmax_weights)
    c = rounded(2, 1, 8, 1, 1).expand(2, 3, 8, 8, 8).contiguous()
    _, _, best = Fused(last, 8, 8)(to_vectors(c).bfloat16())
    assert best.place.tolist() == [[0, 0, 0]] * 2
    assert best.position.tolist() == [[-1.0, -1.0]] * 2


@pytest.mark.usefixtures("guarded")
@pytest.mark.parametrize("weighting", [softmax_weights, normalized_weights])
def test_of_equally_heavy_vectors_the_one_that_adds_most_to_the_predicted_class_is_best(weighting):
    """A saturated critic gives every vector the fitness 1; whatever their order, the same vector is chosen."""
    last = Last(8, 5, weighting, share=0.5)
    with torch.no_grad():
        last.router.critic.norm.bias.fill_(60.0)
    fused, c = Fused(last, 4, 4), rounded(6, 2, 8, 4, 4)
    routing, _, best = fused(to_vectors(c).bfloat16())
    assert bool((routing.fitness == 1).all())
    predicted_class = c.mean((1, 3, 4)) @ last.projection[:, :-1]
    votes = torch.einsum("mnkij,km->mnij", c, last.projection[:, predicted_class.argmax(1)]).flatten(1)
    assert (best.place @ torch.tensor([16, 4, 1])).tolist() == votes.argmax(1).tolist()

    moved = torch.randperm(32)
    vectors = to_vectors(c).flatten(1, 2)[:, moved].view(6, 2, 16, 8)
    again = fused(vectors.bfloat16(), seed=torch.tensor([7]))[2]
    assert torch.equal(moved[again.place @ torch.tensor([16, 4, 1])], best.place @ torch.tensor([16, 4, 1]))
    assert torch.equal(again.vector, best.vector)


@pytest.mark.usefixtures("guarded")
@pytest.mark.parametrize("training", [True, False])
def test_what_is_not_a_number_stays_so_and_breaks_nothing(training):
    """A run that diverges is told by its loss (trainer.py); until then the kernels must not leave their memory."""
    last = Last(8, 5, softmax_weights).train(training)
    for p in last.parameters():
        nn.init.constant_(p, math.nan)
    c = torch.full((3, 2, 16, 8), math.nan, dtype=torch.bfloat16)
    with torch.no_grad():
        _, logits, best = Fused(last, 4, 4)(c, training)
    assert bool(logits.isnan().all())
    assert bool(((best.place >= 0) & (best.place < torch.tensor([2, 4, 4]))).all())


@pytest.mark.usefixtures("guarded")
@pytest.mark.parametrize("weighting", [softmax_weights, normalized_weights])
@one_of_five
def test_dropout_and_noise_are_the_same_forward_and_backward(weighting):
    """dc = mask_c/keep_c · b̃ · W dlogits names both masks; with them, the logits must come out as they did."""
    m, n, k, height, width, outputs, keep, keep_c = 8, 3, 16, 6, 5, 7, 0.8, 0.6
    last, truth, _ = three(Last(k, outputs, weighting, share=0.3, std=0.4))
    fused = Fused(last, height, width, dropout=1 - keep, projection_dropout=1 - keep_c)
    c = rounded(m, n, k, height, width)
    leaf = to_vectors(c).bfloat16().requires_grad_()
    routing, logits, best = fused(leaf)
    dlogits, da = torch.randn(m, outputs), 0.01 * probe(routing.fitness)  # most comes from the logits
    torch.autograd.backward([logits, routing.fitness], [dlogits, da])

    d = (last.projection @ dlogits.T).T.detach().double()[:, None, None]  # (m, 1, 1, k)
    b = routing.weights.detach().double().flatten(2)[..., None]  # (m, n, position, 1)
    ratio = leaf.grad.double() / (b * d)  # 1/(keep·keep_c) or 0, where b is not all but zero
    firm = (b > 1e-4).expand_as(ratio) & (d.abs() > 1e-3).expand_as(ratio)
    assert float((ratio[firm] * keep * keep_c - (ratio[firm] * keep * keep_c).round()).abs().max()) < 0.02
    alive = (ratio != 0) & firm
    kept_b = alive.any(3, keepdim=True)  # k values: never all dropped by chance
    assert abs(kept_b[b > 1e-4].double().mean() - keep) < 4 * math.sqrt(keep * (1 - keep) / kept_b.numel())
    assert_drawn_apart(kept_b[..., 0], keep)
    of_c = alive[kept_b.expand_as(alive) & firm].double()
    assert abs(of_c.mean() - keep_c) < 4 * math.sqrt(keep_c * (1 - keep_c) / len(of_c))

    exact = c.double().requires_grad_()
    answer = truth.router(exact)
    mask_b = kept_b.double()[..., 0].unflatten(2, (height, width)) / keep
    mask_c = (ratio != 0).double().unflatten(2, (height, width)).permute(0, 1, 4, 2, 3) / keep_c
    noisy = routing.weights.detach().double()
    expected = torch.einsum("mnij,mnkij,kr->mr", noisy * mask_b, exact * mask_c, truth.projection)
    assert error(logits, expected) < 0.01
    assert error(routing.fitness, answer.fitness) < 0.02
    assert torch.equal(best.place, last.best(routing.fitness, c).place)  # without noise and dropout

    # And the gradients of the critic: b as the kernels have it is what the noise made of a.
    a = answer.fitness
    own = routing.fitness.detach().double()
    if weighting is softmax_weights:
        noise = routing.weights.detach().double().log() - own
    else:
        ratio = (routing.weights.detach().double() / (own + 1e-6)).flatten(1)
        agreeing = ((ratio[:, :, None] / ratio[:, None, :] - 1).abs() < 1e-4).sum(2)
        scale = ratio.gather(1, agreeing.argmax(1, keepdim=True))[..., None, None]
        noisy = routing.weights.detach().double() / scale - 1e-6
        noise = torch.where(noisy < 1e-4, -10.0, noisy) - own
    weights = weighting(a + noise)
    expected = torch.einsum("mnij,mnkij,kr->mr", weights * mask_b, exact * mask_c, truth.projection)
    truth.zero_grad()
    torch.autograd.backward([expected, a], [dlogits.double(), da.to(a.dtype)])
    scale = max(float(q.grad.norm()) for q in truth.parameters())
    for (name, p), q in zip(last.named_parameters(), truth.parameters(), strict=True):
        if q.numel() > 1 and q.grad.norm() > 1e-4 * scale:
            assert error(p.grad, q.grad) < 0.2, name


@pytest.mark.usefixtures("guarded")
def test_the_same_seed_repeats_and_another_one_does_not():
    last = Last(8, 5, softmax_weights, dropout=0.3, share=0.3)
    fused = Fused(last, 4, 4, dropout=0.2, projection_dropout=0.3)
    c = to_vectors(rounded(4, 2, 8, 4, 4)).bfloat16()
    fused.spectral.forward(False)
    one, again, other = (predicted(fused.head, c, True, torch.tensor([seed]))[1] for seed in (5, 5, 6))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_the_truth_of_these_tests_is_the_networks():
    last = Last(8, 5, softmax_weights)
    c = torch.randn(2, 3, 8, 4, 4)
    routing, logits, _ = last(c, False)
    torch.testing.assert_close(logits, predict(routing.weights, c, last.projection))
