"""tools/faults.py: the table in docs/reliability.md is that of the record, no row has a fault, and all of them run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cli_helpers import environment

import faults


def test_the_documented_table_is_that_of_the_record():
    assert faults.updated(faults.recorded()) == faults.PAGE.read_text(encoding="utf-8")


def test_the_recorded_rows_have_no_fault_and_nothing_was_lost():
    rows = faults.recorded()["rows"]
    assert rows
    assert rows.keys() <= faults.ROWS.keys()
    for name, row in rows.items():
        assert row["tries"] == sum(row["outcome"].values()) > 0, name
        assert (row["faults"], row["lost"]) == ([], []), name


@pytest.mark.slow
def test_every_fault_ends_in_a_sentence_and_costs_nothing(tmp_path):
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    root = Path(__file__).parents[2]
    record = tmp_path / "record.json"
    done = subprocess.run(
        [sys.executable, root / "tools/faults.py", "--share", "0.01", "--record", record],
        capture_output=True,
        text=True,
        env=environment(),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(record.read_text())["rows"].keys() == faults.ROWS.keys()
