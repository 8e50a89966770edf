"""Fixtures of the tests on training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from training_helpers import toy_experiment, trained

from wcapsnet.training.run_folder import Run


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Networks of a few hundred weights are faster without a second thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One run to the end, that others are compared with. Read only."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    run = trained(tmp_path_factory.mktemp("unbroken") / "run", toy_experiment())
    torch.set_num_threads(before)
    return run


@pytest.fixture(scope="session")
def unbroken_path(unbroken: Run) -> Path:
    return unbroken.path
