"""Split a folder's pictures into training, validation and test, class by class."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..errors import InputError


class SplitIndex(NamedTuple):
    """Positions, in ascending order."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray


def stratified_split(labels: np.ndarray, *, validation: float, test: float, seed: int) -> SplitIndex:
    """Split positions so that each class is divided in proportion, shuffled with `seed`.

    `validation` and `test` are numbers of images (>= 1), fractions of all of them (< 1), or 0 for none.
    Every class keeps at least one training image. A class of 3 or more gives at least one image to each requested part;
    a class of 1 or 2 is used for training only. These rules take precedence over the exact numbers.
    """
    m = len(labels)
    wanted_test, wanted_validation = _number(test, m), _number(validation, m)
    if wanted_test + wanted_validation >= m and m >= 3:
        raise InputError(
            f"data.validation and data.test must leave pictures to train on: they ask for {wanted_validation} and "
            f"{wanted_test} of {m}; give fractions such as 0.15."
        )
    counts = np.bincount(labels)
    free = np.where(counts >= 3, counts - 1, 0)  # one is kept for training
    low = np.minimum(free, 1)
    reserved = low if wanted_validation else np.zeros_like(low)
    from_test = _share(counts, wanted_test, low, free - reserved)
    from_validation = _share(counts, wanted_validation, low, free - from_test)

    import torch

    generator = torch.Generator().manual_seed(seed)
    parts: tuple[list[np.ndarray], ...] = ([], [], [])
    for label, (a, b) in enumerate(zip(from_test, from_validation, strict=True)):
        mine = np.flatnonzero(labels == label)
        mine = mine[torch.randperm(len(mine), generator=generator).numpy()]
        for part, chosen in zip(parts, (mine[a + b :], mine[a : a + b], mine[:a]), strict=True):
            part.append(chosen)
    return SplitIndex(*(np.sort(np.concatenate(part)) for part in parts))


def _number(amount: float, m: int) -> int:
    return int(amount) if amount >= 1 or amount == 0 else max(1, round(amount * m))


def _share(counts: np.ndarray, wanted: int, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """`wanted` distributed over the classes in proportion to `counts`, each within low and high."""
    if wanted == 0:
        return np.zeros_like(counts)
    exact = counts * (wanted / counts.sum())
    share = np.clip(np.floor(exact).astype(counts.dtype), low, high)
    while share.sum() < wanted and (share < high).any():
        share[np.argmax(np.where(share < high, exact - share, -np.inf))] += 1
    while share.sum() > wanted and (share > low).any():
        share[np.argmin(np.where(share > low, exact - share, np.inf))] -= 1
    return share
