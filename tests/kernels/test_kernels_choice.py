"""The Python side of the kernels, mostly without a compiler: who computes, what is launched, what is kept on disk."""

import copy
import ctypes
import shutil
import subprocess
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from kernel_helpers import bf16, error
from torch import nn

from wcapsnet import kernels, parts
from wcapsnet.baselines.densenet import DenseNet, DenseNetConfig
from wcapsnet.data import DataConfig
from wcapsnet.data.device_data import DeviceSplit
from wcapsnet.data.types import Augmentations, Split
from wcapsnet.engine import Engine
from wcapsnet.errors import InputError
from wcapsnet.experiment import Experiment, TrainingConfig
from wcapsnet.kernels import FusedEngine, layout
from wcapsnet.kernels import compile as compiling
from wcapsnet.kernels.compile import Cuda, Unavailable, structures
from wcapsnet.kernels.densenet import FusedDenseNet
from wcapsnet.kernels.forward import FusedNetwork
from wcapsnet.kernels.layout import tiling
from wcapsnet.kernels.objective import FUSED_TERMS
from wcapsnet.kernels.objective import objective as fused_objective
from wcapsnet.kernels.optimizer import FusedNesterov
from wcapsnet.kernels.supports import NORMALIZED, SQUASHED, unsupported_routing
from wcapsnet.models import list_models, model_config
from wcapsnet.network import CIFAR100_LEVELS, Level, RoutingConfig, WCapsNet, WCapsNetConfig
from wcapsnet.network.critic import BlockCritic, VectorCritic
from wcapsnet.network.routing import softmax_weights
from wcapsnet.objective import PAPER, Objective
from wcapsnet.training.step import Step, summed

CUDA, CPU = torch.device("cuda"), torch.device("cpu")
SMALL = WCapsNetConfig(height=8, width=8, levels=(Level(2, 8, 8, 2), Level(2, 8, 8, 1)), dense_layers=2)
QUIET = replace(SMALL, routing=RoutingConfig(noise_share=0.0, dropout=0.0), critic_dropout=0.0, projection_dropout=0.0)
ENTROPY = Objective(cross_entropy=1.0)
SOURCES = sorted(path.name for path in compiling.SOURCES.glob("*.cu"))


def choose(network, wanted="auto", precision="bf16", device=CUDA, objective=PAPER, data=None, **settings):
    training = TrainingConfig(kernels=wanted, precision=precision, **settings)
    experiment = Experiment("choice", data or DataConfig(), network.config, objective, training)
    return kernels.choose(network, experiment, device)


# ── who computes ──


@pytest.mark.parametrize("wanted", ["auto", "plain"])
def test_on_a_cpu_pytorch_computes(wanted):
    engine = choose(WCapsNet(SMALL), wanted, device=CPU)
    assert type(engine) is Engine
    assert engine.description == "plain PyTorch"


def one_sentence(message):
    return message[0].isupper() and message.endswith(".") and ". " not in message and "\n" not in message


def test_fused_on_a_cpu_is_the_users_mistake():
    with pytest.raises(InputError) as caught:
        choose(WCapsNet(SMALL), "fused", device=CPU)
    assert one_sentence(str(caught.value))
    assert "CUDA device" in str(caught.value)
    assert "--kernels" in str(caught.value)


