"""On a CUDA device: the fused kernels against the plain modules. Run with `pytest -m gpu`."""

import copy
import statistics
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from wcapsnet import kernels, parts
from wcapsnet.cli import app
from wcapsnet.data import DataConfig, Split
from wcapsnet.data.device_data import DeviceSplit
from wcapsnet.data.types import Augmentations
from wcapsnet.device import arithmetic
from wcapsnet.experiment import Experiment, TrainingConfig
from wcapsnet.kernels.optimizer import FusedNesterov
from wcapsnet.models import model_config
from wcapsnet.network import CIFAR100_LEVELS, Level, RoutingConfig, WCapsNet, WCapsNetConfig
from wcapsnet.objective import PAPER, Objective
from wcapsnet.training.step import GraphedStep, Step, make_optimizer, summed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CUDA = torch.device("cuda")
QUIET = {"critic_dropout": 0.0, "projection_dropout": 0.0, "routing": RoutingConfig(noise_share=0.0, dropout=0.0)}
PLUS = model_config("wcapsnet-plus", classes=10, channels=3, height=32, width=32)
NETWORKS = {
    "CIFAR-10": (64, WCapsNetConfig(**QUIET)),
    "MNIST": (64, WCapsNetConfig(channels=1, height=28, width=28, **QUIET)),
    "CIFAR-100": (64, WCapsNetConfig(classes=100, levels=CIFAR100_LEVELS, **QUIET)),
    "small and odd": (
        32,
        WCapsNetConfig(
            classes=5,
            channels=2,
            height=19,
            width=13,
            levels=(Level(3, 3, 16, 3), Level(2, 12, 24, 1), Level(1, 8, 8, 2)),
            init_channels=16,
            dense_layers=3,
            nonlinearity="squash",
            critic_channels=8,
            decoder_channels=(8, 24),
            **{**QUIET, "routing": replace(QUIET["routing"], weighting="normalized")},
        ),
    ),
    "wide": (8, WCapsNetConfig(height=40, width=72, **QUIET)),
    "plus": (64, replace(PLUS, routing=replace(PLUS.routing, sharpness=(1.0, 1.0, 3.0, 5.0)))),
    "plus, weights per position": (64, replace(PLUS, routing=replace(PLUS.routing, per_position=True))),
}


@pytest.fixture(autouse=True)
def _the_same_random_numbers_in_every_run():
    torch.manual_seed(1)


def engine_of(network, wanted="fused", experiment=None):
    experiment = experiment or Experiment("gpu", model=network.config)
    training = replace(experiment.training, kernels=wanted, precision="bf16")
    return kernels.choose(network, replace(experiment, training=training), CUDA)


def new_engine(config, wanted="fused"):
    engine = engine_of(WCapsNet(config).to(CUDA), wanted)
    assert engine.description == ("fused kernels" if wanted == "fused" else "plain PyTorch")
    return engine


def copied(engine, wanted="fused"):
    return engine_of(copy.deepcopy(engine.network), wanted)


def batch(m, config):
    images = torch.randn(m, config.channels, config.height, config.width, device=CUDA)
    return images, torch.randint(0, config.classes, (m,), device=CUDA)


def error(got, truth):
    """‖got − truth‖ / ‖truth‖"""
    got, truth = got.detach().double(), truth.detach().double()
    return float((got - truth).norm() / truth.norm().clamp_min(1e-30))


def one_pass(engine, images, labels, precision, weights=PAPER):
    sums = torch.zeros(len(summed(weights)), dtype=torch.float64, device=CUDA)
    with arithmetic(precision, CUDA):
        output = engine.forward(images)
        terms = engine.terms(output, images, labels, weights, sums)
    terms.total.backward()
    torch.cuda.synchronize()
    return output, terms


def value_of(terms, name):
    return float((terms.total if name == "total" else terms.named[name]).detach())


def without_gradient(network):
    """Biases that a batch norm takes away again: their gradient is zero, and what is computed is rounding."""
    names = [f"routers.{i}.critic.layers.{len(r.critic.layers) - 1}.bias" for i, r in enumerate(network.routers)]
    return {*names, "decoder.linear.bias", "decoder.conv1.bias"}


def three(config, m):
    """Fused in bf16, plain in fp32, plain in bf16: the same weights, the same batch."""
    plain = new_engine(config, "plain")
    fused, half = copied(plain), copied(plain, "plain")
    assert fused.description == "fused kernels"
    images, labels = batch(m, config)
    return (fused, plain, half), images, labels


