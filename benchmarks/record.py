"""How a benchmark leaves its record: benchmarks/records/DATE_NAME_HARDWARE.json, with versions and hardware."""

from __future__ import annotations

import json
import sys
from datetime import date
from pathlib import Path
from typing import Any

import torch

from wcapsnet.bench.run import commit
from wcapsnet.training.run import describe_environment


def write(name: str, hardware: str, results: Any) -> None:
    environment = describe_environment(torch.device("cpu"), None)
    environment["command"], environment["commit"] = ["python", f"benchmarks/{name}.py"], commit()
    path = Path(__file__).parent / "records" / f"{date.today()}_{name.replace('_', '-')}_{hardware}.json"
    path.write_text(json.dumps({"environment": environment, "results": results}, indent=1) + "\n")
    print(f"written: {path.relative_to(Path.cwd())}", file=sys.stderr)
