"""Several runs in one process: each gives what it gives alone, and one's trouble is not the others'."""

import gc
import re
import signal
from dataclasses import replace

import pytest
import torch
from training_helpers import (
    CPU,
    CtrlC,
    assert_same_run,
    console,
    poison,
    shown,
    toy_dataset,
    toy_experiment,
    trained,
    with_training,
)

import wcapsnet.training.step as step_module
from wcapsnet.errors import InputError
from wcapsnet.objective import PAPER, Objective
from wcapsnet.training.console import Board, LiveBoard, PlainBoard, Progress, make_board
from wcapsnet.training.parallel import SharedData, train_together
from wcapsnet.training.run_folder import Run
from wcapsnet.training.trainer import Interrupted, Trainer

# unequal in length, steps an epoch, network and precision
EXPERIMENTS = {
    "a": toy_experiment(),
    "b": toy_experiment(seed=1, epochs=2, batch_size=8),
    "c": replace(toy_experiment(seed=2), model=replace(toy_experiment().model, dense_layers=2)),
    "d": toy_experiment(seed=0, epochs=4, precision="bf16"),
}


def assert_same_runs(place, other, names=tuple(EXPERIMENTS)):
    for name in names:
        assert_same_run(Run.open(place / name), Run.open(other / name))


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Each experiment trained by itself. Read only."""
    place = tmp_path_factory.mktemp("alone")
    for name, experiment in EXPERIMENTS.items():
        trained(place / name, experiment)
    return place


def make(run, progress):
    trainer = Trainer(run, toy_dataset(), CPU, progress)
    if not Run.is_run(run.path):
        run.begin({})
    return trainer


def together(place, parallel, names=tuple(EXPERIMENTS), make=make, board=None, experiments=EXPERIMENTS):
    runs = [Run(place / name, experiments[name]) for name in names]
    return list(train_together(runs, make, CPU, parallel, board or Board()))


class PressBoard(Board):
    """Ctrl-C in a step of an epoch of the run of this name"""

    def __init__(self, name, at, press=CtrlC):
        self.name, self.press = name, press(*at)

    def row(self, run):
        return self.press if run.path.name == self.name else super().row(run)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [1, 2, 4])
def test_runs_held_together_give_bit_for_bit_what_they_give_alone(tmp_path, alone, parallel):
    outcomes = together(tmp_path, parallel)
    assert {outcome.run.path.name for outcome in outcomes} == set(EXPERIMENTS)
    assert not any(outcome.failure for outcome in outcomes)
    assert_same_runs(tmp_path, alone)


def test_runs_advance_in_turns_and_the_next_takes_the_place_of_one_that_ended(tmp_path, monkeypatch):
    order = []
    plain = step_module.Step.__call__
    monkeypatch.setattr(
        step_module.Step,
        "__call__",
        lambda self, index: (order.append(self.experiment.training.seed), plain(self, index))[1],
    )
    lengths = {0: 2, 1: 1, 2: 1}
    experiments = {str(seed): toy_experiment(seed=seed, epochs=e, milestones=()) for seed, e in lengths.items()}
    together(tmp_path, 2, experiments, experiments=experiments)
    assert order == [0, 1] * 3 + [0] + [0, 2] * 2 + [2]  # a turn is spent on the test of run 1


def test_the_random_numbers_of_the_process_stay_as_they_were(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    together(tmp_path, 2, ("a", "b"))
    assert torch.equal(torch.rand(3), expected)


# ── trouble ──


def test_a_run_that_diverges_is_recorded_and_the_others_go_on(tmp_path, alone):
    experiments = {**EXPERIMENTS, "wild": toy_experiment(lr=1e6)}
    outcomes = together(tmp_path, 2, ("wild", "a", "b"), experiments=experiments)
    failures = {outcome.run.path.name: outcome.failure for outcome in outcomes}
    assert "diverged in epoch 1" in failures["wild"]
    assert failures["a"] is failures["b"] is None
    wild = Run.open(tmp_path / "wild")
    assert wild.failure == failures["wild"]
    assert not wild.finished
    assert_same_runs(tmp_path, alone, "ab")


def test_a_run_that_cannot_begin_is_told_and_the_others_go_on(tmp_path, alone):
    def refusing(run, progress):
        if run.path.name == "b":
            raise InputError("Not this one.")
        return make(run, progress)

    outcomes = together(tmp_path, 2, ("a", "b"), make=refusing)
    assert {o.run.path.name: o.failure for o in outcomes} == {"a": None, "b": "Not this one."}
    assert not (tmp_path / "b").exists()
    assert_same_runs(tmp_path, alone, "a")


def test_where_memory_is_short_fewer_runs_are_held_and_all_end_the_same(tmp_path, alone):
    held, most, crowded = set(), [], []

    class Counting(Board):
        def ended(self, run, failure):
            held.discard(run.path.name)

        def crowded(self, run):
            crowded.append(run.path.name)

    def tight(run, progress):
        if len(held) == 2:
            raise torch.OutOfMemoryError
        held.add(run.path.name)
        most.append(len(held))
        return make(run, progress)

    outcomes = together(tmp_path, 4, make=tight, board=Counting())
    assert len(outcomes) == 4
    assert crowded == ["c", "c"]  # in the third lane and in the fourth
    assert max(most) == 2
    assert_same_runs(tmp_path, alone)


def test_memory_that_does_not_suffice_for_one_run_is_an_error(tmp_path):
    def impossible(run, progress):
        raise torch.OutOfMemoryError

    with pytest.raises(torch.OutOfMemoryError):
        together(tmp_path, 2, make=impossible)


# ── stopped and resumed ──


@pytest.mark.slow
@pytest.mark.parametrize("at", [(0, 2), (1, 1), (1, 3)], ids=["first epoch", "middle of an epoch", "end of an epoch"])
def test_ctrl_c_saves_every_run_and_going_on_gives_what_the_unbroken_ones_gave(tmp_path, alone, at):
    with pytest.raises(Interrupted):
        together(tmp_path, 3, board=PressBoard("a", at))
    begun = {path.name for path in tmp_path.iterdir()}
    assert begun == {"a", "b", "c"}
    assert all((tmp_path / name / "state.safetensors").exists() for name in begun)
    assert not any(Run.open(tmp_path / name).finished for name in begun)
    together(tmp_path, 2)
    assert_same_runs(tmp_path, alone)


def test_a_sweep_can_be_stopped_again_and_again(tmp_path, alone):
    for at in ((0, 1), (0, 2), (1, 1), (2, 2)):
        with pytest.raises(Interrupted):
            together(tmp_path, 2, ("c", "d"), board=PressBoard("c", at))
    together(tmp_path, 2, ("c", "d"))
    assert_same_runs(tmp_path, alone, "cd")


def test_ctrl_c_while_the_last_run_is_tested_interrupts_nothing(tmp_path, monkeypatch, alone):
    finish = Trainer.finish
    monkeypatch.setattr(Trainer, "finish", lambda self: (signal.raise_signal(signal.SIGINT), finish(self))[1])
    assert len(together(tmp_path, 1, ("a",))) == 1
    assert_same_runs(tmp_path, alone, "a")


def test_weights_that_broke_before_ctrl_c_are_not_saved(tmp_path, monkeypatch):
    poison(monkeypatch, lambda step, weights: weights["wasserstein"] == 0.125)
    broken = replace(toy_experiment(seed=1), objective=Objective({**PAPER, "wasserstein": 0.125}))
    never = type("Never", (Progress,), {"due": lambda self: False})

    class Unseeing(PressBoard):
        def row(self, run):
            return never() if run.path.name == "broken" else super().row(run)

    experiments = {"broken": broken, "a": EXPERIMENTS["a"]}
    with pytest.raises(Interrupted):
        together(tmp_path, 2, experiments, experiments=experiments, board=Unseeing("a", (0, 1)))
    assert "diverged" in Run.open(tmp_path / "broken").failure
    assert not (tmp_path / "broken" / "state.safetensors").exists()
    assert (tmp_path / "a" / "state.safetensors").exists()


def test_a_second_ctrl_c_does_not_wait_and_signals_are_given_back(tmp_path):
    class Twice(CtrlC):
        def batch(self, *args):
            super().batch(*args)
            super().batch(*args)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        together(tmp_path, 2, board=PressBoard("a", (0, 1), Twice))
    assert signal.getsignal(signal.SIGINT) == before


# ── data ──


def test_runs_on_the_same_images_share_one_copy():
    loads = []

    def load(config):
        loads.append(config)
        return toy_dataset()

    shared = SharedData(load, CPU)
    config = toy_experiment().data
    one = shared.of(config)
    assert shared.of(replace(config, mirror=False, shift=2)) is one
    other = shared.of(replace(config, normalization="unit"))
    assert other is not one
    assert other.normalization == ((0.0,), (1.0,))
    assert len(loads) == 2
    del one
    gc.collect()
    shared.of(config)
    assert len(loads) == 3  # nobody used it any more, so it did not stay


def test_shared_data_give_the_same_run(tmp_path, alone):
    shared = SharedData(lambda config: toy_dataset(), CPU)

    def sharing(run, progress):
        trainer = Trainer(run, shared.of(run.experiment.data), CPU, progress)
        run.begin({})
        return trainer

    together(tmp_path, 2, ("a", "b"), make=sharing)
    assert_same_runs(tmp_path, alone, "ab")


# ── what is shown ──


def test_plain_board_prints_a_line_an_epoch_and_a_line_a_run(tmp_path):
    at = console(terminal=False)
    experiments = {"a [b]": with_training(toy_experiment(), epochs=2), "wild": toy_experiment(lr=1e6)}
    runs = [Run(tmp_path / name, experiment) for name, experiment in experiments.items()]
    list(train_together(runs, make, CPU, 2, PlainBoard(at, runs)))
    lines = shown(at).splitlines()
    assert sum(bool(re.match(r"a \[b\]  epoch +[12]/2 ", line)) for line in lines) == 2
    assert re.search(r"^\[1/2\] wild  failed: Training diverged", "\n".join(lines), re.MULTILINE)
    accuracy = f"{runs[0].results()['accuracy']:.2%}"
    assert lines[-1] == f"[2/2] a [b]  test accuracy {accuracy}"


def test_live_board_shows_every_run_and_all_of_them(monkeypatch, tmp_path):
    now = [100.0]
    monkeypatch.setattr("wcapsnet.training.console.time.perf_counter", lambda: now[0])
    monkeypatch.setattr(Run, "results", lambda self: {"accuracy": 0.5})
    runs = [Run(tmp_path / name, toy_experiment(epochs=4)) for name in "ab"]
    means = {"total": 1.234, "accuracy": 0.5}
    at = console(terminal=True)
    board = LiveBoard(at, runs)
    with board.bar:
        rows = [board.row(run) for run in runs]
        for row in rows:
            row.batch(0, 4, 1, 10, 64, means)
        now[0] += 2.0
        for row in rows:
            row.batch(0, 4, 5, 10, 64, means)  # 4 steps of each in 2 s: 0.4 epochs a second; 7 of 8 are left
        board.bar.refresh()
        text = shown(at)
        board.ended(runs[0], None)
        board.bar.refresh()
    for piece in ("epoch 1/4  loss 1.234  acc 50.00%", "0/2 runs", "256 images/s", "0:17 left"):
        assert piece in text, text
    assert "[1/2] a  test accuracy 50.00%" in shown(at)
    assert "1/2 runs" in shown(at)
    assert not board.bar.live.is_started


def test_the_boards_count_what_was_over_before(tmp_path):
    runs = [Run(tmp_path / name, toy_experiment(epochs=4)) for name in "abc"]
    figures = {"images": 4, "epochs": 4, "best_epoch": 1, "validation_accuracy": 0.5, "seconds": 1}
    runs[0].write_json("test.json", {**figures, "accuracy": 0.5, "errors": 2})
    runs[1].fail("it diverged.")
    at = console(terminal=True)
    board = LiveBoard(at, runs)
    with board.bar:
        board.bar.refresh()
        assert board.bar.tasks[0].completed == 8
    assert "2/3 runs" in shown(at)
    runs[2].write_json("test.json", {**figures, "accuracy": 0.25, "errors": 3})
    plain = PlainBoard(at := console(terminal=False), [*runs[:2], Run(tmp_path / "d", toy_experiment())])
    plain.ended(runs[2], None)
    assert shown(at) == "[3/3] c  test accuracy 25.00%\n"


def test_a_run_may_fail_before_the_board_has_a_row_for_it(tmp_path):
    board = LiveBoard(at := console(terminal=True), runs := [Run(tmp_path / "a", toy_experiment())])
    with board.bar:
        board.ended(runs[0], "its worker was lost.")
        board.bar.refresh()
    assert "its worker was lost." in shown(at)
    assert "1/1 runs" in shown(at)


def test_live_board_trains_and_is_taken_down_when_interrupted(tmp_path):
    at = console(terminal=True)
    runs = [Run(tmp_path / name, EXPERIMENTS[name]) for name in ("a", "b")]
    board = LiveBoard(at, runs)
    row = board.row
    board.row = lambda run: (row(run), CtrlC(1, 1))[1] if run.path.name == "a" else row(run)
    with pytest.raises(Interrupted):
        list(train_together(runs, make, CPU, 2, board))
    assert not board.bar.live.is_started
    assert "0/2 runs" in shown(at)


def test_the_kind_of_board_follows_the_console():
    assert type(make_board(console(terminal=True), [])) is LiveBoard
    assert type(make_board(console(terminal=False), [])) is PlainBoard
    assert type(make_board(console(terminal=True), [], quiet=True)) is Board