@pytest.mark.parametrize("name", NETWORKS)
def test_a_pass_is_as_near_to_fp32_as_plain_bf16_is(name):
    m, config = NETWORKS[name]
    (fused, plain, half), images, labels = three(config, m)
    output, terms = one_pass(fused, images, labels, "bf16")
    expected, expected_terms = one_pass(plain, images, labels, "fp32")
    yardstick, yardstick_terms = one_pass(half, images, labels, "bf16")

    def near(got, truth, other, what, factor=1.5, more=0.01):
        assert bool(got.isfinite().all()), what
        assert error(got, truth) <= factor * error(other, truth) + more, what

    near(output.logits, expected.logits, yardstick.logits, "logits")
    for index in range(len(config.levels)):
        for field in ("fitness", "weights"):
            one, other, third = (getattr(o.routings[index], field) for o in (output, expected, yardstick))
            near(one, other, third, f"{field} of level {index}")
    for term in ("total", *PAPER):
        one, other, third = (value_of(t, term) for t in (terms, expected_terms, yardstick_terms))
        assert abs(one - other) <= 2 * abs(third - other) + 0.02 * abs(other) + 1e-3, term

    fused, plain, half = (engine.network for engine in (fused, plain, half))
    ratios, left_out = [], without_gradient(fused)
    for (parameter, p), q, h in zip(fused.named_parameters(), plain.parameters(), half.parameters(), strict=True):
        assert p.grad is not None, parameter
        assert bool(p.grad.isfinite().all()), parameter
        if parameter in left_out or q.grad.norm() == 0:
            continue
        ours, theirs = error(p.grad, q.grad), error(h.grad, q.grad)
        if p.numel() > 1:  # of a single number, sums that cancel leave nothing but rounding
            assert ours <= 4 * theirs + 0.1, f"gradient of {parameter}: {ours:.4f}, plain bf16 {theirs:.4f}"
        ratios.append((ours, theirs))
    ours, theirs = (statistics.median(values) for values in zip(*ratios, strict=True))
    print(f"{name}: median error of the gradients {ours:.4f}, of plain bf16's {theirs:.4f}")
    assert ours <= 1.2 * theirs

    for (buffer, p), q, h in zip(fused.named_buffers(), plain.buffers(), half.buffers(), strict=True):
        if p.numel() > 1:
            near(p, q, h, buffer)


