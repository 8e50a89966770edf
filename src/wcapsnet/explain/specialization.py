"""How far capsules specialise in classes: the paper's figure of mean weights, and one number for each level."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..network.routing import heaviest
from .survey import Survey

ALWAYS = 0.99  # of the images: a set of capsules that wins in so many is said to win always
LEAST = 30  # images, before anything is said of who wins always or never: among a few the same one wins by chance
SHUFFLES = 20


@dataclass(frozen=True)
class LevelSpecialization:
    """The weights b of one level over a data set.

    Information is I(class; capsule) / min(H(class), ln n): 0 if the capsule says nothing about the class, 1 if it says
    as much as n capsules can. The capsule of an image is drawn with the probabilities b_n; for `information_chosen`
    evenly from those that win: they have the largest weight, or in the last level the best vector. A fitness of nearly
    1 is common in trained networks, so that several often share the largest weight, and the win (D31). What all that
    win say together is `information_set`, I(class; set) / H(class); with few images for many sets much of that is
    chance. Their `by_chance` is what the same weights give for shuffled labels on average, and `most_by_chance` the
    most that any of the 20 shuffles gave: without a relation, one in 21 is above it.
    """

    level: int  # counted from 0
    mean: Tensor  # (N, n): mean b_n over the images of a class; nan where there are none
    margin: Tensor  # (N, n): half the 95 % confidence interval of that mean; nan below two images
    counts: Tensor  # (N,): images of each class
    usage: Tensor  # (n,): mean b_n over all images
    chosen: Tensor  # (N, n): share of a class's images in which it wins, alone or not; nan where there are none
    chosen_overall: Tensor  # (n,): share of all images in which it wins, alone or not
    information: float
    information_by_chance: float
    information_chosen: float
    information_chosen_by_image: Tensor  # (m,): what each image adds to it; it is their mean
    information_chosen_by_chance: float
    information_chosen_most_by_chance: float
    information_set: float
    information_set_by_chance: float
    information_set_most_by_chance: float
    effective: float  # capsules in use: exp H(mean b), between 1 and n
    effective_chosen: float  # the same by wins, which winners share
    effective_per_image: float  # mean of exp H(b) over images: how many weigh in one image
    leaders: float  # mean number of capsules that share the win of an image
    shared: float  # share of images in which more than one does
    findings: tuple[str, ...]  # collapse, in words; empty where there is none

    @property
    def capsules(self) -> int:
        return self.mean.shape[1]

    def summary(self) -> dict[str, Any]:
        """Plain values, ready for JSON; what is unknown is null. Numbers of images and rows are by class."""
        return {
            "level": self.level + 1,
            "capsules": self.capsules,
            "mean": plain(self.mean),
            "margin": plain(self.margin),
            "usage": plain(self.usage),
            "chosen": plain(self.chosen),
            "chosen_overall": plain(self.chosen_overall),
            "information": self.information,
            "information_by_chance": self.information_by_chance,
            "information_chosen": self.information_chosen,
            "information_chosen_by_chance": self.information_chosen_by_chance,
            "information_chosen_most_by_chance": self.information_chosen_most_by_chance,
            "information_set": self.information_set,
            "information_set_by_chance": self.information_set_by_chance,
            "information_set_most_by_chance": self.information_set_most_by_chance,
            "effective": self.effective,
            "effective_chosen": self.effective_chosen,
            "effective_per_image": self.effective_per_image,
            "leaders": self.leaders,
            "shared": self.shared,
            "findings": list(self.findings),
        }


class Step(NamedTuple):
    """From one level that selects to the next: how much more its winner tells of the class, beyond chance"""

    before: int  # levels, counted from 0
    after: int
    change: float
    margin: float  # half the 95 % confidence interval, of images; nan for a single one

    @property
    def told(self) -> bool:
        """Whether it is more than the noise"""
        return abs(self.change) > self.margin


@dataclass(frozen=True)
class Specialization:
    levels: tuple[LevelSpecialization, ...]
    map_mean: Tensor  # (N, n, i, j): mean b of the last level at every position; nan where a class has no images
    map_margin: Tensor  # (N, n, i, j): half its 95 % confidence interval; nan below two images

    @property
    def findings(self) -> tuple[str, ...]:
        return tuple(finding for level in self.levels for finding in level.findings)

    @property
    def selecting(self) -> list[LevelSpecialization]:
        return [level for level in self.levels if level.capsules > 1]

    @property
    def steps(self) -> tuple[Step, ...]:
        """None unless there are two levels that select, and the winner of each tells more than chance."""
        several = self.selecting
        if not all(_beyond_chance(level) for level in several):
            return ()
        return tuple(_step(before, after) for before, after in itertools.pairwise(several))

    @property
    def trend(self) -> str:
        """Whether deeper levels specialise more, in words and numbers. Levels with one capsule have no part in it."""
        several = self.selecting
        if len(several) < 2:
            return "There are not two levels that select, so nothing can be said of depth."
        told = [_beyond_chance(level) for level in several]
        if not any(told):
            said = "What the winning capsule tells of the class is not above chance in any level."
        else:
            does = _course(self.steps) if self.steps else ", by level"
            said = f"What the winning capsule tells of the class beyond chance{does}: {_row(told)}."
        if any(one.shared for one in several):
            together = [
                _beyond(one.information_set, one.information_set_by_chance, one.information_set_most_by_chance)
                for one in several
            ]
            told_together = f", beyond chance: {_row(together)}" if any(together) else ": not above chance in any level"
            said += f" All winners of an image together{told_together}."
        return said

    def summary(self) -> dict[str, Any]:
        """Plain values, ready for JSON; what is unknown is null."""
        return {
            "trend": self.trend,
            "steps": [
                {"from": one.before + 1, "to": one.after + 1, "change": one.change, "margin": _known(one.margin)}
                for one in self.steps
            ],
            "levels": [level.summary() for level in self.levels],
            "map_mean": plain(self.map_mean),
            "map_margin": plain(self.map_margin),
        }


def _beyond(value: float, chance: float, most: float) -> float:
    """The part that chance does not give, of what it leaves; 0 if a shuffle gave as much"""
    return max(value - chance, 0) / max(1 - chance, 1e-12) if value > most + 1e-9 else 0.0


def _beyond_chance(level: LevelSpecialization) -> float:
    """What its winner tells"""
    return _beyond(
        level.information_chosen, level.information_chosen_by_chance, level.information_chosen_most_by_chance
    )


def _step(before: LevelSpecialization, after: LevelSpecialization) -> Step:
    """The same images in both: their differences are a sample, the classes' shares and chance taken as given."""
    mine, theirs = (
        (level.information_chosen_by_image - level.information_chosen_by_chance)
        / max(1 - level.information_chosen_by_chance, 1e-12)
        for level in (after, before)
    )
    differences = mine - theirs
    margin = confidence_margin(differences.var(), torch.tensor(len(differences)))
    return Step(before.level, after.level, float(differences.mean()), float(margin))


