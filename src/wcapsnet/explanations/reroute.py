"""Does it matter which weights route an image? Replace them, and predict again.

    mean     the mean weights over many images: one routing for all images
    other    the weights of another image, drawn at random: a realistic routing, but for the wrong image
    equal    no routing
    dropout  the image's own weights, from critics with dropout on as in training
    draw 1…  random weights, different from the draw stored with the network (D16)

If predictions do not change with mean weights, they do not depend on the image's own. Random weights are the same for
all images, so mean and other would change nothing; draws take their place.
"""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ..data.device_data import DeviceSplit
from ..device import exact
from ..errors import InputError
from ..network import WCapsNet
from ..network.critic import Critic
from ..network.routing import Router, Routing
from ..training.evaluate import evaluating, good_batch, on_every_core

DRAWS = 8

# level, the images' own b, the level's current capsules, random numbers of this batch → b
Weigh = Callable[[int, Tensor, Tensor, torch.Generator], Tensor]


class Outcome(NamedTuple):
    """How many predictions changed; how many changed from wrong to right, and from right to wrong."""

    changed: int
    gained: int
    lost: int


@dataclass(frozen=True)
class Rerouted:
    """Images predicted with their own weights and with others: in all levels at once, then in one level at a time."""

    images: int
    correct: int  # with their own weights
    by: dict[str, list[Outcome]]  # kind → for all levels, then for each level alone

    def summary(self) -> dict[str, Any]:
        """Plain values, ready for JSON"""
        rerouted = {}
        for kind, (everywhere, *alone) in self.by.items():
            rerouted[kind] = {"all_levels": self._facts(everywhere), "one_level": [self._facts(one) for one in alone]}
        facts = {"accuracy": self.correct / self.images, "rerouted": rerouted}
        if self.draws:
            mean, deviation = statistics.mean(self.draws), statistics.stdev(self.draws)
            facts["draws"] = {"number": len(self.draws), "accuracy": mean, "deviation": deviation}
        return facts

    @property
    def draws(self) -> list[float]:
        """The accuracy with each other draw, in all levels at once"""
        drawn = [outcomes[0] for kind, outcomes in self.by.items() if kind.startswith("draw")]
        return [(self.correct + outcome.gained - outcome.lost) / self.images for outcome in drawn]

    def _facts(self, outcome: Outcome) -> dict[str, float]:
        difference, margin = self.difference(outcome)
        accuracy = (self.correct + outcome.gained - outcome.lost) / self.images
        counts = {"changed": outcome.changed, "gained": outcome.gained, "lost": outcome.lost}
        return {"accuracy": accuracy, "difference": difference, "margin": margin, **counts}

    def difference(self, outcome: Outcome) -> tuple[float, float]:
        """The change in accuracy, and half its 95 % confidence interval, which depends only on images gained or lost.
        Half an image is added to each (Agresti & Min 2005); else no change in a few images would imply certainty."""
        gained, lost, images = outcome.gained + 0.5, outcome.lost + 0.5, self.images + 2
        variance = gained + lost - (gained - lost) ** 2 / images
        return (outcome.gained - outcome.lost) / self.images, 1.96 * math.sqrt(variance) / images


def reroute(
    network: WCapsNet,
    split: DeviceSplit,
    mean_of: DeviceSplit,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Rerouted:
    """`mean_of`: images whose weights are averaged. `seed` determines which image gets whose weights, the dropout
    masks, and the random weights. `progress` receives the number of finished images."""
    if network.config.routing.fitness == "constant":
        raise InputError("This network gives all capsules equal weights, so there is no routing to replace.")
    if len(split) < 2 or len(mean_of) == 0:
        raise InputError("Replacing weights needs at least two images, and others for the mean.")
    device, counts, done = split.labels.device, torch.zeros(1, dtype=torch.long), 0
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(seed)).to(device)
    parts = order.split(_size(network, split))
    if len(parts[-1]) == 1:  # no other image to exchange weights with
        parts = (*parts[:-2], torch.cat(parts[-2:]))
    with evaluating(network):
        others = _others(network, mean_of, seed)

        @torch.no_grad()  # set here because the mode is per thread
        def look(part: Tensor) -> Tensor:
            images, labels = split.take(part)
            numbers = torch.Generator(device).manual_seed(seed * 1_000_003 + int(part[0]))  # in any thread order
            each = _answers(network, images, others.values(), numbers)
            answers = torch.stack(list(each))  # (1 + kinds × (1 + levels), m)
            right, was = answers == labels, answers[0] == labels
            facts = (answers != answers[0], right & ~was, ~right & was, right)
            return torch.stack([fact.sum(1) for fact in facts], 1)

        with closing(on_every_core(look, parts, device)) as found:
            for part, count in zip(parts, found, strict=True):
                counts, done = counts + count.cpu(), done + len(part)
                if progress:
                    progress(done)
    outcomes = counts[1:, :3].unflatten(0, (len(others), -1)).tolist()
    by = {kind: [Outcome(*one) for one in found] for kind, found in zip(others, outcomes, strict=True)}
    return Rerouted(len(split), int(counts[0, 3]), by)


