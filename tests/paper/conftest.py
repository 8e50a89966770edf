import pytest
import torch


@pytest.fixture(autouse=True)
def _the_same_random_numbers_in_every_run():
    torch.manual_seed(1)


@pytest.fixture
def double(monkeypatch):
    """All arithmetic in float64, also where the package asks for float32: a twin then has to agree to 1e-9."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
