"""Fixtures of the tests on training."""

from __future__ import annotations

import pytest
from training_helpers import toy_experiment, trained

from wcapsnet.training.run_folder import Run


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One run to the end, that others are compared with. Read only."""
    return trained(tmp_path_factory.mktemp("unbroken") / "run", toy_experiment())
