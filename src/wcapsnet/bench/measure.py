"""Timing: windows of many calls, synchronised with the device, with all contenders interleaved in every round."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from ..device import synchronize

Call = Callable[[], object]
K = TypeVar("K", bound=Hashable)
STAT = Path("/proc/stat")
QUIET = 0.1  # CPU seconds per second that other processes may use
WARM_UP = 3  # calls before the number of calls per window is estimated


class Timed(NamedTuple):
    wall: float
    cpu: float  # of all threads


def milliseconds(call: Call, calls: int, device: torch.device) -> Timed:
    """Time of one call, averaged over a window of several."""
    synchronize(device)
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(calls):
        call()
    synchronize(device)
    return Timed(1000 * (time.perf_counter() - wall) / calls, 1000 * (time.process_time() - cpu) / calls)


def in_turns(calls: Mapping[K, Call], device: torch.device, repeats: int, window: float) -> dict[K, dict[str, Any]]:
    """For each: the median of `repeats` windows of at least `window` seconds, with all windows, in milliseconds.

    A temporary disturbance then affects all of them alike; each round starts with a different one. On a CPU, rounds
    disturbed by other processes are repeated, up to `repeats` more; the number of disturbed rounds left is recorded.
    Disturbances hardly affect the CPU time (`cpu_ms`), which includes the time that threads wait for each other.
    """
    if not calls:
        return {}
    per_window = {}
    for name, call in calls.items():
        milliseconds(call, WARM_UP, device)
        per_window[name] = max(1, math.ceil(1000 * window / milliseconds(call, 1, device).wall))
    names = list(calls)
    rounds: list[tuple[float, dict[K, Timed]]] = []  # CPU use of other processes, times
    while len(rounds) < 2 * repeats and sum(busy <= QUIET for busy, _ in rounds) < repeats:
        first = len(rounds) % len(names)
        before, start = _others(device), time.perf_counter()
        times = {name: milliseconds(calls[name], per_window[name], device) for name in names[first:] + names[:first]}
        rounds.append(((_others(device) - before) / (time.perf_counter() - start), times))
    quietest = sorted(rounds, key=lambda timed: timed[0])[:repeats]
    return {
        name: {
            "ms": round(statistics.median(times[name].wall for _, times in quietest), 4),
            "cpu_ms": round(statistics.median(times[name].cpu for _, times in quietest), 4),
            "windows_ms": [round(times[name].wall, 4) for _, times in quietest],
            "calls_per_window": per_window[name],
            "disturbed_windows": sum(busy > QUIET for busy, _ in quietest),
        }
        for name in names
    }


def _others(device: torch.device) -> float:
    """CPU seconds used by all other processes on this machine, if known."""
    if device.type != "cpu" or not STAT.exists():
        return 0.0
    busy = STAT.read_text().splitlines()[0].split()
    user, nice, system, _, _, irq, softirq, steal = map(int, busy[1:9])
    own = os.times()
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK") - own.user - own.system


def recorded(call: Call, device: torch.device) -> Call:
    """The call as a CUDA graph; on a CPU, the call itself."""
    if device.type != "cuda":
        return call
    side = torch.cuda.Stream()  # a separate one: graphs recorded on the same stream share cuBLAS's workspace
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        kept = call(), call  # with the call's inputs: a graph keeps no references

    def replay() -> object:
        graph.replay()
        return kept[0]

    return replay


def ceilings(device: torch.device) -> dict[str, float] | None:
    """Measured throughput of this GPU for a large bf16 matrix product and a large copy (bytes read and written)."""
    if device.type != "cuda":
        return None
    side = 8192
    a, b = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    product = torch.empty_like(a)
    source = torch.empty(2**30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    calls: dict[str, Call] = {"matmul": lambda: torch.mm(a, b, out=product), "copy": lambda: target.copy_(source)}
    times = in_turns(calls, device, repeats=7, window=0.1)
    return {
        "matmul_tflop_per_s": round(2 * side**3 / times["matmul"]["ms"] / 1e9, 1),
        "copy_tb_per_s": round(2 * 2**30 / times["copy"]["ms"] / 1e9, 3),
    }
