"""Weights exchanged for others: against hooks on the routers, which know nothing of how it is done here."""

import pytest
import torch
from explain_toys import random_images
from torch import nn

from twins import tiny
from wcapsnet import InputError, RoutingConfig, WCapsNet, parts
from wcapsnet.explanations import reroute
from wcapsnet.explanations.reroute import DRAWS, Outcome, Rerouted, _with_dropout


class Whimsical(nn.Module):
    """A critic that says something quite different of every image."""

    def __init__(self, *over):
        super().__init__()
        self.over = over

    def forward(self, c):
        return 4 * torch.sin(300 * c.mean(self.over))


def network():
    torch.manual_seed(3)
    made = WCapsNet(tiny(critic_dropout=0.0)).eval()
    made.routers[0].critic = Whimsical(2, 3, 4)  # (m, n, k, i, j) → (m, n)
    made.routers[1].critic = Whimsical(2)  # → (m, n, i, j)
    return made


@torch.no_grad()
def weights_of(net, x):
    return [routing.weights for routing in net(x).routings]


@torch.no_grad()
def answers(net, x, given):
    """By `given` weights, level → b, put in place of what the routers say."""

    def put(b):
        return lambda module, arguments, routing: routing._replace(weights=b.expand_as(routing.weights))

    hooks = [net.routers[level].register_forward_hook(put(b)) for level, b in given.items()]
    try:
        return net.class_logits(net(x)).argmax(1)
    finally:
        for hook in hooks:
            hook.remove()


@pytest.mark.parametrize("seen", [16, 17, 40])
def test_answers_by_other_weights_are_those_of_a_network_with_such_routers(seen):
    net, split, mean_of = network(), random_images(seen, 1), random_images(30, 2)
    told = []
    found = reroute(net, split, mean_of, seed=5, progress=told.append)
    assert told == {16: [16], 17: [17], 40: [16, 32, 40]}[seen]
    x, labels = split.take(slice(None))
    own = weights_of(net, x)
    order = torch.randperm(seen, generator=torch.Generator().manual_seed(5))
    parts = {16: [16], 17: [17], 40: [16, 16, 8]}[seen]  # nobody is left alone
    other = [torch.empty_like(b) for b in own]
    for part in order.split(parts):
        for b, level in zip(own, other, strict=True):
            level[part] = b[part].roll(1, 0)
    exchanged = {
        "mean": [b.mean(0) for b in weights_of(net, mean_of.take(slice(None))[0])],
        "other": other,
        "equal": [torch.full_like(b[0], 1 / b[0].numel()) for b in own],
    }
    assert found.images == seen
    agree(found, net, x, labels, exchanged)
    assert net.training is False


def agree(found, net, x, labels, exchanged):
    """`exchanged`: kind → b of every level"""
    before = answers(net, x, {})
    assert found.correct == int((before == labels).sum())
    assert list(found.by) == list(exchanged)
    for kind, weights in exchanged.items():
        given = [dict(enumerate(weights)), *({level: b} for level, b in enumerate(weights))]
        for outcome, one in zip(found.by[kind], given, strict=True):
            after = answers(net, x, one)
            was, now = before == labels, after == labels
            expected = [after != before, now & ~was, was & ~now]
            assert list(outcome) == [int(fact.sum()) for fact in expected]
    assert sum(one.changed for outcomes in found.by.values() for one in outcomes) > 0, "or nothing is tested"


def listening(**settings):
    """An untrained network whose critics are listened to"""
    torch.manual_seed(3)
    made = WCapsNet(tiny(RoutingConfig(weighting="normalized"), **settings)).eval()
    with torch.no_grad():
        for router in made.routers:
            router.critic.norm.weight.fill_(40.0)
    return made


