"""How accuracies and probabilities are printed: in percent, halves rounded up."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal


def percent(share: float, digits: int = 2, sign: str = "") -> str:
    """0.99695 → 99.70, though the float is slightly less. `sign="+"` also prints the sign of positive numbers.

    Only 1 prints as 100: a smaller share that would round to it prints as >99.99, with the requested number of digits.

    Shares are ratios of counts, and so are means over seeds and their differences. A float within 1e-10 of a half is
    therefore treated as a half, which is correct while runs times images is below 1e8.
    """
    exact = Decimal(f"{100 * share:.10f}") + 0  # + 0 removes the sign of zero; a small loss keeps its sign
    unit = Decimal(1).scaleb(-digits)
    rounded = exact.quantize(unit, ROUND_HALF_UP)
    if exact < 100 <= rounded:
        return f">{rounded - unit:{sign}f}"
    return f"{rounded:{sign}f}"


def mean_and_deviation(shares: Sequence[float]) -> str:
    """Percent, over seeds: 93.57 ± 0.09; for a single run, its own value"""
    mean = percent(statistics.mean(shares))
    return f"{mean} ± {percent(statistics.stdev(shares))}" if len(shares) > 1 else mean
