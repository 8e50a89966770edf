"""How steep and how saturated the critics are, and how dropout affects their batch norm.

The paper bounds the critics' Lipschitz constant by giving every kernel a spectral norm of 1 (D9). A batch norm and a
sigmoid follow, so the fitness of a capsule is bounded by

    |a(c) − a(c′)| ≤ ¼ · γ/σ · Π_l ‖A_l‖ · |c − c′|

where A_l is convolution l as a linear operator on its map. ‖A_l‖ is not the norm of the reshaped kernel: with stride 2,
an input value meets up to four of the nine taps of a 3×3 kernel.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterable
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_input

from ..data.device_data import DeviceSplit
from ..device import arithmetic, exact
from ..errors import InputError
from ..network import WCapsNet
from ..network.critic import Critic, SpectralConv2d
from ..network.per_capsule import BatchNorm, shared_over_capsules
from ..training.evaluate import evaluating, good_batch, on_every_core
from .reroute import _with_dropout

LOW, HIGH = 0.02, 0.98  # a fitness beyond these is saturated


class Spread(NamedTuple):
    """Mean and √(variance + ε) of the batch norm's input"""

    mean: float
    std: float


@dataclass(frozen=True)
class CriticFacts:
    """One level's critic. A slope is the norm of a gradient with respect to the judged capsule."""

    level: int  # counted from 1
    judged: int  # fitness values per image: one per block; in the last level, or per position (D39), one per vector
    gamma: float
    kernel_norms: tuple[float, ...]  # of each reshaped kernel
    operator_norms: tuple[float, ...]  # of each convolution on its map
    slope_mean: float  # of the fitness
    slope_max: float
    logit_slope_mean: float  # of the sigmoid's input
    logit_slope_max: float
    low: float  # share of fitness values below LOW
    high: float  # share above HIGH
    always_low: float  # share of blocks (or vectors) below LOW for every image
    always_high: float
    running: Spread  # the batch norm's own statistics, estimated during training
    dropping: Spread  # on these images with the critic's dropout on
    plain: Spread  # with dropout off

    @property
    def gain(self) -> float:
        """γ/σ"""
        return abs(self.gamma) / self.running.std

    @property
    def logit_bound(self) -> float:
        return self.gain * math.prod(self.operator_norms)

    @property
    def bound(self) -> float:
        """¼ · γ/σ · Π ‖A_l‖: the slope of the sigmoid is at most ¼"""
        return self.logit_bound / 4

    def summary(self) -> dict[str, Any]:
        facts = asdict(self)
        for name in ("running", "dropping", "plain"):
            facts[name] = getattr(self, name)._asdict()
        return {**facts, "gain": self.gain, "bound": self.bound, "logit_bound": self.logit_bound}


@dataclass(frozen=True)
class Critics:
    images: int
    levels: tuple[CriticFacts, ...]  # levels with a critic

    def summary(self) -> dict[str, Any]:
        """Plain values, ready for JSON"""
        return {"low": LOW, "high": HIGH, "levels": [level.summary() for level in self.levels]}


class _Judged(NamedTuple):
    """A critic's results for a batch, for each block or vector: (m, n) or (m, n·i·j)"""

    fitness: Tensor
    slope: Tensor
    logit_slope: Tensor
    plain: Tensor  # before the batch norm
    dropping: Tensor  # the same with dropout


def critics(network: WCapsNet, split: DeviceSplit, progress: Callable[[int], None] | None = None) -> Critics:
    """Measure the critics on every image of the split, in evaluation mode and fp32.

    `progress` receives the number of finished images.
    """
    judges = _critics(network)
    if not judges:
        name = network.config.routing.fitness
        raise InputError(f"Only the paper's critics can be measured; model.routing.fitness of this network is {name}.")
    if len(split) == 0:
        raise InputError("There are no images to measure the critics on.")
    device, size = split.labels.device, good_batch(network, split.labels.device)
    starts = range(0, len(split), size)

    def look(start: int) -> list[_Judged]:
        images, _ = split.take(slice(start, start + size))
        numbers = torch.Generator(device).manual_seed(start)  # the same in any thread order
        with arithmetic("fp32", device):
            with torch.no_grad():  # set here because the mode is per thread
                capsules = network(images).capsules
            return [_judged(critic, capsules[level], numbers) for level, critic in judges.items()]

    parts = []
    with evaluating(network):
        with closing(on_every_core(look, starts, device)) as found:
            for start, judged in zip(starts, found, strict=True):
                parts.append(judged)
                if progress:
                    progress(min(start + size, len(split)))
        judged_by = [_Judged(*map(torch.cat, zip(*level, strict=True))) for level in zip(*parts, strict=True)]
        levels = zip(judges.items(), judged_by, strict=True)
        return Critics(len(split), tuple(_facts(network, level, critic, found) for (level, critic), found in levels))


def operator_norm(weight: Tensor, stride: int, padding: int, size: tuple[int, int]) -> float:
    """‖A‖ of x ↦ conv(x, w) on maps of this size: power iteration on AᵀA, in float64"""
    w = exact(weight.detach())
    shape = (1, w.shape[1], *size)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(w.device)
    norm = 0.0
    for _ in range(2000):
        y = F.conv2d(x / x.norm().clamp_min(1e-300), w, None, stride, padding)
        before, norm = norm, float(y.norm())
        if norm - before <= 1e-9 * norm:
            break
        x = conv2d_input(shape, w, y, stride, padding)
    return norm