@pytest.fixture
def a_card(monkeypatch):
    """A machine whose card is new enough; nothing is launched."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(kernels, "start", lambda: None)


@pytest.mark.usefixtures("a_card")
def test_what_is_chosen_is_said():
    network = WCapsNet(SMALL)
    fused, plain = choose(network), choose(network, "plain")
    assert (type(fused), fused.description) == (FusedEngine, "fused kernels")
    assert (type(plain), plain.description) == (Engine, "plain PyTorch")
    assert choose(network, precision="fp32").description == "plain PyTorch (they compute in bf16, not in fp32)"


def test_an_old_card_is_not_used(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 5))
    network = WCapsNet(SMALL)
    assert choose(network).description.startswith("plain PyTorch (they need a GPU of compute capability")
    with pytest.raises(InputError):
        choose(network, "fused")


def test_without_nvrtc_or_driver_pytorch_computes(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))

    def missing(name, *more, **named):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert choose(WCapsNet(SMALL)).description.startswith("plain PyTorch (NVRTC")


UNSUPPORTED = {
    "model.init_channels is 20": replace(SMALL, init_channels=20),
    "model.levels.1.dimension is 12": replace(SMALL, levels=(Level(2, 8, 8, 2), Level(2, 8, 12, 1))),
    "a critic has 12 channels": replace(SMALL, critic_channels=12),
    "dense layers": replace(SMALL, dense_layers=15),
    "a map 136 wide": replace(SMALL, width=136),
    "levels.0.dimension is 264": replace(SMALL, levels=(Level(2, 8, 264, 2), Level(2, 8, 8, 1))),
    "the critics have": replace(SMALL, height=64, width=64, levels=(Level(1, 8, 8, 1),) * 7),
    "200 capsules": replace(SMALL, levels=(Level(200, 8, 8, 2), Level(2, 8, 8, 1))),
    "the last level": replace(SMALL, height=64, width=64, levels=(Level(8, 8, 8, 1),)),
}


@pytest.mark.usefixtures("a_card")
@pytest.mark.parametrize("reason", UNSUPPORTED)
def test_a_network_of_other_shapes_is_left_to_pytorch_with_a_reason(reason):
    network = WCapsNet(UNSUPPORTED[reason])
    engine = choose(network)
    assert type(engine) is Engine
    assert engine.description.startswith("plain PyTorch (")
    assert reason in engine.description
    with pytest.raises(InputError) as caught:
        choose(network, "fused")
    assert one_sentence(str(caught.value))


# ── parts that have no kernel ──


def register(monkeypatch, kind, name, part):
    """A part that is gone again after the test."""
    monkeypatch.setitem(kind, name, part)


@contextmanager
def served():
    """As under torch.autocast("cuda"), which does not go without a device."""
    torch.set_autocast_enabled("cuda", True)
    try:
        with bf16():
            yield
    finally:
        torch.set_autocast_enabled("cuda", False)


class OnCpu(FusedEngine):
    """The fused engine on the emulator: without a second stream, and with an optimizer for CPUs."""

    def backward(self, total):
        Engine.backward(self, total)


def cubed(a):
    return softmax_weights(a**3)


def halved(x):
    return 0.5 * x


class OwnJudgement(BlockCritic):
    def judge(self, x):
        return 1 - super().judge(x)


class OwnVectorJudgement(VectorCritic):
    def judge(self, x):
        return 1 - super().judge(x)


class MeanBlock(nn.Module):
    def forward(self, c):
        return (4 * c.float().mean((2, 3, 4))).sigmoid()


class MeanVector(nn.Module):
    def forward(self, c):
        return (4 * c.float().mean(2)).sigmoid()


def mean_fitness(config, level, size, last):
    return MeanVector() if last else MeanBlock()


def with_own_critics(network):
    for router in network.routers:
        own = OwnJudgement if isinstance(router.critic, BlockCritic) else OwnVectorJudgement
        router.critic.__class__ = own


def with_own_fitness(network):
    for router in network.routers[:-1]:
        router.critic = MeanBlock()


def with_hook(network):
    network.routers[0].critic.register_forward_hook(lambda module, given, answer: 1 - answer)


def with_replaced_method(network):
    critic = network.routers[0].critic
    own = critic.judge
    critic.judge = lambda x: 1 - own(x)


def assert_routed_by_its_own_parts(network, plain, paper):
    """Outputs and gradients of `network` on the kernels are those of `plain`, and not those of `paper` on the kernels.

    The three have the same weights; `plain` has the same parts as `network`.
    """
    fused, paper_fused = FusedEngine(network, PAPER, {}), FusedEngine(paper, PAPER, {})
    assert "routing in PyTorch" in fused.description
    assert paper_fused.description == "fused kernels"
    images = torch.randn(4, 3, 8, 8)
    with served():
        ours, expected, other = fused.forward(images), plain(images), paper_fused.forward(images)
    differs = False
    for one, two, three in zip(ours.routings, expected.routings, other.routings, strict=True):
        assert error(one.weights, two.weights) < 0.02
        if not torch.allclose(two.weights, three.weights, atol=0.02):
            differs = True
            assert error(one.weights, two.weights) < 0.3 * error(three.weights, two.weights)
    assert differs
    ours.logits.sum().backward()
    expected.logits.sum().backward()
    for (name, p), q in zip(network.named_parameters(), plain.named_parameters(), strict=True):
        assert (p.grad is None) == (q[1].grad is None), name


@pytest.mark.slow
@pytest.mark.parametrize("change", [with_own_critics, with_own_fitness, with_hook, with_replaced_method])
def test_routing_without_a_kernel_is_computed_by_its_own_modules(change, emulator):
    """What trains is the part that was put in: outputs and gradients are the changed network's, not the paper's."""
    torch.manual_seed(3)
    network = WCapsNet(QUIET)
    paper, plain = copy.deepcopy(network), copy.deepcopy(network)
    change(network)
    change(plain)
    assert_routed_by_its_own_parts(network, plain, paper)


@pytest.mark.slow
def test_a_registered_weighting_without_a_kernel_is_the_one_that_trains(monkeypatch, emulator):
    register(monkeypatch, parts.weighting, "cubed", cubed)
    torch.manual_seed(3)
    paper = WCapsNet(QUIET)
    network = WCapsNet(replace(QUIET, routing=replace(QUIET.routing, weighting="cubed")))
    network.load_state_dict(paper.state_dict())
    assert_routed_by_its_own_parts(network, copy.deepcopy(network), paper)
    assert "weighting cubed" in FusedNetwork(network).left["routing"]


def test_a_rehearsal_leaves_no_trace_in_parts_without_a_kernel(monkeypatch, emulator):
    register(monkeypatch, parts.weighting, "cubed", cubed)
    network = WCapsNet(replace(QUIET, routing=replace(QUIET.routing, weighting="cubed"), projection_dropout=0.5))
    network.routers[0].critic.eval()  # as set by hand
    monkeypatch.setattr(compiling.Kernel, "__call__", lambda *given: None)
    before, modes = copy.deepcopy(network.state_dict()), [module.training for module in network.modules()]
    random = torch.get_rng_state()
    with served():
        FusedNetwork(network)._rehearsal(network, torch.randn(4, 3, 8, 8, generator=torch.Generator()))
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert [module.training for module in network.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random)


def test_a_registered_fitness_without_a_kernel_is_the_one_that_trains(monkeypatch, emulator):
    register(monkeypatch, parts.fitness, "mean", mean_fitness)
    torch.manual_seed(3)
    paper = WCapsNet(QUIET)
    network = WCapsNet(replace(QUIET, routing=replace(QUIET.routing, fitness="mean")))
    network.load_state_dict(paper.state_dict(), strict=False)  # it has no critics
    assert_routed_by_its_own_parts(network, copy.deepcopy(network), paper)


def test_a_registered_nonlinearity_without_a_kernel_is_the_one_that_trains(monkeypatch, a_card):
    register(monkeypatch, parts.nonlinearity, "halved", halved)
    network = WCapsNet(replace(QUIET, nonlinearity="halved")).eval()
    engine, images = choose(network), torch.randn(4, 3, 8, 8)
    assert engine.description == "plain PyTorch (no kernel for the non-linearity halved)"
    with torch.no_grad():
        ours, expected = engine.forward(images), network(images)
        paper = WCapsNet(QUIET).eval()
        paper.load_state_dict(network.state_dict())
        other = paper(images)
    assert torch.equal(ours.logits, expected.logits)
    assert not torch.allclose(ours.logits, other.logits, rtol=0.05)


def with_nonlinearity(network):
    for blocks in network.capsules:
        blocks.trans.nonlinearity = halved


def with_epsilon(network):
    network.capsules[0].trans.norm.eps = 1e-3


def with_own_shortcut(network):
    first = network.capsules[0].dense
    first.shortcut = nn.Sequential(first.shortcut)


def with_max_pooling(network):
    network.capsules[0].pool = 2


def with_stem(network):
    network.stem.append(nn.Identity())


@pytest.mark.parametrize("change", [with_nonlinearity, with_epsilon, with_own_shortcut, with_max_pooling, with_stem])
def test_blocks_without_a_kernel_leave_the_network_to_pytorch(change, a_card):
    network = WCapsNet(SMALL)
    change(network)
    engine = choose(network)
    assert type(engine) is Engine
    assert engine.description.startswith("plain PyTorch (")


def test_a_subclass_of_the_network_is_left_to_pytorch(a_card):
    class Own(WCapsNet):
        pass

    assert choose(Own(SMALL)).description == "plain PyTorch (no kernel for Own)"


# ── DenseNet-BC ──

DENSE = DenseNetConfig(height=8, width=8, depth=10, growth=4)


def own(part):
    part.__class__ = type("Own", (type(part),), {})


def with_hook_on_a_convolution(network):
    network.blocks[1][0].conv2.register_forward_hook(lambda module, given, answer: 2 * answer)


def with_momentum_of_a_norm(network):
    network.transitions[0].norm.momentum = None


def with_epsilon_of_a_norm(network):
    network.norm.eps = 1e-3


@pytest.mark.parametrize(
    ("config", "change", "reason"),
    [
        (replace(DENSE, growth=6), None, "model.growth is 6, but it must be a multiple of 4"),
        (replace(DENSE, depth=124), None, "a dense block has 20 layers, more than 19"),
        (replace(DENSE, depth=118, growth=64, height=32, width=32), None, "a map 32 wide does not fit"),
        (DENSE, own, "no kernel for Own"),
        (DENSE, lambda network: own(network.blocks[0]), "no kernel for Own"),
        (DENSE, lambda network: own(network.blocks[0][0]), "no kernel for Own"),
        (DENSE, lambda network: own(network.transitions[1]), "no kernel for Own"),
        (DENSE, lambda network: own(network.linear), "no kernel for Own"),
        (DENSE, with_hook_on_a_convolution, "a Conv2d has hooks or replaced methods"),
        (DENSE, with_momentum_of_a_norm, "a batch norm has ε = 1e-05 and momentum None"),
        (DENSE, with_epsilon_of_a_norm, "a batch norm has ε = 0.001 and momentum 0.1"),
    ],
)
def test_a_densenet_without_kernels_is_left_to_pytorch_with_a_reason(config, change, reason, a_card):
    with torch.device("meta"):
        network = config.build()
    if change:
        change(network)
    engine = choose(network, objective=ENTROPY)
    assert type(engine) is Engine
    assert engine.description.startswith(f"plain PyTorch ({reason}")
    with pytest.raises(InputError) as caught:
        choose(network, "fused", objective=ENTROPY)
    assert one_sentence(str(caught.value))


# ── every registered part ──


def test_which_registered_models_the_kernels_train(a_card):
    found = []
    for name in list_models():
        with torch.device("meta"):
            network = model_config(name, 10, 3, 32, 32).build()
        objective = Objective(getattr(network.config, "terms", PAPER))
        if isinstance(choose(network, objective=objective), FusedEngine):
            found.append(name)
    assert found == ["densenet-bc-100", "wcapsnet", "wcapsnet-quick", "wcapsnet-plus"]


def test_every_registered_part_but_the_joint_critic_has_a_kernel():
    assert set(parts.weighting.values()) == set(NORMALIZED)
    assert set(parts.nonlinearity.values()) == set(SQUASHED)
    assert FUSED_TERMS.items() <= parts.loss_term.items()
    assert set(PAPER) < set(FUSED_TERMS)
    for fitness in parts.fitness:
        network = WCapsNet(replace(SMALL, routing=RoutingConfig(fitness=fitness)))
        assert unsupported_routing(network) == ("no kernel for JointCritic" if fitness == "joint" else None)


@pytest.fixture(scope="module")
def batch():
    generator = torch.Generator().manual_seed(4)
    images = torch.randn(4, 3, 8, 8, generator=generator).bfloat16().float()
    return images, torch.arange(4) % 10


def gradient(network):
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in network.parameters()])


@pytest.mark.slow
@pytest.mark.parametrize("weighting", parts.weighting)
@pytest.mark.parametrize("nonlinearity", parts.nonlinearity)
@pytest.mark.parametrize("fitness", parts.fitness)
def test_every_combination_of_registered_parts_is_computed_as_pytorch_does(
    weighting, nonlinearity, fitness, emulator, batch, monkeypatch
):
    routing = replace(QUIET.routing, weighting=weighting, fitness=fitness)
    drawn = torch.rand(1000)  # what a random fitness draws, both the same
    monkeypatch.setattr(torch, "rand_like", lambda x: drawn[: x.numel()].view(x.shape).to(x.dtype))
    network = WCapsNet(replace(QUIET, routing=routing, nonlinearity=nonlinearity))
    assert assert_computed_as_pytorch_does(network, batch) == described(fitness)


@pytest.mark.slow
@pytest.mark.parametrize("fitness", ["critic", "joint", "constant"])
def test_weights_per_position_are_computed_as_pytorch_does(fitness, emulator, batch):
    routing = replace(QUIET.routing, per_position=True, sharpness=(6.0,), fitness=fitness)
    assert assert_computed_as_pytorch_does(WCapsNet(replace(QUIET, routing=routing)), batch) == described(fitness)


def described(fitness):
    return "fused kernels" + ("; routing in PyTorch (no kernel for JointCritic)" if fitness == "joint" else "")


def assert_computed_as_pytorch_does(network, batch):
    """The fused step is that of plain PyTorch; returns the engine's description."""
    plain, (images, labels) = copy.deepcopy(network), batch
    engine, reference = OnCpu(network, PAPER, {}), Engine(plain)
    answers = []
    for one in (engine, reference):
        sums = torch.zeros(len(summed(PAPER)), dtype=torch.float64)
        with served():
            output = one.forward(images)
            terms = one.terms(output, images, labels, PAPER, sums)
        one.backward(terms.total)
        answers.append((output, terms, sums))
    (output, terms, sums), (expected, expected_terms, expected_sums) = answers
    assert error(output.logits, expected.logits) < 0.05
    for one, two in zip(output.capsules, expected.capsules, strict=True):
        assert error(one, two) < 0.05
    for one, two in zip(output.routings, expected.routings, strict=True):
        assert error(one.weights, two.weights) < 0.02
        assert error(one.fitness, two.fitness) < 0.05
    assert tuple(terms.named) == tuple(expected_terms.named) == tuple(PAPER)
    assert sums[-1] == expected_sums[-1] == 1
    same = torch.equal(output.best.place, expected.best.place)  # rounding may decide which vector is decoded
    compared = slice(0, 4) if same else slice(1, 3)  # without the total and the reconstruction
    torch.testing.assert_close(sums[compared], expected_sums[compared], rtol=0.05, atol=0.02)
    if same:
        assert torch.cosine_similarity(gradient(network), gradient(plain), dim=0) > 0.98
    return engine.description


