"""When training stops, which weights are the best, and what may be looked at meanwhile."""

import math
import signal

import pytest
import torch
from training_helpers import (
    CPU,
    CtrlC,
    after_each_step,
    begin,
    counting,
    go_on,
    interrupted,
    poison,
    rows_of_light,
    tensors,
    toy_dataset,
    toy_experiment,
    with_training,
)

import wcapsnet.engine as engine_module
import wcapsnet.training.trainer as trainer_module
from wcapsnet.classifier import Classifier
from wcapsnet.data import Dataset
from wcapsnet.data.device_data import DeviceSplit
from wcapsnet.errors import InputError
from wcapsnet.experiment import TrainingConfig
from wcapsnet.settings import with_setting
from wcapsnet.training.console import Progress
from wcapsnet.training.evaluate import Evaluation
from wcapsnet.training.trainer import Diverged, State


def script(monkeypatch, *figures):
    """Validation says (accuracy in hundredths, loss) as written here, an epoch each."""
    remaining = list(figures)

    def scripted(network, split, precision="fp32", **more):
        hundredths, loss = remaining.pop(0) if remaining else figures[-1]
        labels = torch.zeros(100, dtype=torch.int64)
        predicted = (torch.arange(100) >= hundredths).long()
        weights = tuple(torch.ones(3, level.capsules) for level in network.config.levels)
        return Evaluation(labels, predicted, torch.ones(100), torch.zeros(100, 2), loss, weights, 3)

    monkeypatch.setattr(trainer_module, "evaluate", scripted)


# ── stopping ──


@pytest.mark.parametrize(
    ("validation", "settings", "ended", "best"),
    [
        ([50, 60, 55, (60, 1.5), 59, 99], {"epochs": 6, "patience": 3}, 5, [1, 2]),
        ([50, 49, 51, 50, 50, 50], {"epochs": 6, "patience": 2}, 5, [1, 3]),  # an improvement restarts it
        ([50] * 9, {"epochs": 9, "milestones": (4, 8), "patience": 2}, 6, [1]),  # from the first lower learning rate
        ([50, 0], {"epochs": 4}, 4, [1]),  # without patience, to the end
    ],
)
def test_training_ends_when_validation_has_not_improved_for_patience_epochs(
    tmp_path, monkeypatch, validation, settings, ended, best
):
    script(monkeypatch, *(one if isinstance(one, tuple) else (one, 1.0) for one in validation))
    trainer = begin(tmp_path / "run", toy_experiment(**settings))
    trainer.fit()
    assert (trainer.state.epoch, trainer.state.best_epoch) == (ended, best[-1])
    assert [m["epoch"] for m in trainer.run.metrics() if m["best"]] == best


