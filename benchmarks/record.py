"""Where a benchmark writes its record: benchmarks/records/DATE_NAME_HARDWARE.json, with versions and hardware."""

from __future__ import annotations

import json
import sys
from datetime import date
from pathlib import Path
from typing import Any

import torch

from wcapsnet.bench.suite import environment


def write(name: str, hardware: str, results: Any) -> None:
    ran_in = environment(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    ran_in["command"] = ["python", f"benchmarks/{name}.py"]
    path = Path(__file__).parent / "records" / f"{date.today()}_{name.replace('_', '-')}_{hardware}.json"
    path.write_text(json.dumps({"environment": ran_in, "results": results}, indent=1) + "\n")
    print(f"written: {path.relative_to(Path.cwd())}", file=sys.stderr)
