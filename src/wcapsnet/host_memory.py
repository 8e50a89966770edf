"""The main memory of this machine. Can be imported without torch."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from .launched import processes_here

IMAGES = 0.5  # share of the free memory that images may take
CGROUPS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", ""),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),  # version 1
)


def free() -> float:
    """Free memory in bytes, including swap and reclaimable caches; infinity if unknown."""
    limits = [left for cgroup in CGROUPS if (left := _left(*cgroup)) is not None]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
        limits.append(found["MemAvailable"] + found["SwapFree"])
    except (OSError, KeyError, ValueError):  # not Linux
        with suppress(AttributeError, OSError, ValueError):  # not Unix
            limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits, default=float("inf"))


def fits(size: float) -> bool:
    """Whether images of `size` bytes can stay in memory; half of the free memory is left for networks. Under torchrun,
    every process has a copy."""
    return size * processes_here() <= IMAGES * free()


def _left(folder: str, limit: str, used: str, prefix: str) -> int | None:
    """Memory left to a container. The page cache counts as used but can be reclaimed."""
    try:
        most, now = (int(Path(folder, file).read_text()) for file in (limit, used))
        lines = Path(folder, "memory.stat").read_text().splitlines()
        cached = {f"{prefix}{kind}_file" for kind in ("active", "inactive")}
        return max(0, most - now + sum(int(value) for key, value in map(str.split, lines) if key in cached))
    except (OSError, ValueError):  # no such file, or "max"
        return None