@pytest.mark.parametrize("name", NETWORKS)
def test_evaluation_is_as_near_to_fp32_as_plain_bf16_is(name):
    m, config = NETWORKS[name]
    (fused, plain, half), images, _ = three(config, m)
    for _ in range(3):  # running statistics that are not where they start
        one_pass(plain, *batch(m, config), "fp32")
    for engine in (fused, half):
        engine.network.load_state_dict(plain.network.state_dict())
    for engine in (fused, plain, half):
        engine.network.eval()
    before = {key: value.clone() for key, value in fused.network.state_dict().items()}
    with torch.no_grad():
        with arithmetic("bf16", CUDA):
            output, yardstick = fused.forward(images), half.forward(images)
        with arithmetic("fp32", CUDA):
            expected, alone = plain.forward(images), fused.forward(images)
    assert torch.equal(alone.logits, expected.logits)  # fp32 is asked for: the plain modules answer
    assert error(output.logits, expected.logits) <= 1.5 * error(yardstick.logits, expected.logits) + 0.005
    # Which capsule is the best hangs on rounding where several are about equally good.
    same = (output.best.place == expected.best.place).all(1) & (yardstick.best.place == expected.best.place).all(1)
    if bool(same.any()):
        found, allowed = (error(o.reconstruction[same], expected.reconstruction[same]) for o in (output, yardstick))
        assert found <= 1.5 * allowed + 0.02
    for key, value in fused.network.state_dict().items():
        assert torch.equal(value, before[key]), key
    with torch.no_grad(), arithmetic("bf16", CUDA):
        one = fused.forward(images[:1])
    torch.testing.assert_close(one.logits, output.logits[:1], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", NETWORKS)
def test_nothing_is_read_that_nobody_wrote(name, monkeypatch):
    """Memory that is new is NaN, and the answer stays what it was."""
    m, config = NETWORKS[name]
    # Rounding may decide which of two vectors is decoded, and gradients through the decoder differ for good then: those
    # are only checked to be finite.
    undecoded = Objective({**PAPER, "reconstruction": 0.0})
    for weights in (PAPER, undecoded):
        first = new_engine(config)
        again, poisoned = copied(first), copied(first)
        images, labels = batch(m, config)
        output, _ = one_pass(first, images, labels, "bf16", weights)
        one_pass(again, images, labels, "bf16", weights)
        with monkeypatch.context() as patch:
            _poison_new_memory(patch)
            found, _ = one_pass(poisoned, images, labels, "bf16", weights)
        # Rounding alone may come to 0.02; poison that was read would be NaN or huge.
        assert error(found.logits, output.logits) < 0.05
        for parameter, p in poisoned.network.named_parameters():
            assert bool(p.grad.isfinite().all()), parameter
    # Atomics come in any order, and what they round differently grows on the way through a network in bf16: no more
    # than between two passes that nobody poisoned.
    assert difference(poisoned, first) <= 1.5 * difference(again, first) + 0.02


def _poison_new_memory(patch):
    empty, empty_like = torch.empty, torch.empty_like
    patch.setattr(torch, "empty", lambda *a, **n: _poison(empty(*a, **n)))
    patch.setattr(torch, "empty_like", lambda *a, **n: _poison(empty_like(*a, **n)))


def difference(one, other):
    """Of the gradients: the median over parameters."""
    pairs = zip(one.network.parameters(), other.network.parameters(), strict=True)
    return statistics.median(error(p.grad, q.grad) for p, q in pairs)


def _poison(tensor):
    if tensor.is_cuda and tensor.numel():
        if tensor.is_floating_point():
            tensor.fill_(float("nan"))
        else:
            tensor.fill_(-1)  # two bf16 that are NaN
    return tensor


def test_gradients_aside_are_those_in_line():
    """Work on a second stream: the same sums, added up in whatever order the atomics come."""
    m, config = NETWORKS["CIFAR-10"]
    engines = [new_engine(config)]
    engines += [copied(engines[0]) for _ in range(3)]
    images, labels = batch(m, config)
    for engine, aside in zip(engines, (False, False, True, True), strict=True):
        engine.fused.aside.enabled = aside
        one_pass(engine, images, labels, "bf16")
        assert not engine.fused.aside.kept
    line, again, *others = engines
    for other in others:
        assert difference(other, line) <= 1.5 * difference(again, line) + 0.02


def pictures(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (count,), generator=generator)
    images = torch.randint(0, 128, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
    images[torch.arange(count), :, labels * 3] += 127
    return Split(images, labels)


def stepper(config, graph, lr=0.1, split=None, objective=PAPER, **data):
    training = TrainingConfig(precision="bf16", kernels="fused", lr=lr)
    experiment = Experiment("gpu", DataConfig(source="cifar10", **data), config, objective, training)
    torch.manual_seed(0)
    engine = kernels.choose(config.build().to(CUDA), experiment, CUDA)
    optimizer = make_optimizer(engine, experiment, CUDA)
    assert isinstance(optimizer, FusedNesterov)
    device_split = DeviceSplit(split or pictures(512), (0.25,) * 3, (0.2,) * 3, CUDA)
    step = Step(experiment, engine, optimizer, device_split)
    return GraphedStep(step, 64) if graph else step


def losses(step, steps):
    totals, before = [], 0.0
    for start in range(steps):
        step(torch.arange(64, device=CUDA) + start * 64 % 448)
        totals.append(float(step.sums[0]) - before)
        before += totals[-1]
    return totals


def test_a_replayed_step_is_the_eager_one():
    eager, replayed = (losses(stepper(WCapsNetConfig(**QUIET), graph, lr=0.02), 6) for graph in (False, True))
    torch.testing.assert_close(replayed, eager, rtol=3e-2, atol=0)


def test_a_replayed_step_learns_as_the_eager_one_does_with_chance_in_it():
    data = {"mirror": True, "shift": 2}
    eager, replayed = (losses(stepper(WCapsNetConfig(), graph, lr=0.02, **data), 120) for graph in (False, True))
    last = [statistics.mean(values[-15:]) for values in (eager, replayed)]
    print(f"losses at the end: eager {last[0]:.3f}, replayed {last[1]:.3f}")
    assert abs(last[0] - last[1]) < 0.25 * max(last)
    assert last[1] < 0.9 * statistics.mean(replayed[:5])


EVERY_TERM = Objective(
    cross_entropy=1.0, centred_wasserstein=0.2, reconstruction=0.01, label_smoothing=0.1, information=0.1
)


@pytest.mark.parametrize("name", ["plus", "plus, weights per position"])
def test_a_replayed_step_of_wcapsnet_plus_is_the_eager_one_with_every_loss_term(name):
    _, config = NETWORKS[name]
    eager, replayed = (losses(stepper(config, graph, 0.02, None, EVERY_TERM), 6) for graph in (False, True))
    torch.testing.assert_close(replayed, eager, rtol=3e-2, atol=0)


def test_wcapsnet_plus_learns_from_mixed_images_in_a_graph():
    data = {"mirror": True, "shift": 2, "augment": Augmentations(cutmix=0.5)}
    step = stepper(PLUS, True, 0.02, None, EVERY_TERM, **data)
    assert step.engine.description == "fused kernels; augmentation cutmix in PyTorch"
    found = losses(step, 200)
    assert statistics.mean(found[-20:]) < 0.9 * statistics.mean(found[:5])


def test_a_replayed_step_follows_a_growing_sharpness():
    config = replace(PLUS, routing=replace(PLUS.routing, sharpness=(20.0,)))
    training = TrainingConfig(precision="bf16", lr=1e-12)
    experiment = Experiment("gpu", DataConfig(source="cifar10"), config, EVERY_TERM, training)
    network = WCapsNet(config).to(CUDA)
    network.sharpen(0.0)
    engine = kernels.choose(network, experiment, CUDA)
    data = DeviceSplit(pictures(64), (0.25,) * 3, (0.2,) * 3, CUDA)
    step = GraphedStep(Step(experiment, engine, make_optimizer(engine, experiment, CUDA), data), 64)
    information = []
    for share in (0.0, 1.0):
        network.sharpen(share)
        step.sums.zero_()
        step(torch.arange(64, device=CUDA))
        information.append(-step.means()["information"])
    assert information[1] > 5 * information[0]


def test_no_random_draw_repeats_between_replays():
    step = stepper(WCapsNetConfig(), True, lr=1e-12)
    index, totals = torch.arange(64, device=CUDA), []
    for _ in range(4):  # the same batch, weights that do not move: only noise and dropout differ
        step.sums.zero_()
        step(index)
        totals.append(float(step.sums[0]))
    assert len(set(totals)) == 4


def test_three_hundred_steps_on_random_labels_stay_finite():
    split = pictures(512)._replace(labels=torch.randint(0, 10, (512,)))
    step = stepper(WCapsNetConfig(), True, lr=0.1, split=split, mirror=True, shift=4)
    totals = losses(step, 300)
    assert all(0 < total < 20 for total in totals), totals
    assert all(bool(value.isfinite().all()) for value in step.engine.network.state_dict().values())


def test_weights_that_are_no_numbers_break_nothing_but_the_loss():
    """The trainer tells of a run that diverged by its loss; an address made of NaN would end the process instead."""
    step = stepper(WCapsNetConfig(), False)
    with torch.no_grad():
        for p in step.engine.network.parameters():
            p.fill_(float("nan"))
    step(torch.arange(64, device=CUDA))
    torch.cuda.synchronize()
    assert bool(step.sums[0].isnan())
    assert float(torch.ones(1, device=CUDA)) == 1


@pytest.mark.parametrize("what", ["random", "constant"])
def test_fitness_that_is_not_learned_is_routed_by_the_kernels(what):
    routing = replace(QUIET["routing"], fitness=what, weighting="normalized")
    config = replace(WCapsNetConfig(**QUIET), routing=routing)
    (fused, plain, half), images, labels = three(config, 16)
    outputs = []
    for engine, precision in ((fused, "bf16"), (plain, "fp32"), (half, "bf16")):
        torch.manual_seed(3)
        engine.network.eval()
        with torch.no_grad(), arithmetic(precision, CUDA):
            outputs.append(engine.forward(images))
    output, expected, yardstick = outputs
    assert error(output.logits, expected.logits) <= 1.5 * error(yardstick.logits, expected.logits) + 0.01
    fused.network.train()
    _, terms = one_pass(fused, images, labels, "bf16")
    assert bool(terms.total.isfinite())


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_parts_of_ones_own_train_between_the_kernels(graph, monkeypatch):
    """A weighting, a loss term on the capsules and an augmentation that no kernel knows, recorded as a graph too."""

    def seven(output, images, labels):
        return 7 + output.capsules[0].float().square().mean() * 0

    monkeypatch.setitem(parts.weighting, "cubed", lambda a: (a**3).flatten(1).softmax(1).view_as(a))
    monkeypatch.setitem(parts.loss_term, "seven", seven)
    monkeypatch.setitem(parts.augmentation, "dark", lambda images, amount: images * amount)
    config = WCapsNetConfig(routing=RoutingConfig(weighting="cubed"))
    objective, own = Objective({**PAPER, "seven": 2.0}), Augmentations(dark=0.5)
    step = stepper(config, graph, lr=0.02, objective=objective, mirror=True, augment=own)
    for part in ("routing", "loss term seven", "augmentation dark"):
        assert f"{part} in PyTorch" in step.engine.description
    totals = losses(step, 60)
    means = step.means()
    assert means["seven"] == pytest.approx(7)
    assert means["total"] == pytest.approx(sum(weight * means[name] for name, weight in objective.items()), rel=1e-3)
    assert statistics.mean(totals[-10:]) < statistics.mean(totals[:5])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--kernels", "fused"], "with fused kernels"),
        (["--kernels", "plain"], "with plain PyTorch"),
        (["--precision", "fp32"], "with plain PyTorch (they compute in bf16, not in fp32)"),
    ],
)
def test_what_computes_is_said(tmp_path, options, said):
    asked = ["train", "demo", "--epochs", "1", "--out", str(tmp_path / "run"), *options]
    if "--precision" not in options:
        asked += ["--precision", "bf16"]
    answer = CliRunner().invoke(app, asked)
    assert answer.exit_code == 0, answer.output
    assert said in " ".join(answer.output.split())


