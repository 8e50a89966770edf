"""How far blocks specialise in classes: the paper's figure of mean weights, and one number for each level."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

import torch
from scipy.special import stdtrit
from torch import Tensor

from ..formatting import listed, percent
from .survey import Survey, class_sums

ALWAYS = 0.99  # a set of capsules that wins this share of the images is said to always win
LEAST = 30  # images needed to say that a capsule always or never wins: with fewer it may do so by chance
# The scale of all information values, in words (D29)
SCALE = (
    "0 means no information about the class; 1 is the most that one of n blocks can carry: ln n, or the entropy of "
    "the classes if that is smaller"
)
SHUFFLES = 20


class Information(NamedTuple):
    """Information about the class, on one scale (D29): nats divided by min(H(class), ln n). 0 means no
    information about the class, 1 the most that one of n capsules can carry."""

    value: float
    by_chance: float  # mean over 20 shuffles of the labels
    most_by_chance: float  # largest of the 20: if class and capsules are unrelated, one value in 21 is above it

    @property
    def beyond_chance(self) -> float:
        """value − by_chance; 0 if a shuffle reached the value"""
        return max(self.value - self.by_chance, 0) if self.value > self.most_by_chance + 1e-9 else 0.0

    def __str__(self) -> str:
        return f"{self.value:.3f} (chance {self.by_chance:.3f})"


@dataclass(frozen=True)
class LevelSpecialization:
    """The weights b of one level over a dataset.

    - `information`: I(class; capsule), with the capsule of an image drawn with probabilities b_n.
    - `information_chosen`: the same, with the capsule drawn evenly from the winners of the image (weight within 1 % of
      the largest). Trained critics saturate, so several often win (D31).
    - `information_set`: I(class; set of winners). There are 2ⁿ − 1 sets, so this can exceed 1, up to H(class) / unit.
      It equals `information_chosen` if every image has one winner. With few images for many sets, much of it is chance.
    """

    level: int  # counted from 0
    mean: Tensor  # (N, n): mean b_n over the images of a class; nan if there are none
    margin: Tensor  # (N, n): half the 95 % confidence interval of that mean; nan for fewer than two images
    counts: Tensor  # (N,): images of each class
    usage: Tensor  # (n,): mean b_n over all images
    chosen: Tensor  # (N, n): share of a class's images that it wins, alone or not; nan if there are none
    chosen_overall: Tensor  # (n,): share of all images that it wins, alone or not
    unit: float  # nats that correspond to 1; 0 if nothing can be told
    information: Information
    information_chosen: Information
    information_chosen_by_image: Tensor  # (m,): the contribution of each image; their mean is information_chosen
    information_set: Information
    effective: float  # capsules in use: exp H(mean b), between 1 and n
    effective_chosen: float  # the same for wins, shared between tied winners
    effective_per_image: float  # mean of exp H(b) over images: effective number of capsules in one image
    leaders: float  # mean number of winners of an image
    shared: float  # share of images with more than one winner
    findings: tuple[str, ...]  # collapse, in words; may be empty

    @property
    def capsules(self) -> int:
        return self.mean.shape[1]

    def summary(self) -> dict[str, Any]:
        """Plain values, ready for JSON; unknown values are null. Rows are classes."""
        facts: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, Information):
                facts |= {name: value.value, f"{name}_by_chance": value.by_chance}
                facts[f"{name}_most_by_chance"] = value.most_by_chance
            elif name not in ("counts", "information_chosen_by_image"):
                facts[name] = plain(value) if isinstance(value, Tensor) else value
        return {**facts, "level": self.level + 1, "capsules": self.capsules, "findings": list(self.findings)}


class Step(NamedTuple):
    """From one selecting level to the next: the change in the winner's information about the class beyond chance"""

    before: int  # levels, counted from 0
    after: int
    change: float
    margin: float  # half the 95 % confidence interval, over images; nan for a single image

    @property
    def told(self) -> bool:
        """Whether it exceeds the noise"""
        return abs(self.change) > self.margin