def length(output, images, labels):
    """A term of one's own, with a gradient on capsules, weights and the reconstruction."""
    lengths = torch.stack([c.float().square().mean() for c in output.capsules]).sum()
    weights = torch.stack([r.weights.square().sum() for r in output.routings]).sum()
    return lengths + weights + output.reconstruction.float().square().mean()


WEIGHTS = {
    **{
        f"{name} alone": {name: 1.0}
        for name, part in parts.loss_term.items()
        if part.__module__ == Objective.__module__
    },
    **{f"without {name}": {key: PAPER[key] for key in PAPER if key != name} for name in PAPER},
    "centred": {"cross_entropy": 1.0, "centred_wasserstein": 0.5, "reconstruction": 0.1},
    "plain and centred": {**PAPER, "centred_wasserstein": 0.5},
    "in another order": dict(reversed(list(PAPER.items()))),
    "a cross entropy of another weight": {**PAPER, "cross_entropy": 0.5},
    "one's own": {**PAPER, "length": 0.3},
    "one's own first": {"length": 0.3, **PAPER},
    "one's own alone": {"length": 2.0},
    "smoothed labels": {**PAPER, "label_smoothing": 0.1},
    "centred, with information": {"cross_entropy": 1.0, "centred_wasserstein": 0.5, "information": 0.3},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WEIGHTS)
