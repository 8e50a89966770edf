"""One scale for every map of routing weights: how a weight compares with the equal share 1/N.

N is the number of blocks of a level, or of vectors in the last one. Equal weights all map to 0 for any N.
"""

from __future__ import annotations

import math

from torch import Tensor

from ..limits import EQUAL

FACTOR = 2.0  # the scale ends at half the equal share and at twice the equal share
MOST_OUTLINED = 0.5  # share of all vectors: more outlines than that are not informative


def against_share(b: Tensor, n: int) -> Tensor:
    """log₂(b·N), clamped to [−1, 1]; 0 within 1 % of the equal share, where weights count as equal (D31)"""
    share = b.double() * n
    position = (share.log() / math.log(FACTOR)).clamp(-1, 1)
    return position.masked_fill((share >= EQUAL) & (share <= 1 / EQUAL), 0.0)


def scale_ends(n: int) -> tuple[str, str, str]:
    """Labels of the scale: its lower end, the equal share, its upper end"""
    low, share, high = 1 / n / FACTOR, 1 / n, FACTOR / n
    return f"≤ {low:.3g}", f"equal share {share:.3g}", f"≥ {high:.3g}" if high < 1 else "1"


def outlined(tied: Tensor) -> list[tuple[int, int, int]]:
    """(n, i, j) of the tied vectors, from their mask; none if more than half of all vectors are tied"""
    many = int(tied.sum()) > MOST_OUTLINED * tied.numel()
    return [] if many else [(n, i, j) for n, i, j in tied.nonzero().tolist()]


def ties_in_words(tied: Tensor, mark: str = "the dot", outlines: bool = True) -> str:
    """One sentence on the vectors of the last level with the largest weight. `mark`: at the decoded vector."""
    count, vectors = int(tied.sum()), tied.numel()
    decoded = f"{mark} marks the decoded one."
    if count == 1:
        return f"{mark[0].upper()}{mark[1:]} marks the vector with the largest weight, which is decoded."
    if count == vectors:
        return f"All {vectors:,} vectors have the same weight to within 1\u00a0%; {decoded}"
    shown = "" if not outlines else " (outlined)" if outlined(tied) else " (too many to outline)"
    return f"{count:,} of {vectors:,} vectors share the largest weight{shown}; {decoded}"