def test_critics_that_drop_are_those_of_training_and_nothing_else_is():
    net, split = listening(critic_dropout=0.6), random_images(16, 1)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    found = reroute(net, split, random_images(5, 2), seed=5)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert list(found.by) == ["mean", "other", "equal", "dropout"]
    assert reroute(net, split, random_images(5, 2), seed=5) == found, "the seed decides what is dropped"
    assert reroute(net, split, random_images(5, 2), seed=6).by["dropout"] != found.by["dropout"]
    c = torch.randn(6, net.config.levels[-1].capsules, net.config.levels[-1].dimension, 2, 2)
    critic = net.routers[-1].critic
    dropping = _with_dropout(critic, torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert critic(c).equal(critic(c))
        assert torch.stack([dropping(c) for _ in range(20)]).std(0).max() > 0.01
    ones = dropping.drop(torch.ones(1000, 50))
    assert ones.unique().tolist() == pytest.approx([0, 2.5])
    assert float(ones.mean()) == pytest.approx(1, abs=0.03)


def test_random_weights_are_exchanged_for_equal_ones_and_other_draws():
    torch.manual_seed(3)  # an untrained network that does not give all images the same class
    net = WCapsNet(tiny(RoutingConfig(fitness="random", weighting="normalized")))
    split = random_images(40, 1)
    found = reroute(net, split, random_images(5, 2), seed=5)
    assert net.training, "left in the mode it was in"
    net.eval()
    shapes = [router.critic.drawn.shape for router in net.routers]
    exchanged = {"equal": [torch.full(shape, 1 / shape.numel()) for shape in shapes]}
    generator = torch.Generator().manual_seed(5)
    for draw in range(DRAWS):
        drawn = [torch.rand(shape, generator=generator) + 1e-6 for shape in shapes]
        exchanged[f"draw {draw + 1}"] = [a / a.sum() for a in drawn]
    agree(found, net, *split.take(slice(None)), exchanged)


def test_weights_by_critics_of_your_own_are_exchanged_like_those_of_the_papers(monkeypatch):
    def own(config, level, size, last):
        return Whimsical(2) if last else Whimsical(2, 3, 4)

    monkeypatch.setitem(parts.fitness, "whimsical", own)
    net = WCapsNet(tiny(RoutingConfig(fitness="whimsical")))
    assert list(reroute(net, random_images(9, 1), random_images(5, 2)).by) == ["mean", "other", "equal"]


@pytest.mark.parametrize(("fitness", "count", "words"), [("constant", 20, "no routing"), ("critic", 1, "two images")])
def test_what_cannot_be_exchanged_is_refused(fitness, count, words):
    with pytest.raises(InputError, match=words):
        reroute(WCapsNet(tiny(RoutingConfig(fitness=fitness))), random_images(count, 1), random_images(20, 2))


def test_no_change_is_not_certainty():
    assert Rerouted(20, 9, {}).difference(Outcome(3, 0, 0)) == (0, pytest.approx(1.96 / 22))


def test_the_summary_has_shares_and_the_difference_its_interval():
    found = Rerouted(1000, 900, {"mean": [Outcome(60, 20, 30), Outcome(4, 0, 4)]})
    mean = found.summary()["rerouted"]["mean"]
    # −10 of 1000; of the 51 that count, the variance of a sum of ±1 and 0 is 51 − 10²/1002
    margin = 1.96 * (51 - 100 / 1002) ** 0.5 / 1002
    facts = {"accuracy": 0.89, "difference": -0.01, "margin": margin, "changed": 60, "gained": 20, "lost": 30}
    assert mean["all_levels"] == pytest.approx(facts)
    (alone,) = mean["one_level"]
    assert (alone["accuracy"], alone["lost"]) == (0.896, 4)
    assert found.summary()["accuracy"] == 0.9
    assert "draws" not in found.summary()


def test_the_summary_has_mean_and_deviation_over_draws():
    alone = Outcome(9, 9, 0)
    by = {"equal": [alone] * 2, "draw 1": [Outcome(5, 2, 3), alone], "draw 2": [Outcome(9, 6, 3), alone]}
    found = Rerouted(100, 90, by)  # 89 and 93 of 100: 91 ± √(2² + 2²)
    assert found.summary()["draws"] == {"number": 2, "accuracy": 0.91, "deviation": pytest.approx(0.08**0.5 / 10)}