def test_every_loss_term_is_computed_as_pytorch_does(name, emulator, batch, monkeypatch):
    """With or without the kernels: terms, total, gradients and sums are those of objective.py on the same output."""
    register(monkeypatch, parts.loss_term, "length", length)
    weights, (images, labels) = Objective(WEIGHTS[name]), batch
    network = WCapsNet(QUIET)
    before = copy.deepcopy(network.state_dict())
    engine, reference = OnCpu(network, weights, {}), Engine(network)
    answers = []
    for one in (engine, reference):
        network.load_state_dict(before)
        network.zero_grad()
        sums = torch.zeros(len(summed(weights)), dtype=torch.float64)
        with served():
            output = engine.forward(images)
            terms = one.terms(output, images, labels, weights, sums)
        one.backward(terms.total)
        answers.append((terms, sums, gradient(network)))
    (terms, sums, got), (expected, expected_sums, truth) = answers
    assert tuple(terms.named) == tuple(expected.named) == tuple(weights)
    torch.testing.assert_close(terms.total, expected.total, rtol=2e-3, atol=2e-4)
    torch.testing.assert_close(sums, expected_sums, rtol=2e-3, atol=2e-4)
    assert torch.cosine_similarity(got, truth, dim=0) > 0.999
    assert abs(float(got.norm() / truth.norm()) - 1) < 0.01