def recalibrated(network: WCapsNet, batches: Iterable[Tensor], levels: Collection[int] | None = None) -> WCapsNet:
    """A copy whose critics' batch norms use the mean and variance of these images, without dropout.

    Levels are processed in order: a critic sees the output of the recalibrated critics before it. `levels`, counted
    from 0, are those to recalibrate (default: all). Everything else is unchanged.
    """
    images, copied = list(batches), copy.deepcopy(network).eval()
    if not images:
        raise InputError("Re-estimating the critics' statistics needs at least one image.")
    for level, critic in _critics(copied).items():
        if levels is not None and level not in levels:
            continue

        @torch.no_grad()  # set here because the mode is per thread
        def look(batch: Tensor, level: int = level, critic: Critic = critic) -> tuple[int, Tensor, Tensor]:
            with arithmetic("fp32", batch.device):
                values = exact(_before_norm(critic, copied(batch).capsules[level])[0])
            return values.numel(), values.sum(), values.square().sum()

        counts, sums, squares = zip(*on_every_core(look, images, images[0].device), strict=True)
        count, total = sum(counts), torch.stack(sums).sum()
        variance = (torch.stack(squares).sum() - total**2 / count) / max(count - 1, 1)  # unbiased, as in training
        critic.norm.running_mean.fill_(float(total / count))
        critic.norm.running_var.fill_(float(variance.clamp_min(0)))
    return copied.train(network.training)


def _critics(network: WCapsNet) -> dict[int, Critic]:
    """The critic of every level that has one"""
    critics = {level: router.critic for level, router in enumerate(network.routers)}
    return {level: critic for level, critic in critics.items() if isinstance(critic, Critic)}


def _before_norm(critic: Critic, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Input and output of the batch norm, and the fitness, exactly as the critic computes them"""
    seen: list[Tensor] = []
    critic = copy.deepcopy(critic)  # threads share the network's critic
    critic.norm.register_forward_hook(lambda module, args, logit: seen.extend((args[0], logit)))
    fitness = shared_over_capsules(critic.judge, c)
    value, logit = (one.unflatten(0, c.shape[:2]) for one in seen)
    return value, logit, fitness


@torch.enable_grad()
def _judged(critic: Critic, c: Tensor, numbers: torch.Generator) -> _Judged:
    c = c.detach().requires_grad_()
    value, logit, fitness = _before_norm(critic, c)
    steep, steeper = _slopes(critic, fitness, c), _slopes(critic, logit, c)
    with torch.no_grad():
        dropped, _, _ = _before_norm(_with_dropout(critic, numbers), c)
        return _Judged(fitness.flatten(1), steep, steeper, value.flatten(1), dropped.flatten(1))


def _slopes(critic: Critic, y: Tensor, c: Tensor) -> Tensor:
    """|∂y/∂c| for every value of y (m, n, 1, i', j') with respect to its own capsule: (m, n·i'·j')"""

    def gradient(total: Tensor) -> Tensor:
        return torch.autograd.grad(total, c, retain_graph=True)[0]

    if all(layer.padding == 0 for layer in critic.layers):  # 1×1 kernels: every value has its own vector
        return torch.linalg.vector_norm(gradient(y.sum()), dim=2).flatten(1)
    each = [torch.linalg.vector_norm(gradient(one.sum()), dim=(2, 3, 4)) for one in y.flatten(2).unbind(2)]
    return torch.stack(each, 2).flatten(1)


@torch.no_grad()
def _facts(network: WCapsNet, level: int, critic: Critic, found: _Judged) -> CriticFacts:
    a, norm, size = found.fitness, critic.norm, network.config.maps()[level]
    kernels, operators = [], []
    for layer in critic.layers:
        assert isinstance(layer, SpectralConv2d)
        w = layer.normalized_weight()
        kernels.append(float(torch.linalg.matrix_norm(exact(w).flatten(1), 2)))
        operators.append(operator_norm(w, layer.stride, layer.padding, size))
        size = (-(-size[0] // layer.stride), -(-size[1] // layer.stride))  # kernels are centred on their pixel
    return CriticFacts(
        level=level + 1,
        judged=a.shape[1],
        gamma=float(norm.weight),
        kernel_norms=tuple(kernels),
        operator_norms=tuple(operators),
        slope_mean=float(exact(found.slope).mean()),
        slope_max=float(found.slope.max()),
        logit_slope_mean=float(exact(found.logit_slope).mean()),
        logit_slope_max=float(found.logit_slope.max()),
        low=float(exact(a < LOW).mean()),
        high=float(exact(a > HIGH).mean()),
        always_low=float(exact((a < LOW).all(0)).mean()),
        always_high=float(exact((a > HIGH).all(0)).mean()),
        running=Spread(float(norm.running_mean), float((norm.running_var + norm.eps).sqrt())),
        dropping=_spread(found.dropping, norm),
        plain=_spread(found.plain, norm),
    )


def _spread(values: Tensor, norm: BatchNorm) -> Spread:
    values = exact(values)
    return Spread(float(values.mean()), float((values.var(correction=0) + norm.eps).sqrt()))