@dataclass(frozen=True)
class Specialization:
    levels: tuple[LevelSpecialization, ...]
    map_mean: Tensor  # (N, n, i, j): mean b of the last level at every position; nan for a class without images
    map_margin: Tensor  # (N, n, i, j): half its 95 % confidence interval; nan for fewer than two images

    @property
    def findings(self) -> tuple[str, ...]:
        return tuple(finding for level in self.levels for finding in level.findings)

    @property
    def selecting(self) -> list[LevelSpecialization]:
        return [level for level in self.levels if level.capsules > 1]

    @property
    def steps(self) -> tuple[Step, ...]:
        """Empty unless two levels select and the winner of each says more than chance."""
        several = self.selecting
        if not all(level.information_chosen.beyond_chance for level in several):
            return ()
        return tuple(_step(before, after) for before, after in itertools.pairwise(several))

    @property
    def trend(self) -> str:
        """Whether deeper levels specialise more, in words and numbers. Levels with one capsule are left out."""
        several = self.selecting
        if len(several) < 2:
            return "Fewer than two levels have several blocks, so levels cannot be compared."
        told = [level.information_chosen.beyond_chance for level in several]
        together = [level.information_set.beyond_chance for level in several]
        shared = any(level.shared for level in several)
        if not any(told):
            nor = ", nor do all winners of an image together" if shared and not any(together) else ""
            said = f"In no level does the winning block carry more information about the class than by chance{nor}."
        else:
            does = _course(self.steps) if self.steps else " by level"
            said = f"Information of the winning block about the class, beyond chance,{does}: {_row(told)}."
        if shared and any(together):
            said += f" All winners of an image together, beyond chance: {_row(together)}."
        elif shared and any(told):
            said += " All winners of an image together: not above chance in any level."
        return said

    def summary(self) -> dict[str, Any]:
        """Plain values, ready for JSON; unknown values are null."""
        return {
            "trend": self.trend,
            "scale": f"Information in multiples of a level's `unit`, in nats: {SCALE}. A set of winners can exceed 1.",
            "steps": [
                {"from": one.before + 1, "to": one.after + 1, "change": one.change, "margin": plain(one.margin)}
                for one in self.steps
            ],
            "levels": [level.summary() for level in self.levels],
            "map_mean": plain(self.map_mean),
            "map_margin": plain(self.map_margin),
        }


def _step(before: LevelSpecialization, after: LevelSpecialization) -> Step:
    """A paired comparison over images, since both levels see the same ones; class frequencies and chance are fixed."""
    mine, theirs = (one.information_chosen_by_image - one.information_chosen.by_chance for one in (after, before))
    differences = mine - theirs
    margin = confidence_margin(differences.var(), torch.tensor(len(differences)))
    return Step(before.level, after.level, float(differences.mean()), float(margin))


def _course(steps: tuple[Step, ...]) -> str:
    """A difference within the noise is not called a change."""
    up, down = ([one for one in steps if one.told and (one.change > 0) == rise] for rise in (True, False))
    if not up and not down:
        return " does not change from level to level by more than the noise"
    if len(up) == len(steps) or len(down) == len(steps):
        return f" {'rises' if up else 'falls'} with every level"
    ways = [
        f"{does} {' and '.join(f'from level {one.before + 1} to {one.after + 1}' for one in some)}"
        for does, some in (("rises", up), ("falls", down))
        if some
    ]
    rest = " (otherwise within the noise)" if len(up) + len(down) < len(steps) else ""
    return f" {' and '.join(ways)}{rest}"


def _row(values: list[float]) -> str:
    return " → ".join(f"{value:.3f}" if value else "not above chance" for value in values)


def plain(values: Tensor | float) -> Any:
    """Nested lists, with null for nan"""
    if isinstance(values, Tensor):
        return [plain(row) for row in values] if values.dim() else plain(values.item())
    return None if math.isnan(values) else values


def specialization(survey: Survey) -> Specialization:
    classes = len(survey.counts)
    levels = tuple(
        level_specialization(index, b, wins, survey.labels, classes)
        for index, (b, wins) in enumerate(zip(survey.weights, survey.winners, strict=True))
    )
    counts = survey.counts.view(-1, 1, 1, 1)
    return Specialization(
        levels=levels,
        map_mean=survey.map_mean.masked_fill(counts == 0, torch.nan),
        map_margin=confidence_margin(survey.map_variance, counts),
    )


def level_specialization(index: int, b: Tensor, winners: Tensor, labels: Tensor, classes: int) -> LevelSpecialization:
    """Block weights b (m, n), winners (m, n) boolean, labels (m,)"""
    b = b.double()
    together = winners.sum(1)
    wins = winners / together[:, None].double()
    counts = labels.bincount(minlength=classes)
    mean = _class_means(b, labels, counts)
    squares = _class_means(b.square(), labels, counts)
    variance = (squares - mean.square()).clamp_min(0) * (counts / (counts - 1).clamp_min(1))[:, None]
    sets, which = winners.unique(dim=0, return_inverse=True)
    joint = class_sums(wins, labels, classes)
    unit, generator = information_unit(joint), torch.Generator().manual_seed(0)
    shuffled = [labels[torch.randperm(len(labels), generator=generator)] for _ in range(SHUFFLES)]

    def told(joint_with: Callable[[Tensor], Tensor]) -> Information:
        value, *by_chance = (normalized_information(joint_with(r), unit) for r in (labels, *shuffled))
        return Information(value, fmean(by_chance), max(by_chance))

    return LevelSpecialization(
        level=index,
        mean=mean.float(),
        margin=confidence_margin(variance, counts[:, None]).float(),
        counts=counts,
        usage=b.mean(0).float(),
        chosen=_class_means(winners.double(), labels, counts).float(),
        chosen_overall=winners.double().mean(0).float(),
        unit=unit,
        information=told(lambda r: class_sums(b, r, classes)),
        information_chosen=told(lambda r: class_sums(wins, r, classes)),
        information_chosen_by_image=_by_image(wins, labels, joint, unit),
        information_set=told(lambda r: _set_joint(which, r, classes)),
        effective=effective_number(b.mean(0)),
        effective_chosen=effective_number(wins.mean(0)),
        effective_per_image=float(entropy(b / b.sum(1, keepdim=True)).exp().mean()),
        leaders=float(together.double().mean()),
        shared=float((together > 1).double().mean()),
        findings=_findings(index, b, winners, sets, which),
    )