@pytest.mark.usefixtures("a_card")
def test_the_description_names_what_runs_in_pytorch(monkeypatch):
    register(monkeypatch, parts.loss_term, "length", length)
    register(monkeypatch, parts.augmentation, "dark", lambda images, amount: images * amount)
    network = WCapsNet(SMALL)
    own = choose(network, objective=Objective({**PAPER, "length": 1.0})).description
    assert own == "fused kernels; loss term length in PyTorch"
    data = DataConfig(mirror=True, shift=4, augment=Augmentations(dark=0.5))
    assert choose(network, data=data).description == "fused kernels; augmentation dark in PyTorch"
    assert choose(network, data=replace(data, augment=Augmentations())).description == "fused kernels"
    often = DataConfig(augment=Augmentations(mirror=0.9))
    assert choose(network, data=often).description == "fused kernels; augmentation mirror in PyTorch"
    halved_entropy = choose(network, objective=Objective({**PAPER, "cross_entropy": 0.5})).description
    assert all(f"loss term {name} in PyTorch" in halved_entropy for name in PAPER)
    assert choose(network, optimizer="adamw").description == "fused kernels; optimizer adamw in PyTorch"
    for settings in ({"momentum": 0.0}, {"nesterov": False}):
        assert "; optimizer sgd " in choose(network, **settings).description
    assert "9 channels" in choose(WCapsNet(replace(SMALL, channels=9))).description
    odd = choose(WCapsNet(replace(SMALL, decoder_channels=(5, 6)))).description
    assert odd.startswith("fused kernels; decoder in PyTorch (")


@pytest.mark.parametrize("kind", ["loss term", "augmentation"])
def test_a_part_that_replaces_one_of_the_paper_is_used_with_the_kernels(kind, monkeypatch, emulator):
    """The kernels stand for the paper's functions, not for their names."""
    if kind == "loss term":
        register(
            monkeypatch, parts.loss_term, "wasserstein", lambda output, images, labels: output.logits.sum() * 0 + 7
        )
    else:
        register(monkeypatch, parts.augmentation, "mirror", lambda images, amount: images * 0 + amount)
    data = DataConfig(mirror=True)
    engine = OnCpu(WCapsNet(SMALL), PAPER, data.augmentations())
    assert (
        engine.description == f"fused kernels; {kind} {'wasserstein' if kind == 'loss term' else 'mirror'} in PyTorch"
    )
    step, seen = stepped(engine, data, PAPER)
    if kind == "loss term":
        assert step.means()["wasserstein"] == 7
    else:
        assert bool((seen[0] == 0.5).all())


def test_a_loss_and_an_augmentation_of_ones_own_train_with_the_kernels(monkeypatch, emulator):
    register(monkeypatch, parts.loss_term, "seven", lambda output, images, labels: output.logits.sum() * 0 + 7)
    register(monkeypatch, parts.augmentation, "dark", lambda images, amount: images * 0 + amount)
    data, objective = (
        DataConfig(mirror=True, shift=1, augment=Augmentations(dark=0.25)),
        Objective({**PAPER, "seven": 2}),
    )
    step, seen = stepped(OnCpu(WCapsNet(SMALL), objective, data.augmentations()), data, objective)
    means = step.means()
    assert bool((seen[0] == 0.25).all())
    assert means["seven"] == 7
    total = sum(weight * means[name] for name, weight in objective.items())
    assert means["total"] == pytest.approx(total, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["centred, with information", "smoothed labels", "one's own", "one's own alone"])
