"""Several runs in one process, each with the result it has alone.

A network of a million weights leaves most of a large GPU idle. Here every run has a lane: a stream, a CUDA graph and
random numbers of its own. The loop launches a step of one run and a step of the next without waiting for either, and
the device does them side by side. On a CPU there is nothing to gain by it.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import TracebackType
from typing import NamedTuple
from weakref import WeakValueDictionary

import torch

from ..data import DataConfig, Dataset
from ..data.loader import DeviceData
from ..data.types import Augmentations
from ..errors import InputError
from .board import Board
from .progress import Progress
from .run import Run
from .trainer import Diverged, Interrupted, Trainer, signals

MAX_LANES = 32  # as many streams as PyTorch has to give; more would share theirs
# Steps of a run that may wait on the device: work while another run is validated and saved. Few at first, for Ctrl-C
# waits for them; more where they turned out to be too few.
AHEAD, MOST_AHEAD = 4, 64


Make = Callable[[Run, Progress], "Trainer | None"]


class Outcome(NamedTuple):
    run: Run
    failure: str | None = None  # why it has no result, in a sentence


def train_together(
    runs: Sequence[Run], make: Make, device: torch.device, parallel: int, board: Board
) -> Generator[Outcome, None, None]:
    """Train and test the runs, `parallel` of them at a time; whichever ends is yielded, and the next takes its lane.

    `make` builds the trainer of a run, be it new or begun, or says None if nothing is left to do. Ctrl-C saves
    every run under way and raises `Interrupted`.
    """
    waiting, lanes = deque(runs), [Lane(device) for _ in range(min(parallel, MAX_LANES, len(runs)))]
    with signals() as stop, board, _vacating(lanes):
        while not stop and (waiting or any(lane.trainer for lane in lanes)):
            for lane in [lane for lane in lanes if lane.ready()]:
                if stop or not (lane.trainer or waiting):
                    continue
                run = lane.run or waiting.popleft()
                try:
                    outcome = lane.take_turn(run, make, board)
                except torch.OutOfMemoryError:
                    if not any(other.trainer for other in lanes if other is not lane):
                        raise
                    board.crowded(run)  # as many as fit: its lane is closed, and it waits for another
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


@contextmanager
def _vacating(lanes: list[Lane]) -> Iterator[None]:
    try:
        yield
    finally:
        for lane in lanes:
            lane.leave()


class Lane:
    """Where one run trains at a time: a stream of its own, and for each run random numbers of its own."""

    def __init__(self, device: torch.device):
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.trainer: Trainer | None = None
        self._random = Randomness(device)
        self._steps: Generator[None, None, None]
        self._launched: deque[torch.cuda.Event] = deque()  # steps that the device has not been seen to finish
        self._ahead = AHEAD

    @property
    def run(self) -> Run | None:
        return self.trainer.run if self.trainer else None

    @contextmanager
    def _turn(self) -> Iterator[None]:
        with self._random, torch.cuda.stream(self.stream) if self.stream else nullcontext():
            yield

    def ready(self) -> bool:
        """Whether a step may be launched; nobody waits for the answer."""
        full = len(self._launched) == self._ahead
        while self._launched and self._launched[0].query():
            self._launched.popleft()
        if full and not self._launched:  # all done since the last look: the device has run dry
            self._ahead = min(2 * self._ahead, MOST_AHEAD)
        return len(self._launched) < self._ahead

    def take_turn(self, run: Run, make: Make, board: Board) -> Outcome | None:
        """Launch one step, or after the last one test; how the run ended, if it did."""
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
        """Save, unless the weights turn out to be broken."""
        assert self.trainer
        with self._turn():
            try:
                self.trainer.pause()
            except Diverged as error:
                self.trainer.run.fail(str(error))

    def leave(self) -> None:
        """Give everything back, so that the next run finds the lane as the first one did."""
        if self.trainer is None:
            return
        self._steps.close()
        self.trainer.run.release()
        if self.stream:
            self.stream.synchronize()  # a graph in flight must not be given up
        self.trainer.step.release()
        self.trainer = None
        del self._steps
        self._launched.clear()
        self._ahead = AHEAD
        if self.stream:
            gc.collect()  # the run's tensors, before the next one needs the memory


class Randomness:
    """The random numbers of one run: what is drawn inside `with` comes from here, and nobody else's are touched.

    On CUDA the default generator is pointed at a state of the run's own, which waits for nothing. Saving and restoring
    seed and offset would not do: a recorded graph reads them from device memory that belongs to the state, up to some
    version of PyTorch one place for all its graphs, so a graph in flight on one stream would see what is written there
    for the next. A graph recorded inside `with` keeps this state for good, and its replays advance it.
    """

    def __init__(self, device: torch.device):
        self._cpu = torch.Generator().get_state()
        self._cuda: torch.Generator | None = None
        if device.type == "cuda":
            torch.cuda.init()  # the default generators are not there before
            index = torch.cuda.current_device() if device.index is None else device.index
            self._cuda = torch.Generator(torch.device("cuda", index))
            self._default = torch.cuda.default_generators[index]

    def __enter__(self) -> None:
        self._cpu_outside = torch.get_rng_state()
        torch.set_rng_state(self._cpu)
        if self._cuda is not None:
            self._cuda_outside = self._default.graphsafe_get_state()
            self._default.graphsafe_set_state(self._cuda)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cpu = torch.get_rng_state()
        torch.set_rng_state(self._cpu_outside)
        if self._cuda is not None:
            self._default.graphsafe_set_state(self._cuda_outside)


class SharedData:
    """Data sets on the device: one copy for all runs that train on the same images."""

    def __init__(self, load: Callable[[DataConfig], Dataset], device: torch.device):
        self.load, self.device = load, device
        self._on_device: WeakValueDictionary[DataConfig, DeviceData] = WeakValueDictionary()
        self._latest: DeviceData | None = None  # kept between two runs that follow one another

    def of(self, config: DataConfig) -> DeviceData:
        same = replace(config, mirror=False, shift=0, augment=Augmentations())  # augmentation changes no image
        data = self._on_device.get(same)
        if data is None:
            data = DeviceData(self.load(config), config.normalization, self.device)
            self._on_device[same] = data
        self._latest = data
        return data
