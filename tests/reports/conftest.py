"""Runs that several tests look at."""

from __future__ import annotations

import pytest
from page_helpers import facts_of, toy

from wcapsnet.data import Dataset
from wcapsnet.reports import Facts
from wcapsnet.training.run_folder import Run


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Dataset]:
    """Read only."""
    return toy(tmp_path_factory.mktemp("page") / "a <run>")


@pytest.fixture(scope="session")
def facts(finished_run: tuple[Run, Dataset]) -> Facts:
    return facts_of(*finished_run)