@pytest.mark.parametrize(("epochs", "patience"), [(800, 264), (200, 66), (1, 1)])
def test_patience_scales_with_the_schedule(epochs, patience):
    folder = TrainingConfig(epochs=200, milestones=(100, 150), patience=66).with_epochs(epochs)
    assert folder.patience == patience
    assert not folder.out_of_patience(epochs // 2 + patience - 1, best=1)
    assert TrainingConfig().with_epochs(epochs).patience is None


@pytest.mark.parametrize("schedule", ["cosine", "exponential"])
def test_milestones_that_the_schedule_ignores_do_not_delay_patience(schedule):
    assert TrainingConfig(schedule=schedule, milestones=(150,), patience=3).out_of_patience(4, best=1)


def test_a_run_out_of_patience_does_not_go_on_when_resumed(tmp_path, monkeypatch):
    script(monkeypatch, (50, 1.0), (40, 1.0))
    trainer = begin(tmp_path / "run", toy_experiment(epochs=6, milestones=(), patience=1))
    trainer.fit()
    resumed = go_on(tmp_path / "run")
    resumed.fit()
    assert resumed.state.epoch == 2


# ── the best weights ──


def test_better_is_higher_accuracy_and_on_a_tie_lower_loss():
    state = State(best_epoch=1, best_accuracy=0.5, best_loss=1.0)
    assert state.better(0.6, 9.0)
    assert state.better(0.5, 0.9)
    assert not state.better(0.5, 1.0)
    assert not state.better(0.5, 1.1)
    assert not state.better(0.4, 0.1)
    assert State().better(0.0, 1e9)


def test_the_best_checkpoint_is_the_one_of_the_best_epoch(tmp_path, monkeypatch):
    script(monkeypatch, (50, 1.0), (70, 2.0), (70, 1.0), (70, 1.5))
    trainer = begin(tmp_path / "run", toy_experiment(epochs=4))
    kept = []
    finish_epoch = trainer._finish_epoch
    monkeypatch.setattr(
        trainer, "_finish_epoch", lambda: (kept.append(trainer.network.projection.detach().clone()), finish_epoch())[1]
    )
    trainer.fit()
    assert trainer.state.best_epoch == 3
    assert torch.equal(tensors(tmp_path / "run" / "best.safetensors")["projection"], kept[2])
    assert torch.equal(tensors(tmp_path / "run" / "last.safetensors")["projection"], kept[3])
    assert not torch.equal(kept[2], kept[3])


def test_the_test_figures_are_those_of_the_best_weights_not_of_the_last(tmp_path, monkeypatch):
    honest = trainer_module.evaluate
    script(monkeypatch, (70, 1.0), (50, 1.0))
    trainer = begin(tmp_path / "run", toy_experiment(epochs=4))
    trainer.fit()
    assert trainer.state.best_epoch == 1
    monkeypatch.setattr(trainer_module, "evaluate", honest)
    test = trainer.finish()
    losses = {}
    for name in ("best", "last"):
        kept = Classifier.load(tmp_path / "run" / f"{name}.safetensors")
        losses[name] = honest(kept.network, DeviceSplit(trainer.dataset.test, *kept.normalization, CPU)).loss
    assert test.loss == losses["best"] != losses["last"]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_validation_runs_in_the_precision_of_training_and_the_test_in_fp32(tmp_path, monkeypatch, precision):
    calls = []
    honest = trainer_module.evaluate

    def noting(*args, **more):
        calls.append(args[2:] or ("fp32",))
        return honest(*args, **more)

    monkeypatch.setattr(trainer_module, "evaluate", noting)
    trainer = begin(tmp_path / "run", toy_experiment(epochs=1, milestones=(), precision=precision))
    trainer.fit()
    assert calls == [(precision,)]
    trainer.finish()
    assert calls[1:] == [("fp32",), ("fp32",)]


# ── what is looked at ──


def test_only_validation_is_evaluated_in_training_and_the_test_set_once_after_it(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(trainer_module, "evaluate", counting(trainer_module.evaluate, calls))
    dataset = toy_dataset()
    trainer = begin(tmp_path / "run", toy_experiment(), dataset)
    trainer.fit()
    assert len(calls) == 3
    assert all(torch.equal(split.images, dataset.validation.images) for _, split, *_ in calls)
    trainer.finish()
    looked_at = [
        torch.equal(split.images, dataset.test.images) if len(split) == 17 else False for _, split, *_ in calls
    ]
    assert looked_at.count(True) == 1


def test_the_test_images_have_no_influence_on_the_weights(tmp_path, unbroken):
    dataset = toy_dataset()
    other = Dataset("toy", dataset.classes, dataset.train, dataset.validation, rows_of_light(40, seed=99))
    trainer = begin(tmp_path / "run", toy_experiment(), other)
    trainer.fit()
    ours, theirs = tensors(tmp_path / "run" / "best.safetensors"), tensors(unbroken.file("best.safetensors"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_only_training_batches_are_augmented(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(engine_module, "augment", counting(engine_module.augment, calls))
    trainer = begin(tmp_path / "run", toy_experiment())
    seen = []
    trainer.network.register_forward_pre_hook(lambda module, args: seen.append((module.training, args[0].clone())))
    trainer.fit()
    trainer.finish()
    assert len(calls) == 9  # 3 epochs of 3 steps
    training = [images for mode, images in seen if mode]
    assert len(training) == 9
    assert not all(torch.equal(images, args[0]) for images, args in zip(training, calls, strict=True))
    expected, _ = trainer.validation_data.take(slice(None))
    validation = [images for mode, images in seen if not mode]
    assert len(validation) == 3
    assert all(torch.equal(images, expected) for images in validation)


def test_normalisation_is_measured_on_the_training_images_alone(tmp_path):
    dataset = toy_dataset()
    dark = Dataset("toy", dataset.classes, dataset.train, rows_of_light(13, 1)._replace(), rows_of_light(17, 2))
    dark.validation.images.zero_()
    dark.test.images.zero_()
    trainer = begin(tmp_path / "run", toy_experiment(), dark)
    pixels = dataset.train.images.double() / 255
    assert trainer.normalization[0] == pytest.approx((float(pixels.mean()),), rel=1e-6)
    assert trainer.normalization[1] == pytest.approx((float(pixels.std(correction=0)),), rel=1e-6)


def test_training_learns_what_there_is_to_learn(tmp_path):
    # loss and accuracy, so that a loop that goes through the motions is found out
    trainer = begin(tmp_path / "run", toy_experiment(epochs=12, milestones=(8,), lr=0.1), toy_dataset(96, 30, 30))
    trainer.fit()
    assert trainer.finish().accuracy > 0.9
    metrics = trainer.run.metrics()
    assert metrics[-1]["cross_entropy"] < 0.6 * metrics[0]["cross_entropy"]
    assert metrics[-1]["reconstruction"] < metrics[0]["reconstruction"]


def test_fewer_images_than_a_batch_are_one_step(tmp_path):
    trainer = begin(tmp_path / "run", toy_experiment(epochs=1, milestones=(), batch_size=64), toy_dataset(train=10))
    trainer.fit()
    assert math.isfinite(trainer.run.metrics()[0]["total"])


def test_momentum_zero_trains_and_resumes(tmp_path):
    experiment = toy_experiment(epochs=2, momentum=0.0)
    assert interrupted(begin(tmp_path / "run", experiment, progress=CtrlC(0, 1)))
    trainer = go_on(tmp_path / "run")
    trainer.fit()
    assert len(trainer.run.metrics()) == 2


# ── divergence ──


def files(path):
    return {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}


def test_a_loss_that_is_not_a_number_stops_with_one_sentence_and_keeps_the_last_good_checkpoint(tmp_path, monkeypatch):
    trainer = begin(tmp_path / "run", toy_experiment())
    poison(monkeypatch, lambda step, weights: step > 4)
    finish_epoch, kept = trainer.save, []
    monkeypatch.setattr(trainer, "save", lambda: (finish_epoch(), kept.append(files(tmp_path / "run"))))
    with pytest.raises(Diverged) as error:
        trainer.fit()
    sentence = str(error.value)
    assert "diverged in epoch 2" in sentence
    assert "--lr 0.005" in sentence
    assert "\n" not in sentence
    assert len(kept) == 1  # epoch 1
    assert files(tmp_path / "run") == kept[0]
    good = tensors(tmp_path / "run" / "last.safetensors")
    assert all(torch.isfinite(tensor).all() for tensor in good.values())
    assert "batch size" not in sentence
    monkeypatch.undo()
    assert go_on(tmp_path / "run").state.epoch == 1


def test_finite_weights_with_an_infinite_validation_loss_need_more_steps_or_smaller_ones(tmp_path):
    trainer = begin(tmp_path / "run", toy_experiment())
    trainer.network.register_forward_hook(
        lambda module, given, out: out if module.training else out._replace(logits=out.logits * torch.inf)
    )
    with pytest.raises(Diverged, match=r"--lr 0\.005, or the batch size"):
        trainer.fit()


def test_a_loss_far_above_guessing_is_divergence(tmp_path):
    with pytest.raises(Diverged, match=r"guessing gives 1\.39"):  # log 4: three classes and "none of these"
        begin(tmp_path / "run", toy_experiment(lr=1e6)).fit()


def test_weights_that_break_in_the_last_step_of_an_epoch_never_become_a_checkpoint(tmp_path):
    # The loss of a step is of the weights before it: after the last one only validation can tell.
    trainer = begin(tmp_path / "run", toy_experiment())

    @torch.no_grad()
    def break_weights():
        if (trainer.state.epoch, trainer.state.step) == (1, 2):  # after the third and last step of epoch 2
            trainer.network.projection.fill_(math.nan)

    after_each_step(trainer, break_weights)
    with pytest.raises(Diverged, match="epoch 2"):
        trainer.fit()
    for name in ("best.safetensors", "last.safetensors", "state.safetensors"):
        kept = tensors(tmp_path / "run" / name)
        assert all(torch.isfinite(tensor).all() for tensor in kept.values()), name
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 1
    assert go_on(tmp_path / "run").state.epoch == 1


def test_divergence_is_noticed_when_interrupted_instead_of_being_saved(tmp_path, monkeypatch):
    steps = poison(monkeypatch, lambda step, weights: step == 4)

    class NeverLooks(Progress):
        def due(self):
            if len(steps) == 4:
                signal.raise_signal(signal.SIGINT)
            return False

    trainer = begin(tmp_path / "run", toy_experiment(), progress=NeverLooks())
    with pytest.raises(Diverged):
        trainer.fit()
    monkeypatch.undo()
    assert (go_on(tmp_path / "run").state.epoch, go_on(tmp_path / "run").state.step) == (1, 0)


# ── a run that was tampered with ──


@pytest.mark.parametrize("setting", ["model.dense_layers=1", "model.init_channels=6", "training.optimizer=adamw"])
def test_a_state_that_does_not_fit_its_experiment_is_refused(tmp_path, setting):
    trainer = begin(tmp_path / "run", toy_experiment(), progress=CtrlC(0, 1))
    assert interrupted(trainer)
    trainer.run.experiment = with_setting(trainer.experiment, setting)
    trainer.run.write_experiment()
    with pytest.raises(InputError, match="cannot be resumed"):
        go_on(tmp_path / "run")


def test_a_truncated_state_is_refused(tmp_path):
    assert interrupted(begin(tmp_path / "run", toy_experiment(), progress=CtrlC(0, 1)))
    state = tmp_path / "run" / "state.safetensors"
    state.write_bytes(state.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"state\.safetensors"):
        go_on(tmp_path / "run")


def test_weights_in_the_place_of_the_state_are_refused(tmp_path):
    trainer = begin(tmp_path / "run", toy_experiment(epochs=1, milestones=()))
    trainer.fit()
    (tmp_path / "run" / "state.safetensors").write_bytes((tmp_path / "run" / "best.safetensors").read_bytes())
    with pytest.raises(InputError, match="cannot be resumed"):
        go_on(tmp_path / "run")


def test_weights_of_a_lower_precision_run_are_float32(tmp_path):
    trainer = begin(tmp_path / "run", with_training(toy_experiment(epochs=1, milestones=()), precision="bf16"))
    trainer.fit()
    loaded = Classifier.load(tmp_path / "run" / "best.safetensors")
    assert {p.dtype for p in loaded.parameters()} == {torch.float32}
