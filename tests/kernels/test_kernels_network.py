"""Whole networks on the kernels: forward, objective, backward, evaluation; the plain modules are the truth."""

import copy
from dataclasses import replace

import pytest
import torch
from kernel_helpers import Report, bf16, error, one_of_five, rounded, three

from wcapsnet.kernels.forward import FusedNetwork
from wcapsnet.kernels.objective import objective as fused_objective
from wcapsnet.kernels.optimizer import FusedNesterov
from wcapsnet.models import model_config
from wcapsnet.network import Level, RoutingConfig, WCapsNet, WCapsNetConfig
from wcapsnet.network.routing import heaviest
from wcapsnet.objective import PAPER, objective

QUIET = RoutingConfig(noise_share=0.0, dropout=0.0)
SMALL = WCapsNetConfig(
    classes=5,
    height=16,
    width=16,
    levels=(Level(3, 8, 8, 2), Level(2, 8, 16, 1), Level(2, 8, 8, 1)),
    init_channels=8,
    dense_layers=2,
    critic_channels=8,
    critic_dropout=0.0,
    projection_dropout=0.0,
    decoder_channels=(8, 16),
    routing=QUIET,
)
PLUS = replace(model_config("wcapsnet-plus", classes=10, channels=3, height=8, width=8), dense_layers=3)
NETWORKS = {
    "three levels": (4, SMALL),
    "squash, Eq. 7, stopped, gray, odd": (
        3,
        replace(
            SMALL,
            classes=12,
            channels=1,
            height=14,
            width=11,
            levels=(Level(2, 3, 16, 2), Level(2, 12, 24, 2)),
            nonlinearity="squash",
            extra_class=False,
            routing=replace(QUIET, weighting="normalized", stop_gradient=True),
        ),
    ),
    "several tiles, a stride of 3, one capsule": (
        2,
        replace(SMALL, height=19, width=34, levels=(Level(2, 8, 8, 1), Level(1, 8, 8, 3), Level(2, 8, 8, 1))),
    ),
    "two levels": (
        12,
        replace(SMALL, classes=3, height=8, width=8, levels=(Level(3, 8, 8, 2), Level(2, 8, 8, 1))),
    ),
    "one level": (3, replace(SMALL, height=8, width=8, levels=(Level(2, 8, 8, 2),))),
    "random": (3, replace(SMALL, height=8, width=8, routing=replace(QUIET, fitness="random"))),
    "constant, a decoder of odd widths": (
        3,
        replace(SMALL, height=8, width=8, decoder_channels=(5, 6), routing=replace(QUIET, fitness="constant")),
    ),
    "wcapsnet-plus, small": (4, replace(PLUS, routing=replace(PLUS.routing, sharpness=(1.0, 1.0, 3.0, 5.0)))),
    "wcapsnet-plus, small, weights per position": (
        4,
        replace(PLUS, routing=replace(PLUS.routing, per_position=True, sharpness=(6.0,))),
    ),
    "more capsules than a router knows": (
        3,
        replace(SMALL, height=8, width=8, levels=(Level(2, 8, 8, 4), Level(65, 3, 8, 1), Level(2, 8, 8, 1))),
    ),
}


@pytest.fixture(autouse=True)
def served():
    """As under torch.autocast("cuda"), which does not go without a device."""
    torch.set_autocast_enabled("cuda", True)
    yield
    torch.set_autocast_enabled("cuda", False)


def step(network, fused, images, labels):
    with bf16():  # for what PyTorch computes of it
        output = fused(network, images)
    terms = fused_objective(output, images, labels, PAPER, network.config.classes)
    terms.total.backward()
    return output, terms


def play(m, config):
    network = WCapsNet(config)
    fused = FusedNetwork(network)
    images = torch.zeros(m, config.channels, config.height, config.width)
    step(network, fused, images, torch.zeros(m, dtype=torch.int64))
    network.eval()
    with torch.no_grad(), bf16():
        fused(network, images)


@pytest.fixture(scope="module")
def compiled(emulator):
    torch.set_autocast_enabled("cuda", True)
    emulator.compile_together([lambda m=m, config=config: play(m, config) for m, config in NETWORKS.values()])