# ── DenseNet-BC ──

DENSENET = model_config("densenet-bc-100", classes=10, channels=3, height=32, width=32)
ENTROPY = Objective(cross_entropy=1.0)


def test_a_pass_of_densenet_is_as_near_to_fp32_as_plain_bf16_is():
    network = DENSENET.build().to(CUDA)
    plain, half, fused = (engine_of(copy.deepcopy(network), wanted) for wanted in ("plain", "plain", "fused"))
    images, labels = batch(64, DENSENET)
    precisions = ((fused, "bf16"), (plain, "fp32"), (half, "bf16"))

    def errors(values):
        ours, truth, theirs = values
        return error(ours, truth), error(theirs, truth)

    answers = [one_pass(engine, images, labels, precision, ENTROPY)[0] for engine, precision in precisions]
    ours, theirs = errors([answer.logits for answer in answers])
    assert ours <= 1.5 * theirs + 0.01
    triples = zip(*(engine.network.parameters() for engine, _ in precisions), strict=True)
    found = [errors([p.grad for p in triple]) for triple in triples]
    assert all(ours <= 3 * theirs + 0.1 for ours, theirs in found), max(found)
    ours, theirs = (statistics.median(values) for values in zip(*found, strict=True))
    print(f"DenseNet: median error of the gradients {ours:.4f}, of plain bf16's {theirs:.4f}")
    assert ours <= 1.2 * theirs
    for triple in zip(*(engine.network.buffers() for engine, _ in precisions), strict=True):
        ours, theirs = errors(triple)
        assert ours <= 1.5 * theirs + 0.01

    for _ in range(3):  # running statistics that are not where they start
        one_pass(plain, *batch(64, DENSENET), "fp32", ENTROPY)
    answers = []
    for engine, precision in precisions:
        engine.network.load_state_dict(plain.network.state_dict())
        engine.network.eval()
        with torch.no_grad(), arithmetic(precision, CUDA):
            answers.append(engine.forward(images).logits)
    ours, theirs = errors(answers)
    assert ours <= 1.5 * theirs + 0.01


def test_a_replayed_step_of_densenet_is_the_eager_one_and_learns():
    eager, replayed = (losses(stepper(DENSENET, graph, 0.02, None, ENTROPY), 6) for graph in (False, True))
    torch.testing.assert_close(replayed, eager, rtol=3e-2, atol=0)
    found = losses(stepper(DENSENET, True, 0.02, None, ENTROPY, mirror=True, shift=2), 200)
    assert statistics.mean(found[-20:]) < 0.7 * statistics.mean(found[:5])