def _size(network: WCapsNet, split: DeviceSplit) -> int:
    """The size of a batch; weights are exchanged within a batch, so at least two images"""
    return max(2, good_batch(network, split.labels.device))


def _others(network: WCapsNet, mean_of: DeviceSplit, seed: int) -> dict[str, Weigh]:
    routers = [router for _, _, router in network.levels()]
    if network.config.routing.fitness != "random":
        means = _mean_weights(network, mean_of)
        kinds: dict[str, Weigh] = {
            "mean": _given(means),
            "other": lambda level, own, c, numbers: own.roll(1, 0),  # of the next image
            "equal": _given(_equal(means)),
        }
        drops = all(isinstance(router.critic, Critic) and router.critic.dropout for router in routers)
        return {**kinds, "dropout": _dropping(network)} if drops else kinds
    with torch.no_grad():
        kept = [routing.fitness for routing in network(mean_of.take(slice(0, 1))[0]).routings]
    generator = torch.Generator().manual_seed(seed)
    draws = {}
    for draw in range(DRAWS):
        drawn = [r.weights(torch.rand(a.shape, generator=generator)) for r, a in zip(routers, kept, strict=True)]
        draws[f"draw {draw + 1}"] = _given([b[0].to(a.device) for a, b in zip(kept, drawn, strict=True)])
    return {"equal": _given(_equal([a[0] for a in kept])), **draws}


def _given(weights: Sequence[Tensor]) -> Weigh:
    """These weights for every image; of each level (n,) or (n, i, j)"""
    return lambda level, own, c, numbers: weights[level].expand_as(own)


def _dropping(network: WCapsNet) -> Weigh:
    def weigh(level: int, own: Tensor, c: Tensor, numbers: torch.Generator) -> Tensor:
        router = cast(Router, network.routers[level])
        return router.weights(_with_dropout(cast(Critic, router.critic), numbers)(c))

    return weigh


def _with_dropout(critic: Critic, numbers: torch.Generator) -> Critic:
    """The same critic with dropout on, otherwise in evaluation mode; a copy, because threads share the network's own"""

    def drop(x: Tensor) -> Tensor:
        kept = torch.rand(x.shape, generator=numbers, device=x.device) >= critic.dropout
        return x * kept / (1 - critic.dropout)

    dropping = copy.copy(critic)
    vars(dropping)["drop"] = drop
    return dropping


def _equal(weights: list[Tensor]) -> list[Tensor]:
    return [torch.full_like(b, 1 / b.numel()) for b in weights]


def _mean_weights(network: WCapsNet, split: DeviceSplit) -> list[Tensor]:
    """Mean b of each level over all images: (n,) or (n, i, j)"""

    @torch.no_grad()
    def look(start: int) -> list[Tensor]:
        images, _ = split.take(slice(start, start + size))
        return [exact(routing.weights).sum(0) for routing in network(images).routings]

    size = _size(network, split)
    parts = list(on_every_core(look, range(0, len(split), size), split.labels.device))
    return [
        torch.stack(level).sum(0).div(len(split)).float().to(split.labels.device) for level in zip(*parts, strict=True)
    ]


def _answers(network: WCapsNet, images: Tensor, others: Iterable[Weigh], numbers: torch.Generator) -> Iterator[Tensor]:
    """Predicted classes (m,): with the image's own weights; with others in all levels; with others in each level"""
    output = network(images)
    own = [routing.weights for routing in output.routings]
    last = len(own) - 1
    yield _predicted(network, output.logits)

    def onward(first: int, weigh: Weigh, levels: Iterable[int]) -> Tensor:
        """Recomputes from the first of `levels`, whose weights are replaced; other levels route as usual"""

        def routes(level: int, router: Router, c: Tensor) -> Routing:
            routing = router(c)
            return routing._replace(weights=weigh(level, own[level], c, numbers)) if level in levels else routing

        c = output.capsules[first]
        x = network.handed_on(first, weigh(first, own[first], c, numbers), c)
        return _predicted(network, x if first == last else network(x, start=first + 1, routes=routes).logits)

    for weigh in others:
        yield onward(0, weigh, range(len(own)))
        for level in range(len(own)):
            yield onward(level, weigh, (level,))


def _predicted(network: WCapsNet, logits: Tensor) -> Tensor:
    return logits[:, : network.config.classes].argmax(1)