def decodes_one_of_the_heaviest(output):
    n, i, j = output.best.place.unbind(1)
    b = output.routings[-1].weights
    return bool(heaviest(b.flatten(1)).view_as(b)[torch.arange(len(b)), n, i, j].all())


def three_steps(name, monkeypatch):
    """Of the same network by the kernels, in float64 and in bf16: networks, kernels, images, outputs, terms."""
    m, config = NETWORKS[name]
    network, truth, half = networks = three(WCapsNet(config))
    fused = FusedNetwork(network)
    images = rounded(m, config.channels, config.height, config.width)
    labels = torch.randint(0, config.classes, (m,))
    with monkeypatch.context() as patch:
        drawn = torch.rand(m * 100)  # what critics that only draw shall draw, all three the same
        patch.setattr(torch, "rand_like", lambda x: drawn[: x.numel()].view(x.shape).to(x.dtype))
        output, terms = step(network, fused, images, labels)
        with bf16():
            yardstick = half(images)
        objective(yardstick, images, labels, PAPER).total.backward()
        expected = truth(images.double())
        expected_terms = objective(expected, images.double(), labels, PAPER)
        expected_terms.total.backward()
    return networks, fused, images, (output, expected, yardstick), (terms, expected_terms)


@pytest.mark.usefixtures("compiled", "guarded")
@pytest.mark.parametrize("name", NETWORKS)
@one_of_five
def test_a_network_agrees_with_its_modules(name, monkeypatch):
    for _ in range(10):
        (network, truth, half), fused, images, outputs, (terms, expected_terms) = three_steps(name, monkeypatch)
        output, expected, yardstick = outputs
        # Where several capsules are about equally good, which one is decoded hangs on rounding: another network, then.
        if all(torch.equal(one.best.place, output.best.place) for one in outputs):
            break
    else:
        pytest.fail("the kernels never choose the best capsule that the modules choose")
    assert decodes_one_of_the_heaviest(output)
    report = Report(factor=2)
    report.add("logits", output.logits, expected.logits, yardstick.logits)
    for index, (one, other, third) in enumerate(
        zip(output.routings, expected.routings, yardstick.routings, strict=True)
    ):
        report.add(f"a of level {index}", one.fitness, other.fitness, third.fitness)
        report.add(f"b of level {index}", one.weights, other.weights, third.weights)
    for index, (one, other, third) in enumerate(
        zip(output.capsules, expected.capsules, yardstick.capsules, strict=True)
    ):
        report.add(f"c of level {index}", one, other, third)
    report.add("vector", output.best.vector, expected.best.vector, yardstick.best.vector)
    report.add("position", output.best.position, expected.best.position, 1e-6)
    report.add("reconstruction", output.reconstruction, expected.reconstruction, yardstick.reconstruction)
    torch.testing.assert_close(terms.total.double(), expected_terms.total.double(), rtol=0.03, atol=0.01)
    for term, value in expected_terms.named.items():
        torch.testing.assert_close(terms.named[term].double(), value.double(), rtol=0.03, atol=0.01, msg=term)
    report.gradients(network, truth, half, scale=1e-4, slack=0.06)
    report.buffers(network, truth, half)

    for module in (network, truth, half):
        module.eval()
    with torch.no_grad():
        expected = truth(images.double())
        with bf16():
            output, yardstick = fused(network, images), half(images)
    report.add("logits in evaluation", output.logits, expected.logits, yardstick.logits)
    assert decodes_one_of_the_heaviest(output)
    report.check()


@pytest.mark.usefixtures("compiled", "guarded")
def test_the_next_pass_starts_from_fresh_zeros():
    """Sums are in one buffer that is cleared for every pass: nothing is left from the pass before."""
    m, config = NETWORKS["three levels"]
    network = WCapsNet(config)
    fresh = copy.deepcopy(network)
    fused, fresh_fused = FusedNetwork(network), FusedNetwork(fresh)
    images, labels = rounded(m, 3, 16, 16), torch.randint(0, 5, (m,))
    for _ in range(2):
        step(network, fused, rounded(m, 3, 16, 16), labels)
        network.zero_grad()
    network.eval()
    with torch.no_grad(), bf16():
        fused(network, images)
    network.train()
    network.load_state_dict(fresh.state_dict())
    one, other = step(network, fused, images, labels), step(fresh, fresh_fused, images, labels)
    assert torch.equal(one[0].logits, other[0].logits)
    for (name, p), q in zip(network.named_parameters(), fresh.parameters(), strict=True):
        assert error(p.grad, q.grad) < 1e-5, name


