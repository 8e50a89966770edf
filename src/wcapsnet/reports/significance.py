"""Is a difference between two accuracies larger than the noise?

Three tests, all two-sided:

    t      Student's t-test, with one spread over seeds for all rows on the same data (pooled variances). With two or
           three seeds per row, a single row says next to nothing about its spread, and a single run nothing at all.
           It asks what other seeds would give on the same test images
    Welch  for a row whose seeds vary more than the others' (an F-test): it has its own spread
    z      if no row has seeds that differ: the binomial standard error √(p(1 − p)/N) of a test set of N images on
           both sides, with a hit and a miss added to each (Agresti & Caffo 2000), because otherwise a few images
           without a miss would mean certainty. It is the variation of one network between such test sets and
           ignores seeds: a larger difference is a reason to run more seeds, not a finding
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from scipy.special import fdtrc, ndtr, ndtri, stdtr, stdtrit

from ..explanations.probes import share_interval
from ..formatting import percentage

LEVEL = 0.05
Row = TypeVar("Row")


def interval(share: float, images: int) -> str:
    """The 95 % confidence interval of a share of this many images"""
    low, high = share_interval(share, images)
    return f"{percentage(low)} to {percentage(high)}"


class Sample(NamedTuple):
    """Accuracies on a test set of `images` images, one per run."""

    accuracies: tuple[float, ...]
    images: int

    @property
    def mean(self) -> float:
        return statistics.mean(self.accuracies)


class Spread(NamedTuple):
    """The spread of single runs over their seeds."""

    variance: float
    freedom: int  # degrees of freedom; 0: unknown

    def p(self, difference: float, n: int, m: int, other: Spread | None = None) -> float:
        """Student's p for a difference between means over n and m seeds; Welch's, if the m have another spread"""
        error, freedom = self._error(n, m, other)
        return float(2 * stdtr(freedom, -abs(difference) / error))

    def margin(self, n: int, m: int, other: Spread | None = None, level: float = LEVEL) -> float:
        """Half the 95 % confidence interval: a difference must exceed it to be larger than noise"""
        error, freedom = self._error(n, m, other)
        return float(-stdtrit(freedom, level / 2)) * error

    def _error(self, n: int, m: int, other: Spread | None) -> tuple[float, float]:
        """The standard error and its degrees of freedom; for two spreads, by Welch and Satterthwaite"""
        if other is None or other is self:  # equal values of two rows would still be two estimates
            return math.sqrt(self.variance * (1 / n + 1 / m)), self.freedom
        own, others = self.variance / n, other.variance / m
        freedom = (own + others) ** 2 / (own**2 / self.freedom + others**2 / other.freedom)
        return math.sqrt(own + others), freedom


class Difference(NamedTuple):
    difference: float
    test: str  # t, Welch, z
    p: float  # probability of a difference at least this large if there were none
    margin: float  # half the 95 % confidence interval

    @property
    def larger_than_noise(self) -> bool:
        return self.p < LEVEL


def pooled(rows: Iterable[Sequence[float]]) -> Spread:
    """The pooled spread: every run counts by its distance from the mean of its own row."""
    several = [accuracies for accuracies in rows if len(accuracies) > 1]
    freedom = sum(len(accuracies) - 1 for accuracies in several)
    squares = sum((len(accuracies) - 1) * statistics.variance(accuracies) for accuracies in several)
    return Spread(squares / freedom if freedom else 0.0, freedom)


def apart(rows: Mapping[Row, Sequence[float]], drawn: Collection[Row] = ()) -> set[Row]:
    """Rows with their own spread: those of `drawn`, whose weights at evaluation are also random (D16), and those whose
    seeds vary more than the others' (corrected for the number of rows); the widest first."""
    found = {name for name in rows if name in drawn}
    while True:
        others = {name: own for name, own in rows.items() if name not in found and len(own) > 1}
        chance = {name: _as_wide(own, [a for n, a in others.items() if n != name]) for name, own in others.items()}
        widest = min(chance, key=chance.__getitem__, default=None)
        if widest is None or len(others) * chance[widest] >= LEVEL:
            return found
        found.add(widest)


def _as_wide(own: Sequence[float], others: Iterable[Sequence[float]]) -> float:
    """P(F ≥ f) for a row's variance over that of the others; 1 if theirs is unknown"""
    mine, theirs = pooled([own]), pooled(others)
    if not theirs.variance:
        return 1.0
    return float(fdtrc(mine.freedom, theirs.freedom, mine.variance / theirs.variance))


def spreads(rows: Mapping[Row, Sequence[float]], drawn: Collection[Row] = ()) -> dict[Row, Spread]:
    """The spread of every row: shared by all rows except those with their own"""
    own = apart(rows, drawn)
    common = pooled(accuracies for name, accuracies in rows.items() if name not in own)
    return {name: pooled([accuracies]) if name in own else common for name, accuracies in rows.items()}


def compare(one: Sample, other: Sample, spread: Spread | None = None, of_other: Spread | None = None) -> Difference:
    """`spread`: of the rows to which the two belong, or of `one`; without it, of the two alone. If the spread of
    `other` is unknown, that of `one` is used."""
    spread = spread or pooled((one.accuracies, other.accuracies))
    difference = one.mean - other.mean
    if spread.variance == 0:  # single runs, or seeds with identical accuracy
        p, q = ((s.mean * s.images + 1) / (s.images + 2) for s in (one, other))
        error = math.sqrt(p * (1 - p) / (one.images + 2) + q * (1 - q) / (other.images + 2))
        margin = float(-ndtri(LEVEL / 2)) * error + abs(difference - (p - q))  # around the measured difference
        return Difference(difference, "z", float(2 * ndtr(-abs(p - q) / error)), margin)
    return between(difference, len(one.accuracies), len(other.accuracies), spread, of_other)


def between(difference: float, n: int, m: int, spread: Spread, of_other: Spread | None = None) -> Difference:
    """For means over n and m seeds with known spreads; at least that of the n"""
    if of_other is not None and of_other.variance == 0:
        of_other = None
    test = "t" if of_other is None or of_other is spread else "Welch"
    return Difference(difference, test, spread.p(difference, n, m, of_other), spread.margin(n, m, of_other))


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's correction of several p-values: the smallest is multiplied by the number of comparisons, the next by one
    less, and so on; the results never decrease."""
    order = np.argsort(ps, kind="stable")
    adjusted = np.empty(len(ps))
    adjusted[order] = np.maximum.accumulate(np.minimum(np.arange(len(ps), 0, -1) * np.asarray(ps)[order], 1))
    return adjusted.tolist()
