"""One benchmark run: every contender on every case, and its record."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from ..device import synchronize
from ..errors import InputError, first_line
from ..experiment import Experiment
from ..network import Level, WCapsNetConfig
from ..training.environment import describe_environment, file_names_only
from . import tasks
from .contenders import Contender
from .measure import ceilings, in_turns
from .work import BYTES, TRAINING, Work, total, work_of

SCALINGS = {
    "batch": (16, 32, 64, 128, 256, 512, 1024, 2048),
    "capsules": (4, 8, 16, 32, 64),  # in the first level; the others keep their proportion to it
    "levels": (2, 3, 4, 5, 6, 7, 8),
}


@dataclass(frozen=True)
class Request:
    what: str
    experiment: Experiment
    contenders: list[Contender]
    batches: list[int]
    device: torch.device
    repeats: int = 9
    window: float = 0.2  # minimum length of a timed window in seconds
    scaling: str | None = None
    parts: bool = False
    say: Callable[[str], None] = lambda sentence: None  # progress messages


class Case(NamedTuple):
    experiment: Experiment
    batch: int
    value: int | None  # value on the axis of --scaling


def run(request: Request) -> dict[str, Any]:
    """The record: environment, settings, ceilings, what could not run and why, and one row per measurement."""
    device, cannot = request.device, {}
    if not isinstance(request.experiment.model, WCapsNetConfig) and (
        request.what == "level" or request.scaling in ("capsules", "levels")
    ):
        raise InputError(f"{request.experiment.name} has no levels of capsule blocks; time its step or its inference.")
    contenders = []
    for contender in request.contenders:
        try:
            contender.check(device, request.what)
            contenders.append(contender)
        except InputError as error:
            cannot[contender.label] = str(error)
    data = tasks.synthetic(request.experiment, device) if request.what == "train" else None
    measured_ceilings = ceilings(device)
    rows: list[dict[str, Any]] = []
    for case in cases(request):
        prepared: dict[tuple[str, Contender], tasks.Job] = {}
        for contender in contenders:
            where = f"{contender.label}, batch {case.batch}"
            if request.scaling and request.scaling != "batch":
                where += f", {case.value} {request.scaling}"
            request.say(where)
            try:
                for subject, job in prepare(request, contender, case, data).items():
                    prepared[subject, contender] = job
            except InputError as error:
                cannot.setdefault(contender.label, str(error))
            except torch.OutOfMemoryError:
                cannot[where] = "The device has too little memory left."
            except Exception as error:
                if not contender.how.compiled:
                    raise
                cannot.setdefault(
                    contender.label, f"torch.compile failed ({type(error).__name__}: {first_line(error)})."
                )
        times = in_turns({key: job.call for key, job in prepared.items()}, device, request.repeats, request.window)
        subjects = list(dict.fromkeys(subject for subject, _ in prepared))
        for key in sorted(prepared, key=lambda key: subjects.index(key[0])):
            rows.append(row(request, case, *key, prepared[key], times[key], measured_ceilings))
        prepared.clear()
        forget(device, any(contender.how.compiled for contender in contenders))
    if not rows:
        raise InputError(" ".join(cannot.values()) or "There was nothing to measure.")
    return {
        "benchmark": request.what,
        "environment": environment(device),
        "settings": {
            "model": request.experiment.name,
            "levels": [vars(level) for level in getattr(request.experiment.model, "levels", ())],
            "repeats": request.repeats,
            "window_s": request.window,
            "scaling": request.scaling,
            "parts": request.parts,
        },
        "ceilings": measured_ceilings,
        "cannot": cannot,
        "results": rows,
    }


def cases(request: Request) -> Iterator[Case]:
    experiment, scaling = request.experiment, request.scaling
    for batch in request.batches:
        if scaling is None or scaling == "batch":
            yield Case(experiment, batch, batch if scaling else None)
            continue
        change = {"capsules": with_capsules, "levels": with_levels}[scaling]
        for value in SCALINGS[scaling]:
            yield Case(replace(experiment, model=change(experiment.model, value)), batch, value)


def with_capsules(config: WCapsNetConfig, first: int) -> WCapsNetConfig:
    """`first` capsules in level 1, with the other levels scaled in proportion."""
    before = config.levels[0].capsules
    levels = tuple(replace(row, capsules=max(1, round(row.capsules * first / before))) for row in config.levels)
    return replace(config, levels=levels)


def with_levels(config: WCapsNetConfig, count: int) -> WCapsNetConfig:
    """The first count − 1 rows of the table and its last; a deeper network repeats its widest row of stride 1."""
    *features, last = config.levels
    again = max((row for row in features if row.stride == 1), key=lambda row: row.capsules, default=None)
    repeated = again or replace(features[-1], stride=1)
    at = features.index(again) + 1 if again else len(features)
    rows: list[Level] = features[: count - 1]
    if count - 1 > len(features):
        rows = features[:at] + [repeated] * (count - 1 - len(features)) + features[at:]
    return replace(config, levels=(*rows, last))


def prepare(request: Request, contender: Contender, case: Case, data: Any) -> dict[str, tasks.Job]:
    """This contender's task, built and called once, with the memory and time of that first call."""
    device, cuda = request.device, request.device.type == "cuda"
    synchronize(device)
    if cuda:
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
    start = time.perf_counter()
    if request.what == "level":
        jobs = tasks.levels(contender, case.experiment, case.batch, device)
    elif request.what == "infer":
        jobs = {"forward": tasks.inference(contender, case.experiment, case.batch, device)}
    elif request.parts:
        jobs = tasks.parts(contender, case.experiment, case.batch, data)
    else:
        jobs = {"step": tasks.training(contender, case.experiment, case.batch, data)}
    for job in jobs.values():
        job.call()
    synchronize(device)
    alone = len(jobs) == 1
    first = round(time.perf_counter() - start, 3) if alone else None
    peak = torch.cuda.max_memory_allocated(device) - before if cuda and alone else None
    return {subject: job._replace(first_s=first, peak=peak) for subject, job in jobs.items()}


