"""What the paper's recipes leave off: schedules, AdamW, label smoothing, weight averaging, `--minutes`."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from training_helpers import (
    CtrlC,
    begin,
    go_on,
    interrupted,
    same_tensors,
    tensors,
    toy_experiment,
    trained,
    with_training,
    without_timings,
)

from twins.tiny import quiet
from wcapsnet.api import experiment_for
from wcapsnet.data.types import Augmentations
from wcapsnet.errors import InputError
from wcapsnet.experiment import TrainingConfig
from wcapsnet.network import WCapsNet
from wcapsnet.objective import Objective
from wcapsnet.recipes import recipe
from wcapsnet.training import pace
from wcapsnet.training.step import Average, undone
from wcapsnet.training.trainer import State, Trainer, parameter_copies

# ── schedules ──


def test_a_warm_up_rises_in_equal_steps_to_the_full_rate_and_then_the_schedule_is_the_same():
    plain = TrainingConfig(epochs=8, lr=0.4, milestones=(6,))
    warm = replace(plain, warmup=3)
    assert [warm.learning_rate(epoch) for epoch in range(4)] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert [warm.learning_rate(epoch) for epoch in range(4, 8)] == [plain.learning_rate(epoch) for epoch in range(4, 8)]
    assert warm.with_epochs(16).warmup == 6


def test_a_cosine_starts_at_the_full_rate_passes_half_of_it_in_the_middle_and_ends_at_zero():
    plain = TrainingConfig(epochs=10, lr=0.4, schedule="cosine", milestones=(1,))  # milestones are for "steps"
    assert [plain.learning_rate(epoch) for epoch in (0, 5, 10)] == pytest.approx([0.4, 0.2, 0.0])
    warm = replace(plain, warmup=2)
    assert [warm.learning_rate(epoch) for epoch in (0, 1, 2, 6, 10)] == pytest.approx([0.4 / 3, 0.8 / 3, 0.4, 0.2, 0.0])
    rates = [warm.learning_rate(2 + step / 7) for step in range(57)]
    assert rates == sorted(rates, reverse=True)


def test_a_cosine_changes_the_rate_at_every_step_and_milestones_at_epochs_only(tmp_path):
    def rates(schedule):
        trainer = begin(tmp_path / schedule, toy_experiment(schedule=schedule))
        seen, (group, *_) = [], trainer.optimizer.param_groups
        for _ in trainer.steps():
            seen.append(round(float(group["lr"]), 6))
        return seen

    assert len(set(rates("steps"))) == 2
    assert len(set(rates("cosine"))) == 9


# ── AdamW, averaging ──


def test_adamw_equals_the_update_written_by_hand(tmp_path):
    lr, decay, beta1, beta2 = 0.01, 0.1, 0.8, 0.999
    experiment = toy_experiment(optimizer="adamw", lr=lr, weight_decay=decay, momentum=beta1)
    trainer = begin(tmp_path / "run", experiment)
    network = trainer.network
    decayed = {id(p) for p in network.decayed_parameters()}
    expected = {name: p.detach().double() for name, p in network.named_parameters()}
    first, second = ({name: torch.zeros_like(p) for name, p in expected.items()} for _ in range(2))
    for t in range(1, 4):
        for name, p in network.named_parameters():
            p.grad = torch.randn(p.shape)
            g = p.grad.double()
            first[name] = beta1 * first[name] + (1 - beta1) * g
            second[name] = beta2 * second[name] + (1 - beta2) * g**2
            kept = expected[name] * (1 - lr * decay if id(p) in decayed else 1)
            step = first[name] / (1 - beta1**t) / ((second[name] / (1 - beta2**t)).sqrt() + 1e-8)
            expected[name] = kept - lr * step
        trainer.optimizer.step()
    for name, p in network.named_parameters():
        torch.testing.assert_close(p.detach().double(), expected[name], rtol=1e-4, atol=1e-5, msg=name)


def test_the_average_equals_the_formula_step_by_step():
    torch.manual_seed(0)
    network = WCapsNet(toy_experiment().model)
    average = Average(network, 0.6)
    state = network.state_dict()
    averaged = {n for n, _ in network.named_parameters()} | {n for n in state if "running" in n}
    expected = {name: value.double() for name, value in state.items()}
    for t in range(1, 6):
        d = min(0.6, (1 + t) / (10 + t))
        for name, value in network.state_dict().items():
            value.copy_(torch.randn(value.shape))
            expected[name] = d * expected[name] + (1 - d) * value if name in averaged else value.double()
        average.update()
    for name, value in average.network.state_dict().items():
        torch.testing.assert_close(value.double(), expected[name], rtol=1e-5, atol=1e-6, msg=name)


def test_the_average_is_what_is_evaluated_and_saved_and_training_does_not_depend_on_it(tmp_path):
    plain = trained(tmp_path / "plain", toy_experiment())
    averaged = trained(tmp_path / "averaged", toy_experiment(averaging=0.9))
    names = [n for n in tensors(plain.file("state.safetensors")) if n.startswith(("model.", "momentum."))]
    one, other = tensors(plain.file("state.safetensors")), tensors(averaged.file("state.safetensors"))
    assert all(torch.equal(one[name], other[name]) for name in names)
    last = tensors(averaged.file("last.safetensors"))
    assert all(torch.equal(value, other[f"average.{name}"]) for name, value in last.items())
    assert not torch.equal(last["projection"], other["model.projection"])


def test_of_averages_as_good_as_the_best_the_last_is_used():
    state = State(highest=0.75)  # 100 images: the standard error is 4.3 points
    assert state.as_good(0.71, 100)
    assert not state.as_good(0.70, 100)
    assert not state.as_good(0.74, 10_000)
    assert state.as_good(0.76, 10_000)


@pytest.mark.parametrize(("averaging", "used"), [(0.9, 3), (0.0, 1)])
def test_a_worse_epoch_within_the_standard_error_replaces_the_best_only_with_averages(
    tmp_path, monkeypatch, averaging, used
):
    seen = iter([SimpleNamespace(accuracy=a, loss=1.0, labels=range(100)) for a in (0.75, 0.3, 0.74)])
    monkeypatch.setattr(Trainer, "evaluate", lambda self, split: next(seen))
    run = trained(tmp_path / "run", toy_experiment(averaging=averaging, epochs=3))
    assert [record["best"] for record in run.metrics()] == [True, False, used == 3]


MODERN = {"optimizer": "adamw", "lr": 0.01, "averaging": 0.9, "schedule": "cosine", "warmup": 1}


@pytest.mark.parametrize("at", [(1, None), (1, 2)])
def test_a_run_with_every_option_resumes_bit_for_bit(tmp_path, at):
    experiment = toy_experiment(**MODERN)
    augment = Augmentations(zoom=0.2, rotate=10, colour=0.2, erase=0.3, cutmix=0.5)
    objective = Objective(experiment.objective, label_smoothing=0.1)
    experiment = replace(experiment, data=replace(experiment.data, augment=augment), objective=objective)
    whole = trained(tmp_path / "whole", experiment)
    assert interrupted(begin(tmp_path / "stopped", experiment, progress=CtrlC(*at)))
    trainer = go_on(tmp_path / "stopped")
    trainer.fit()
    assert without_timings(whole.metrics()) == without_timings(trainer.run.metrics())
    for file in ("state", "best", "last"):
        assert same_tensors(whole.file(f"{file}.safetensors"), trainer.run.file(f"{file}.safetensors"))


def test_steps_that_are_undone_leave_no_trace(tmp_path):
    trainer = begin(tmp_path / "run", toy_experiment(**MODERN))
    before = [tensor.clone() for tensor in trainer.step.tensors()]
    random = torch.get_rng_state()
    with undone(trainer.step):
        trainer.step(torch.arange(16))
        assert not torch.equal(trainer.network.projection, before[-1])
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.step.tensors(), strict=True))
    assert torch.equal(random, torch.get_rng_state())


# ── growing sharpness ──


def growing(epochs=3, sharpening=2):
    experiment = toy_experiment(epochs=epochs, sharpening=sharpening)
    routing = replace(experiment.model.routing, sharpness=(5.0,))
    return replace(experiment, model=replace(experiment.model, routing=routing))


def test_the_sharpness_grows_by_epochs_to_its_value_also_in_a_resumed_run(tmp_path, monkeypatch):
    seen, train = [], Trainer._train_epoch

    def watched(self):
        yield from train(self)
        seen.append({float(router.growing) for router in self.network.routers})

    monkeypatch.setattr(Trainer, "_train_epoch", watched)
    begin(tmp_path / "whole", growing()).fit()
    assert seen == [{1.0}, {3.0}, {5.0}]
    assert interrupted(begin(tmp_path / "stopped", growing(), progress=CtrlC(0)))
    go_on(tmp_path / "stopped").fit()
    assert seen[3:] == [{1.0}, {3.0}, {5.0}]


def test_the_place_of_the_sharpness_in_memory_stays_the_same(tmp_path):
    """A recorded step reads it there."""
    trainer = begin(tmp_path / "run", growing())
    places = [router.growing.data_ptr() for router in trainer.network.routers]
    trainer.fit()
    assert places == [router.growing.data_ptr() for router in trainer.network.routers]


def test_a_growing_sharpness_scales_with_the_epochs_and_needs_a_routing():
    assert TrainingConfig(epochs=10, milestones=(), sharpening=5).with_epochs(20).sharpening == 10
    experiment = recipe("cifar10-plus-densenet")
    with pytest.raises(InputError, match=r"training\.sharpening is 3"):
        with_training(experiment, sharpening=3)


# ── mixed labels ──


def test_the_loss_of_a_mixed_batch_is_that_of_both_labels_by_their_shares(tmp_path, monkeypatch):
    experiment = replace(toy_experiment(), model=quiet(channels=1), objective=Objective(cross_entropy=1.0))
    experiment = replace(
        experiment, data=replace(experiment.data, mirror=False, shift=0, augment=Augmentations(cutmix=1))
    )
    trainer = begin(tmp_path / "run", experiment)
    seen = []
    monkeypatch.setattr(trainer.engine, "backward", seen.append)
    trainer.network.eval()  # so that another pass gives the same
    random = torch.get_rng_state()
    trainer.step(torch.arange(16))
    torch.set_rng_state(random)
    (images, share), labels = trainer.engine.batch(trainer.train_data, torch.arange(16), {"cutmix": 1.0})
    logits = trainer.network(images).logits
    own, other = (torch.nn.functional.cross_entropy(logits, of) for of in (labels, labels.roll(1)))
    torch.testing.assert_close(seen[0], share * own + (1 - share) * other)
    assert trainer.step.means()["total"] == pytest.approx(seen[0].item())


@pytest.mark.parametrize("settings", [{}, {"optimizer": "adamw"}, {"optimizer": "adamw", "averaging": 0.9}])
def test_the_memory_asked_for_counts_every_copy_of_the_weights(tmp_path, settings):
    trainer = begin(tmp_path / "run", toy_experiment(**settings))
    gradients = 1
    assert parameter_copies(trainer.settings) == gradients + sum(
        name.endswith(".projection") and tensor.dim() > 0 for name, tensor in trainer._tensors().items()
    )


# ── minutes ──


class Clock:
    """Time passes only in steps and evaluations."""

    def __init__(self, monkeypatch, trainer, step, image):
        self.now, self.step, self.image = 0.0, step, image
        for module in ("pace", "trainer"):
            monkeypatch.setattr(f"wcapsnet.training.{module}.time.perf_counter", lambda: self.now)
        original, evaluate = trainer.step, trainer.evaluate
        trainer.pace.began = 0.0

        class Timed:
            def __getattr__(_, name):
                return getattr(original, name)

            def __call__(_, index):
                self.now += self.step
                original(index)

        def timed(split):
            self.now += self.image * len(split)
            return evaluate(split)

        trainer.step, trainer.evaluate = Timed(), timed


def planned(tmp_path, monkeypatch, minutes, step, image=0.001):
    trainer = begin(tmp_path / "run", toy_experiment(schedule="cosine", minutes=minutes, milestones=()))
    monkeypatch.setattr(pace, "REPORT", 0.0)
    return trainer, Clock(monkeypatch, trainer, step, image)


@pytest.mark.parametrize(("minutes", "step"), [(0.5, 0.4), (1.0, 1.0), (0.5, 3.0)])
def test_a_run_of_n_minutes_uses_its_time_and_no_more(tmp_path, monkeypatch, minutes, step):
    trainer, clock = planned(tmp_path, monkeypatch, minutes, step)
    trainer.fit()
    assert 0.6 * 60 * minutes < clock.now <= 60 * minutes
    recorded = json.loads(trainer.run.file("experiment.json").read_text())["training"]
    assert recorded["epochs"] == trainer.state.epoch
    assert recorded["minutes"] == minutes


def test_the_measurement_before_a_long_run_takes_seconds(tmp_path, monkeypatch):
    trainer, clock = planned(tmp_path, monkeypatch, minutes=600, step=0.5)
    trainer.pace.plan()
    assert clock.now < 10  # not 3 % of ten hours


def test_a_plan_scales_everything_that_depends_on_the_number_of_epochs(tmp_path, monkeypatch):
    given = {"epochs": 2, "schedule": "exponential", "decay": 0.5, "patience": 2, "milestones": ()}
    trainer = begin(tmp_path / "run", toy_experiment(minutes=0.5, **given))
    Clock(monkeypatch, trainer, 0.4, 0.001)
    trainer.pace.plan()
    settings = trainer.settings
    assert settings.epochs > 2
    assert settings.patience == settings.epochs
    assert settings.learning_rate(settings.epochs) == pytest.approx(0.25 * settings.lr)


def test_any_finite_number_of_minutes_can_be_planned(tmp_path, monkeypatch):
    trainer, _ = planned(tmp_path, monkeypatch, minutes=1e300, step=0.5)
    trainer.pace.plan()
    assert trainer.settings.epochs == 2**31 - 1
    with pytest.raises(InputError, match=r"--minutes is inf, but it must be above zero and finite"):
        experiment_for("quick", minutes=math.inf)


@pytest.mark.parametrize("length", ["epochs", "minutes"])
def test_a_length_of_zero_is_refused(length):
    with pytest.raises(InputError, match=rf"^--{length} is 0"):
        experiment_for("quick", **{length: 0})


def test_where_no_epoch_fits_it_trains_the_steps_that_do_and_says_so(tmp_path, monkeypatch, capsys):
    trainer, clock = planned(tmp_path, monkeypatch, 0.5, 7.0)  # an epoch is three steps, three more are measured
    trainer.fit()
    assert trainer.state.epoch == 1
    assert trainer.settings.epoch_steps == 1
    assert clock.now <= 30
    assert "1 of its 3 steps" in capsys.readouterr().err


def test_a_slower_machine_changes_the_plan(tmp_path, monkeypatch):
    trainer, clock = planned(tmp_path, monkeypatch, 1.0, 0.4)
    steps = trainer.steps()
    next(steps)
    before = trainer.settings.epochs
    clock.step *= 2
    for _ in steps:
        pass
    assert trainer.state.epoch == trainer.settings.epochs < before
    assert clock.now <= 60


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "changes"), [(1.1, 0), (0.5, 0), (3.0, 1)])
def test_a_settled_plan_changes_only_if_the_limit_would_be_missed(tmp_path, monkeypatch, factor, changes):
    trainer, clock = planned(tmp_path, monkeypatch, 2.0, 0.4)
    plans, rates = [], []
    for _ in trainer.steps():
        if len(plans) == 40:  # long settled
            clock.step *= factor
        plans.append(trainer.settings.epochs)
        rates.append(trainer.settings.learning_rate(trainer.state.epoch))
    assert (len(set(plans[39:])) > 1) == changes
    assert plans[39:] == sorted(plans[39:], reverse=True)
    assert rates[39:] == sorted(rates[39:], reverse=True)
    assert clock.now <= 1.2 * 120


def test_repeating_such_a_run_trains_the_epochs_it_had(tmp_path, monkeypatch):
    trainer, _ = planned(tmp_path, monkeypatch, 0.5, 0.4)
    trainer.fit()
    experiment, _ = experiment_for(trainer.run.path)
    assert experiment == with_training(trainer.experiment, minutes=None)
