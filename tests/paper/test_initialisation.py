"""D20: how weights start."""

import math

import pytest
import torch

from wcapsnet.network import WCapsNet


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return WCapsNet()


def test_kernels_start_with_the_spread_of_he(network):
    kernels = [network.init_conv.weight, *(p for p in network.capsules.parameters() if p.dim() == 5)]
    for kernel in kernels:
        fan_in = math.prod(kernel.shape[-3:])
        expected = math.sqrt(2 / fan_in)
        # the standard deviation of a standard deviation estimated from that many values
        tolerance = 5 * expected / math.sqrt(2 * kernel.numel())
        assert abs(kernel.std().item() - expected) < tolerance
        assert abs(kernel.mean().item()) < 5 * expected / math.sqrt(kernel.numel())


def test_the_projection_starts_within_one_over_the_root_of_k(network):
    bound = network.projection.shape[0] ** -0.5
    assert network.projection.abs().max() <= bound
    assert network.projection.abs().max() > 0.9 * bound
    assert abs(network.projection.std().item() - bound / math.sqrt(3)) < 0.15 * bound
