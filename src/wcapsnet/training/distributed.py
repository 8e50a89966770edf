"""Several processes train one network: the group that `torchrun` starts, and how it starts, agrees and ends.

    torchrun --standalone --nproc-per-node 4 -m wcapsnet train cifar10

Rank 0 decides, writes and prints. The other ranks (workers) get its decisions and weights, and join it in every step
(`data_parallel.py`). CPUs communicate by gloo, GPUs by NCCL. A checkpoint does not depend on the number of ranks.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from .. import console
from ..data import Dataset
from ..data.device_data import DeviceSplit
from ..device import choose_device
from ..errors import InputError, Lost, first_line
from ..launched import GRACE, started
from .evaluate import Evaluation

T = TypeVar("T")
TIMEOUT = timedelta(minutes=30)  # of a collective; ranks reach each of them at about the same time
PATIENCE = 20.0  # seconds; torchrun kills a process 30 seconds after its signal
POLL = 0.2  # seconds
_joined = itertools.count()  # a script may train several times; each group has its own names in the store


class Ranks:
    """The processes that train one network together; this class is a process on its own."""

    rank, world = 0, 1

    def __init__(self, device: torch.device):
        self.device = device

    @property
    def first(self) -> bool:
        """Whether this is the process that decides, writes and prints"""
        return self.rank == 0

    def same(self, value: T) -> T:
        """Rank 0's value, on every rank"""
        return value

    def mine(self, index: Tensor) -> Tensor:
        """This rank's share of a batch or of many, (…, batch): ranks hold equal, consecutive parts of it."""
        return index

    def spread(self, tensors: Iterable[Tensor]) -> None:
        """Give these tensors rank 0's values on every rank."""

    def reseed(self, *place: int) -> None:
        """Start the random numbers of a worker at this place of the run. Rank 0 has those of the run."""

    def evaluate(self, measure: Callable[[DeviceSplit], Evaluation], split: DeviceSplit) -> Evaluation:
        """`measure` of the whole split, each rank measuring its part"""
        return measure(split)

    def stopping(self, received: list[int]) -> bool:
        """Whether to save and stop, given the signals this process has received"""
        return bool(received)

    def load(self, load: Callable[[], Dataset]) -> Dataset:
        """The dataset, the same on every rank"""
        return load()

    def finish(self, result: T) -> T:
        """Rank 0's result, on every rank: the workers wait until rank 0 has tested the network."""
        return result


