"""Progress of one run or of several at once: live bars in a terminal, plain lines elsewhere, nothing if quiet."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as RichProgress

from ..formatting import percent
from ..parts import loss_term
from .evaluate import beside_figures
from .run_folder import Run


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
        left = record["seconds"] / record["epoch"] * (epochs - record["epoch"])
        line = epoch_line(record, epochs) + (f"  {clock(left)} left" if left else "")
        self.console.print(line, highlight=False, soft_wrap=True)


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


# ── several runs ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Board:
    """Prints nothing; base class of the others."""

    def __enter__(self) -> Board:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def row(self, run: Run) -> Progress:
        """The progress display of this run."""
        return _Slow()

    def ended(self, run: Run, failure: str | None) -> None:
        pass

    def crowded(self, run: Run) -> None:
        """The device ran out of memory for this run alongside the others."""


class _Slow(Progress):
    interval = 5.0  # each check synchronises with the device, and only serves to detect divergence early


def _over(run: Run) -> bool:
    return run.finished or run.failure is not None


class PlainBoard(Board):
    """One line per epoch and one per run."""

    measured = "test"

    def __init__(self, console: Console, runs: list[Run]):
        self.console, self.total = console, len(runs)
        self.count = sum(map(_over, runs))  # runs that had already ended

    def row(self, run: Run) -> Progress:
        return _Lines(self, run)

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)

    def ended(self, run: Run, failure: str | None) -> None:
        self.count += 1
        figures = {} if failure else run.results()
        accuracy = f"{percent(figures['accuracy'])}%" if figures else ""
        accuracy += beside_figures(figures)
        what = f"[red]failed:[/] {escape(failure)}" if failure else f"{self.measured} accuracy [bold]{accuracy}[/]"
        self.say(f"[{self.count}/{self.total}] [bold]{escape(run.path.name)}[/]  {what}")

    def crowded(self, run: Run) -> None:
        self.say(f"Not enough memory for {escape(run.path.name)} alongside the others: training fewer runs at a time.")


class _Lines(_Slow):
    def __init__(self, board: PlainBoard, run: Run):
        super().__init__()
        self.board, self.run = board, run

    def epoch(self, record: dict[str, Any], epochs: int) -> None:
        self.board.say(f"{escape(self.run.path.name)}  {epoch_line(record, epochs)}")


class LiveBoard(PlainBoard):
    """Overall progress, speed and time left; below it, one row per active run."""

    def __init__(self, console: Console, runs: list[Run]):
        super().__init__(console, runs)
        self.bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20 if console.width >= 100 else 8),
            TextColumn("{task.fields[figures]}"),
            console=console,
            transient=True,
        )
        self.rows: dict[Run, TaskID] = {}
        self.epochs = {run: run.experiment.training.epochs for run in runs}
        self.at = {run: float(self.epochs[run]) if _over(run) else 0.0 for run in runs}  # finished epochs of each run
        self.images, self.done, self.since = 0.0, 0.0, 0.0  # images and epochs since the clock started
        self.all = self.bar.add_task("", total=sum(self.epochs.values()), figures="starting")

    def __enter__(self) -> Board:
        self._show_all()
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def row(self, run: Run) -> Progress:
        if run not in self.rows:
            task = self.bar.add_task(f"  {escape(run.path.name)}", total=self.epochs[run], figures="starting")
            self.rows[run] = task
        return _Row(self, run)

    def look(self, run: Run, position: float, images: int, figures: str) -> None:
        """`position`: epochs done; `images`: number seen since the last update, 0 at the first."""
        if not self.since:
            self.since = time.perf_counter()
        if images:
            self.done += position - self.at[run]
            self.images += images
        self.at[run] = position
        self.bar.update(self.rows[run], completed=position, figures=figures)
        self._show_all()

    def ended(self, run: Run, failure: str | None) -> None:
        self.at[run] = self.epochs[run]
        self.bar.remove_task(self.rows.pop(run))
        super().ended(run, failure)
        self._show_all()

    def _show_all(self) -> None:
        elapsed, finished = time.perf_counter() - self.since, sum(self.at.values())
        figures = ""
        if self.since and self.done > 0:
            left = (sum(self.epochs.values()) - finished) * elapsed / self.done
            figures = f"{self.images / elapsed:,.0f} images/s  {clock(left)} left"
        self.bar.update(self.all, description=f"{self.count}/{self.total} runs", completed=finished, figures=figures)


class _Row(Progress):
    interval = 1.0

    def __init__(self, board: LiveBoard, run: Run):
        super().__init__()
        self.board, self.run = board, run
        self._seen, self._steps, self._batch_size, self._validation = -1, 0, 0, ""

    def batch(self, epoch: int, epochs: int, step: int, steps: int, batch_size: int, means: dict[str, float]) -> None:
        self._steps, self._batch_size = steps, batch_size
        self._look(epoch * steps + step, f"epoch {epoch + 1}/{epochs}", means["total"], means["accuracy"])

    def epoch(self, record: dict[str, Any], epochs: int) -> None:
        self._validation = f"  val {percent(record['validation_accuracy'])}%"
        position = record["epoch"] * self._steps
        self._look(position, f"epoch {record['epoch']}/{epochs}", record["total"], record["train_accuracy"])

    def _look(self, position: int, epoch: str, loss: float, accuracy: float) -> None:
        images = (position - self._seen) * self._batch_size if self._seen >= 0 else 0
        self._seen = position
        done = position / max(self._steps, 1)
        self.board.look(self.run, done, images, f"{epoch}  loss {loss:.3f}  acc {percent(accuracy)}%{self._validation}")


def make_board(console: Console, runs: list[Run], quiet: bool = False) -> Board:
    """`runs`: all of them, including those that have ended."""
    if quiet:
        return Board()
    return LiveBoard(console, runs) if console.is_terminal else PlainBoard(console, runs)