def test_the_loss_of_mixed_images_is_computed_as_pytorch_does(name, emulator, batch, monkeypatch):
    register(monkeypatch, parts.loss_term, "length", length)
    weights, (images, labels), share = Objective(WEIGHTS[name]), batch, torch.tensor(0.3)
    network = WCapsNet(QUIET)
    engine = OnCpu(network, weights, {})
    with served():
        output = engine.forward(images)
        answers = []
        for one in (engine, Engine(network)):
            sums = torch.zeros(len(summed(weights)), dtype=torch.float64)
            terms = one.terms(output, images, labels, weights, sums, share)
            answers.append((terms, sums))
    (terms, sums), (expected, expected_sums) = answers
    assert tuple(terms.named) == tuple(expected.named) == tuple(weights)
    torch.testing.assert_close(terms.total, expected.total, rtol=2e-3, atol=2e-4)
    torch.testing.assert_close(sums, expected_sums, rtol=2e-3, atol=2e-4)


def test_mixed_images_train_with_the_kernels(emulator):
    data = DataConfig(mirror=True, augment=Augmentations(mixup=1))
    step, _ = stepped(OnCpu(WCapsNet(SMALL), PAPER, data.augmentations()), data, PAPER)
    means = step.means()
    assert means["total"] == pytest.approx(sum(weight * means[name] for name, weight in PAPER.items()), rel=1e-5)


def test_adamw_and_no_momentum_are_left_to_pytorch(emulator):
    engine, p = OnCpu(WCapsNet(SMALL), PAPER, {}), nn.Parameter(torch.ones(1))
    chosen = {
        kind: type(engine.optimizer([{"params": [p]}], torch.tensor(0.1), *kind))
        for kind in ((0.9, "sgd"), (0.0, "sgd"), (0.9, "adamw"))
    }
    assert list(chosen.values()) == [FusedNesterov, torch.optim.SGD, torch.optim.AdamW]


def stepped(engine, data, objective):
    """One training step on the emulator; the images that the network saw."""
    training = TrainingConfig(batch_size=4, precision="bf16")
    experiment = Experiment("own", data, engine.network.config, objective, training)
    generator = torch.Generator().manual_seed(2)
    split = Split(torch.randint(0, 256, (8, 3, 8, 8), dtype=torch.uint8, generator=generator), torch.arange(8))
    optimizer = torch.optim.SGD(engine.network.parameters(), lr=torch.tensor(0.1))
    step = Step(experiment, engine, optimizer, DeviceSplit(split, (0.5,) * 3, (0.25,) * 3, CPU))
    seen, forward = [], engine.forward
    engine.forward = lambda images, labels: seen.append(images) or forward(images, labels)
    before = copy.deepcopy(engine.network.state_dict())
    with served():
        step(torch.arange(4))
    assert any(not torch.equal(value, before[name]) for name, value in engine.network.named_parameters())
    return step, seen


# ── what is launched ──


class Recorder:
    """A backend that only writes down."""

    def __init__(self):
        self.launches = []

    def compile(self, file, kernel, defines):
        return file, kernel, dict(define.removeprefix("-D").split("=") for define in defines)

    def launch(self, function, grid, threads, shared, arguments):
        self.launches.append((*function, grid, threads, shared))


@pytest.fixture
def recorder(monkeypatch):
    backend = Recorder()
    monkeypatch.setattr(compiling, "backend", backend, raising=False)
    torch.set_autocast_enabled("cuda", True)
    yield backend
    torch.set_autocast_enabled("cuda", False)


def test_a_backend_never_gets_what_another_one_compiled(monkeypatch):
    class Own(Recorder):
        def compile(self, file, kernel, defines):
            return f"compiled by {number}"

    monkeypatch.setattr(compiling, "backend", None, raising=False)
    for number in range(50):
        compiling.backend = None  # the one before is gone, and the next may get its place in memory
        compiling.backend = Own()
        assert compiling.function(compiling.Kernel("spectral.cu", "spectral")) == f"compiled by {number}"


def assert_a_card_takes(launches):
    for file, kernel, defines, grid, threads, shared in launches:
        said = f"{file} {kernel} {defines} {grid} {threads} {shared}"
        assert 32 <= threads <= 1024, said
        assert threads % 32 == 0, said
        assert 0 <= shared <= layout.LARGEST_SHARED, said
        assert 1 <= grid[0] < 2**31, said
        assert all(1 <= size < 2**16 for size in grid[1:]), said
        if "THREADS" in defines:
            assert int(defines["THREADS"]) == threads, said
            assert int(defines["BLOCKS"]) * threads <= 2048, said


MNIST = WCapsNetConfig(channels=1, height=28, width=28)
LARGE = WCapsNetConfig(height=96, width=128, levels=(Level(64, 8, 16, 2), *WCapsNetConfig().levels[1:]))


