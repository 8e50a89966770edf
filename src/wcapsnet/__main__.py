"""`wcapsnet` and `python -m wcapsnet`."""

import os


def main() -> None:
    # Both are read when torch is loaded. By default OpenMP's idle threads spin for long, and on a machine with anything
    # else to do (two cores, two processes) that makes a training step several times slower.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    # oneDNN's bf16 kernels for AMX end the process with an illegal instruction on some (virtual) processors.
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    from .cli import main

    main()


if __name__ == "__main__":
    main()
