"""Record the costs, and with --speed the speeds, of all networks that `wcapsnet compare` shows, on every dataset.

    python benchmarks/compare.py HARDWARE-NAME [--speed] [DATASET …]

Then `python tools/update_docs.py` puts the record into the package and the documents.
"""

from __future__ import annotations

import argparse
from typing import Any

import record

import wcapsnet
from wcapsnet.bench import compare
from wcapsnet.recipes import PAPER


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hardware")
    parser.add_argument("datasets", nargs="*", default=list(PAPER))
    parser.add_argument("--speed", action="store_true")
    asked = parser.parse_args()
    compare.packaged_facts = dict  # type: ignore[assignment]  # count again what is in the package
    results: dict[str, Any] = {}
    for dataset in asked.datasets:
        found = wcapsnet.compare(dataset, speed=asked.speed).as_json()
        rows = {row["name"]: row for row in found["rows"]}
        results[dataset] = {"costs": {name: row["costs"] for name, row in rows.items()}}
        if asked.speed:
            speeds = {name: row["speed"] for name, row in rows.items() if row["speed"]}
            results[dataset]["speeds"] = {"environment": found["environment"], "rows": speeds}
            results[dataset]["cannot"] = found["cannot"]
        print(dataset, results[dataset], flush=True)
    record.write("compare", asked.hardware, results)


if __name__ == "__main__":
    main()
