"""Write the records that `wcapsnet.reports.records` reads.

    python tools/records.py FOLDER RUN …

writes FOLDER/EXPERIMENT/seed=S.json for every run, including runs that were stopped or belong in no table. For rows of
the tables, use tools/update_docs.py.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wcapsnet.atomic import write_text
from wcapsnet.cli.exit import in_a_sentence
from wcapsnet.errors import InputError
from wcapsnet.experiment import published
from wcapsnet.reports.records import Record, open_run, read_record, runs_in
from wcapsnet.settings import to_dict
from wcapsnet.training.environment import file_names_only
from wcapsnet.training.run_folder import Run


def records_json(records: list[Record]) -> str:
    """One line per record."""
    lines = ",\n".join(json.dumps(to_dict(record)) for record in records)
    return f"[\n{lines}\n]\n" if lines else "[]\n"


def keep(path: Path, results: Path) -> Path:
    """Write the record of a finished run to its place below `results`."""
    run, record = open_run(path), read_record(path)
    place = results / record.place
    if place.exists() and read_record(place) != record:
        raise InputError(f"{place} holds another run with the seed {record.seed}; train {path} with another seed.")
    write_run(place, run)
    return place


def write_run(path: Path, run: Run, **more: dict[str, Any]) -> None:
    """The record of a run, without `test` if it is not finished, and more facts by name"""
    experiment, without_paths = run.facts("experiment"), published(run.experiment)
    source, start = without_paths["data"]["source"], without_paths["start"]
    experiment = {**experiment, "data": {**experiment["data"], "source": source}, "start": start}
    facts = {"experiment": experiment, "environment": environment_of(run)}
    tested = {"test": run.results()} if run.finished else {}
    write_record(path, facts | tested | more, history_of(run))


def write_record(path: Path, facts: dict[str, Any], metrics: list[dict[str, Any]]) -> None:
    """One line per fact and per column of the metrics, with null where an epoch has no such value."""
    names = dict.fromkeys(name for epoch in metrics for name in epoch)
    columns = {name: [epoch.get(name) for epoch in metrics] for name in names}
    lines = [f"{_compact(name)}:{_compact(fact)}" for name, fact in facts.items()]
    lines.append('"metrics":{' + ",".join(f"\n{_compact(name)}:{_compact(column)}" for name, column in columns.items()))
    write_text(path, "{\n" + ",\n".join(lines) + "}\n}\n")


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def history_of(run: Run) -> list[dict[str, Any]]:
    """metrics.jsonl, to six digits."""
    return [rounded(epoch) for epoch in run.metrics()]


def rounded(value: Any, digits: int = 6) -> Any:
    """The numbers in plain values, to this many digits"""
    if isinstance(value, dict):
        return {name: rounded(one, digits) for name, one in value.items()}
    if isinstance(value, list):
        return [rounded(one, digits) for one in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def mean_and_spread(values: Sequence[float], form: str) -> str:
    """Mean ± standard deviation, in a format such as .2f or +.1f"""
    deviation = f" ± {statistics.stdev(values):{form.lstrip('+')}}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{form}}{deviation}".replace("-", "−")


def environment_of(run: Run) -> dict[str, Any]:
    """environment.json without paths; empty if it is missing."""
    return _without_paths(run.facts("environment")) if run.file("environment.json").exists() else {}


def _without_paths(environment: dict[str, Any]) -> dict[str, Any]:
    kept: list[str] = []
    words = iter(environment.get("command", ()))
    for word in words:
        option, equals, _ = word.partition("=")
        if option in ("--data-dir", "--out", "--resume"):
            if not equals:
                next(words, None)
        else:
            kept.append(word)
    found = {**environment, "command": file_names_only(kept), "data_dir": None}
    if "resumed" in environment:
        found["resumed"] = [_without_paths(again) for again in environment["resumed"]]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    asked = parser.parse_args()
    with in_a_sentence():
        for run in [open_run(path) for given in asked.runs for path in runs_in(given)]:
            place = asked.folder / run.experiment.name / f"seed={run.experiment.training.seed}.json"
            if place.exists():
                raise InputError(f"{place} exists; choose another folder, or delete it first.")
            write_run(place, run)
            print(f"{run.path} → {place}")


if __name__ == "__main__":
    main()
