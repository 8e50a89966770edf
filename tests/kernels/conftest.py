import os
from pathlib import Path

import pytest
import torch
from kernel_helpers import Guards

from emulator import COMPILER, Emulator
from wcapsnet.kernels import compile as kernels


@pytest.fixture(autouse=True)
def _the_same_random_numbers_in_every_run():
    torch.manual_seed(1)


@pytest.fixture(scope="session")
def emulator(tmp_path_factory):
    """The kernels run on the CPU from here on. WCAPSNET_EMULATOR names a folder that keeps what was compiled."""
    if COMPILER is None:
        pytest.skip("needs a C++ compiler (g++ or clang++, on Linux) to run the CUDA sources without a GPU")
    kept = os.environ.get("WCAPSNET_EMULATOR")
    backend = Emulator(Path(kept) if kept else tmp_path_factory.mktemp("emulator"))
    kernels.start(backend)
    yield backend
    del kernels.backend


@pytest.fixture
def guarded(emulator, monkeypatch):
    """All memory that the kernels get is NaN at first (or zero, where zeros are asked for), with NaN around it that
    must still be there in the end: who reads what nobody wrote, or writes beside, is found out."""
    guards = Guards(monkeypatch)
    yield guards
    guards.check()
