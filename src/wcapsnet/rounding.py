"""Accuracies as they are printed: in percent, halves rounded up, as anybody does who works them out by hand."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal


def percent(share: float, digits: int = 2, sign: str = "") -> str:
    """0.99695 → 99.70, though the float is a little less. `sign`: "+" shows that of positive numbers too.

    A share is a count over a count, and so are means over seeds and differences of these: what a float puts within
    1e-10 of a half is one, as long as runs times images are below 1e8.
    """
    exact = Decimal(f"{100 * share:.10f}") + 0  # nothing is +0; a small loss that rounds to it keeps its sign
    return f"{exact.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP):{sign}f}"


def mean_and_deviation(shares: Sequence[float]) -> str:
    """In percent, over seeds: 93.57 ± 0.09; of a single run itself."""
    mean = percent(statistics.mean(shares))
    return f"{mean} ± {percent(statistics.stdev(shares))}" if len(shares) > 1 else mean
