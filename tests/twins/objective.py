"""Sections III-C and III-F with Python's own numbers, sample by sample."""

from __future__ import annotations

import math
from collections import defaultdict


def correctness_twin(logits: list[float], label: int) -> float:
    """Eq. 9 for one sample"""
    highest = max(logits)
    exponentials = [math.exp(value - highest) for value in logits]
    p = [value / sum(exponentials) for value in exponentials]
    t = [1.0 if r == label else 0.0 for r in range(len(p))]
    dot = sum(one * other for one, other in zip(p, t, strict=True))
    return dot / (math.sqrt(sum(v * v for v in p)) * math.sqrt(sum(v * v for v in t)))


def wasserstein_twin(a: list[list[float]], b: list[list[float]], cos: list[float]) -> float:
    """Eq. 4, 8, 10, 11 and 12 for one level"""
    samples, capsules = len(a), len(a[0])
    if capsules == 1:
        return 0.0
    f_s = [sum(b[m][n] * a[m][n] for n in range(capsules)) for m in range(samples)]
    f_ns = [sum((1 - b[m][n]) * a[m][n] for n in range(capsules)) / (capsules - 1) for m in range(samples)]
    n_p = sum(cos)
    n_h = sum(1 - one for one in cos)
    wrong = sum((1 - cos[m]) * f_s[m] for m in range(samples))
    right_left_out = sum(cos[m] * f_ns[m] for m in range(samples))
    right = sum(cos[m] * f_s[m] for m in range(samples))
    # D3: an expectation over no samples is zero.
    e_h = (wrong / (2 * n_h) if n_h > 0 else 0.0) + (right_left_out / (2 * n_p) if n_p > 0 else 0.0)
    e_p = right / n_p if n_p > 0 else 0.0
    return e_h - e_p


def centred_twin(a: list[list[float]]) -> list[list[float]]:
    """The fitness of one level less each capsule's mean over the batch (D38)"""
    means = [sum(column) / len(a) for column in zip(*a, strict=True)]
    return [[value - mean for value, mean in zip(row, means, strict=True)] for row in a]


def information_twin(b: list[list[float]]) -> float:
    """I(image; block) of one level (D40) as the mean over images of Σ_n b_n ln (b_n / mean_m b_n)"""
    means = [sum(column) / len(b) for column in zip(*b, strict=True)]
    told = [sum(one * math.log(one / mean) for one, mean in zip(row, means, strict=True) if one > 0) for row in b]
    return sum(told) / len(told)


def class_information_twin(b: list[list[float]], labels: list[int]) -> float:
    """I(class; block) of one level (D43) as Σ_rn P(r, n) ln (P(r, n) / (P(r) P(n))), with P(r, n) counted out"""
    joint: dict[tuple[int, int], float] = defaultdict(float)
    for row, label in zip(b, labels, strict=True):
        for n, weight in enumerate(row):
            joint[label, n] += weight / len(b)
    of_class: dict[int, float] = defaultdict(float)
    of_block: dict[int, float] = defaultdict(float)
    for (r, n), share in joint.items():
        of_class[r] += share
        of_block[n] += share
    return sum(share * math.log(share / (of_class[r] * of_block[n])) for (r, n), share in joint.items() if share > 0)


def objective_twin(logits, labels, fitness, weights, reconstruction, images, lambda_ws, lambda_r):
    """Eq. 15 without L₂. Nested lists; `fitness` and `weights` have one (m, n) list for each level.

    Returns (total, cross entropy, Wasserstein, reconstruction).
    """
    cross_entropy = 0.0
    for row, label in zip(logits, labels, strict=True):
        highest = max(row)
        cross_entropy += math.log(sum(math.exp(value - highest) for value in row)) + highest - row[label]
    cross_entropy /= len(labels)
    cos = [correctness_twin(row, label) for row, label in zip(logits, labels, strict=True)]
    levels = [wasserstein_twin(a, b, cos) for a, b in zip(fitness, weights, strict=True)]
    wasserstein = sum(levels) / len(levels)  # D7
    squares = [(x - y) ** 2 for x, y in zip(flat(reconstruction), flat(images), strict=True)]
    mse = sum(squares) / len(squares)
    return cross_entropy + lambda_ws * wasserstein + lambda_r * mse, cross_entropy, wasserstein, mse


def flat(nested) -> list[float]:
    return [value for one in nested for value in flat(one)] if isinstance(nested, list) else [nested]
