"""Try faults and bad input, count the outcomes, and write the table of docs/reliability.md.

    python tools/faults.py                             every row that the record does not have in full
    python tools/faults.py --only kill writes          these rows
    python tools/faults.py --share 0.01 --record x.json   a hundredth of the tries, into another record
    python tools/faults.py --page                      only updates docs/reliability.md from the record

A row is written to the record as soon as it is finished, so the table can be built up in pieces. The exit code is 1 if
a row found a fault or a loss. Only a temporary folder is changed, and the only network address used is 127.0.0.1.
"""

from __future__ import annotations

import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded: the networks are tiny, and children are forked
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # as wcapsnet/__main__.py does, and for its reason

import argparse
import contextlib
import gc
import importlib
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import torch

import wcapsnet
from fault_trials import damage, inputs, kills, live_page, photos, places
from fault_trials.common import Outcome, Sample
from update_docs import filled
from wcapsnet.atomic import write_text
from wcapsnet.cli import load_commands
from wcapsnet.reports.tables import markdown_table
from wcapsnet.training.environment import commit

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "results" / "reliability" / "2026-11-18_two-cpu-cores.json"
PAGE = ROOT / "docs" / "reliability.md"


class Row(NamedTuple):
    title: str
    tries: int  # in full; what is counted is in the title
    run: Callable[[Sample, int, int], Outcome]


ROWS = {
    "kill": Row("`kill -9` at random moments of training, test and report", 100, kills.at_random_moments),
    "writes": Row("`kill -9` inside the write of a file, checkpoints included", 100, kills.inside_writes),
    "disk": Row("disk full", 60, places.disk_full),
    "read-only": Row("read-only run folder", 44, places.read_only),
    "permission": Row("a file or folder that may not be read", 100, places.permission_missing),
    "data": Row("pictures moved, gone, changed or damaged", 70, places.data_gone),
    "damage": Row("a damaged file of a run, its ONNX file or its cache", 200, damage.damaged),  # of each file
    "archives": Row("a damaged archive of a dataset", 1000, damage.archives),  # of each of three kinds
    "foreign": Row("a checkpoint of another architecture or a newer version", 100, damage.foreign),  # all there are
    "pickles": Row("a pickle payload instead of a file", 400, damage.pickles),
    "pictures": Row("fuzzed pictures (PNG, JPEG, WebP, GIF, BMP, TIFF)", 10_000, photos.pictures),
    "configurations": Row("random `experiment.json` files", 1000, inputs.configurations),
    "commands": Row("random command lines", 1000, inputs.command_lines),
    "requests": Row("good and bad requests to the live page, 32 clients", 10_000, live_page.requests),
}


def run_row(name: str, sample: Sample, share: float, seed: int) -> dict[str, Any]:
    row = ROWS[name]
    asked = max(1, round(share * row.tries))
    started, began = datetime.now(timezone.utc), time.perf_counter()
    outcome = row.run(sample, asked, seed)
    return {
        "asked": asked,
        "seed": seed,
        "tries": outcome.tries,
        "outcome": {what: count for what, count in sorted(outcome.ended.items()) if count},
        "faults": outcome.faults,
        "lost": outcome.lost,
        **outcome.facts,
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(time.perf_counter() - began, 1),
        "wcapsnet": wcapsnet.__version__,
        "commit": commit(),
    }


def recorded(path: Path = RECORD) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {"rows": {}}


def table(record: dict[str, Any]) -> str:
    lines = [["what", "tries", "outcome", "faults", "lost"]]
    for name, row in ROWS.items():
        if name in record["rows"]:
            one = record["rows"][name]
            ended = ", ".join(f"{count:,} {what}" for what, count in one["outcome"].items())
            trouble = [str(len(one["faults"]) or "none"), str(len(one["lost"]) or "nothing")]
            lines.append([row.title, f"{one['tries']:,}", ended, *trouble])
    missing = [row.title for name, row in ROWS.items() if name not in record["rows"]]
    return markdown_table(lines) + (f"\nNot recorded yet: {'; '.join(missing)}.\n" if missing else "")