def entropy(p: Tensor) -> Tensor:
    """H = −Σ p ln p along the last axis"""
    return torch.special.entr(p).sum(-1)


def effective_number(p: Tensor) -> float:
    """exp H(p): 1 if all mass is on one entry, n if it is spread evenly over n"""
    return float(entropy(p.double() / p.double().sum()).exp())


def normalized_information(joint: Tensor, unit: float) -> float:
    """I(r; n) / unit of a joint distribution (r, n), with I = H(r) + H(n) − H(r, n); 0 if nothing can be told apart"""
    p = joint.double() / joint.double().sum()
    nats = float(entropy(p.sum(1)) + entropy(p.sum(0)) - entropy(p.flatten()))
    return max(nats / unit, 0.0) if unit >= 1e-12 else 0.0


def information_unit(joint: Tensor) -> float:
    """min(H(r), ln n) in nats, of a joint distribution (r, n): the value of 1 on the scale (D29)"""
    classes = joint.double().sum(1) / joint.double().sum()
    return min(float(entropy(classes)), math.log(joint.shape[1]))


def _by_image(wins: Tensor, labels: Tensor, joint: Tensor, unit: float) -> Tensor:
    """Σ_n P(n | m) ln(P(r, n) / P(r)P(n)) / unit, r the class of image m: their mean is the information"""
    p = joint / joint.sum()
    by_chance = p.sum(1, keepdim=True) * p.sum(0)
    told = torch.where(p > 0, p / by_chance, 1.0).log()
    return (wins * told[labels]).sum(1) / unit if unit >= 1e-12 else torch.zeros(len(wins), dtype=wins.dtype)


def confidence_margin(variance: Tensor, counts: Tensor) -> Tensor:
    """Half the 95 % confidence interval of a mean:  t · s / √m,  with t of Student's distribution, m − 1 degrees"""
    t = torch.from_numpy(stdtrit(counts.flatten().double().numpy() - 1, 0.975)).to(variance).view(counts.shape)
    return t * (variance / counts.clamp_min(1)).sqrt()


def _class_means(values: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
    """(m, n) → (N, n); nan for a class without images"""
    return class_sums(values, labels, len(counts)) / counts[:, None]


def _set_joint(which: Tensor, labels: Tensor, classes: int) -> Tensor:
    """(N, sets): the number of images of each class with each set of winners; `which` (m,) is the set of each image"""
    sets = int(which.max()) + 1
    return (labels * sets + which).bincount(minlength=classes * sets).view(classes, sets)


def _findings(index: int, b: Tensor, winners: Tensor, sets: Tensor, which: Tensor) -> tuple[str, ...]:
    level, (images, n) = f"Level {index + 1}", b.shape
    if n == 1:
        return ()
    if images > 1 and float((b - b[0]).abs().max()) < 1e-6:
        equal = float((b[0] - 1 / n).abs().max()) < 1e-6
        how = "all blocks have the same weight" if equal else "the weights do not depend on the image"
        return (f"{level} does not select: {how}.",)
    if images < LEAST:
        return ()
    counts = which.bincount()
    most, share = sets[counts.argmax()], int(counts.max()) / images
    if share >= ALWAYS:
        said = f"{percent(share, 1)}%"
        if bool(most.all()):
            return (f"{level} hardly selects: in {said} of the images, all blocks have the same weight to within 1 %.",)
        who = _capsules(most.nonzero().flatten().tolist(), "wins", "win together")
        return (f"{level} has collapsed: {who} in {said} of {images:,} images.",)
    never = (~winners.any(0)).nonzero().flatten().tolist()
    return (f"{level}: {_capsules(never, 'never wins', 'never win')} in {images:,} images.",) if never else ()


def _capsules(numbers: list[int], does: str, do: str) -> str:
    return f"block {numbers[0]} {does}" if len(numbers) == 1 else f"blocks {listed([*map(str, numbers)])} {do}"
