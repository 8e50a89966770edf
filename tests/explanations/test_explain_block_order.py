"""Blocks have no order: a network whose blocks change places says the same, with the blocks' numbers exchanged."""

import copy

import pytest
import torch
from explain_toys import split_of

from twins import close, tiny
from wcapsnet import Level, RoutingConfig, WCapsNet
from wcapsnet.explanations import explain_capsule, explain_images, specialization, survey
from wcapsnet.network.critic import Critic, JointCritic, RandomFitness
from wcapsnet.network.per_capsule import BatchNorm, PerCapsuleConv2d
from wcapsnet.training.evaluate import evaluate, listed_winners

LEVELS = (Level(5, 2, 4, 2), Level(4, 2, 3, 1), Level(3, 2, 3, 1))
ORDERS = ([3, 0, 4, 2, 1], [2, 3, 1, 0], [1, 2, 0])  # block n of the second network is block order[n] of the first
STEEP = 200.0  # what the last factor of a critic is multiplied by, so that its fitness saturates


def saturated(routing):
    torch.manual_seed(0)
    network = WCapsNet(tiny(routing, levels=LEVELS, height=12, width=12))
    for _ in range(5):
        network(torch.randn(16, 2, 12, 12))  # running statistics
    with torch.no_grad():
        for router in network.routers:
            if isinstance(router.critic, Critic):
                router.critic.norm.weight.mul_(STEEP)
            elif isinstance(router.critic, JointCritic):
                router.critic.last.weight.mul_(STEEP)
    return network.eval()


@torch.no_grad()
def reordered(network):
    other = copy.deepcopy(network)
    for blocks, router, order in zip(other.capsules, other.routers, ORDERS, strict=True):
        for part in blocks.modules():
            if isinstance(part, PerCapsuleConv2d):
                part.weight.copy_(part.weight[order])
            elif isinstance(part, BatchNorm) and len(part.shape) == 2:
                for values in (part.weight, part.bias, part.running_mean, part.running_var):
                    values.copy_(values[order].clone())
        if isinstance(router.critic, RandomFitness):
            router.critic.drawn.copy_(router.critic.drawn[order].clone())
        elif isinstance(router.critic, JointCritic):
            for layer in filter(None, (router.critic.whole, router.critic.local)):
                of_blocks = layer[0].weight.unflatten(1, (len(order), -1))
                layer[0].weight.copy_(of_blocks[:, order].flatten(1, 2))
            for values in (router.critic.last.weight, router.critic.last.bias):
                values.copy_(values[order].clone())
    return other


def as_before(numbers, level):
    """Blocks of the second network by their numbers in the first"""
    return sorted(ORDERS[level][n] for n in numbers)


@pytest.fixture(
    scope="module",
    params=[
        *(("critic", "softmax"), ("critic", "normalized"), ("joint", "softmax")),
        *(("constant", "softmax"), ("random", "softmax")),
    ],
    ids="-".join,
)
def pair(request):
    fitness, weighting = request.param
    first = saturated(RoutingConfig(fitness=fitness, weighting=weighting))
    return first, reordered(first)


@pytest.fixture(scope="module")
def split():
    torch.manual_seed(1)
    return split_of(torch.rand(60, 2, 12, 12) * 2 - 1, (torch.arange(60) % 3).tolist())


def test_the_networks_to_compare_have_ties(pair, split):
    seen = survey(pair[0], split)
    if pair[0].config.routing.fitness != "random":
        assert (seen.tied > 1).double().mean() > 0.5
        assert any((wins.sum(1) > 1).any() for wins in seen.winners)


def test_the_winners_of_a_split_follow_their_blocks(pair, split):
    first, second = (evaluate(network, split) for network in pair)
    assert torch.equal(first.predicted, second.predicted)
    for level, order in enumerate(ORDERS):
        assert torch.equal(second.winners[level], first.winners[level][:, order])
        cells = [listed_winners(one.winners[level]) for one in (first, second)]
        for mine, theirs in zip(*cells, strict=True):
            assert list(map(int, mine.split())) == as_before(map(int, theirs.split()), level)


def test_the_explanation_of_an_image_follows_its_blocks(pair, split):
    images, _ = split.take(slice(0, 20))
    for mine, theirs in zip(*(explain_images(network, images) for network in pair), strict=True):
        one, other = mine.summary("abc"), theirs.summary("abc")
        assert one["class"] == other["class"]
        for level in range(3):
            assert one["levels"][level]["winners"] == as_before(other["levels"][level]["winners"], level)
        places = sorted([ORDERS[2][n], i, j] for n, i, j in other["tied"]["places"])
        assert one["tied"] == {"count": len(places), "places": places}
        n, i, j = theirs.place
        assert mine.place == (ORDERS[2][n], i, j)
        close(mine.vector, theirs.vector, 1e-4, 1e-5)
        close(mine.reconstruction, theirs.reconstruction, 1e-3, 1e-4)


def test_specialisation_does_not_depend_on_the_order_of_blocks(pair, split):
    first, second = (survey(network, split) for network in pair)
    assert torch.equal(first.tied, second.tied)
    found, turned = specialization(first), specialization(second)
    assert [(one.before, one.after) for one in found.steps] == [(one.before, one.after) for one in turned.steps]
    assert found.trend == turned.trend
    for mine, theirs, order in zip(found.levels, turned.levels, ORDERS, strict=True):
        one, other = mine.summary(), theirs.summary()
        for name in ("usage", "chosen_overall"):
            assert other[name] == pytest.approx([one[name][n] for n in order], abs=1e-5)
        for name in ("mean", "chosen"):
            for row, turned_row in zip(one[name], other[name], strict=True):
                assert turned_row == pytest.approx([row[n] for n in order], abs=1e-5)
        for name, value in one.items():
            if isinstance(value, float):
                assert other[name] == pytest.approx(value, abs=1e-4), name


def test_a_block_keeps_its_wins_its_classes_and_its_favourites(pair, split):
    first, second = (survey(network, split) for network in pair)
    found, turned = specialization(first), specialization(second)
    for level, order in enumerate(ORDERS):
        for n, before in enumerate(order):
            mine, theirs = explain_capsule(first, found, level, before), explain_capsule(second, turned, level, n)
            for name in ("wins", "decoded", "equal", "classes"):
                assert getattr(mine, name) == getattr(theirs, name)
            close(mine.weights.sort().values, theirs.weights.sort().values, 1e-4, 1e-5)