def details(record: dict[str, Any]) -> str:
    """What the table has no column for"""
    rows, lines = record["rows"], []
    if killed := [rows[name] for name in ("kill", "writes") if name in rows]:
        equal, runs, kills = (sum(one[name] for one in killed) for name in ("equal", "runs", "tries"))
        lines.append(
            f"- The {kills} kills hit {runs} runs, each of which was resumed until it finished: {equal} of {runs} have "
            "the weights, momentum, metrics and predictions of an uninterrupted run, bit for bit."
        )
    if one := rows.get("pictures"):
        before, after = one["megabytes"]
        lines.append(
            f"- The fuzzed pictures are variants of {one['kinds']} files. "
            f"The slowest took {one['slowest_ms'] / 1000:.1f} s; the process needed at most {after:,} MB ({before:,} "
            "MB before the first)."
        )
    if one := rows.get("requests"):
        before, after = one["megabytes"]
        good = ", ".join(f"{name} {value:,.0f} ms" for name, value in one["latency_ms"].items())
        lines.append(
            f"- Latency of good requests to the live page, with {one['clients']} clients at once: {good}. "
            f"Memory of the server: {before:,} MB after the first tenth of the requests, {after:,} MB at the end."
        )
    return "\n".join(lines)


def updated(record: dict[str, Any]) -> str:
    """docs/reliability.md"""
    return filled(PAGE, {"table": f"{table(record)}\n{details(record)}\n"}, by="faults")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--share", type=float, default=1.0, help="share of the tries of a row (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--again", action="store_true", help="repeat rows that the record has")
    parser.add_argument("--page", action="store_true", help="only update the page")
    asked = parser.parse_args()
    record = recorded(asked.record)
    if not asked.page:
        record["environment"] = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "platform": f"{platform.system()} {platform.machine()}",
            "cpus": os.cpu_count(),
        }
        _run(asked, record)
    if asked.record == RECORD and PAGE.exists():
        write_text(PAGE, updated(record))
    chosen = [record["rows"][name] for name in asked.only if name in record["rows"]]
    return int(any(one["faults"] or one["lost"] for one in chosen))


def _run(asked: argparse.Namespace, record: dict[str, Any]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # children inherit what a parent ignores
    torch.set_num_threads(1)
    load_commands()
    for module in ("torch._dynamo", "onnxruntime", "jinja2", "tensorboard.summary.writer.event_file_writer"):
        with contextlib.suppress(ImportError):
            importlib.import_module(module)  # once, not in every child
    gc.collect()
    gc.freeze()  # a collection in a child would copy the parent's pages
    os.environ["COLUMNS"] = "200"
    with tempfile.TemporaryDirectory(prefix="wcapsnet-faults-") as place:
        os.chdir(place)
        os.environ |= {"HF_HOME": f"{place}/hugging-face", "HF_HUB_OFFLINE": "1"}
        sample = Sample(Path(place).resolve())
        for name in asked.only:
            done = record["rows"].get(name)
            wanted = max(1, round(asked.share * ROWS[name].tries))
            if done and done["asked"] >= wanted and not done["faults"] and not done["lost"] and not asked.again:
                continue
            one = run_row(name, sample, asked.share, asked.seed)
            record |= recorded(asked.record)  # another process may have added rows
            record["rows"][name] = one
            write_text(asked.record, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
            trouble = [*one["faults"], *(f"lost: {what}" for what in one["lost"])]
            print(f"{name}: {one['tries']:,} tries in {one['seconds']:.0f} s, {one['outcome']}", flush=True)
            for line in trouble[:6]:
                print(f"  {line[:300]} … {line[-500:]}" if len(line) > 800 else f"  {line}", flush=True)
        os.chdir("/")


if __name__ == "__main__":
    sys.exit(main())
