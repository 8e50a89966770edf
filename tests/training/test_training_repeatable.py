"""Same seed, same result; stopped and resumed, same result. Bit for bit, on CPU."""

import os
import signal
import time

import pytest
import torch
from training_helpers import (
    CtrlC,
    assert_same_run,
    begin,
    go_on,
    interrupted,
    same_tensors,
    tensors,
    to_the_end,
    toy_experiment,
    trained,
)

from wcapsnet.classifier import Classifier
from wcapsnet.training import trainer as trainer_module


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_same_seed_gives_the_same_weights_and_metrics_bit_for_bit(tmp_path, precision):
    experiment = toy_experiment(precision=precision, epochs=2)
    one = trained(tmp_path / "one", experiment)
    torch.rand(17)  # what was drawn before a run does not matter
    assert_same_run(one, trained(tmp_path / "two", experiment))


@pytest.mark.parametrize("changes", [{"seed": 1}, {"precision": "bf16"}])
def test_another_seed_or_precision_gives_other_weights_and_metrics(tmp_path, unbroken, changes):
    run = trained(tmp_path / "other", toy_experiment(**changes))
    ours, theirs = tensors(run.file("last.safetensors")), tensors(unbroken.file("last.safetensors"))
    assert not torch.equal(ours["projection"], theirs["projection"])
    assert [m["total"] for m in run.metrics()] != [m["total"] for m in unbroken.metrics()]


@pytest.mark.parametrize(
    ("epoch", "step"),
    [(0, 1), (1, 2), (2, 1), (0, 3), (2, 3), (0, None), (1, None)],
    ids=["first step", "epoch 2", "last epoch", "end of epoch 1", "last step", "after epoch 1", "after epoch 2"],
)
def test_resuming_gives_what_the_unbroken_run_gave(tmp_path, unbroken, epoch, step):
    path = tmp_path / "broken"
    broken = begin(path, toy_experiment(), progress=CtrlC(epoch, step))
    assert interrupted(broken)
    assert not broken.run.finished
    resumed = go_on(path)
    middle = step is not None and step < 3
    assert (resumed.state.epoch, resumed.state.step) == ((epoch, step) if middle else (epoch + 1, 0))
    assert_same_run(to_the_end(resumed), unbroken)


def test_resuming_bf16_in_the_middle_of_an_epoch_gives_what_the_unbroken_run_gave(tmp_path):
    experiment = toy_experiment(precision="bf16", epochs=2)
    whole = trained(tmp_path / "whole", experiment)
    assert interrupted(begin(tmp_path / "broken", experiment, progress=CtrlC(1, 1)))
    assert_same_run(to_the_end(go_on(tmp_path / "broken")), whole)


def test_a_run_can_be_interrupted_at_every_step_and_still_ends_the_same(tmp_path, unbroken):
    path = tmp_path / "broken"
    begin(path, toy_experiment())
    for epoch in range(3):
        for step in (1, 2):
            assert interrupted(go_on(path, progress=CtrlC(epoch, step)))
        assert interrupted(go_on(path, progress=CtrlC(epoch, None)))
    assert_same_run(to_the_end(go_on(path)), unbroken)


def test_sigterm_is_a_ctrl_c_and_signals_are_given_back_when_training_ends(tmp_path):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    assert interrupted(begin(tmp_path / "run", toy_experiment(), progress=CtrlC(1, 1, signal.SIGTERM)))
    assert go_on(tmp_path / "run").state.step == 1
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_second_ctrl_c_does_not_wait(tmp_path):
    class Impatient(CtrlC):
        def batch(self, *args):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        begin(tmp_path / "run", toy_experiment(), progress=Impatient(0, 1)).fit()


# The files of an epoch in the order they are written; each test kills the process just before one of them is in place.
@pytest.mark.parametrize("victim", ["best.safetensors", "metrics.jsonl", "state.safetensors", "last.safetensors"])
def test_a_kill_between_two_files_leaves_a_run_that_loads_and_resumes_to_the_same_end(
    tmp_path, unbroken, monkeypatch, victim
):
    path = tmp_path / "killed"
    trainer = begin(path, toy_experiment())
    replace, seen = os.replace, []

    class Killed(BaseException):
        pass

    def dying(source, target):
        if os.path.basename(target) == victim:
            seen.append(target)
            if len(seen) == 2:  # in the second epoch
                raise Killed
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", dying)
        # every epoch is a new best, so that every file is written in every epoch
        patch.setattr(trainer_module.State, "better", lambda self, accuracy, loss: True)
        with pytest.raises(Killed):
            trainer.fit()
    assert not list(path.glob(".*partial*"))
    Classifier.load(path / "best.safetensors")
    Classifier.load(path / "last.safetensors")
    resumed = go_on(path)
    assert (resumed.state.epoch, resumed.state.step) == (2 if victim == "last.safetensors" else 1, 0)
    run = to_the_end(resumed)
    assert same_tensors(path / "last.safetensors", unbroken.file("last.safetensors"))
    assert [m["total"] for m in run.metrics()] == [m["total"] for m in unbroken.metrics()]


def test_a_kill_while_the_test_set_is_reported_is_made_good_by_resuming(tmp_path, unbroken, monkeypatch):
    trainer = begin(tmp_path / "run", toy_experiment())
    trainer.fit()
    replace = os.replace

    def dying(source, target):
        if os.path.basename(target) == "confusion.csv":
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", dying)
        with pytest.raises(KeyboardInterrupt):
            trainer.finish()
    assert not trainer.run.finished
    run = to_the_end(go_on(tmp_path / "run"))
    assert run.finished
    assert_same_run(run, unbroken)


@pytest.mark.parametrize(("took", "epochs"), [(0.04, [1, 2, 3]), (0.1, [1, 3])])
def test_only_quick_saves_follow_every_short_epoch(tmp_path, monkeypatch, took, epochs):
    saved, save = [], trainer_module.Trainer.save

    def timed_save(trainer):
        save(trainer)
        trainer._saved, trainer._save_took = time.perf_counter() + 60, took  # the epochs after it take no time
        saved.append(trainer.state.epoch)

    monkeypatch.setattr(trainer_module.State, "better", lambda state, *_: state.best_epoch == 0)  # only the first
    monkeypatch.setattr(trainer_module.Trainer, "save", timed_save)
    trained(tmp_path / "run", toy_experiment())
    assert saved == epochs


@pytest.mark.parametrize("stopped", [False, True], ids=["to the end", "Ctrl-C after an epoch that was not saved"])
def test_slow_saves_are_rare_and_lose_nothing(tmp_path, monkeypatch, stopped):
    saved = []
    save = trainer_module.Trainer.save

    monkeypatch.setattr(trainer_module.State, "better", lambda state, *_: state.best_epoch == 0)  # only the first

    def slow_save(trainer):
        save(trainer)
        trainer._save_took = 10.0  # the next one is due after 200 seconds
        saved.append(trainer.state.epoch)

    monkeypatch.setattr(trainer_module.Trainer, "save", slow_save)
    unbroken = trained(tmp_path / "unbroken", toy_experiment())
    assert saved == [1, 3]
    saved.clear()
    trainer = begin(tmp_path / "run", toy_experiment(), progress=CtrlC(1) if stopped else None)
    assert interrupted(trainer) == stopped
    assert saved == ([1, 2] if stopped else [1, 3])
    run = to_the_end(go_on(trainer.run.path) if stopped else trainer)
    assert_same_run(run, unbroken)
