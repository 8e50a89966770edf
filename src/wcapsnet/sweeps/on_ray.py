"""Train the runs of a sweep on a Ray cluster: every run is a task, with a share of a GPU or one CPU core.

A worker trains in a temporary folder and sends the files of the run folder back, at most every `EVERY` seconds and at
the end. Only the machine that started the sweep writes run folders, so no shared file system is needed for them; the
images must be at the same path on every machine. A run whose worker is lost continues elsewhere from the last files
that arrived.
"""

from __future__ import annotations

import logging
import os
import socket
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import torch

from .. import __version__
from ..atomic import replacing
from ..data import Dataset
from ..device import choose_device
from ..errors import Diverged, InputError, Interrupted
from ..experiment import Experiment
from ..hub import data_place, dataset_of
from ..plugins import load_plugin, plugins
from ..settings import from_dict, to_dict
from ..training.console import Board, Progress
from ..training.environment import command_line, describe_environment
from ..training.parallel import Outcome
from ..training.run_folder import Run
from ..training.trainer import Trainer, signals

EVERY = 20.0  # seconds
ATTEMPTS = 4  # to train a run, if none of them gets any further
SENT = ("data.json", "metrics.jsonl", "best.safetensors", "last.safetensors", "state.safetensors")  # needed to resume
LAST = ("state.safetensors", "test.json")  # written after all others: they say that the others are complete
OBJECT_STORE = 300 * 2**20  # bytes, of a cluster that is started here: only run folders pass through it


@dataclass(frozen=True)
class Job:
    """Everything a worker needs. Plain values only."""

    experiment: dict[str, Any]
    files: dict[str, bytes]  # of the run folder
    plugins: tuple[tuple[str, bytes], ...]
    fingerprint: dict[str, str]  # of the images
    data_dir: str | None
    download: bool
    device: str
    at_a_time: int
    every: float
    version: str = __version__


@dataclass(frozen=True)
class News:
    """What a worker sends."""

    environment: dict[str, Any] | None = None  # first
    epoch: int = 0
    records: tuple[dict[str, Any], ...] = ()  # epochs since the last message
    files: dict[str, bytes] = field(default_factory=dict)
    failure: str | None = None
    diverged: bool = False


# ── on a worker ──────────────────────────────────────────────────────────────────────────────────────────────────────


def work(job: Job) -> Iterator[News]:
    """Train one run; the body of a Ray task."""
    if job.version != __version__:
        found = f"{socket.gethostname()} has wcapsnet {__version__}, not {job.version}"
        yield News(failure=f"{found}; install the same version on every machine.")
        return
    with tempfile.TemporaryDirectory(prefix="wcapsnet-") as scratch:
        try:
            yield from _trained(job, Path(scratch))
        except Diverged as error:
            yield News(failure=str(error), diverged=True)
        except InputError as error:
            yield News(failure=f"{error} (on {socket.gethostname()})")


def _trained(job: Job, scratch: Path) -> Iterator[News]:
    for name, content in job.plugins:
        (scratch / name).write_bytes(content)
        load_plugin(scratch / name)
    run = Run(scratch / "run", from_dict(Experiment, job.experiment))
    receive(run.path, job.files)
    device, data_dir = choose_device(job.device), Path(job.data_dir) if job.data_dir else None
    dataset = dataset_of(run.experiment, data_dir, job.download, quiet=True, tell=False)
    if dataset.fingerprint(*job.fingerprint) != job.fingerprint:
        raise InputError(f"The images of {dataset.name} differ from those on the machine that started the sweep.")
    progress = _Records()
    trainer = Trainer(run, dataset, device, progress)
    place = data_place(run.experiment, data_dir)
    yield News(describe_environment(device, place, job.at_a_time, trainer.computed_by), trainer.state.epoch)
    sent: dict[str, tuple[int, int]] = {}
    _changed(run.path, sent)
    since = time.monotonic()
    with closing(trainer.steps()) as steps:
        for _ in steps:
            if progress.records and trainer.state.step == 0 and time.monotonic() - since >= job.every:
                yield News(records=progress.taken(), files=_changed(run.path, sent), epoch=trainer.state.epoch)
                since = time.monotonic()
    trainer.finish()
    yield News(records=progress.taken(), files=_changed(run.path, sent), epoch=trainer.state.epoch)


