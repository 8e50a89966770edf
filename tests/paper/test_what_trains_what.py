"""Sections III-F, IV-B, IV-C and Table IV: what each loss may move, and the five ways to route."""

import pytest
import torch

from twins import close, tiny
from wcapsnet.network import Level, RoutingConfig, WCapsNet
from wcapsnet.objective import PAPER, Objective, objective

TABLE_IV = {
    "WS+CE": (RoutingConfig(), 0.2),
    "WS": (RoutingConfig(stop_gradient=True), 0.2),
    "CE": (RoutingConfig(), 0.0),
    "Random": (RoutingConfig(fitness="random", weighting="normalized", noise_share=0.0), 0.0),
    "Uniform": (RoutingConfig(fitness="constant", noise_share=0.0), 0.0),
}
# three levels: a feature level before, between and after
LEVELS = (Level(3, 2, 4, 2), Level(3, 2, 4, 1), Level(2, 2, 3, 1))


def moved(term, routing=None, wasserstein=0.2):
    """The parts of the network that a loss term leaves a gradient on."""
    network = WCapsNet(tiny(routing, levels=LEVELS))
    images, labels = torch.randn(6, 2, 8, 8), torch.arange(6) % 3
    terms = objective(network(images), images, labels, Objective({**PAPER, "wasserstein": wasserstein}))
    (terms.total if term == "total" else terms.named[term]).backward()
    names = {name for name, p in network.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    return {part(name) for name in names}, names, network


def part(name):
    """init_conv, capsules.0, routers.0, projection, decoder"""
    first, second, *_ = [*name.split("."), ""]
    return f"{first}.{second}" if first in ("capsules", "routers") else first


CRITICS = {"routers.0", "routers.1", "routers.2"}
CAPSULES = {"capsules.0", "capsules.1", "capsules.2"}


@pytest.mark.parametrize("stop_gradient", [False, True])
def test_the_wasserstein_loss_moves_the_critics_alone_and_all_of_them(stop_gradient):
    parts, names, network = moved("wasserstein", RoutingConfig(stop_gradient=stop_gradient))
    assert parts == CRITICS
    kernels = {name for name, p in network.named_parameters() if name.startswith("routers") and p.dim() == 4}
    assert kernels <= names


def test_the_cross_entropy_moves_everything_but_the_decoder():
    parts, _, _ = moved("cross_entropy")
    assert parts == {"init_conv", "projection"} | CAPSULES | CRITICS


def test_with_stopped_gradient_the_cross_entropy_does_not_reach_the_critics():
    parts, _, _ = moved("cross_entropy", RoutingConfig(stop_gradient=True))
    assert parts == {"init_conv", "projection"} | CAPSULES


def test_with_stopped_gradient_the_reconstruction_does_not_reach_the_critics_either():
    parts, _, _ = moved("reconstruction", RoutingConfig(stop_gradient=True))
    assert parts == {"init_conv", "decoder"} | CAPSULES


def test_the_reconstruction_reaches_the_first_convolution_and_not_the_projection():
    parts, _, _ = moved("reconstruction")
    assert {"init_conv", "decoder"} | CAPSULES <= parts
    assert "projection" not in parts
    assert "routers.2" not in parts  # which vector is the best has no slope


def test_without_a_wasserstein_loss_the_cross_entropy_still_trains_the_critics():
    parts, _, _ = moved("total", wasserstein=0.0)
    assert parts >= CRITICS


@pytest.mark.parametrize("variant", TABLE_IV)
def test_every_parameter_gets_a_gradient_from_the_total(variant):
    routing, wasserstein = TABLE_IV[variant]
    _, names, network = moved("total", routing, wasserstein)
    assert all(p.grad is not None for p in network.parameters())
    # A constant added right before a batch norm is subtracted again: the slope on these is zero but for rounding.
    idle = {"decoder.conv1.bias", *(f"routers.{at}.critic.layers.{last}.bias" for at, last in enumerate([1, 1, 3]))}
    assert {name for name, _ in network.named_parameters()} - names - idle == set()


def test_none_of_the_papers_critics_changes_the_capsules_it_judges():
    network = WCapsNet(tiny(levels=LEVELS))
    output = network(torch.randn(4, 2, 8, 8))
    sum(r.fitness.square().sum() for r in output.routings).backward()
    assert all(
        p.grad is None or not p.grad.any() for name, p in network.named_parameters() if not name.startswith("routers")
    )


def test_a_joint_critic_trains_the_capsules_it_judges_and_all_before_them():
    network = WCapsNet(tiny(RoutingConfig(fitness="joint", noise_share=0.0), levels=LEVELS))
    network(torch.randn(4, 2, 8, 8)).routings[1].fitness.square().sum().backward()
    trained = {name for name, p in network.named_parameters() if p.grad is not None and p.grad.any()}
    for part in ("init_conv", "capsules.0", "routers.0", "capsules.1", "routers.1"):
        assert any(name.startswith(part) for name in trained)
    assert not any(name.startswith(("capsules.2", "routers.2", "decoder", "projection")) for name in trained)


def test_a_later_critic_does_not_train_an_earlier_one():
    network = WCapsNet(tiny(levels=LEVELS))
    network(torch.randn(4, 2, 8, 8)).routings[2].fitness.sum().backward()
    assert all(p.grad is None for at in (0, 1) for p in network.routers[at].parameters())


# Table IV


@pytest.mark.parametrize("variant", TABLE_IV)
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_in_every_row_of_the_routing_table_the_weights_sum_to_one(variant, training):
    network = WCapsNet(tiny(TABLE_IV[variant][0])).train(training)
    for routing in network(torch.randn(5, 2, 8, 8)).routings:
        close(routing.weights.flatten(1).sum(1), torch.ones(5), 1e-5)


def test_uniform_gives_every_capsule_exactly_one_nth_in_evaluation():
    network = WCapsNet(tiny(TABLE_IV["Uniform"][0], levels=(Level(4, 2, 4, 2), Level(2, 2, 3, 1))))
    first, last = network.eval()(torch.randn(3, 2, 8, 8)).routings
    assert torch.equal(first.weights, torch.full((3, 4), 1 / 4))
    assert torch.equal(last.weights, torch.full((3, 2, 4, 4), 1 / 32))


def test_uniform_gives_every_capsule_exactly_one_nth_in_training_too():
    # "all weights are set to b_i = 1/N"
    network = WCapsNet(tiny(TABLE_IV["Uniform"][0], levels=(Level(4, 2, 4, 2), Level(2, 2, 3, 1))))
    for _ in range(5):
        first, last = network(torch.randn(50, 2, 8, 8)).routings
        assert torch.equal(first.weights, torch.full((50, 4), 1 / 4))
        assert torch.equal(last.weights, torch.full((50, 2, 4, 4), 1 / 32))


def test_random_draws_other_weights_for_every_sample_in_training():
    network = WCapsNet(tiny(TABLE_IV["Random"][0]))
    for routing in network(torch.randn(20, 2, 8, 8)).routings:
        assert routing.weights.flatten(1).unique(dim=0).shape[0] == 20


def test_random_weights_are_normalised_draws():
    # "drawn from a uniform distribution which is then normalized such that Σ b = 1"
    network = WCapsNet(tiny(RoutingConfig(fitness="random", weighting="normalized", noise_share=0.0)))
    for routing in network(torch.randn(20, 2, 8, 8)).routings:
        a = routing.fitness.flatten(1)
        close(routing.weights.flatten(1), a / a.sum(1, keepdim=True), 1e-4, 1e-5)


def test_random_and_uniform_have_no_critic_to_train():
    for variant in ("Random", "Uniform"):
        assert not list(WCapsNet(tiny(TABLE_IV[variant][0])).routers.parameters())


def test_training_lowers_the_total_loss():
    network = WCapsNet(tiny())
    images, labels = torch.randn(32, 2, 8, 8), torch.arange(32) % 3
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    losses = []
    for _ in range(40):
        terms = objective(network(images), images, labels, PAPER)
        optimizer.zero_grad()
        terms.total.backward()
        optimizer.step()
        losses.append(terms.total.item())
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
