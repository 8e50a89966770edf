"""The scale of weight maps: equal weights are equal on it, whatever their number."""

import pytest
import torch

from wcapsnet.explanations.shares import against_share, outlined, scale_ends, ties_in_words


@pytest.mark.parametrize("n", [1, 2, 3, 8, 98, 128, 1000])
def test_equal_weights_are_0_in_spite_of_rounding(n):
    generator = torch.Generator().manual_seed(n)
    noise = 1 + 1e-3 * (torch.rand(n, generator=generator) - 0.5)
    assert against_share(noise / n, n).tolist() == [0.0] * n
    assert against_share(torch.full((n,), 1 / n, dtype=torch.float16), n).tolist() == [0.0] * n


def test_positions_worked_by_hand():
    # N = 8: the equal share is 0.125; half of it, twice of it, √2 of it; and what is beyond the ends
    b = torch.tensor([0.0625, 0.25, 0.125 * 2**0.5, 0.0, 1.0, 0.125])
    assert against_share(b, 8).tolist() == pytest.approx([-1, 1, 0.5, -1, 1, 0], abs=1e-6)
    assert scale_ends(8) == ("≤ 0.0625", "equal share 0.125", "≥ 0.25")
    assert scale_ends(2)[2] == "1"


def test_a_heavier_weight_is_never_lower():
    positions = against_share(torch.linspace(0, 1, 5000), 16)
    assert bool((positions.diff() >= 0).all())
    assert positions.unique().numel() > 400


def test_tied_vectors_are_outlined_unless_they_are_most():
    tied = torch.zeros(2, 3, 4, dtype=torch.bool)
    tied[0, 1, 2] = tied[1, 0, 3] = True
    assert outlined(tied) == [(0, 1, 2), (1, 0, 3)]
    assert ties_in_words(tied).startswith("2 of 24 vectors")
    tied[0] = True
    assert len(outlined(tied)) == 0  # 13 of 24
    assert ties_in_words(tied).startswith("13 of 24 vectors")
    assert ties_in_words(torch.ones(2, 3, 4, dtype=torch.bool)).startswith("All 24 vectors")
