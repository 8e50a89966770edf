"""`python -m wcapsnet.report [RUN …]`, in a checkout: keep the records of finished runs, or of all runs of a sweep or
ablation, in results/, and bring README.md, docs/results.md, docs/guide.md and the packaged records up to date."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..errors import InputError
from .pages import pages, write
from .records import keep, run_folders


def main(arguments: list[str], root: Path) -> int:
    try:
        pages(root)  # nothing is kept where nothing can be made of it
        refused = 0
        for run in [run for argument in arguments for run in run_folders(Path(argument))]:
            try:
                print(f"{run} → {keep(run, root / 'results').relative_to(root)}")
            except InputError as error:
                print(f"error: {error}", file=sys.stderr)
                refused += 1
        for path in write(root):
            print(f"wrote {path}")
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 1 if refused else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m wcapsnet.report", description=__doc__)
    parser.add_argument("runs", nargs="*", metavar="RUN", help="a finished run, or a folder of them")
    sys.exit(main(parser.parse_args().runs, Path()))