class Group(Ranks):
    """This process as a member of the group that `torchrun` has started"""

    def __init__(self, device: str):
        super().__init__(_own_device(device))
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.backend = "NCCL" if self.device.type == "cuda" else "gloo"
        self._next_look, self._told = 0.0, False
        self.over = self.lost = False
        # Imported now because optimizers import it later, when its default arguments would keep the group alive,
        # and gloo threads that outlive `destroy_process_group` may abort the process when it exits.
        import torch.distributed.nn.functional  # noqa: F401

        try:
            store, _, _ = next(rendezvous("env://", timeout=TIMEOUT))
            self.store: Any = dist.PrefixStore(f"{next(_joined)}", store)  # type: ignore[attr-defined]
            backends = "cpu:gloo,cuda:nccl" if self.backend == "NCCL" else "gloo"
            dist.init_process_group(backends, store=self.store, rank=self.rank, world_size=self.world, timeout=TIMEOUT)
        except (RuntimeError, ValueError) as error:
            raise InputError(
                f"The {self.world} processes of torchrun could not connect: {first_line(error)}."
            ) from error
        if not self.first:
            console.out.quiet = console.err.quiet = True

    # ── collectives ──────────────────────────────────────────────────────────────────────────────────────────────────

    def sum(self, tensor: Tensor) -> None:
        """Replace the tensor by its sum over ranks."""
        with self._together():
            dist.all_reduce(tensor)

    def mine(self, index: Tensor) -> Tensor:
        size = index.shape[-1] // self.world
        return index[..., self.rank * size : (self.rank + 1) * size]

    def whole(self, own: Tensor) -> Tensor:
        """The tensors (m, …) of all ranks, one after the other. Gradients flow only to this rank's part."""
        parts = [torch.empty_like(own, memory_format=torch.contiguous_format) for _ in range(self.world)]
        with self._together():
            dist.all_gather(parts, own.detach().contiguous())
        parts[self.rank] = own
        return torch.cat(parts)

    def every(self, value: T) -> list[T]:
        """The values of all ranks"""
        values: list[Any] = [None] * self.world
        with self._together():
            dist.all_gather_object(values, value)
        return values

    def same(self, value: T) -> T:
        values = [value]
        with self._together():
            dist.broadcast_object_list(values, src=0, device=torch.device("cpu"))
        return values[0]

    @torch.no_grad()
    def spread(self, tensors: Iterable[Tensor]) -> None:
        of_type: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            of_type.setdefault(tensor.dtype, []).append(tensor)
        for some in of_type.values():
            flat = torch.cat([tensor.flatten() for tensor in some])
            with self._together():
                dist.broadcast(flat, src=0)
            for tensor, value in zip(some, flat.split([tensor.numel() for tensor in some]), strict=True):
                tensor.copy_(value.view_as(tensor))

    @contextmanager
    def _together(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # of the backend: a connection is closed, or nobody has answered in time
            self.lost = True
            raise Lost(self._reason() or f"One of the {self.world} processes has ended") from error

    # ── agreement ────────────────────────────────────────────────────────────────────────────────────────────────────

    def reseed(self, *place: int) -> None:
        if not self.first:
            text = " ".join(map(str, (*place, self.rank)))
            torch.manual_seed(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big"))

    def evaluate(self, measure: Callable[[DeviceSplit], Evaluation], split: DeviceSplit) -> Evaluation:
        begin, end = (len(split) * rank // self.world for rank in (self.rank, self.rank + 1))
        own = measure(split.part(begin, end)) if begin < end else None
        return merged([part for part in self.every(own) if part])

    def stopping(self, received: list[int]) -> bool:
        """Only rank 0 stops, after a signal to any rank; the others lose the connection to it, and end."""
        if not self.first:
            if received and not self._told:
                self.store.set("stop", "")
                self._told = True
            return False
        if received or time.monotonic() < self._next_look:
            return bool(received)
        self._next_look = time.monotonic() + 1
        with self._together():
            return self.store.check(["stop"])

    def load(self, load: Callable[[], Dataset]) -> Dataset:
        """On every machine one process reads, downloads and caches the images; the others then find them."""
        loaded = f"loaded-{os.environ.get('GROUP_RANK', 0)}"
        alone = os.environ.get("LOCAL_RANK", "0") == "0"
        if not alone:
            self._wait(loaded)  # not by a collective: it may take longer than their timeout
        dataset = load()
        if alone:
            self.store.set(loaded, "")
        own = (socket.gethostname(), dataset.classes, dataset.fingerprint("train", "validation"))
        for rank, (host, *images) in enumerate(self.every(own)):
            if self.first and images != [*own[1:]]:
                raise InputError(
                    f"The images of process {rank} on {host} differ from those of process 0; copy the latter to {host}."
                )
        return dataset

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def finish(self, result: T) -> T:
        if self.first:
            self.store.set("finished", "")
        else:
            self._wait("finished")  # not by a collective: testing and reporting may take longer than their timeout
        return self.same(result)

    def _wait(self, key: str) -> None:
        with self._together():
            while not self.store.check([key]):
                time.sleep(POLL)

    def _reason(self) -> str | None:
        with contextlib.suppress(RuntimeError):
            if self.store.check(["failed"]):
                return self.store.get("failed").decode()
        return None

    def failed(self, error: BaseException) -> NoReturn:
        """Rank 0 raises the error, or the reason why a worker has failed; a worker tells rank 0 and ends quietly."""
        if self.first:
            if isinstance(error, KeyboardInterrupt) and (reason := self._reason()):
                raise Lost(reason) from error
            raise error
        if not isinstance(error, (Lost, KeyboardInterrupt)):
            with contextlib.suppress(RuntimeError):  # the store has gone, and rank 0 with it
                said = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {first_line(error)}"
                self.store.set("failed", f"Process {self.rank} on {socket.gethostname()} failed ({said.rstrip('.')})")
            time.sleep(GRACE)  # rank 0 may be about to fail for the same reason, and to say so
            if not isinstance(error, (InputError, torch.OutOfMemoryError)):
                raise error
        raise SystemExit(1)


@contextmanager
def joined(device: str) -> Generator[Ranks, None, None]:
    """The ranks of this job: a group if `torchrun` has started several processes"""
    if not started():
        yield Ranks(choose_device(device))
        return
    group = Group(device)
    try:
        with _watching(group):
            yield group
    except (Exception, KeyboardInterrupt) as error:
        group.failed(error)
    finally:
        if group.backend == "gloo" or not group.lost:  # NCCL might wait for a dead process
            dist.destroy_process_group()


@contextmanager
def _watching(group: Group) -> Iterator[None]:
    """SIGTERM interrupts rank 0 as Ctrl-C does. If it is stuck long afterwards, it ends: NCCL may wait forever for
    a dead process."""
    if not group.first or threading.current_thread() is not threading.main_thread():
        yield
        return
    read, write = os.pipe()
    os.set_blocking(write, False)

    def end_if_stuck() -> None:
        while (number := os.read(read, 1)) and number[0] not in (signal.SIGINT, signal.SIGTERM):
            pass
        if number:
            time.sleep(PATIENCE)
        if number and not group.over:
            sentence = f"One of the {group.world} processes does not answer; resume from the last saved epoch."
            console.err.print(f"error: {sentence}", style="red", soft_wrap=True)
            os._exit(1)

    threading.Thread(target=end_if_stuck, daemon=True).start()
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    # A handler of Python waits until a collective returns; the pipe is written to at once.
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    try:
        yield
    except BaseException:
        before = signal.SIG_IGN  # torchrun may stop this process because of another; it ends by itself, with a sentence
        raise
    finally:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, before)
        group.over = True
        os.close(write)


def check_batch(size: int, world: int) -> None:
    """Refuse a batch that ranks cannot share equally."""
    if size % world:
        few = (
            f"{world} processes need at least one image each" if size < world else "every process takes an equal share"
        )
        near = max(world, size // world * world)
        raise InputError(
            f"The batch size is {size}, but {few}; choose a multiple of {world}, for example --batch-size {near}, or "
            "another --nproc-per-node."
        )


def merged(parts: list[Evaluation]) -> Evaluation:
    """The evaluation of a split from those of its parts, in order"""
    first, images = parts[0], sum(len(part.labels) for part in parts)
    counts = [part.labels.bincount(minlength=first.classes)[:, None] for part in parts]
    total = torch.stack(counts).sum(0).clamp_min(1)
    by_level = zip(*(part.mean_weights for part in parts), strict=True)
    return Evaluation(
        labels=torch.cat([part.labels for part in parts]),
        predicted=torch.cat([part.predicted for part in parts]),
        probability=torch.cat([part.probability for part in parts]),
        winners=tuple(torch.cat(level) for level in zip(*(part.winners for part in parts), strict=True)),
        loss=sum(part.loss * len(part.labels) for part in parts) / images,
        mean_weights=tuple(sum(n * b for n, b in zip(counts, level, strict=True)) / total for level in by_level),
        classes=first.classes,
    )


def _own_device(name: str) -> torch.device:
    processes, local = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
    device = choose_device(name)
    if device.type == "cpu":
        return device
    if device.type != "cuda" or device.index is not None:
        raise InputError(f"--device is {name}, but torchrun has started {processes} processes here; use cuda or cpu.")
    if processes > (gpus := torch.cuda.device_count()):
        raise InputError(
            f"torchrun has started {processes} processes here, but PyTorch sees {gpus} CUDA devices; use "
            f"--nproc-per-node {gpus}, or --device cpu."
        )
    torch.cuda.set_device(local)
    return torch.device("cuda", local)
