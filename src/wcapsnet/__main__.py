"""`wcapsnet` and `python -m wcapsnet`."""

import codecs
import ctypes
import io
import os
import sys


def keep_freed_memory() -> None:
    """Make glibc keep freed memory: by default it returns large blocks to the system at once, and every step pays for
    fresh pages. On two CPU cores that is a tenth of a training step (benchmarks/records, formulations-on-cpu)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not glibc
        return
    if not any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):  # the user knows better
        trim_threshold, mmap_max = -1, -4  # constants from malloc.h
        mallopt(mmap_max, 0)
        mallopt(trim_threshold, 2**31 - 1)


def usable_streams() -> None:
    """Replace closed standard streams by the null device, and characters that an encoding lacks by similar ones."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # a file gets the lowest free number, so this takes the place of the closed one
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    codecs.register_error("similar", _similar)
    for stream in (sys.stdout, sys.stderr):
        # The defaults of the various locales; the user may have chosen another.
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape", "backslashreplace"):
            stream.reconfigure(errors="similar")


SIMILAR = {"×": "x", "±": "+-", "−": "-", "–": "-", "→": "->", "…": "...", "·": "*", "◀": "<"}


def _similar(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    lost = error.object[error.start : error.end]
    return "".join(SIMILAR.get(c) or c.encode("ascii", "backslashreplace").decode() for c in lost), error.end


def main() -> None:
    usable_streams()
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
