"""What a run shows while it trains, and the events it leaves for TensorBoard."""

import re
import sys

import pytest
from training_helpers import CtrlC, begin, console, go_on, interrupted, shown, toy_experiment

from wcapsnet.training.console import LiveProgress, PlainProgress, Progress, clock, make_progress

MEANS = {"total": 1.234, "cross_entropy": 1.111, "wasserstein": -0.222, "reconstruction": 0.333, "accuracy": 0.4567}


def test_plain_progress_prints_a_line_an_epoch(tmp_path):
    at = console(terminal=False)
    trainer = begin(tmp_path / "run", toy_experiment(), progress=PlainProgress(at))
    trainer.fit()
    lines = shown(at).splitlines()
    assert len(lines) == 3
    for number, (line, record) in enumerate(zip(lines, trainer.run.metrics(), strict=True), start=1):
        assert re.match(rf"epoch +{number}/3 ", line)
        for name, value in (
            ("loss", f"{record['total']:.3f}"),
            ("ce", f"{record['cross_entropy']:.3f}"),
            ("ws", f"{record['wasserstein']:+.3f}"),
            ("rec", f"{record['reconstruction']:.3f}"),
            ("train", f"{record['train_accuracy']:.2%}"),
            ("val", f"{record['validation_accuracy']:.2%}"),
        ):
            assert f"{name} {value}" in line
        assert ("*" in line) is record["best"]
        assert re.search(r"images/s$" if number == 3 else r"images/s  \d+:\d\d left$", line)


def test_the_time_left_follows_from_the_epochs_so_far():
    at = console(terminal=False)
    record = {
        "epoch": 2,
        "lr": 0.1,
        "best": True,
        "train_accuracy": 0.5,
        "validation_accuracy": 0.5,
        "images_per_s": 1.0,
    }
    PlainProgress(at).epoch({**record, "seconds": 30.0}, 10)
    assert shown(at).rstrip().endswith("2:00 left")


@pytest.mark.parametrize(("epoch", "left"), [(0, "0:22"), (3, "0:07")])  # a resumed run does not count what is done
def test_live_progress_shows_epoch_losses_accuracy_speed_and_time_left(monkeypatch, epoch, left):
    now = [0.0]
    monkeypatch.setattr("wcapsnet.training.console.time.perf_counter", lambda: now[0])
    at = console(terminal=True)
    progress = LiveProgress(at)
    with progress.bar:
        now[0] = 60.0  # a slow start
        progress.batch(epoch, 5, 1, 10, 64, MEANS)
        now[0] += 2.0
        progress.batch(epoch, 5, 5, 10, 64, MEANS)  # 4 steps in 2 s: 2 a second; 45 or 15 of 50 are left
        progress.bar.refresh()
    text = shown(at)
    for piece in (f"epoch {epoch + 1}/5", "5/10", "loss 1.234", "ce 1.111", "ws -0.222", "rec 0.333", "acc 45.67%"):
        assert piece in text
    assert f"128 images/s  {left} left" in text


def test_live_progress_trains_and_leaves_a_line_an_epoch(tmp_path):
    at = console(terminal=True)
    progress = LiveProgress(at)
    progress.interval = 0.0
    begin(tmp_path / "run", toy_experiment(epochs=2), progress=progress).fit()
    text = shown(at)
    assert re.search(r"epoch +1/2 +lr", text)
    assert re.search(r"epoch +2/2 +lr", text)
    assert "acc " in text
    assert "left" in text
    assert not progress.bar.live.is_started


def test_the_live_bar_is_taken_down_when_training_is_interrupted(tmp_path):
    progress = LiveProgress(console(terminal=True))
    progress.interval = 0.0
    batch, pressed = progress.batch, CtrlC(0, 1)
    progress.batch = lambda *args: (batch(*args), pressed.batch(*args))
    assert interrupted(begin(tmp_path / "run", toy_experiment(), progress=progress))
    assert not progress.bar.live.is_started


def test_the_kind_of_progress_follows_the_console():
    assert type(make_progress(console(terminal=True))) is LiveProgress
    assert type(make_progress(console(terminal=False))) is PlainProgress
    assert type(make_progress(console(terminal=True), quiet=True)) is Progress


def test_a_look_is_due_at_intervals(monkeypatch):
    now = [10.0]
    monkeypatch.setattr("wcapsnet.training.console.time.perf_counter", lambda: now[0])
    progress = Progress()
    assert progress.due()
    assert not progress.due()
    now[0] += progress.interval + 0.01
    assert progress.due()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.9, "0:59"), (61, "1:01"), (3600, "1:00:00"), (36061, "10:01:01")]
)
def test_clock(seconds, text):
    assert clock(seconds) == text


# ── TensorBoard ──


def events(path):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    accumulator = accumulators.EventAccumulator(str(path))
    accumulator.Reload()
    return {
        name: [(event.step, event.value) for event in accumulator.Scalars(name)]
        for name in accumulator.Tags()["scalars"]
    }


@pytest.mark.filterwarnings("ignore")  # of tensorboard's own making
def test_tensorboard_events_are_the_metrics(unbroken):
    found = events(unbroken.file("tensorboard"))
    records = unbroken.metrics()
    assert set(found) == set(records[0]) - {"epoch"}
    for name, points in found.items():
        assert [step for step, _ in points] == [1, 2, 3]
        assert [value for _, value in points] == pytest.approx([float(r[name]) for r in records], rel=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_a_resumed_run_has_every_epoch_once_in_tensorboard(tmp_path):
    trainer = begin(tmp_path / "run", toy_experiment())
    save = trainer.save

    def killed():
        if trainer.state.epoch == 2:  # whose events are written already
            raise MemoryError
        save()

    trainer.save = killed
    with pytest.raises(MemoryError):
        trainer.fit()
    go_on(tmp_path / "run").fit()
    assert [step for step, _ in events(tmp_path / "run" / "tensorboard")["total"]] == [1, 2, 3]


def test_training_works_without_tensorboard(tmp_path, monkeypatch):
    for name in list(sys.modules):
        if name.split(".")[0] == "tensorboard" or name.startswith("torch.utils.tensorboard"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    trainer = begin(tmp_path / "run", toy_experiment(epochs=1, milestones=()))
    trainer.fit()
    trainer.finish()
    assert trainer.run.finished
    assert not trainer.run.file("tensorboard").exists()
