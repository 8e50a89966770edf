"""Is a difference between two accuracies larger than the noise?

Three tests, all two-sided, by how many runs stand on either side:

    Welch    two or more on both: Welch's t, from both sides' spread over seeds
    t1       two or more on one side, a single run on the other: Student's t, the spread over seeds of the one side
             taken for the other as well
    z        single runs, whose spread nobody has measured: the binomial standard error √(p(1 − p)/N) of a test set of
             N images on both sides. It is what one and the same network varies by from one such test set to another,
             and leaves seeds out: a larger difference is a reason to run more seeds, not a finding
"""

from __future__ import annotations

import math
import statistics
from typing import NamedTuple

LEVEL = 0.05


class Sample(NamedTuple):
    """Accuracies on a test set of `images` images, one for each run."""

    accuracies: tuple[float, ...]
    images: int

    @property
    def mean(self) -> float:
        return statistics.mean(self.accuracies)

    @property
    def variance(self) -> float:
        """Of a single run; 0 where it was not measured."""
        return statistics.variance(self.accuracies) if len(self.accuracies) > 1 else 0.0


class Difference(NamedTuple):
    difference: float
    test: str  # Welch, t1, z
    p: float  # probability of a difference as large as this or larger, were there none

    @property
    def larger_than_noise(self) -> bool:
        return self.p < LEVEL


def compare(one: Sample, other: Sample) -> Difference:
    difference = one.mean - other.mean
    n, m = len(one.accuracies), len(other.accuracies)
    if one.variance + other.variance == 0:  # single runs, or seeds that happen to agree to the last image
        errors = [s.mean * (1 - s.mean) / s.images for s in (one, other)]
        return Difference(difference, "z", normal_tail(_ratio(difference, math.sqrt(sum(errors)))))
    if min(n, m) > 1:
        a, b = one.variance / n, other.variance / m
        freedom = (a + b) ** 2 / (a**2 / (n - 1) + b**2 / (m - 1))
        return Difference(difference, "Welch", student_tail(_ratio(difference, math.sqrt(a + b)), freedom))
    error = math.sqrt((one.variance + other.variance) * (1 / n + 1 / m))  # one of the variances is 0
    return Difference(difference, "t1", student_tail(_ratio(difference, error), n + m - 2))


def _ratio(difference: float, error: float) -> float:
    if difference == 0:
        return 0.0
    return difference / error if error else math.inf


def normal_tail(z: float) -> float:
    """P(|Z| ≥ |z|) of a standard normal Z"""
    return math.erfc(abs(z) / math.sqrt(2))


def student_tail(t: float, freedom: float) -> float:
    """P(|T| ≥ |t|) of Student's T:  I_x(ν/2, ½)  at  x = ν/(ν + t²)"""
    if math.isinf(t):
        return 0.0
    return incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def incomplete_beta(a: float, b: float, x: float) -> float:
    """I_x(a, b), regularised: x^a (1 − x)^b / (a B(a, b)) times a continued fraction, which converges fast for
    x < (a + 1)/(a + b + 2); beyond, I_x(a, b) = 1 − I_{1−x}(b, a)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, 1 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) / (a * _continued_fraction(a, b, x))


def _continued_fraction(a: float, b: float, x: float) -> float:
    """1 + d₁/(1 + d₂/(1 + …)), from the end, with d₂ₖ = k(b−k)x/((a+2k−1)(a+2k)) and
    d₂ₖ₊₁ = −(a+k)(a+b+k)x/((a+2k)(a+2k+1))"""
    value = 1.0
    for j in range(400, 0, -1):
        k = j // 2
        if j % 2:
            d = -(a + k) * (a + b + k) * x / ((a + 2 * k) * (a + 2 * k + 1))
        else:
            d = k * (b - k) * x / ((a + 2 * k - 1) * (a + 2 * k))
        value = 1 + d / value
    return value
