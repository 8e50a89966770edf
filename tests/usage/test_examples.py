"""Every example runs as a script, in a process of its own, and says what it promises."""

import subprocess
import sys
from pathlib import Path

import pytest
from cli_helpers import environment

ROOT = Path(__file__).parents[2]
SAYS = {
    "explain_one_prediction.py": "probability without it",
    "new_routing.py": "weights that are exactly zero",
    "own_dataset.py": "Test accuracy",
    "own_training_loop.py": "accuracy after",
}


def test_every_example_is_tried():
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_the_example_runs(name, tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name)],
        cwd=tmp_path,
        env={**environment(), "WCAPSNET_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert SAYS[name] in done.stdout
    assert not (tmp_path / "runs").exists()  # what it trains, it cleans up