def _course(steps: tuple[Step, ...]) -> str:
    """Nothing that is within the noise is told as a change."""
    up, down = ([one for one in steps if one.told and (one.change > 0) == rise] for rise in (True, False))
    if not up and not down:
        return " does not change from level to level by more than the noise"
    if len(up) == len(steps) or len(down) == len(steps):
        return f" {'rises' if up else 'falls'} with every level"
    ways = [f"{does} {_places(some)}" for does, some in (("rises", up), ("falls", down)) if some]
    rest = " (else within the noise)" if len(up) + len(down) < len(steps) else ""
    return f" {' and '.join(ways)}{rest}"


def _places(steps: list[Step]) -> str:
    return " and ".join(f"from level {one.before + 1} to {one.after + 1}" for one in steps)


def _row(values: list[float]) -> str:
    return " → ".join(f"{value:.3f}" if value else "not above chance" for value in values)


def plain(values: Tensor) -> list[Any]:
    """Nested lists, null for nan"""
    if values.dim() > 1:
        return [plain(row) for row in values]
    return [_known(value) for value in values.tolist()]


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def specialization(survey: Survey) -> Specialization:
    classes = len(survey.counts)
    levels = tuple(
        level_specialization(index, b, leaders(survey, index), survey.labels, classes)
        for index, b in enumerate(survey.weights)
    )
    counts = survey.counts.view(-1, 1, 1, 1)
    return Specialization(
        levels=levels,
        map_mean=survey.map_mean.masked_fill(counts == 0, torch.nan),
        map_margin=confidence_margin(survey.map_variance, counts),
    )