@pytest.mark.parametrize(
    ("m", "config"),
    [
        (64, WCapsNetConfig()),
        (2, WCapsNetConfig(classes=100, levels=CIFAR100_LEVELS)),
        (300, MNIST),
        (5, LARGE),
        (700, SMALL),
    ],
    ids=["CIFAR-10", "CIFAR-100", "MNIST", "large", "small"],
)
def test_every_launch_is_one_that_a_card_takes(recorder, m, config):
    network = WCapsNet(config)
    fused = FusedNetwork(network)
    images = torch.empty(m, config.channels, config.height, config.width)
    with bf16():
        output = fused(network, images)
    labels = torch.zeros(m, dtype=torch.int64)
    terms = fused_objective(output, images, labels, PAPER, config.classes)
    terms.total.backward()
    network.eval()
    with torch.no_grad(), bf16():
        fused(network, images)
    assert len(recorder.launches) > 50
    assert_a_card_takes(recorder.launches)


@pytest.mark.parametrize(
    ("m", "config"),
    [
        (64, DenseNetConfig()),
        (3, replace(DENSE, channels=1, height=33, width=29)),
        (2, DenseNetConfig(depth=118, growth=24)),  # as many layers as there may be
        (1000, replace(DENSE, growth=64)),
    ],
    ids=["CIFAR-10", "odd", "deep", "wide"],
)
def test_every_launch_of_densenet_is_one_that_a_card_takes(recorder, m, config):
    network = DenseNet(config)
    fused, images = FusedDenseNet(network), torch.empty(m, config.channels, config.height, config.width)
    with bf16():
        fused(network, images).logits.sum().backward()
    network.eval()
    with torch.no_grad(), bf16():
        fused(network, images)
    assert len(recorder.launches) > 50
    assert_a_card_takes(recorder.launches)


def test_arguments_fit_what_a_launch_can_pass():
    for file in SOURCES:
        for name, structure in structures(file).items():
            assert ctypes.sizeof(structure) <= 4096, (file, name)


# ── structures ──


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to find the offsets of struct fields")
def test_structures_lie_in_memory_as_the_compiler_has_them(tmp_path):
    program = [
        "#include <cstddef>",
        "#include <cstdio>",
        "typedef unsigned short bf16;",
        "struct uint2 { unsigned x, y; };",
    ]
    expected, main = [], []
    for index, file in enumerate(SOURCES):
        text = compiling.source(file)
        program += [f"namespace n{index} {{"]
        for line in text.splitlines():
            if line.startswith("#define") and line.split()[-1].isdigit() and len(line.split()) == 3:
                program += [f"#undef {line.split()[1]}", line]
        for name, structure in structures(file).items():
            if name in ("Norm", "Spot"):  # never leave the device
                continue
            start = text.index(f"struct {name} {{")
            program.append(text[start : text.index("};", start) + 2])
            main.append(f'printf("%zu\\n", sizeof(n{index}::{name}));')
            expected.append((file, name, ctypes.sizeof(structure)))
            for field, *_ in structure._fields_:
                main.append(f'printf("%zu\\n", offsetof(n{index}::{name}, {field}));')
                expected.append((file, f"{name}.{field}", getattr(structure, field).offset))
        program.append("}")
    source = tmp_path / "sizes.cpp"
    source.write_text("\n".join([*program, "int main() {", *main, "}"]), encoding="utf-8")
    subprocess.run(["g++", "-w", str(source), "-o", str(tmp_path / "sizes")], check=True)
    said = subprocess.run([tmp_path / "sizes"], check=True, capture_output=True, text=True).stdout.split()
    assert len(said) == len(expected) > 100
    assert [(file, name, int(size)) for (file, name, _), size in zip(expected, said, strict=True)] == expected


def test_an_argument_that_a_structure_does_not_have_is_refused():
    with pytest.raises(TypeError, match="no colour"):
        layout.build(structures("nesterov.cu")["Parameter"], colour=1)


# ── tilings ──


