"""Section V-B: Nesterov momentum, weight decay where the paper has it, and the learning rate's schedule."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from training_helpers import CPU, after_each_step, begin, toy_dataset, toy_experiment

from twins.tiny import quiet
from wcapsnet.data.device_data import DeviceSplit
from wcapsnet.data.types import Augmentations
from wcapsnet.engine import Engine
from wcapsnet.experiment import Experiment, TrainingConfig
from wcapsnet.network import WCapsNet
from wcapsnet.objective import PAPER, Objective, l2, objective
from wcapsnet.parts import augmentation, loss_term
from wcapsnet.recipes import recipe
from wcapsnet.training.step import Step, make_optimizer, summed


def network_and_optimizer(**training):
    torch.manual_seed(0)
    experiment = toy_experiment(**training)
    network = WCapsNet(experiment.model)
    return network, make_optimizer(Engine(network), experiment, CPU)


# ── the update ──


def test_a_network_that_names_no_parameters_decays_those_with_more_than_one_dimension():
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
    decayed, others = make_optimizer(Engine(network), Experiment("own"), CPU).param_groups
    assert [id(p) for p in decayed["params"]] == [id(network[0].weight), id(network[3].weight)]
    assert (len(others["params"]), others["weight_decay"]) == (4, 0)


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, True), (0.9, True), (0.9, False)])
def test_three_steps_equal_sgd_written_by_hand(momentum, nesterov):
    lr, decay = 0.1, 0.01
    network, optimizer = network_and_optimizer(lr=lr, momentum=momentum, weight_decay=decay, nesterov=nesterov)
    decayed = {id(p) for p in network.decayed_parameters()}
    expected = {name: p.detach().double() for name, p in network.named_parameters()}
    velocity = {name: torch.zeros_like(p) for name, p in expected.items()}
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        for name, p in network.named_parameters():
            p.grad = torch.randn(p.shape, generator=generator)
            g = p.grad.double() + (decay * expected[name] if id(p) in decayed else 0)
            velocity[name] = momentum * velocity[name] + g
            expected[name] = expected[name] - lr * (g + momentum * velocity[name] if nesterov else velocity[name])
        optimizer.step()
    for name, p in network.named_parameters():
        torch.testing.assert_close(p.detach().double(), expected[name], rtol=1e-5, atol=1e-6, msg=name)


def test_the_learning_rate_is_read_anew_at_every_step():
    network, optimizer = network_and_optimizer(momentum=0.0, weight_decay=0.0)
    for rate in (0.5, 0.05):
        before = network.projection.detach().clone()
        for group in optimizer.param_groups:
            group["lr"].fill_(rate)
        for p in network.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
        torch.testing.assert_close(before - network.projection.detach(), torch.full_like(before, rate))


def test_every_parameter_is_updated_and_none_twice():
    network, optimizer = network_and_optimizer()
    updated = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(updated) == sorted(id(p) for p in network.parameters())


# ── weight decay ──


def test_weight_decay_falls_on_convolution_kernels_outside_the_critics_and_on_nothing_else():
    network, optimizer = network_and_optimizer(weight_decay=0.25)
    names = {id(p): name for name, p in network.named_parameters()}
    decayed = {names[id(p)] for g in optimizer.param_groups for p in g["params"] if g["weight_decay"]}
    assert {g["weight_decay"] for g in optimizer.param_groups} == {0.25, 0.0}
    assert decayed == {
        "init_conv.weight",
        "capsules.0.dense.shortcut.weight",
        "capsules.0.dense.layers.0.conv.weight",
        "capsules.0.dense.layers.1.conv.weight",
        "capsules.0.trans.conv_plus.conv.weight",
        "capsules.1.dense.layers.0.conv.weight",
        "capsules.1.dense.layers.1.conv.weight",
        "capsules.1.trans.conv_plus.conv.weight",
        "decoder.conv1.weight",
        "decoder.conv2.weight",
    }
    left_out = set(names.values()) - decayed
    assert "projection" in left_out  # W
    assert "decoder.linear.weight" in left_out
    assert any(name.startswith("routers.") and name.endswith("weight") for name in left_out)
    assert all("bias" not in name and "norm" not in name for name in decayed)


def test_weight_decay_of_the_optimizer_is_the_gradient_of_lambda_times_l2():
    # Eq. 15: an update with λ_WD equals an update on the loss with λ_WD · L₂ added to it
    lam = 0.03
    with_decay, optimizer = network_and_optimizer(momentum=0.9, weight_decay=lam)
    with_term, plain = network_and_optimizer(momentum=0.9, weight_decay=0.0)
    generator = torch.Generator().manual_seed(1)
    for _ in range(2):
        for p, q in zip(with_decay.parameters(), with_term.parameters(), strict=True):
            p.grad = torch.randn(p.shape, generator=generator)
            q.grad = p.grad.clone()
        (lam * 0.5 * sum(p.square().sum() for p in with_term.decayed_parameters())).backward()
        optimizer.step()
        plain.step()
    for p, q in zip(with_decay.parameters(), with_term.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def test_l2_is_half_the_sum_of_squares():
    assert float(l2([torch.tensor([1.0, -2.0]), torch.tensor([[3.0]])])) == 7.0


# ── a step ──


def test_a_step_adds_up_the_terms_of_the_loss_before_its_update():
    experiment = toy_experiment()
    config = quiet(channels=1)
    torch.manual_seed(0)
    network = WCapsNet(config)
    data = DeviceSplit(toy_dataset().train, (0.3,), (0.3,), CPU)
    still = Experiment("still", model=config, training=experiment.training)  # no augmentation, no dropout
    engine = Engine(network)
    step = Step(still, engine, make_optimizer(engine, still, CPU), data)
    images, labels = data.take(torch.arange(16))
    expected, accuracy = [], []
    for _ in range(2):
        with torch.no_grad():
            network.train()
            before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
            output = network(images)
            network.load_state_dict(before)  # a forward pass in training moves running means
        terms = objective(output, images, labels, PAPER)
        expected.append({"total": float(terms.total), **{name: float(t) for name, t in terms.named.items()}})
        accuracy.append(float((output.logits[:, :3].argmax(1) == labels).double().mean()))
        step(torch.arange(16))
    sums = dict(zip(step.summed, step.sums.tolist(), strict=True))
    assert (
        step.summed == summed(PAPER) == ("total", "cross_entropy", "wasserstein", "reconstruction", "accuracy", "steps")
    )
    assert sums["steps"] == 2
    assert sums["accuracy"] == pytest.approx(sum(accuracy))
    for name in expected[0]:
        assert sums[name] == pytest.approx(sum(e[name] for e in expected), rel=1e-5), name
        assert step.means()[name] == pytest.approx(sums[name] / 2), name
    assert step.means()["accuracy"] == pytest.approx(sum(accuracy) / 2)


def test_a_loss_term_and_an_augmentation_of_ones_own_are_trained_with(monkeypatch):
    monkeypatch.setitem(loss_term, "seven", lambda output, images, labels: output.logits.mean() * 0 + 7)
    monkeypatch.setitem(augmentation, "dark", lambda images, amount: images * 0 - amount)
    base = toy_experiment()
    data_config = replace(base.data, augment=Augmentations(dark=2))
    experiment = replace(base, data=data_config, objective=Objective({**PAPER, "seven": 3}))
    torch.manual_seed(0)
    network, seen = WCapsNet(experiment.model), []
    network.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    engine, data = Engine(network), DeviceSplit(toy_dataset().train, (0.3,), (0.3,), CPU)
    step = Step(experiment, engine, make_optimizer(engine, experiment, CPU), data)
    step(torch.arange(16))
    means = step.means()
    assert bool((seen[0] == -2).all())
    assert step.summed == ("total", *PAPER, "seven", "accuracy", "steps")
    assert means["seven"] == 7
    assert means["total"] == pytest.approx(sum(w * means[name] for name, w in experiment.objective.items()), rel=1e-5)


def test_bf16_computes_in_bf16_and_keeps_weights_and_losses_in_float32():
    seen = set()
    experiment = toy_experiment(precision="bf16")
    torch.manual_seed(0)
    network = WCapsNet(experiment.model)
    network.init_conv.register_forward_hook(lambda module, args, out: seen.add(out.dtype))
    data = DeviceSplit(toy_dataset().train, (0.3,), (0.3,), CPU)
    engine = Engine(network.train())
    step = Step(experiment, engine, make_optimizer(engine, experiment, CPU), data)
    step(torch.arange(16))
    assert seen == {torch.bfloat16}
    assert {p.dtype for p in network.parameters()} == {torch.float32}
    assert {p.grad.dtype for p in network.parameters()} == {torch.float32}


# ── the schedule ──


@pytest.mark.parametrize(
    ("name", "drops"),
    [("cifar10", (150, 200, 250)), ("cifar100", (150, 200, 250)), ("mnist", (20, 30)), ("svhn", (20, 30))],
)
def test_the_learning_rate_falls_by_ten_after_the_papers_milestones(name, drops):
    training = recipe(name).training
    rates = [training.learning_rate(epoch) for epoch in range(training.epochs)]
    assert rates[0] == 0.1
    falls = [epoch for epoch in range(1, training.epochs) if rates[epoch] != rates[epoch - 1]]
    assert falls == list(drops)  # epochs count from 0: epoch 150 is the first after 150 epochs
    for epoch in falls:
        assert rates[epoch] == pytest.approx(rates[epoch - 1] / 10)


def test_the_optimizer_follows_the_schedule(tmp_path):
    trainer = begin(tmp_path / "run", toy_experiment(epochs=4, milestones=(1, 3), lr=0.08))
    rates, groups = [], trainer.optimizer.param_groups
    after_each_step(trainer, lambda: rates.append([float(group["lr"]) for group in groups]))
    trainer.fit()
    expected = [0.08] * 3 + [0.008] * 6 + [0.0008] * 3
    for rate, both in zip(expected, rates, strict=True):
        assert both == pytest.approx([rate, rate])


@pytest.mark.parametrize(
    ("epochs", "milestones"),
    [(300, (150, 200, 250)), (30, (15, 20, 25)), (600, (300, 400, 500)), (6, (3, 4, 5)), (1, (1,)), (2, (1, 2))],
)
def test_with_epochs_moves_the_milestones_along(epochs, milestones):
    moved = TrainingConfig().with_epochs(epochs)
    assert moved.epochs == epochs
    assert moved.milestones == milestones
    assert (moved.lr, moved.batch_size, moved.seed) == (0.1, 64, 0)


def test_with_epochs_always_gives_a_valid_schedule():
    for base in (TrainingConfig(), TrainingConfig(epochs=40, milestones=(20, 30)), TrainingConfig(milestones=())):
        for epochs in range(1, 60):
            moved = base.with_epochs(epochs)  # the configuration checks itself
            assert len(moved.milestones) <= len(base.milestones)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epochs", 0),
        ("batch_size", 0),
        ("lr", 0.0),
        ("lr", -0.1),
        ("lr", float("nan")),
        ("lr", float("inf")),
        ("decay", 0.0),
        ("decay", 1.5),
        ("momentum", 1.0),
        ("momentum", -0.1),
        ("weight_decay", -1e-4),
        ("weight_decay", float("nan")),
        ("milestones", (30, 20)),
        ("milestones", (20, 20)),
        ("milestones", (0, 20)),
        ("patience", 0),
        ("warmup", -1),
        ("schedule", "line"),
        ("optimizer", "lion"),
        ("averaging", 1.0),
        ("epoch_steps", 0),
        ("minutes", 0.0),
        ("minutes", float("inf")),
        ("precision", "fp16"),
        ("seed", -1),
        ("seed", 2**63),
    ],
)
def test_impossible_training_settings_are_refused_by_name(field, value):
    with pytest.raises(ValueError, match=rf"^training\.{field} is .* must be .*\.$"):
        TrainingConfig(**{field: value})


def test_the_exponential_schedule_falls_every_epoch_down_to_its_floor():
    training = TrainingConfig(epochs=5, lr=1.0, schedule="exponential", decay=0.5, floor=0.2)
    assert [training.learning_rate(epoch) for epoch in range(5)] == pytest.approx([1, 0.5, 0.25, 0.2, 0.2])
    assert training.with_epochs(10).learning_rate(2) == pytest.approx(0.5)
