"""`--minutes`: as many epochs as fit, from measured speed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ..console import warn
from ..device import synchronize
from ..experiment import MAX_COUNT
from ..formatting import duration
from .step import undone

if TYPE_CHECKING:
    from .trainer import Trainer

SAMPLE = 64  # images whose evaluation is timed
TRIAL, LONGEST_TRIAL = 0.03, 5.0  # the measurement: share of the time, and seconds at most
MARGIN = 0.05  # share of the time held back: speed varies
SETTLED = 0.05  # share of the time after which the speed of whole epochs is known
TOLERANCE = 0.2  # share of the time by which a settled plan may exceed the limit
REPORT = 2.0  # seconds for the report, in addition to its images


class Pace:
    """Plans the number of epochs so that training, test and report end in time.

    The clock starts at `began`, which may be earlier than the trainer: reading the pictures counts. A resumed run has
    the time that was left. The number of epochs is corrected once, when the speed of whole epochs is known, and later
    only to keep the limit: every change bends the learning-rate schedule. The experiment in the run folder gets the
    number that is trained: repeating the run repeats it, on any machine. Several ranks use the times of rank 0.
    """

    def __init__(self, trainer: Trainer, minutes: float):
        self.trainer, self.total = trainer, 60 * minutes
        self.began = time.perf_counter()
        self.spent = 0.0  # seconds before the first epoch
        self.per_image = 0.0  # seconds to evaluate one image

    def plan(self) -> None:
        """Measure a few steps, which leave no trace, and set the schedule."""
        trainer, steps = self.trainer, len(self.trainer.epoch_order())
        self._measure_evaluation()
        step = self._time_step()
        self.spent = trainer.ranks.same(time.perf_counter() - self.began)
        left = self._left()
        epochs = int(left / (steps * step + self._validation()))
        if epochs < 1:  # not even one epoch fits
            fit = int((left - self._validation()) / step)
            some = max(1, min(steps, fit))
            warn(
                f"An epoch takes about {duration(steps * step + self._validation())}, which is too long for a run of "
                f"{duration(self.total)}: only {some} of its {steps} steps will be trained"
                f"{'' if fit >= 1 else ', and even so the run will take longer'}."
            )
            self._set(1)
            trainer.reschedule(warmup=0, milestones=(), epoch_steps=some)
        else:
            self._set(epochs)

    def replan(self) -> None:
        """After an epoch: settle the number of epochs, or reduce a settled one that would miss the limit."""
        trainer, state = self.trainer, self.trainer.state
        ahead = trainer.settings.epochs - state.epoch
        state.seconds = trainer.ranks.same(state.seconds)
        if not ahead or state.seconds < SETTLED * self.total:
            return
        if not self.per_image:  # a resumed run
            self._measure_evaluation()
        left, epoch = self._left(), state.seconds / state.epoch
        settled = state.seconds - epoch >= SETTLED * self.total  # by an earlier epoch
        if not settled or ahead * epoch > left + TOLERANCE * self.total:
            self._set(state.epoch + max(0, int(left / epoch)))

    def _set(self, epochs: int) -> None:
        epochs = min(epochs, MAX_COUNT)
        if epochs != self.trainer.settings.epochs:
            self.trainer.reschedule(**vars(self.trainer.settings.with_epochs(epochs)))

    def _left(self) -> float:
        """Seconds for training and validation"""
        trainer = self.trainer
        tested, validated = len(trainer.dataset.test.labels), len(trainer.dataset.validation.labels)
        ending = REPORT + self.per_image * trainer.ranks.world * (2.5 * tested + 2 * validated)  # by rank 0 alone
        left = (1 - MARGIN) * self.total - self.spent - trainer.state.seconds
        return max(left - ending, left / 2)

    def _validation(self) -> float:
        return self.per_image * len(self.trainer.validation_data)

    def _measure_evaluation(self) -> None:
        some = self.trainer.validation_data.part(0, SAMPLE)
        self.trainer.evaluate(some)  # warm-up
        started = time.perf_counter()
        self.trainer.evaluate(some)
        self.per_image = self.trainer.ranks.same((time.perf_counter() - started) / len(some))

    def _time_step(self) -> float:
        """Seconds per step"""
        trainer = self.trainer
        index, times = trainer.epoch_order()[0].to(trainer.device), list[float]()
        trainer.network.train()
        began, trial = time.perf_counter(), min(TRIAL * self.total, LONGEST_TRIAL)
        with undone(trainer.step):
            while trainer.ranks.same(len(times) < 3 or time.perf_counter() - began < trial):
                started = time.perf_counter()
                trainer.step(index)
                synchronize(trainer.device)
                times.append(time.perf_counter() - started)
        return trainer.ranks.same(sum(times[1:]) / len(times[1:]))  # the first one warms up