def leaders(survey: Survey, level: int) -> Tensor:
    """(m, n): whether a capsule wins an image, alone or with others"""
    if level == len(survey.weights) - 1:
        return torch.nn.functional.one_hot(survey.capsules[:, level], survey.weights[level].shape[1]).bool()
    return heaviest(survey.weights[level])


def level_specialization(index: int, b: Tensor, leads: Tensor, labels: Tensor, classes: int) -> LevelSpecialization:
    """b (m, n), leads (m, n), labels (m,)"""
    b = b.double()
    together = leads.sum(1)
    wins = leads / together[:, None].double()
    counts = labels.bincount(minlength=classes)
    mean = _class_means(b, labels, counts)
    squares = _class_means(b.square(), labels, counts)
    variance = (squares - mean.square()).clamp_min(0) * (counts / (counts - 1).clamp_min(1))[:, None]
    sets, which = leads.unique(dim=0, return_inverse=True)
    joint, joint_chosen = _joint(b, labels, classes), _joint(wins, labels, classes)
    generator = torch.Generator().manual_seed(0)
    shuffled = [labels[torch.randperm(len(labels), generator=generator)] for _ in range(SHUFFLES)]
    chosen_shuffled = [normalized_information(_joint(wins, other, classes)) for other in shuffled]
    set_shuffled = [_set_information(which, other, classes) for other in shuffled]
    return LevelSpecialization(
        level=index,
        mean=mean.float(),
        margin=confidence_margin(variance, counts[:, None]).float(),
        counts=counts,
        usage=b.mean(0).float(),
        chosen=_class_means(leads.double(), labels, counts).float(),
        chosen_overall=leads.double().mean(0).float(),
        information=normalized_information(joint),
        information_by_chance=_mean([normalized_information(_joint(b, other, classes)) for other in shuffled]),
        information_chosen=normalized_information(joint_chosen),
        information_chosen_by_image=_by_image(wins, labels, joint_chosen),
        information_chosen_by_chance=_mean(chosen_shuffled),
        information_chosen_most_by_chance=max(chosen_shuffled),
        information_set=_set_information(which, labels, classes),
        information_set_by_chance=_mean(set_shuffled),
        information_set_most_by_chance=max(set_shuffled),
        effective=effective_number(b.mean(0)),
        effective_chosen=effective_number(wins.mean(0)),
        effective_per_image=float(entropy(b / b.sum(1, keepdim=True)).exp().mean()),
        leaders=float(together.double().mean()),
        shared=float((together > 1).double().mean()),
        findings=_findings(index, b, leads, sets, which),
    )


def entropy(p: Tensor) -> Tensor:
    """H = −Σ p ln p along the last axis"""
    return torch.special.entr(p).sum(-1)


def effective_number(p: Tensor) -> float:
    """exp H(p): 1 if all falls on one, n if it is spread evenly over n"""
    return float(entropy(p.double() / p.double().sum()).exp())


def normalized_information(joint: Tensor) -> float:
    """I(r; n) / min(H(r), ln n) of a joint distribution (r, n); 0 where nothing can be told apart"""
    joint = joint.double() / joint.double().sum()
    most = min(float(entropy(joint.sum(1))), math.log(joint.shape[1]))
    return _share(_information(joint), most)


