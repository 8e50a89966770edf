"""One pass over a dataset that stores what the explanations need.

Maps are summed over images; each image keeps a few hundred numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..classifier import load_tensors, save_tensors
from ..data.device_data import DeviceSplit
from ..device import arithmetic, exact
from ..errors import InputError
from ..network import Output, WCapsNet
from ..network.routing import block_weights, heaviest, route
from ..prediction import check_finite
from ..training.evaluate import Evaluation, evaluating, good_batch, on_every_core

FORMAT = 2  # file version; increase it when a field changes its name or meaning. 2: ties in the last level (D31, D36)
POOL = 4  # routed outputs are averaged to at most 4×4 positions for the probes


@dataclass(frozen=True)
class Survey:
    """Predictions and routing of every image of a split, in order. Tensors are float32 on the CPU."""

    labels: Tensor  # (m,)
    probabilities: Tensor  # (m, N): over the real classes
    weights: tuple[Tensor, ...]  # block weights of each level: (m, n); in the last level summed over positions
    tied: Tensor  # (m,): number of vectors of the last level whose weight is within 1 % of the largest
    vectors: Tensor  # (m, k): the decoded vectors of the last level (D36)
    places: Tensor  # (m, 3): their n, i, j
    positions: Tensor  # (m, 2): their x and y, as given to the decoder
    map_mean: Tensor  # (N, n, i, j): mean b of the last level over the images of a class; 0 if there are none
    map_variance: Tensor  # (N, n, i, j): its variance over those images, unbiased; nan for fewer than two images
    squared_error: Tensor  # (m,): of the reconstruction, mean over channels and pixels
    cross_entropy: Tensor  # (m,)
    routed: tuple[Tensor, ...] = ()  # optional: each level's routed output, pooled: (m, features)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def predicted(self) -> Tensor:
        """(m,)"""
        return self.probabilities.argmax(1)

    @property
    def winners(self) -> tuple[Tensor, ...]:
        """For each level (m, n): whether a block wins an image, alone or with others (D31)"""
        return tuple(heaviest(b) for b in self.weights)

    @property
    def counts(self) -> Tensor:
        """(N,): images of each class"""
        return self.labels.bincount(minlength=self.probabilities.shape[1])

    @property
    def accuracy(self) -> float:
        return float((self.labels == self.predicted).double().mean())

    def save(self, path: Path, **facts: Any) -> None:
        """Write one safetensors file; `facts` describe, for example, the weights and images of the survey."""
        named = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        for name in ("weights", "routed"):
            named |= {f"{name}.{level}": tensor for level, tensor in enumerate(getattr(self, name))}
        save_tensors(path, named, {"survey": facts, "format": FORMAT})

    @staticmethod
    def load(path: Path) -> tuple[Survey, dict[str, Any]]:
        """The survey and its facts; `InputError` if the file has another format"""
        tensors, facts = load_tensors(path)
        if "survey" not in facts:
            raise InputError(f"{path} does not hold a survey.")
        if facts.get("format") != FORMAT:
            raise InputError(f"{path} was written by another version of wcapsnet; delete it to make it again.")
        return Survey.named(tensors), facts["survey"]

    @staticmethod
    def named(tensors: dict[str, Tensor]) -> Survey:
        """A survey from its fields by name; those with one tensor per level are weights.0, weights.1, …"""
        parts: dict[str, Any] = {name: tensor for name, tensor in tensors.items() if "." not in name}
        for name in ("weights", "routed"):
            count = sum(key.startswith(f"{name}.") for key in tensors)
            parts[name] = tuple(tensors[f"{name}.{level}"] for level in range(count))
        return Survey(**parts)

    def evaluation(self) -> Evaluation:
        """The same results as `evaluate`, without another pass."""
        probability, classes = self.probabilities.max(1).values, self.probabilities.shape[1]
        return Evaluation.of(self.labels, self.predicted, probability, self.cross_entropy, self.weights, classes)


def evenly(total: int, count: int) -> Tensor:
    """At most `count` of `total` places, evenly spaced, because folders are sorted by class"""
    count = min(count, total)
    return torch.arange(count) * total // max(count, 1)


def class_sums(values: Tensor, labels: Tensor, classes: int) -> Tensor:
    """(m, n) → (N, n): sums over the images of each class"""
    return values.new_zeros(classes, values.shape[1]).index_add_(0, labels, values)


def has_routing(network: nn.Module) -> bool:
    return isinstance(network, WCapsNet)


def without_routing(network: nn.Module) -> str:
    """What cannot be shown of a network that is not a WCapsNet"""
    own = " Its own routing coefficients are in output.routing." if getattr(network, "couples", False) else ""
    return (
        f"{type(network).__name__} has no critics that weight blocks, so it has no block weights, paths through levels "
        f"or decoded vectors to explain.{own}"
    )


def check_routing(network: nn.Module) -> None:
    """Refuse a network without routing."""
    if not has_routing(network):
        raise InputError(without_routing(network))


def survey(
    network: nn.Module,
    split: DeviceSplit,
    *,
    batch_size: int | None = None,
    routed: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Survey:
    """Every image of the split once, in order, with the plain modules; the network keeps its mode.

    `routed` stores what the probes need. `progress` receives the number of finished images. For a network
    without routing: predictions and reconstruction errors; the routing fields are empty.
    """
    if len(split) == 0:
        raise InputError("There are no images to survey.")
    batch_size = batch_size or good_batch(network, split.labels.device)  # type: ignore[arg-type]

    @torch.no_grad()  # set here because the mode is per thread
    def look(start: int) -> tuple[dict[str, Tensor], Tensor | None]:
        images, labels = split.take(slice(start, start + batch_size))
        with arithmetic("fp32", images.device):
            output = network(images)
        last = output.routings[-1].weights if isinstance(network, WCapsNet) else None
        return _facts(network, images, labels, output, routed), last

    sums: Tensor | None = None  # (2, N, n, i, j): of b and b² in the last level, over the images of each class
    parts: list[dict[str, Tensor]] = []
    starts = range(0, len(split), batch_size)
    with evaluating(network), closing(on_every_core(look, starts, split.labels.device)) as answers:
        for start, (facts, weights) in zip(starts, answers, strict=True):
            if weights is not None:
                b = exact(weights)
                sums = b.new_zeros(2, facts["probabilities"].shape[1], *b.shape[1:]) if sums is None else sums
                sums.index_add_(1, facts["labels"].to(b.device), torch.stack([b, b.square()]))
            parts.append(facts)
            if progress:
                progress(min(start + batch_size, len(split)))
    columns = {name: torch.cat([part[name] for part in parts]).cpu() for name in parts[0]}
    check_finite(columns["probabilities"])
    mean = variance = torch.empty(0)
    if sums is not None:
        count = columns["labels"].bincount(minlength=sums.shape[1]).view(-1, 1, 1, 1).double()
        total, squares = sums.cpu()
        mean = total / count.clamp_min(1)
        variance = (squares - count * mean.square()).clamp_min(0) / (count - 1)
        variance = variance.float().masked_fill(count < 2, torch.nan)
    return Survey.named({**columns, "map_mean": mean.float(), "map_variance": variance})


def _facts(network: nn.Module, images: Tensor, labels: Tensor, output: Any, routed: bool) -> dict[str, Tensor]:
    """The fields of `Survey` for a batch. Without routing, vectors are empty; without a decoder, the error is nan."""
    config: Any = network.config
    m, logits, rebuilt = len(images), output.logits.float(), getattr(output, "reconstruction", None)
    unknown = images.new_full((m,), torch.nan)
    facts = {
        "labels": labels,
        "probabilities": logits[:, : config.classes].softmax(1),
        "squared_error": unknown if rebuilt is None else (rebuilt.float() - images).square().flatten(1).mean(1),
        "cross_entropy": F.cross_entropy(logits, labels, reduction="none"),
    }
    if not isinstance(network, WCapsNet):
        empty = dict.fromkeys(("vectors", "places", "positions"), images.new_empty(m, 0))
        return {**facts, **empty, "tied": labels.new_zeros(m)}
    levels = {"weights": [block_weights(routing.weights) for routing in output.routings]}
    levels["routed"] = pooled(output) if routed else []
    return {
        **facts,
        "tied": heaviest(output.routings[-1].weights.float().flatten(1)).sum(1),
        "vectors": output.best.vector.float(),
        "places": output.best.place,
        "positions": output.best.position.float(),
        **{f"{name}.{level}": x for name, each in levels.items() for level, x in enumerate(each)},
    }


def pooled(output: Output) -> list[Tensor]:
    """Each level's routed output, averaged to at most 4×4 positions and flattened: (m, features).

    The last level's output is summed over positions, which W turns into the logits: (m, k).
    """
    *levels, (last, b) = zip(output.capsules, (routing.weights for routing in output.routings), strict=True)
    routed = [route(weights, c).float() for c, weights in levels]
    maps = [F.adaptive_avg_pool2d(x, (min(POOL, x.shape[2]), min(POOL, x.shape[3]))).flatten(1) for x in routed]
    return [*maps, torch.einsum("mnij,mnkij->mk", b.float(), last.float())]
