"""Several runs in one process, each with the same result as if it ran alone.

A network of a million weights leaves most of a large GPU idle. Here every run has a lane with its own stream, CUDA
graph and random numbers. The loop launches a step of each run in turn without waiting, and the device executes them
concurrently. On a CPU this gains nothing.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import NamedTuple
from weakref import WeakValueDictionary

import torch

from ..data import DataConfig, Dataset
from ..data.device_data import DeviceData
from ..data.types import Augmentations
from ..errors import Diverged, InputError, Interrupted
from ..limits import MAX_LANES
from .console import Board, Progress
from .run_folder import Run
from .trainer import Trainer, signals

# Steps of a run that may be queued on the device, so that it stays busy while another run is validated and saved. Low
# at first, because Ctrl-C waits for them; raised when the queue runs empty.
AHEAD, MOST_AHEAD = 4, 64

Make = Callable[[Run, Progress], "Trainer | None"]


class Outcome(NamedTuple):
    run: Run
    failure: str | None = None  # why it has no result, as a sentence


def train_together(
    runs: Sequence[Run], make: Make, device: torch.device, parallel: int, board: Board
) -> Generator[Outcome, None, None]:
    """Train and test the runs, `parallel` at a time; yields each run when it ends, and the next one takes its lane.

    `make` builds the trainer of a new or resumed run, or returns None if nothing is left to do. Ctrl-C saves every
    active run and raises `Interrupted`.
    """
    waiting, lanes = deque(runs), [Lane(device) for _ in range(min(parallel, MAX_LANES, len(runs)))]
    with signals() as stop, board.bar, ExitStack() as held:
        for lane in lanes:
            held.callback(lane.leave)
        while not stop and (waiting or any(lane.trainer for lane in lanes)):
            for lane in [lane for lane in lanes if lane.ready()]:
                if stop or not (lane.trainer or waiting):
                    continue
                run = lane.trainer.run if lane.trainer else waiting.popleft()
                try:
                    outcome = lane.take_turn(run, make, board)
                except torch.OutOfMemoryError:
                    if not any(other.trainer for other in lanes if other is not lane):
                        raise
                    board.crowded(run)  # out of memory: its lane is closed, and the run waits for another lane
                    waiting.appendleft(run)
                    lanes.remove(lane)
                    lane.leave()
                    continue
                if outcome:
                    lane.leave()
                    run.release()
                    board.ended(*outcome)
                    yield outcome
            if not any(lane.ready() for lane in lanes):
                time.sleep(5e-5)
        under_way = [lane for lane in lanes if lane.trainer]
        for lane in under_way:
            lane.pause()
        if under_way or waiting:
            raise Interrupted


class Lane:
    """Trains one run at a time, with its own stream; every run has its own random numbers."""

    def __init__(self, device: torch.device):
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.trainer: Trainer | None = None
        self._random = Randomness(device)
        self._steps: Generator[None, None, None]
        self._launched: deque[torch.cuda.Event] = deque()  # steps not yet known to be finished
        self._ahead = AHEAD

    @contextmanager
    def _turn(self) -> Iterator[None]:
        with self._random, torch.cuda.stream(self.stream) if self.stream else nullcontext():
            yield

    def ready(self) -> bool:
        """Whether a step may be launched; does not wait."""
        full = len(self._launched) == self._ahead
        while self._launched and self._launched[0].query():
            self._launched.popleft()
        if full and not self._launched:  # all finished since the last check: the device was idle
            self._ahead = min(2 * self._ahead, MOST_AHEAD)
        return len(self._launched) < self._ahead

    def take_turn(self, run: Run, make: Make, board: Board) -> Outcome | None:
        """Launch one step, or test after the last one; returns the outcome if the run has ended."""
        if not self.trainer:
            self._random = Randomness(self.device)
        try:
            with self._turn():
                if not self.trainer:
                    self.trainer = make(run, board.row(run))
                    if self.trainer is None:
                        return Outcome(run)
                    self._steps = self.trainer.steps()
                if next(self._steps, self) is self:
                    self.trainer.finish()
                    return Outcome(run)
                if self.stream:
                    self._launched.append(self.stream.record_event())
        except Diverged as error:
            run.fail(str(error))
            return Outcome(run, str(error))
        except InputError as error:
            return Outcome(run, str(error))
        return None

    def pause(self) -> None:
        """Save, unless the weights are no longer finite."""
        assert self.trainer
        with self._turn():
            try:
                self.trainer.pause()
            except Diverged as error:
                self.trainer.run.fail(str(error))

    def leave(self) -> None:
        """Free everything, so that the next run finds the lane in its initial state."""
        if self.trainer is None:
            return
        self._steps.close()
        self.trainer.run.release()
        if self.stream:
            self.stream.synchronize()  # a running graph must not be freed
        self.trainer.step.release()
        self.trainer = None
        del self._steps
        self._launched.clear()
        self._ahead = AHEAD
        if self.stream:
            gc.collect()  # frees the run's tensors before the next run needs the memory


class Randomness:
    """The random numbers of one run: draws inside `with` come from here and affect no other run.

    On CUDA the default generator is pointed at the run's own state, without synchronising. Saving and restoring the
    seed and offset would not work: a recorded graph reads them from device memory owned by the state, which some
    versions of PyTorch share between all graphs, so a running graph on one stream would see the values written for the
    next. A graph recorded inside `with` keeps this state, and its replays advance it.
    """

    def __init__(self, device: torch.device):
        self._cpu = torch.Generator().get_state()
        self._cuda: torch.Generator | None = None
        if device.type == "cuda":
            torch.cuda.init()  # creates the default generators
            index = torch.cuda.current_device() if device.index is None else device.index
            self._cuda = torch.Generator(torch.device("cuda", index))
            self._default = torch.cuda.default_generators[index]

    def __enter__(self) -> None:
        self._cpu_outside = torch.get_rng_state()
        torch.set_rng_state(self._cpu)
        if self._cuda is not None:
            self._cuda_outside = self._default.graphsafe_get_state()
            self._default.graphsafe_set_state(self._cuda)

    def __exit__(self, *error: object) -> None:
        self._cpu = torch.get_rng_state()
        torch.set_rng_state(self._cpu_outside)
        if self._cuda is not None:
            self._default.graphsafe_set_state(self._cuda_outside)


class SharedData:
    """Datasets on the device: one copy for all runs that train on the same images."""

    def __init__(self, load: Callable[[DataConfig], Dataset], device: torch.device):
        self.load, self.device = load, device
        self._on_device: WeakValueDictionary[DataConfig, DeviceData] = WeakValueDictionary()
        self._latest: DeviceData | None = None  # kept for the next run

    def of(self, config: DataConfig) -> DeviceData:
        same = without_augmentation(config)
        data = self._on_device.get(same)
        if data is None:
            data = DeviceData(self.load(config), config.normalization, self.device, config.stream)
            self._on_device[same] = data
        self._latest = data
        return data


def without_augmentation(config: DataConfig) -> DataConfig:
    """The same for all configurations with the same images, however these are augmented and drawn"""
    return replace(config, mirror=False, shift=0, augment=Augmentations(), balance=False)