def cover(tile):
    """How often every position of every image is worked on, as `locate` in tiles.cuh has it."""
    seen = torch.zeros(tile.images, tile.height, tile.width, dtype=torch.int64)
    log = min(3, (tile.width - 1).bit_length())
    groups = tile.rows // tile.rows_a_warp
    for block in range(tile.blocks):
        image0, row0 = block // tile.tiles * tile.per_block, block % tile.tiles * tile.rows
        for unit in range(2 * tile.warps):
            for place in range(8):
                x = (unit % tile.strips << 3) + (place & ((1 << log) - 1))
                row = row0 + unit // tile.strips % groups * tile.rows_a_warp
                image = image0 + (unit // tile.strips // groups << (3 - log)) + (place >> log)
                if unit < tile.units and x < tile.width and image < tile.images:
                    for y in range(row, min(row + tile.rows_a_warp, tile.height)):
                        seen[image, y, x] += 1
    return seen


@pytest.mark.parametrize("multiprocessors", [132, 1])
@pytest.mark.parametrize(
    ("images", "height", "width", "taps", "bytes_a_position"),
    [
        (3, 1, 1, 1, 48), (9, 1, 2, 3, 48), (5, 3, 3, 3, 176), (7, 5, 4, 2, 48), (2, 7, 5, 3, 48), (3, 14, 14, 3, 240),
        (2, 16, 16, 3, 144), (1, 17, 18, 3, 80), (2, 33, 9, 2, 336), (1, 5, 128, 3, 144), (3, 11, 24, 1, 1040),
        (70, 2, 2, 1, 48), (1, 40, 64, 3, 400),
    ],
)  # fmt: skip
def test_a_tiling_covers_every_position_once_and_fits(
    monkeypatch, multiprocessors, images, height, width, taps, bytes_a_position
):
    monkeypatch.setattr(layout, "MULTIPROCESSORS", multiprocessors)
    for shift in {False, taps == 3 and width <= 16}:
        for others in (1, 16):
            tile = tiling(images, height, width, taps, others, bytes_a_position, shift=shift)
            assert 1 <= tile.warps <= 8
            assert tile.positions * bytes_a_position <= layout.LARGEST_SHARED
            assert tile.rows % tile.rows_a_warp == 0
            assert bool((cover(tile) == 1).all())


@pytest.mark.parametrize("images", [1, 64, 4096])
def test_a_map_that_fits_in_small_batches_fits_in_large_ones(images):
    assert tiling(images, 64, 64, 3, 16, 320).rows >= 1
    with pytest.raises(Unavailable):
        tiling(images, 8, 136, 3, 16, 48)


# ── what is kept on disk ──


class Nvrtc:
    """As much of NVRTC as is called; what it compiles is the source itself."""

    def __init__(self, broken=False):
        self.compiled, self.broken = 0, broken

    def nvrtcVersion(self, major, minor):
        major._obj.value, minor._obj.value = 12, 4

    def nvrtcCreateProgram(self, program, text, name, *headers):
        self.text = text
        return 0

    def nvrtcCompileProgram(self, program, count, flags):
        self.compiled += 1
        self.flags = [flags[i].decode() for i in range(count)]
        return int(self.broken)

    def nvrtcGetProgramLogSize(self, program, size):
        size._obj.value = 9

    def nvrtcGetProgramLog(self, program, log):
        log.value = b"line 1"

    def nvrtcGetCUBINSize(self, program, size):
        size._obj.value = len(self.text)

    def nvrtcGetCUBIN(self, program, image):
        image.raw = self.text

    def nvrtcDestroyProgram(self, program):
        self.destroyed = True


@pytest.fixture
def cuda(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setenv("WCAPSNET_CACHE", str(tmp_path / "cache"))

    def make(**how):
        backend = Cuda.__new__(Cuda)
        backend.nvrtc = Nvrtc(**how)
        return backend

    return make


def test_what_was_compiled_once_is_read_from_disk(cuda, tmp_path):
    first, second = cuda(), cuda()
    image = first.binary("nesterov.cu", ("-DA=1",))
    assert first.nvrtc.compiled == 1
    assert first.nvrtc.destroyed
    assert "--gpu-architecture=sm_90" in first.nvrtc.flags
    assert "-DA=1" in first.nvrtc.flags
    assert second.binary("nesterov.cu", ("-DA=1",)) == image
    assert second.nvrtc.compiled == 0
    second.binary("nesterov.cu", ("-DA=2",))
    second.binary("images.cu", ("-DA=1",))
    assert second.nvrtc.compiled == 2
    assert len(list((tmp_path / "cache" / "kernels").iterdir())) == 3


def test_another_card_or_compiler_or_source_is_compiled_anew(cuda, monkeypatch, tmp_path):
    backend = cuda()
    backend.binary("nesterov.cu", ())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (8, 6))
    backend.binary("nesterov.cu", ())
    monkeypatch.setattr(Nvrtc, "nvrtcVersion", lambda self, major, minor: None)
    backend.binary("nesterov.cu", ())
    monkeypatch.setattr(compiling, "source", lambda name: "// another")
    backend.binary("nesterov.cu", ())
    assert backend.nvrtc.compiled == 4


def test_a_cache_that_cannot_be_written_costs_time_only(cuda, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("WCAPSNET_CACHE", str(tmp_path / "file"))
    backend = cuda()
    assert backend.binary("nesterov.cu", ()) == backend.binary("nesterov.cu", ())
    assert backend.nvrtc.compiled == 2
    monkeypatch.setattr(compiling.cache, "directory", lambda: None)
    backend.binary("nesterov.cu", ())
    assert backend.nvrtc.compiled == 3


def test_a_source_that_does_not_compile_says_why(cuda, tmp_path):
    with pytest.raises(RuntimeError, match="line 1"):
        cuda(broken=True).binary("nesterov.cu", ())
    assert not list((tmp_path / "cache").rglob("*.cubin"))


def test_a_source_includes_each_file_once():
    text = compiling.source("pull.cu")
    assert text.count("struct View {") == 1
    assert '#include "' not in text