class _Records(Progress):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[dict[str, Any]] = []

    def epoch(self, record: dict[str, Any], epochs: int) -> None:
        self.records.append(record)

    def taken(self) -> tuple[dict[str, Any], ...]:
        records, self.records = tuple(self.records), []
        return records


def _changed(folder: Path, sent: dict[str, tuple[int, int]]) -> dict[str, bytes]:
    """The files that are new or changed since the last call"""
    found = {}
    for file in sorted(folder.rglob("[!.]*")):
        name, status = file.relative_to(folder).as_posix(), file.stat()
        state = (status.st_mtime_ns, status.st_size)
        if file.is_file() and sent.get(name) != state:
            sent[name] = state
            found[name] = file.read_bytes()
    return found


# ── on the machine that started the sweep ────────────────────────────────────────────────────────────────────────────


def to_send(run: Run) -> dict[str, bytes]:
    """The files that a worker needs to start or resume the run"""
    files = {name: run.file(name).read_bytes() for name in SENT if run.file(name).exists()}
    if run.experiment.start and "state.safetensors" not in files:
        files["start.safetensors"] = run.starting_weights().read_bytes()
    return files


def receive(folder: Path, files: dict[str, bytes]) -> None:
    """Write the files of a run; each is replaced at once, and those that others depend on come last."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in sorted(files, key=lambda name: (LAST.index(name) + 1 if name in LAST else 0, name)):
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name:
            raise InputError(f"A worker sent a file called {name!r}; run folders hold no such file.")
        with replacing(folder / path) as partial:
            partial.write_bytes(files[name])


def ray_library() -> Any:
    """The library, if it is installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when it is imported
    try:
        import ray
    except ImportError as error:
        raise InputError("--ray needs Ray; install it with: pip install 'wcapsnet[ray]'.") from error
    return ray


@contextmanager
def cluster(address: str) -> Iterator[str]:
    """Connected to the cluster; yields a description. "auto" is a running cluster, or else a new one on this machine;
    "local" is always a new one."""
    ray = ray_library()
    if address.startswith("ray://"):
        raise InputError(
            f"--ray {address}: Ray's client protocol is not supported; start the sweep on a machine of the cluster and "
            "use HOST:PORT or auto."
        )
    connected = ray.is_initialized()  # by a script that calls `wcapsnet.sweep`
    if not connected:
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": True}
        own = {"include_dashboard": False, "_node_ip_address": "127.0.0.1", "object_store_memory": OBJECT_STORE}
        try:
            if address == "local":
                ray.init(address="local", **own, **quiet)
            else:
                ray.init(address=address, **quiet)
        except (ConnectionError, RuntimeError, ValueError) as error:
            if address != "auto":
                why = " ".join(str(error).split())[:200]
                raise InputError(f"There is no Ray cluster at {address!r} ({why}); check --ray.") from error
            ray.init(address="local", **own, **quiet)
    try:
        nodes = sum(bool(node["Alive"]) for node in ray.nodes())
        total = ray.cluster_resources()
        gpus = f", {total['GPU']:g} GPUs" if total.get("GPU") else ""
        yield f"Ray with {nodes} node{'' if nodes == 1 else 's'}, {total.get('CPU', 0):g} CPUs{gpus}"
    finally:
        if not connected:
            ray.shutdown()


def cluster_device(name: str) -> torch.device:
    """The device that workers use; auto: a GPU if the cluster has any. This machine need not have one."""
    gpus = ray_library().cluster_resources().get("GPU", 0)
    if name == "auto":
        return torch.device("cuda" if gpus else "cpu")
    if name not in ("cpu", "cuda"):
        raise InputError(f"--device {name} cannot be used with --ray, which chooses the GPU; use auto, cpu or cuda.")
    if name == "cuda" and not gpus:
        raise InputError("The Ray cluster has no GPU; use --device cpu.")
    return torch.device(name)


