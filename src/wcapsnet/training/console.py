"""Progress of one run or of several at once: live bars in a terminal, plain lines elsewhere, nothing if quiet."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, TaskID, TextColumn
from rich.progress import Progress as RichProgress

from ..formatting import percent
from ..parts import loss_term
from .evaluate import beside_figures
from .run_folder import Run

# ── one run ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Progress:
    """Prints nothing; base class of the others. `bar` is entered while the run trains."""

    bar: AbstractContextManager[object] = nullcontext()
    # seconds between two reads of the running means; each synchronises with the device. These only detect divergence.
    interval = 5.0

    def __init__(self) -> None:
        self._next = 0.0
        self._seen: int | None = None

    def due(self) -> bool:
        if time.perf_counter() < self._next:
            return False
        self._next = time.perf_counter() + self.interval
        return True

    def batch(self, epoch: int, epochs: int, step: int, steps: int, batch_size: int, means: dict[str, float]) -> None:
        pass

    def epoch(self, record: dict[str, Any], epochs: int) -> None:
        pass

    def _since_last(self, position: int) -> int:
        """Steps since the last call, 0 at the first: what was done before does not count."""
        before, self._seen = self._seen, position
        return 0 if before is None else position - before


class PlainProgress(Progress):
    """One line per epoch: with the time left, or for one of several runs with its name."""

    def __init__(self, console: Console, name: str = ""):
        super().__init__()
        self.console, self.name = console, name

    def epoch(self, record: dict[str, Any], epochs: int) -> None:
        line, left = epoch_line(record, epochs), record["seconds"] / record["epoch"] * (epochs - record["epoch"])
        if self.name:
            line = f"{escape(self.name)}  {line}"
        elif left:
            line += f"  {clock(left)} left"
        _line(self.console, line)


class LiveProgress(PlainProgress):
    """A bar for the current epoch with losses, accuracy, images/s and the time left for the whole run."""

    interval = 0.25

    def __init__(self, console: Console):
        super().__init__(console)
        self._speed = Speed()
        self.bar: RichProgress = _bar(console, "epoch {task.fields[epoch]}", MofNCompleteColumn())
        self.task = self.bar.add_task("", total=1, epoch="", figures="starting")

    def batch(self, epoch: int, epochs: int, step: int, steps: int, batch_size: int, means: dict[str, float]) -> None:
        position = epoch * steps + step
        new = self._since_last(position)
        speed = self._speed.text(new, new * batch_size, epochs * steps - position)
        shown = {"total": means["total"]} if self.console.width < 130 else means  # the time left is more useful
        figures = f"{'  '.join(loss_terms(shown))}  acc {percent(means['accuracy'])}%  {speed}"
        self.bar.update(self.task, epoch=f"{epoch + 1}/{epochs}", total=steps, completed=step, figures=figures)


class Speed:
    """Images per second and the time left, since the first update: start-up and what was done before do not count."""

    def __init__(self) -> None:
        self._started: float | None = None
        self._done = self._images = 0.0

    def text(self, done: float, images: float, left: float) -> str:
        """`done` and `images`: progress since the last call; `left` in the unit of `done`"""
        if self._started is None:
            self._started = time.perf_counter()
        elapsed = max(time.perf_counter() - self._started, 1e-9)
        self._done, self._images = self._done + done, self._images + images
        if not self._done:
            return ""
        return f"{self._images / elapsed:,.0f} images/s  {clock(left * elapsed / self._done)} left"


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


def _line(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)


def _bar(console: Console, title: str, *more: ProgressColumn) -> RichProgress:
    width = 20 if console.width >= 100 else 8
    columns = (TextColumn(title), BarColumn(bar_width=width), *more, TextColumn("{task.fields[figures]}"))
    return RichProgress(*columns, console=console, transient=True)


# ── several runs ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Board:
    """Prints nothing; base class of the others. `bar` is entered while runs train."""

    bar: AbstractContextManager[object] = nullcontext()
    measured = "test"  # or "validation": the accuracy of a finished run that is shown

    def row(self, run: Run) -> Progress:
        """The progress display of this run."""
        return Progress()

    def ended(self, run: Run, failure: str | None) -> None:
        pass

    def crowded(self, run: Run) -> None:
        """The device ran out of memory for this run alongside the others."""


class PlainBoard(Board):
    """One line per epoch and one per run."""

    def __init__(self, console: Console, runs: list[Run]):
        self.console, self.total = console, len(runs)
        self.count = sum(map(_over, runs))  # runs that had already ended

    def row(self, run: Run) -> Progress:
        return PlainProgress(self.console, run.path.name)

    def ended(self, run: Run, failure: str | None) -> None:
        self.count += 1
        if failure:
            what = f"[red]failed:[/] {escape(failure)}"
        else:
            figures = run.results()
            if self.measured == "validation" and "validation_accuracy" in figures:
                figures = {"accuracy": figures["validation_accuracy"]}
            accuracy = f"{percent(figures['accuracy'])}%{beside_figures(figures)}"
            what = f"{self.measured} accuracy [bold]{accuracy}[/]"
        _line(self.console, f"[{self.count}/{self.total}] [bold]{escape(run.path.name)}[/]  {what}")

    def crowded(self, run: Run) -> None:
        name = escape(run.path.name)
        _line(self.console, f"Not enough memory for {name} alongside the others: training fewer runs at a time.")


class LiveBoard(PlainBoard):
    """Overall progress, speed and time left; below it, one row per active run."""

    def __init__(self, console: Console, runs: list[Run]):
        super().__init__(console, runs)
        self.bar: RichProgress = _bar(console, "{task.description}")
        self.rows: dict[Run, TaskID] = {}
        self.epochs = {run: run.experiment.training.epochs for run in runs}
        self.at = {run: float(self.epochs[run]) if _over(run) else 0.0 for run in runs}  # finished epochs of each run
        self.all = self.bar.add_task("", total=sum(self.epochs.values()), figures="starting")
        self._speed, self._speed_text = Speed(), ""
        self._show_all()

    def row(self, run: Run) -> Progress:
        if run not in self.rows:
            task = self.bar.add_task(f"  {escape(run.path.name)}", total=self.epochs[run], figures="starting")
            self.rows[run] = task
        return _Row(self, run)

    def look(self, run: Run, position: float, images: int, figures: str) -> None:
        """`position`: epochs done; `images`: number seen since the last update, 0 at the first."""
        done, self.at[run] = position - self.at[run] if images else 0.0, position
        left = sum(self.epochs.values()) - sum(self.at.values())
        self._speed_text = self._speed.text(done, images, left)
        self.bar.update(self.rows[run], completed=position, figures=figures)
        self._show_all()

    def ended(self, run: Run, failure: str | None) -> None:
        self.at[run] = self.epochs[run]
        if (task := self.rows.pop(run, None)) is not None:  # a worker may fail before it reports anything
            self.bar.remove_task(task)
        super().ended(run, failure)
        self._show_all()

    def _show_all(self) -> None:
        runs, finished = f"{self.count}/{self.total} runs", sum(self.at.values())
        self.bar.update(self.all, description=runs, completed=finished, figures=self._speed_text)


class _Row(Progress):
    interval = 1.0

    def __init__(self, board: LiveBoard, run: Run):
        super().__init__()
        self.board, self.run = board, run
        self._steps, self._batch_size, self._validation = 0, 0, ""

    def batch(self, epoch: int, epochs: int, step: int, steps: int, batch_size: int, means: dict[str, float]) -> None:
        self._steps, self._batch_size = steps, batch_size
        self._look(epoch * steps + step, f"epoch {epoch + 1}/{epochs}", means["total"], means["accuracy"])

    def epoch(self, record: dict[str, Any], epochs: int) -> None:
        self._validation = f"  val {percent(record['validation_accuracy'])}%"
        position = record["epoch"] * self._steps
        self._look(position, f"epoch {record['epoch']}/{epochs}", record["total"], record["train_accuracy"])

    def _look(self, position: int, epoch: str, loss: float, accuracy: float) -> None:
        images, done = self._since_last(position) * self._batch_size, position / max(self._steps, 1)
        self.board.look(self.run, done, images, f"{epoch}  loss {loss:.3f}  acc {percent(accuracy)}%{self._validation}")


def make_board(console: Console, runs: list[Run], quiet: bool = False) -> Board:
    """`runs`: all of them, including those that have ended."""
    if quiet:
        return Board()
    return LiveBoard(console, runs) if console.is_terminal else PlainBoard(console, runs)


def _over(run: Run) -> bool:
    return run.finished or run.failure is not None