@pytest.mark.usefixtures("compiled", "guarded")
def test_chance_differs_from_step_to_step_and_repeats_with_the_random_numbers_of_pytorch():
    m, config = NETWORKS["three levels"]
    network = WCapsNet(replace(config, routing=RoutingConfig(), critic_dropout=0.3, projection_dropout=0.3))
    fused = FusedNetwork(network)
    images = rounded(m, 3, 16, 16)
    before = copy.deepcopy(network.state_dict())
    answers = []
    for seed in (1, 1, 2):
        network.load_state_dict(before)
        torch.manual_seed(seed)
        with bf16():
            answers.append(fused(network, images).logits.detach())
    assert torch.equal(answers[0], answers[1])
    assert not torch.equal(answers[0], answers[2])


@pytest.mark.usefixtures("compiled", "guarded")
def test_training_with_everything_on_stays_finite_and_learns():
    _, config = NETWORKS["two levels"]
    config = replace(config, routing=RoutingConfig(), critic_dropout=0.3, projection_dropout=0.3)
    network = WCapsNet(config)
    fused = FusedNetwork(network)
    optimizer = FusedNesterov(network.parameters(), lr=torch.tensor(0.05), momentum=0.9, nesterov=True, fused=True)
    for p in network.parameters():
        optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)
    labels = torch.arange(12) % 3
    images = torch.randn(12, 3, 8, 8) * 0.3
    images[torch.arange(12), labels] += 1.5
    losses = []
    for _ in range(16):
        optimizer.zero_grad()
        _, terms = step(network, fused, images, labels)
        optimizer.step()
        losses.append(float(terms.named["cross_entropy"].detach()))
    assert all(bool(p.isfinite().all()) for p in network.parameters())
    assert sum(losses[-4:]) < 0.5 * sum(losses[:4]), losses


def test_the_kernels_serve_where_bf16_is_asked_for_and_nothing_else():
    network = WCapsNet(replace(SMALL, height=8, width=8))
    fused = FusedNetwork(network)
    images = torch.zeros(2, 3, 8, 8)
    assert fused.serves(network, images)
    assert not fused.serves(network, images[:1])  # one image has no statistics
    network.eval()
    assert not fused.serves(network, images)  # gradients through running statistics
    with torch.no_grad():
        assert fused.serves(network, images[:1])
        torch.set_autocast_enabled("cuda", False)
        assert not fused.serves(network, images)
        assert torch.equal(fused(network, images).logits, network(images).logits)


@pytest.mark.usefixtures("compiled", "guarded")
@one_of_five
def test_one_level_alone():
    m, config = NETWORKS["three levels"]
    network, truth, half = three(WCapsNet(config))
    fused = FusedNetwork(network)
    x = rounded(m, 8, 16, 16)
    report = Report()
    with bf16():
        yardstick = half.capsules[0](x)
    report.add("c", fused.blocks(network, 0, x), truth.capsules[0](x.double()), yardstick)

    # With its critic, in evaluation: what it hands on, and of the last one the logits.
    for module in (network, truth, half):
        module.eval()
    with torch.no_grad():
        for index, shape in ((0, (8, 16, 16)), (2, (16, 8, 8))):
            x = rounded(m, *shape)
            with bf16():
                yardstick = handed_on(half, index, x)
            got = fused.level(network, index, x)
            if index == 0:  # (chunk, m, position, 8)
                got = got.permute(1, 0, 3, 2).reshape(m, -1, 8, 8)
            report.add(f"level {index}", got, handed_on(truth, index, x.double()), yardstick)
    report.check()


def handed_on(network, index, x):
    c = network.capsules[index](x)
    return network.handed_on(index, network.routers[index](c).weights, c)
