"""The main memory of this machine. Can be imported without torch."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from .launched import processes_here

IMAGES = 0.5  # share of the free memory that images may take
CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def free() -> float:
    """Free memory in bytes, counting what other programs would give back; infinity if unknown."""
    limits = [number for path in CGROUPS if (number := _number(path))]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
        limits.append(found["MemAvailable"] + found["SwapFree"])
    except (OSError, KeyError, ValueError):  # not Linux
        with suppress(AttributeError, OSError, ValueError):  # not Unix
            limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits, default=float("inf"))


def fits(size: float) -> bool:
    """Whether images of `size` bytes can stay in memory; half of what is free is left to networks. Under torchrun every
    process has a copy."""
    return size * processes_here() <= IMAGES * free()


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):  # no such file, or "max"
        return None
