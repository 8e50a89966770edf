"""`wcapsnet` and `python -m wcapsnet`."""

import os


def main() -> None:
    # Read when torch loads OpenMP. By default its idle threads spin, and on a machine that has anything else to do
    # (two cores, two processes) that makes a training step several times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from .cli import main

    main()


if __name__ == "__main__":
    main()
