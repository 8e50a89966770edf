"""`wcapsnet` and `python -m wcapsnet`."""

import ctypes
import os
import sys


def keep_freed_memory() -> None:
    """Make glibc keep freed memory: by default it returns large blocks to the system at once, and every step pays for
    fresh pages. On two CPU cores that is a tenth of a training step (benchmarks/formulations_on_cpu.py)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not glibc
        return
    if not any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):  # the user knows better
        trim_threshold, mmap_max = -1, -4  # constants from malloc.h
        mallopt(mmap_max, 0)
        mallopt(trim_threshold, 2**31 - 1)


def main() -> None:
    # Both are read when torch is loaded. By default OpenMP's idle threads spin for a long time; on a busy machine (two
    # cores, two processes) that makes a training step several times slower.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    # oneDNN's bf16 kernels for AMX end the process with an illegal instruction on some (virtual) processors.
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    keep_freed_memory()
    try:
        from .cli import main
    except KeyboardInterrupt:  # loading torch takes seconds
        sys.exit(130)

    main()


if __name__ == "__main__":
    main()