def _information(joint: Tensor) -> float:
    """I = H(r) + H(n) − H(r, n)"""
    return float(entropy(joint.sum(1)) + entropy(joint.sum(0)) - entropy(joint.flatten()))


def _by_image(wins: Tensor, labels: Tensor, joint: Tensor) -> Tensor:
    """Σ_n P(n | m) ln(P(r, n) / P(r)P(n)) / min(H(r), ln n), r the class of image m: their mean is the information"""
    p = joint / joint.sum()
    most = min(float(entropy(p.sum(1))), math.log(p.shape[1]))
    by_chance = p.sum(1, keepdim=True) * p.sum(0)
    told = torch.where(p > 0, p / by_chance, 1.0).log()
    return (wins * told[labels]).sum(1) / most if most >= 1e-12 else torch.zeros(len(wins), dtype=wins.dtype)


def _share(part: float, whole: float) -> float:
    return min(max(part / whole, 0.0), 1.0) if whole >= 1e-12 else 0.0


def _set_information(which: Tensor, labels: Tensor, classes: int) -> float:
    """I(r; set) / H(r), `which` (m,) being the set of each image"""
    sets = int(which.max()) + 1
    joint = (labels * sets + which).bincount(minlength=classes * sets).view(classes, sets).double() / len(labels)
    return _share(_information(joint), float(entropy(joint.sum(1))))


def confidence_margin(variance: Tensor, counts: Tensor) -> Tensor:
    """Half the 95 % confidence interval of a mean:  t · s / √m,  t of Student's distribution with m − 1 degrees"""
    t = torch.tensor([student_t(int(count) - 1) for count in counts.flatten()], dtype=variance.dtype)
    return t.view(counts.shape) * (variance / counts.clamp_min(1)).sqrt()


def student_t(degrees: int) -> float:
    """The 97.5 % quantile; nan below one degree of freedom. From three on a series in 1/degrees, good to 1 %."""
    if degrees < 3:
        return {1: 12.7062, 2: 4.3027}.get(degrees, math.nan)
    z = 1.959964
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3


def _class_means(values: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
    """(m, n) → (N, n); nan for a class without images"""
    sums = values.new_zeros(len(counts), values.shape[1]).index_add_(0, labels, values)
    return sums / counts[:, None]


def _joint(values: Tensor, labels: Tensor, classes: int) -> Tensor:
    return values.new_zeros(classes, values.shape[1]).index_add_(0, labels, values)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _findings(index: int, b: Tensor, leads: Tensor, sets: Tensor, which: Tensor) -> tuple[str, ...]:
    level, (images, n) = f"Level {index + 1}", b.shape
    if n == 1:
        return ()
    if images > 1 and float((b - b[0]).abs().max()) < 1e-6:
        equal = float((b[0] - 1 / n).abs().max()) < 1e-6
        how = "all capsules weigh the same" if equal else "the weights do not depend on the image"
        return (f"{level} does not select: {how}.",)
    if images < LEAST:
        return ()
    counts = which.bincount()
    most, share = sets[counts.argmax()], int(counts.max()) / images
    if share >= ALWAYS:
        if bool(most.all()):
            return (f"{level} hardly selects: to within 1 % all capsules weigh the same in {share:.1%} of the images.",)
        who = _capsules(most.nonzero().flatten().tolist(), "wins", "win together")
        return (f"{level} has collapsed: {who} in {share:.1%} of {images:,} images.",)
    never = (~leads.any(0)).nonzero().flatten().tolist()
    return (f"{level}: {_capsules(never, 'never wins', 'never win')} in {images:,} images.",) if never else ()


def _capsules(numbers: list[int], does: str, do: str) -> str:
    return f"capsule {numbers[0]} {does}" if len(numbers) == 1 else f"capsules {_listed(numbers)} {do}"


def _listed(numbers: list[int]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last
