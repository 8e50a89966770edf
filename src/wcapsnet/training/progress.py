"""Progress of a training run: a live bar in a terminal, plain lines elsewhere, nothing if quiet."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as RichProgress

from ..parts import loss_term
from ..rounding import percent


class Progress:
    """Prints nothing; base class of the others."""

    interval = 0.25  # seconds between two reads of the running means; each read synchronises with the device

    def __init__(self) -> None:
        self._next = 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def due(self) -> bool:
        if time.perf_counter() < self._next:
            return False
        self._next = time.perf_counter() + self.interval
        return True

    def batch(self, epoch: int, epochs: int, step: int, steps: int, batch_size: int, means: dict[str, float]) -> None:
        pass

    def epoch(self, record: dict[str, Any], epochs: int) -> None:
        pass


class PlainProgress(Progress):
    """One line per epoch."""

    interval = 5.0  # reading only serves to detect divergence early

    def __init__(self, console: Console):
        super().__init__()
        self.console = console

    def epoch(self, record: dict[str, Any], epochs: int) -> None:
        self.console.print(epoch_line(record, epochs), highlight=False, soft_wrap=True)


class LiveProgress(PlainProgress):
    """A bar for the current epoch with losses, accuracy, images/s and the time left for the whole run."""

    interval = 0.25

    def __init__(self, console: Console):
        super().__init__(console)
        self._started, self._position = 0.0, -1  # when the clock started, and at which step
        self.bar = RichProgress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=20 if console.width >= 100 else 8),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            console=console,
            transient=True,
        )
        self.task = self.bar.add_task("", total=1, epoch="", figures="starting")

    def __enter__(self) -> Progress:
        self.bar.start()
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def batch(self, epoch: int, epochs: int, step: int, steps: int, batch_size: int, means: dict[str, float]) -> None:
        position = epoch * steps + step
        if self._position < 0:  # the first update starts the clock, so start-up and earlier runs do not count
            self._started, self._position = time.perf_counter(), position
        done = position - self._position
        rate = done / max(time.perf_counter() - self._started, 1e-9)
        speed = f"{rate * batch_size:,.0f} images/s  {clock((epochs * steps - position) / rate)} left" if done else ""
        shown = {"total": means["total"]} if self.console.width < 130 else means  # the time left is more useful
        figures = "  ".join(loss_terms(shown))
        self.bar.update(
            self.task,
            epoch=f"{epoch + 1}/{epochs}",
            total=steps,
            completed=step,
            figures=f"{figures}  acc {percent(means['accuracy'])}%  {speed}",
        )


def loss_terms(figures: dict[str, float]) -> list[str]:
    """The total and every registered loss term in `figures`, with short names"""
    short = {"total": "loss", "cross_entropy": "ce", "wasserstein": "ws", "reconstruction": "rec"}
    signs = {"wasserstein": "+"}
    names = [name for name in figures if name == "total" or name in loss_term]
    return [f"{short.get(name, name)} {figures[name]:{signs.get(name, '')}.3f}" for name in names]


def epoch_line(record: dict[str, Any], epochs: int) -> str:
    star = "*" if record["best"] else " "
    return (
        f"epoch {record['epoch']:>3}/{epochs}  lr {record['lr']:<6.4g} {'  '.join(loss_terms(record))}  "
        f"train {percent(record['train_accuracy'])}%  val {percent(record['validation_accuracy'])}%{star}  "
        f"{record['images_per_s']:,.0f} images/s"
    )


def clock(seconds: float) -> str:
    hours, rest = divmod(int(seconds), 3600)
    minutes, seconds = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def make_progress(console: Console, quiet: bool = False) -> Progress:
    if quiet:
        return Progress()
    return LiveProgress(console) if console.is_terminal else PlainProgress(console)
