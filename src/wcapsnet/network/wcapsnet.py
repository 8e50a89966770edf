"""The Wasserstein Routed Capsule Network: Fig. 1 as `forward`, Table I as configuration. Read this file first."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import parts
from ..errors import InputError, shown
from ..limits import MIN_SIDE
from ..parts import Kind, architecture, fitness
from . import nonlinearity  # noqa: F401 - registers them
from .capsules import CapsuleBlocks, ConvPlus
from .critic import BlockCritic, ConstantFitness, JointCritic, RandomFitness, VectorCritic
from .decoder import BestCapsule, Decoder, best_capsule
from .routing import Router, Routing, fault_of, make_weighting, predict, route, sharpen


@dataclass(frozen=True)
class Level:
    """One row of Table I."""

    capsules: int  # N
    growth: int  # g
    dimension: int  # k
    stride: int  # s


@dataclass(frozen=True)
class RoutingConfig:
    """How fitness becomes weights, and how it is perturbed in training (Sections III-C and III-F)."""

    fitness: str = "critic"  # source of the fitness: critic, joint (D44), random, constant
    weighting: str = "softmax"  # Eq. 6 (softmax) or Eq. 7 (normalized)
    sharpness: tuple[float, ...] = (1.0,)  # multiplies the fitness before weighting: for all levels, or one each (D37)
    per_position: bool = False  # True: feature levels weigh their blocks at every position, not once per image (D39)
    stop_gradient: bool = False  # True: the cross entropy does not train the critics (WS in Table IV)
    noise_share: float = 0.05  # share of the fitness values with added noise
    noise_std: float = 0.5  # its standard deviation, in units of the largest fitness (D8)
    dropout: float = 0.1  # on b


# Table I. The CIFAR-10 column is also used for SVHN and MNIST (D11).
CIFAR10_LEVELS = (Level(16, 8, 16, 2), Level(8, 8, 32, 1), Level(4, 8, 64, 2), Level(2, 8, 8, 1))
CIFAR100_LEVELS = (*CIFAR10_LEVELS[:3], Level(2, 8, 24, 1))


@architecture("wcapsnet")
@dataclass(frozen=True)
class WCapsNetConfig:
    """The configuration of the network. The defaults are the paper's CIFAR-10 network."""

    classes: int = 10
    channels: int = 3
    height: int = 32
    width: int = 32
    levels: tuple[Level, ...] = CIFAR10_LEVELS
    init_channels: int = 24
    stem: tuple[int, ...] = ()  # channels of conv+ before the first level; one wider than the one before pools by 2
    dense_layers: int = 6  # n_D
    max_pooling: bool = False  # True: levels reduce their input by max pooling, not by strided convolutions
    nonlinearity: str = "tilt"
    routing: RoutingConfig = field(default_factory=RoutingConfig)
    critic_channels: int = 32  # k_critic; in a joint critic, the width of the hidden layer
    critic_dropout: float = 0.3  # joint critics have none
    projection_dropout: float = 0.3  # before W
    decoder_channels: tuple[int, int] = (32, 64)
    extra_class: bool = True  # the paper's output N + 1, "none of these", never a target (D5)

    def __post_init__(self) -> None:
        self._check()

    def build(self) -> WCapsNet:
        return WCapsNet(self)

    @property
    def outputs(self) -> int:
        """r = 1 … N_Classes + 1"""
        return self.classes + self.extra_class

    def stem_layers(self) -> list[tuple[int, int, int]]:
        """Channels before and after, and pooling, of each layer of the stem"""
        before = (self.init_channels, *self.stem)
        pools = (1, *(2 if wider > c else 1 for c, wider in itertools.pairwise(self.stem)))
        return [(c, after, pool) for (c, after), pool in zip(itertools.pairwise(before), pools, strict=False)]

    def stem_stride(self) -> int:
        return math.prod(pool for _, _, pool in self.stem_layers())

    def first_map(self) -> tuple[int, int]:
        """Height and width of the first level's input"""
        return -(-self.height // self.stem_stride()), -(-self.width // self.stem_stride())

    def maps(self) -> list[tuple[int, int]]:
        """Height and width of each level's capsules."""
        (height, width), sizes = self.first_map(), []
        for level in self.levels:
            height, width = -(-height // level.stride), -(-width // level.stride)
            sizes.append((height, width))
        return sizes

    def activations(self) -> tuple[int, int]:
        """Floats per image, at least: those kept for the backward pass, and those in use at once in evaluation."""
        height, width, kept, working = self.height, self.width, 0, 0
        for before, _, pool in self.stem_layers():
            height, width = -(-height // pool), -(-width // pool)
            kept += 2 * before * height * width
            working = max(working, 2 * before * height * width)
        channels = (self.init_channels, *self.stem)[-1]
        for level, (i, j) in zip(self.levels, self.maps(), strict=True):
            n, growing = (
                level.capsules,
                self.dense_layers * channels + level.growth * (self.dense_layers * (self.dense_layers + 1) // 2),
            )
            first = 2 * n * channels * height * width  # of every layer, the input and what the batch norm returns
            last = 2 * n * (channels + level.growth * self.dense_layers) * i * j
            kept += first + 2 * n * (growing + level.dimension) * i * j
            working = max(working, first, last)
            height, width, channels = i, j, level.dimension
        return kept, working

    def _check(self) -> None:
        def require(holds: bool, name: str, value: object, needs: str) -> None:
            if not holds:
                raise InputError(f"model.{name} is {shown(value)}, but it must be {needs}.")

        def number(value: object) -> bool:
            return isinstance(value, (int, float)) and not isinstance(value, bool)

        def count(name: str, value: object, least: int) -> None:
            whole = isinstance(value, int) and not isinstance(value, bool) and value >= least
            require(whole, name, value, f"a whole number of at least {least}")

        def probability(name: str, value: float) -> None:
            require(number(value) and 0 <= value < 1, name, value, "a probability: at least 0, below 1")

        def one_of(name: str, value: str, known: Kind) -> None:
            require(value in known, name, value, "one of " + ", ".join(known))

        def switch(name: str, value: object) -> None:
            require(isinstance(value, bool), name, value, "true or false")

        count("classes", self.classes, 2)
        count("channels", self.channels, 1)
        count("height", self.height, MIN_SIDE)
        count("width", self.width, MIN_SIDE)
        count("init_channels", self.init_channels, 1)
        require(isinstance(self.stem, tuple), "stem", self.stem, "a list of numbers of channels")
        for index, value in enumerate(self.stem):
            count(f"stem.{index}", value, 1)
        count("dense_layers", self.dense_layers, 1)
        count("critic_channels", self.critic_channels, 1)
        two = isinstance(self.decoder_channels, tuple) and len(self.decoder_channels) == 2
        require(two, "decoder_channels", self.decoder_channels, "two numbers")
        for index, value in enumerate(self.decoder_channels):
            count(f"decoder_channels.{index}", value, 1)
        probability("critic_dropout", self.critic_dropout)
        probability("projection_dropout", self.projection_dropout)
        one_of("nonlinearity", self.nonlinearity, parts.nonlinearity)
        switch("extra_class", self.extra_class)
        switch("max_pooling", self.max_pooling)

        require(isinstance(self.routing, RoutingConfig), "routing", self.routing, "a RoutingConfig")
        one_of("routing.fitness", self.routing.fitness, parts.fitness)
        one_of("routing.weighting", self.routing.weighting, parts.weighting)
        if fault := fault_of(parts.weighting[self.routing.weighting]):
            raise InputError(f"model.routing.weighting is {shown(self.routing.weighting)}, but {fault}.")
        switch("routing.stop_gradient", self.routing.stop_gradient)
        switch("routing.per_position", self.routing.per_position)
        share, std = self.routing.noise_share, self.routing.noise_std
        require(number(share) and 0 <= share <= 1, "routing.noise_share", share, "between 0 and 1")
        require(number(std) and 0 <= std < math.inf, "routing.noise_std", std, "a finite number of at least 0")
        probability("routing.dropout", self.routing.dropout)

        levels = isinstance(self.levels, tuple) and all(isinstance(level, Level) for level in self.levels)
        require(levels and len(self.levels) >= 1, "levels", self.levels, "a tuple of at least one Level")
        for index, level in enumerate(self.levels):
            for name in ("capsules", "growth", "dimension", "stride"):
                count(f"levels.{index}.{name}", getattr(level, name), 1)
        sharp, number_of_levels = self.routing.sharpness, len(self.levels)
        one_each = isinstance(sharp, tuple) and len(sharp) in (1, number_of_levels)
        require(one_each, "routing.sharpness", sharp, f"one number, or {number_of_levels}, one for each level")
        for index, factor in enumerate(sharp):
            fits = number(factor) and 0 < factor < math.inf
            require(fits, f"routing.sharpness.{index}", factor, "a finite number above zero")
        side = min(self.height, self.width)
        fewer = f"such that it pools by at most {side}, the smaller side of the images, not {self.stem_stride()}"
        require(self.stem_stride() <= side, "stem", self.stem, fewer)
        inputs = [self.first_map(), *self.maps()[:-1]]
        for index, (level, (height, width)) in enumerate(zip(self.levels, inputs, strict=True)):
            needs = f"at most {min(height, width)}, the smaller side of the {height}×{width} map it strides over"
            require(level.stride <= min(height, width), f"levels.{index}.stride", level.stride, needs)


class Output(NamedTuple):
    """The output of a forward pass.

    `logits` has a last column "none of these" if `config.extra_class` is set. It is not a class: predict with
    `network.class_logits(output).argmax(1)`.
    """

    logits: Tensor  # p  (m, r): the N classes, then "none of these" if configured
    reconstruction: Tensor  # (m, ch, h, w)
    routings: tuple[Routing, ...]  # a and b of each level
    best: BestCapsule  # the source of the reconstruction
    capsules: tuple[Tensor, ...]  # c of each level: (m, n, k, i, j)


Routes = Callable[[int, Router, Tensor], Routing]
"""level, router, c → the routing of that level"""


def by_critics(level: int, router: Router, c: Tensor) -> Routing:
    return router(c)


class WCapsNet(nn.Module):
    def __init__(self, config: WCapsNetConfig | None = None):
        super().__init__()
        self.config = config = config or WCapsNetConfig()
        self.init_conv = nn.Conv2d(config.channels, config.init_channels, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(self.init_conv.weight, nonlinearity="relu")
        self.stem = nn.ModuleList(ConvPlus(1, before, after, kernel=3) for before, after, _ in config.stem_layers())
        self.capsules = nn.ModuleList()
        self.routers = nn.ModuleList()
        channels = (config.init_channels, *config.stem)[-1]
        for index, level in enumerate(config.levels):
            self.capsules.append(
                CapsuleBlocks(
                    level.capsules,
                    channels,
                    level.growth,
                    config.dense_layers,
                    level.dimension,
                    level.stride,
                    parts.nonlinearity[config.nonlinearity],
                    config.max_pooling,
                )
            )
            self.routers.append(_router(config, index))
            channels = level.dimension
        self.projection = nn.Parameter(torch.empty(channels, config.outputs))  # W
        nn.init.uniform_(self.projection, -(channels**-0.5), channels**-0.5)
        self.decoder = Decoder(channels, config.channels, config.height, config.width, config.decoder_channels)

    def forward(self, images: Tensor, *, start: int = 0, routes: Routes = by_critics) -> Output:
        """Fig. 1. With `start`, `images` is the input of that level; `routes` replaces the critics' routing."""
        x = images if start else self.initial(images)  # (m, k, i, j)
        capsules, routings = [], []
        *feature_levels, (last, blocks, router) = list(self.levels())[start:]
        for level, feature_blocks, feature_router in feature_levels:
            c = feature_blocks(x)  # (m, n, k, i, j)
            routing = routes(level, feature_router, c)  # a, b: (m, n), or (m, n, i, j) per position
            x = route(self.applied(routing.weights), c)  # Eq. 13: (m, k, i, j)
            capsules.append(c)
            routings.append(routing)
        c = blocks(x)  # (m, n, k, i, j)
        routing = routes(last, router, c)  # a, b: (m, n, i, j)
        dropped = self.dropped(c)
        logits = predict(self.applied(routing.weights), dropped, self.projection)  # Eq. 14: (m, r)
        noisy = self.training and routes is by_critics
        without_noise = router.weights(routing.fitness) if noisy else routing.weights
        best = best_capsule(without_noise, c, self.class_projection)  # vector (m, k), position (m, 2)
        return Output(logits, self.decoder(best), (*routings, routing), best, (*capsules, c))

    def initial(self, images: Tensor) -> Tensor:
        """The initial convolution, and the stem if there is one: the input of the first level."""
        images = self._checked(images)
        # Channels last is faster on CPUs, though not for strided convolutions of many narrow capsules.
        faster = self.training and images.is_cpu and self.config.max_pooling
        layout = torch.channels_last if faster else torch.contiguous_format
        x = self.init_conv(images.contiguous(memory_format=layout))
        x = x.contiguous(memory_format=layout)  # images of a single channel have no layout to keep
        for layer, (_, _, pool) in zip(self.stem, self.config.stem_layers(), strict=True):
            x = F.max_pool2d(x, pool, ceil_mode=True) if pool > 1 else x
            x = layer(x.unsqueeze(1)).squeeze(1)
        return x

    def levels(self) -> Iterator[tuple[int, CapsuleBlocks, Router]]:
        """Number, capsule blocks and router of each level, first to last."""
        for level, (blocks, router) in enumerate(zip(self.capsules, self.routers, strict=True)):
            yield level, cast(CapsuleBlocks, blocks), cast(Router, router)

    def handed_on(self, level: int, b: Tensor, c: Tensor) -> Tensor:
        """The next level's input (Eq. 13) for capsules c with weights b; for the last level, the logits (Eq. 14)."""
        return route(b, c) if level < len(self.capsules) - 1 else predict(b, c, self.projection)

    def keeping(self, keep: Sequence[Tensor | None] | None) -> Routes:
        """Routes that switch capsules off: for each level None or a mask of the kept ones, (n,) or (m, n).

        Their weights are redistributed to the kept ones in proportion, so at least one must be kept.
        """
        if keep is None:
            return by_critics
        self._check_kept(keep)
        return lambda level, router, c: router(c, keep[level])

    def applied(self, b: Tensor) -> Tensor:
        """b as applied to capsules: with dropout, and for WS detached from the cross entropy (III-F, Table IV)."""
        if self.config.routing.stop_gradient:
            b = b.detach()
        return F.dropout(b, self.config.routing.dropout, self.training)

    def dropped(self, c: Tensor) -> Tensor:
        """c with the dropout before W (D15)."""
        return F.dropout(c, self.config.projection_dropout, self.training)

    def sharpen(self, share: float) -> None:
        """Set the sharpness in training to this share of the way from 1 to the configured value (D42)."""
        for _, _, router in self.levels():
            sharpen(router, share, self.projection.device)

    @property
    def class_projection(self) -> Tensor:
        """W without the column of "none of these" (D5): (k, N)"""
        return self.projection[:, : self.config.classes]

    def class_logits(self, output: Output) -> Tensor:
        """The N real classes, without "none of these": the basis of predictions and probabilities (D5)."""
        return output.logits[:, : self.config.classes]

    def decayed_parameters(self) -> list[nn.Parameter]:
        """The parameters in L₂: the convolution kernels outside the critics (III-F, D10)."""
        outside = [self.init_conv, self.stem, self.capsules, self.decoder]
        return [p for part in outside for name, p in part.named_parameters() if p.dim() >= 4 and "weight" in name]

    def parameter_counts(self) -> dict[str, int]:
        """Counted as in Table I: W belongs to the critics."""

        def total(*parts: nn.Module) -> int:
            return sum(p.numel() for part in parts for p in part.parameters())

        return {
            "classifier": total(self.init_conv, self.stem, self.capsules),
            "critics": total(self.routers) + self.projection.numel(),
            "decoder": total(self.decoder),
        }

    def _checked(self, images: Tensor) -> Tensor:
        config = self.config
        expected = (config.channels, config.height, config.width)
        if images.dim() != 4 or images.shape[1:] != expected:
            raise ValueError(
                f"The network takes images of shape (m, {', '.join(map(str, expected))}), not {tuple(images.shape)}."
            )
        return images

    def _check_kept(self, keep: Sequence[Tensor | None]) -> None:
        if len(keep) != len(self.config.levels):
            raise ValueError(f"`keep` has {len(keep)} entries, but the network has {len(self.config.levels)} levels.")
        for index, (level, mask) in enumerate(zip(self.config.levels, keep, strict=True)):
            if mask is None:
                continue
            if mask.dtype != torch.bool or mask.dim() not in (1, 2) or mask.shape[-1] != level.capsules:
                raise ValueError(
                    f"keep[{index}] must be boolean, ({level.capsules},) or (m, {level.capsules}), "
                    f"not {mask.dtype} {tuple(mask.shape)}."
                )
            if not mask.any(-1).all():
                raise ValueError(f"keep[{index}] switches all capsules off; at least one must be kept.")


@fitness("critic")
def critic(config: WCapsNetConfig, level: Level, size: tuple[int, int], last: bool) -> nn.Module:
    """The paper's critics (Section IV-B)."""
    if last or config.routing.per_position:
        return VectorCritic(level.dimension, config.critic_channels, config.critic_dropout)
    return BlockCritic(level.dimension, *size, config.critic_channels, config.critic_dropout)


@fitness("joint")
def joint_critic(config: WCapsNetConfig, level: Level, size: tuple[int, int], last: bool) -> nn.Module:
    """Judges all blocks of a level together and helps to train them (D44)."""
    per_position = last or config.routing.per_position
    return JointCritic(level.capsules, level.dimension, config.critic_channels, per_position)


@fitness("random")
def random_fitness(config: WCapsNetConfig, level: Level, size: tuple[int, int], last: bool) -> nn.Module:
    """Drawn from U(0, 1): *Random* in Table IV."""
    return RandomFitness(*judged(config, level, size, last))


@fitness("constant")
def constant_fitness(config: WCapsNetConfig, level: Level, size: tuple[int, int], last: bool) -> nn.Module:
    """All equal: *Uniform* in Table IV."""
    return ConstantFitness(*judged(config, level, size, last))


def judged(config: WCapsNetConfig, level: Level, size: tuple[int, int], last: bool) -> tuple[int, ...]:
    """The shape of a level's fitness: one per block; in the last level, or per position, one per vector"""
    return (level.capsules, *size) if last or config.routing.per_position else (level.capsules,)


def _router(config: WCapsNetConfig, index: int) -> Router:
    routing, last = config.routing, index == len(config.levels) - 1
    critic = parts.fitness[routing.fitness](config, config.levels[index], config.maps()[index], last)
    sharpness = routing.sharpness[index % len(routing.sharpness)]
    per_position = routing.per_position and not last
    shape = judged(config, config.levels[index], config.maps()[index], last)
    weigh = make_weighting(parts.weighting[routing.weighting], shape[:1] if per_position else shape)
    return Router(critic, weigh, routing.noise_share, routing.noise_std, sharpness, per_position)