def train_on_ray(
    runs: Sequence[Run],
    dataset_for: Callable[[Run], Dataset],
    device: torch.device,
    per_gpu: int,
    board: Board,
    *,
    data_dir: Path | None,
    download: bool,
) -> Generator[Outcome, None, None]:
    """Like `train_together`: yields each run when it ends. Ctrl-C stops the tasks and raises `Interrupted`; what had
    arrived is kept."""
    ray = ray_library()
    share = {"num_gpus": 1 / per_gpu, "num_cpus": 1} if device.type == "cuda" else {"num_cpus": 1}
    task = ray.remote(work).options(max_retries=0, num_returns="streaming", scheduling_strategy="SPREAD", **share)

    def submit(run: Run) -> Any:
        used = (Path(one.path) for one in plugins(to_dict(run.experiment)))
        job = Job(
            experiment=to_dict(run.experiment),
            files=to_send(run),
            plugins=tuple((file.name, file.read_bytes()) for file in used),
            fingerprint=dataset_for(run).fingerprint("train", "validation", "test"),
            data_dir=str(data_dir.resolve()) if data_dir else None,
            download=download,
            device=device.type,
            at_a_time=per_gpu if device.type == "cuda" else 1,
            every=EVERY,
        )
        return task.remote(job)

    with signals() as stop, board.bar, ExitStack() as held:
        lanes: dict[Any, _Lane] = {}
        held.callback(_cancel, ray, lanes)
        for run in runs:
            held.callback(run.release)
            if Run.is_run(run.path):
                run.hold()  # before its state is read
            if run.finished:  # by another process in the meantime
                yield Outcome(run)
            else:
                lanes[submit(run)] = _Lane(run, board)
        while lanes and not stop:
            ready, _ = ray.wait(list(lanes), num_returns=1, timeout=0.5)
            for stream in ready:
                lane = lanes[stream]
                try:
                    outcome = lane.hear(ray.get(next(stream)))
                except (StopIteration, ray.exceptions.RayError) as error:
                    del lanes[stream]
                    if not (outcome := lane.lost(ray, error)):
                        lanes[submit(lane.run)] = lane
                if outcome:
                    lanes.pop(stream, None)
                    lane.run.release()
                    board.ended(*outcome)
                    yield outcome
        if lanes:
            raise Interrupted


class _Lane:
    """One run, on whichever worker trains it."""

    def __init__(self, run: Run, board: Board):
        self.run, self.board = run, board
        self.progress: Progress | None = None
        self.attempts = 0  # since the last progress

    def hear(self, news: News) -> Outcome | None:
        """The outcome, if these are the last news"""
        run = self.run
        if news.failure:
            if news.diverged:
                run.fail(news.failure)
            return Outcome(run, news.failure)
        if news.environment is not None:
            run.start({**news.environment, "command": command_line()}, news.epoch)  # not the worker's, which is Ray's
            if self.progress is None:
                self.progress = self.board.row(run)
            return None
        self.attempts = 0
        receive(run.path, news.files)
        for record in news.records:
            if self.progress:
                self.progress.epoch(record, run.experiment.training.epochs)
        return Outcome(run) if run.finished else None

    def lost(self, ray: Any, error: Exception) -> Outcome | None:
        """None if the run should be tried again"""
        if isinstance(error, ray.exceptions.RayTaskError):  # not the worker's end but an error of the program
            return Outcome(self.run, " ".join(str(error.cause or error).split())[:300])
        self.attempts += 1
        if self.attempts >= ATTEMPTS:
            return Outcome(self.run, f"its worker was lost {ATTEMPTS} times in a row ({type(error).__name__})")
        return None


def _cancel(ray: Any, lanes: dict[Any, _Lane]) -> None:
    for stream in lanes:
        with suppress(Exception):  # it has ended meanwhile
            ray.cancel(stream, force=True)