def row(
    request: Request,
    case: Case,
    subject: str,
    contender: Contender,
    job: tasks.Job,
    times: dict[str, Any],
    limits: dict[str, float] | None,
) -> dict[str, Any]:
    rate = case.batch / times["ms"] * 1000
    scaled = {"value": case.value, "capsules": [row.capsules for row in getattr(case.experiment.model, "levels", ())]}
    row: dict[str, Any] = {
        "contender": contender.label,
        "precision": contender.precision,
        "batch": case.batch,
        "subject": subject,
        **(scaled if case.value else {}),
        **times,
        "images_per_s": round(rate, 1),
        "first_s": job.first_s,
        "peak_mib": round(job.peak / 2**20, 1) if job.peak is not None else None,
    }
    work = work_in(request, contender, case.experiment, subject)
    if work:
        row["macs_per_image"] = work.macs
        if limits:
            row["of_matmul"] = round(2 * work.macs * rate / limits["matmul_tflop_per_s"] / 1e12, 4)
            moved = work.values * BYTES[contender.precision]
            row["of_copy"] = round(moved * rate / limits["copy_tb_per_s"] / 1e12, 4)
    return {**row, **job.facts()}


def work_in(request: Request, contender: Contender, experiment: Experiment, subject: str) -> Work | None:
    """Work of one image in the timed task; None for loading."""
    if "alone" in subject:
        return None
    model = contender.of(experiment).model
    counted = work_of(model.build(), model.channels, model.height, model.width)
    work = total(counted)
    if request.what == "level":
        name = subject.partition(",")[0]
        work = counted[name] if "blocks" in subject else counted[name] + counted.get(f"critic {name[6:]}", (0, 0))
    times = 1 if request.what == "infer" else TRAINING
    return Work(work.macs * times, work.values * times)


def forget(device: torch.device, compiled: bool) -> None:
    """Reset what would affect the next case: memory, and shapes that would make torch.compile assume dynamic ones."""
    gc.collect()
    if compiled:
        torch.compiler.reset()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def environment(device: torch.device) -> dict[str, Any]:
    """Environment, as for a run."""
    found = describe_environment(device, None)
    return {**found, "command": file_names_only(found["command"])}
