"""Other readings of the paper (docs/decisions.md) as registered parts and settings: a plugin.

    wcapsnet train cifar10 --plugin tools/readings.py --set model.routing.fitness=critic-gamma-1

`tools/try_readings.py` trains and compares them. Nothing in the package is changed: a reading is a list of settings.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wcapsnet import parts
from wcapsnet.errors import InputError
from wcapsnet.experiment import Experiment
from wcapsnet.network import Level, Output, Routing, WCapsNet, WCapsNetConfig
from wcapsnet.network.capsules import CapsTrans, CapsuleBlocks, ConvPlus
from wcapsnet.network.critic import BlockCritic, Critic, VectorCritic
from wcapsnet.network.per_capsule import BatchNorm, PerCapsuleConv2d, PerCapsuleShortcut, shared_over_capsules
from wcapsnet.network.routing import Router
from wcapsnet.network.wcapsnet import Routes, by_critics
from wcapsnet.objective import correctness, wasserstein, wasserstein_loss
from wcapsnet.settings import with_setting

# ---- loss terms, weightings, fitness -------------------------------------------------------------------------------


@parts.loss_term("wasserstein-cos-not-detached")
def wasserstein_cos_not_detached(output: Output, images: Tensor, labels: Tensor) -> Tensor:
    """D1: L̃_WS trains the classifier too, through cos θ."""
    cos = correctness(output.logits, labels)
    # Below this N_h is rounding error of cos θ, and the gradient of 1/N_h explodes (D3).
    known = (1 - cos.detach()).clamp_min(0).sum() > len(cos) * torch.finfo(torch.float32).eps
    cos = torch.where(known, cos, cos.detach())
    return torch.stack([wasserstein_loss(routing, cos) for routing in output.routings]).mean()


@parts.loss_term("wasserstein-b-given")
def wasserstein_b_given(output: Output, images: Tensor, labels: Tensor) -> Tensor:
    """D6: L̃_WS takes b as given."""
    given = tuple(Routing(routing.fitness, routing.weights.detach()) for routing in output.routings)
    return wasserstein(output._replace(routings=given), images, labels)


@parts.loss_term("wasserstein-sum")
def wasserstein_sum(output: Output, images: Tensor, labels: Tensor) -> Tensor:
    """D7: L̃_WS as the sum over levels."""
    return wasserstein(output, images, labels) * len(output.routings)


@parts.weighting("votes-as-they-are")
def votes_as_they_are(a: Tensor) -> Tensor:
    """D21: Eq. 7 without the clamp. Where the votes sum to nearly zero, training may diverge."""
    return a / a.flatten(1).sum(1).view(-1, *[1] * (a.dim() - 1))


class Rectified(Critic):
    """D14: ReLU and dropout after the last convolution too."""

    def judge(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.drop(F.relu(layer(x)))
        return self.norm(x).float().sigmoid()


class RectifiedBlocks(Rectified, BlockCritic): ...


class RectifiedVectors(Rectified, VectorCritic): ...


@parts.fitness("critic-rectified")
def critic_rectified(config: WCapsNetConfig, level: Level, size: tuple[int, int], last: bool) -> nn.Module:
    if last:
        return RectifiedVectors(level.dimension, config.critic_channels, config.critic_dropout)
    return RectifiedBlocks(level.dimension, *size, config.critic_channels, config.critic_dropout)


class UnitGamma(BatchNorm):
    """γ = 1; β is trained."""

    def __init__(self) -> None:
        super().__init__(1)
        del self.weight
        self.register_buffer("weight", torch.ones(1))


class BoundedGamma(BatchNorm):
    """|γ| ≤ σ: the batch norm is no steeper than the convolutions before it, whose spectral norm is 1."""

    def __init__(self) -> None:
        super().__init__(1)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.bound()  # a projection, after the optimizer's step
        return super().forward(x)

    def train(self, mode: bool = True) -> BoundedGamma:
        self.bound()  # by the latest σ: what is evaluated and saved is within the bound
        return super().train(mode)

    @torch.no_grad()
    def bound(self) -> None:
        sigma = (self.running_var + self.eps).sqrt()
        self.weight.copy_(self.weight.clamp(-sigma, sigma))


class NoNorm(UnitGamma):
    """No batch norm: γ/σ = 1 for good, and no β."""

    def __init__(self) -> None:
        super().__init__()
        del self.bias
        self.register_buffer("bias", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x


def _critic_with(norm: type[BatchNorm], name: str) -> None:
    def critic(config: WCapsNetConfig, level: Level, size: tuple[int, int], last: bool) -> nn.Module:
        made = parts.fitness["critic"](config, level, size, last)
        made.norm = norm()
        return made

    parts.fitness(name)(critic)


_critic_with(UnitGamma, "critic-gamma-1")
_critic_with(BoundedGamma, "critic-gamma-budget")
_critic_with(NoNorm, "critic-no-norm")


# ---- networks ------------------------------------------------------------------------------------------------------


class BAfterDropout(WCapsNet):
    """D2: L̃_WS sees b after its dropout. The decoded vector is still chosen by b without it (D8)."""

    def forward(self, images: Tensor, *, start: int = 0, routes: Routes = by_critics) -> Output:
        def dropping(level: int, router: Router, c: Tensor) -> Routing:
            a, b = routes(level, router, c)
            return Routing(a, F.dropout(b, self.config.routing.dropout, self.training))

        return super().forward(images, start=start, routes=dropping)

    def applied(self, b: Tensor) -> Tensor:
        return b.detach() if self.config.routing.stop_gradient else b


class DropoutOnTheSum(WCapsNet):
    """D15: dropout on Σ_nij b c, that is, on the same elements of all capsule vectors."""

    def dropped(self, c: Tensor) -> Tensor:
        ones = c.new_ones(c.shape[0], 1, c.shape[2], 1, 1)
        return c * F.dropout(ones, self.config.projection_dropout, self.training)


class AllWeightsDecay(WCapsNet):
    """D10"""

    def decayed_parameters(self) -> list[nn.Parameter]:
        return list(self.parameters())


class AllKernelsDecay(WCapsNet):
    """D10: the critics' kernels too."""

    def decayed_parameters(self) -> list[nn.Parameter]:
        return [p for name, p in self.named_parameters() if p.dim() >= 4 and "weight" in name]


def fan_out(network: WCapsNet) -> None:
    """D20: the same draw, scaled."""
    kernels = [layer.weight for layer in network.modules() if isinstance(layer, PerCapsuleConv2d)]
    for weight in (network.init_conv.weight, *kernels):
        outputs, inputs = weight.shape[-4:-2]
        weight.mul_(math.sqrt(inputs / outputs))


def batch_norms(**constants: float) -> Callable[[WCapsNet], None]:
    """D20: other constants of all batch norms."""

    def change(network: WCapsNet) -> None:
        for layer in network.modules():
            if isinstance(layer, BatchNorm):
                vars(layer).update(constants)

    return change


class OwnStatistics(BatchNorm):
    """D4: the statistics are of each of n capsules; γ and β stay shared."""

    def __init__(self, n: int, shared: BatchNorm):
        super().__init__(n, *shared.shape, momentum=shared.momentum, eps=shared.eps)
        self.weight, self.bias = shared.weight, shared.bias

    def forward(self, x: Tensor) -> Tensor:
        c = x.unflatten(0, (-1, self.shape[0]))  # (m·n, k, i, j) → (m, n, k, i, j)
        own = (self.running_mean.view(-1), self.running_var.view(-1))
        affine = (parameter.repeat(self.shape[0]) for parameter in (self.weight, self.bias))
        return F.batch_norm(c.flatten(1, 2), *own, *affine, self.training, self.momentum, self.eps).view(x.shape)


def statistics_per_capsule(network: WCapsNet) -> None:
    for _, blocks, _ in network.levels():
        blocks.trans.norm = OwnStatistics(blocks.capsules, blocks.trans.norm)


class NormLast(nn.Module):
    """D27: the batch norm after the non-linearity."""

    def __init__(self, trans: CapsTrans):
        super().__init__()
        self.conv_plus, self.norm, self.nonlinearity = trans.conv_plus, trans.norm, trans.nonlinearity

    def forward(self, x: Tensor) -> Tensor:
        return shared_over_capsules(self.norm, self.nonlinearity(self.conv_plus(x)))


def batch_norm_last(network: WCapsNet) -> None:
    for _, blocks, _ in network.levels():
        blocks.trans = NormLast(blocks.trans)


def strided(change: Callable[[CapsuleBlocks, PerCapsuleShortcut], None]) -> Callable[[WCapsNet], None]:
    """D35: a change of the blocks that stride."""

    def every(network: WCapsNet) -> None:
        for _, blocks, _ in network.levels():
            if isinstance(blocks.dense.shortcut, PerCapsuleShortcut):
                change(blocks, blocks.dense.shortcut)

    return every


def shortcut_conv_plus(blocks: CapsuleBlocks, shortcut: PerCapsuleShortcut) -> None:
    n, channels = shortcut.weight.shape[:2]
    blocks.dense.shortcut = ConvPlus(n, channels, channels, shortcut.stride, shortcut.stride)
    blocks.dense.shortcut.conv = shortcut


class PerChannel(nn.Module):
    """Channels instead of capsules: each has a kernel of its own and sees no other."""

    def __init__(self, capsules: int, channels: int, stride: int):
        super().__init__()
        self.conv = PerCapsuleShortcut(capsules * channels, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.flatten(1, 2).unsqueeze(2)).squeeze(2).unflatten(1, x.shape[1:3])


def shortcut_per_channel(blocks: CapsuleBlocks, shortcut: PerCapsuleShortcut) -> None:
    blocks.dense.shortcut = PerChannel(*shortcut.weight.shape[:2], shortcut.stride)


class MeanPool(nn.Module):
    def __init__(self, stride: int):
        super().__init__()
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        return shared_over_capsules(lambda c: F.avg_pool2d(c, self.stride, ceil_mode=True), x)


def shortcut_pooled(blocks: CapsuleBlocks, shortcut: PerCapsuleShortcut) -> None:
    blocks.dense.shortcut = MeanPool(shortcut.stride)


def strided_kernel(blocks: CapsuleBlocks, shortcut: PerCapsuleShortcut) -> None:
    """The strided convolution has a kernel as large as its stride."""
    first = blocks.dense.layers[0]
    n, growth, channels = first.conv.weight.shape[:3]
    first.conv = PerCapsuleShortcut(n, channels, shortcut.stride)
    first.conv.weight = nn.Parameter(first.conv.weight[:, :growth].clone())


def stride_in_transition(blocks: CapsuleBlocks, shortcut: PerCapsuleShortcut) -> None:
    """As in DenseNet: a mean after the 1×1 convolution."""
    blocks.dense.shortcut, blocks.dense.layers[0].conv.stride = nn.Identity(), 1
    blocks.trans.conv_plus = nn.Sequential(blocks.trans.conv_plus, MeanPool(shortcut.stride))


NETWORKS: dict[str, type[WCapsNet] | Callable[[WCapsNet], None]] = {
    "none": lambda network: None,
    "b-after-dropout": BAfterDropout,
    "dropout-on-the-sum": DropoutOnTheSum,
    "all-weights-decay": AllWeightsDecay,
    "all-kernels-decay": AllKernelsDecay,
    "fan-out": fan_out,
    "batch-norm-momentum": batch_norms(momentum=0.01),  # TensorFlow's
    "batch-norm-epsilon": batch_norms(eps=1e-3),
    "statistics-per-capsule": statistics_per_capsule,
    "batch-norm-last": batch_norm_last,
    "shortcut-conv-plus": strided(shortcut_conv_plus),
    "shortcut-per-channel": strided(shortcut_per_channel),
    "shortcut-pooled": strided(shortcut_pooled),
    "strided-kernel": strided(strided_kernel),
    "stride-in-transition": strided(stride_in_transition),
}


@parts.architecture("wcapsnet-reading")
@dataclass(frozen=True)
class ReadingConfig(WCapsNetConfig):
    """The paper's network with one of NETWORKS changed in it."""

    reading: str = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reading not in NETWORKS:
            raise InputError(f"There is no reading {self.reading!r}{parts.suggestion(self.reading, NETWORKS)}")

    def build(self) -> WCapsNet:
        change = NETWORKS[self.reading]
        if isinstance(change, type):
            return change(self)
        network = WCapsNet(self)
        with torch.no_grad():
            change(network)
        return network


# ---- readings ------------------------------------------------------------------------------------------------------


class Reading(NamedTuple):
    question: str  # of docs/decisions.md
    kind: str  # reading: the text may mean it; departure: it does not, but might explain where we fall short
    settings: tuple[str, ...] = ()
    weighting: str | None = None  # only networks with these weights notice


def _term(name: str) -> tuple[str, ...]:
    return "objective.wasserstein=0", f"objective.{name}={{wasserstein}}"  # still logged, as a figure to compare


def _network(name: str) -> tuple[str, ...]:
    return "model.architecture=wcapsnet-reading", f"model.reading={name}"


def _of_networks(question: str, kind: str, *names: str) -> dict[str, Reading]:
    return {name: Reading(question, kind, _network(name)) for name in names}


AS_DECIDED, AS_DECIDED_PLAIN = "as-decided", "as-decided-plain"
READINGS = {
    AS_DECIDED: Reading("–", "–"),
    AS_DECIDED_PLAIN: Reading("–", "–", ("training.kernels=plain",)),
    "cos-not-detached": Reading("D1", "reading", _term("wasserstein-cos-not-detached")),
    **_of_networks("D2", "reading", "b-after-dropout"),
    **_of_networks("D4", "reading", "statistics-per-capsule"),
    "no-extra-class": Reading("D5", "departure", ("model.extra_class=false",)),
    "b-not-differentiated": Reading("D6", "reading", _term("wasserstein-b-given")),
    "sum-over-levels": Reading("D7", "reading", _term("wasserstein-sum")),
    "noise-variance": Reading("D8", "reading", ("model.routing.noise_std=0.7071",)),
    "no-noise": Reading("D8", "departure", ("model.routing.noise_share=0",)),
    "critic-gamma-1": Reading("D9", "reading", ("model.routing.fitness=critic-gamma-1",)),
    "critic-gamma-budget": Reading("D9", "departure", ("model.routing.fitness=critic-gamma-budget",)),
    "critic-no-norm": Reading("D9", "departure", ("model.routing.fitness=critic-no-norm",)),
    **_of_networks("D10", "departure", "all-weights-decay", "all-kernels-decay"),
    "critic-rectified": Reading("D14", "reading", ("model.routing.fitness=critic-rectified",)),
    **_of_networks("D15", "reading", "dropout-on-the-sum"),
    **_of_networks("D20", "reading", "fan-out"),
    **_of_networks("D20", "departure", "batch-norm-momentum", "batch-norm-epsilon"),
    "votes-as-they-are": Reading(
        "D21", "reading", ("model.routing.weighting=votes-as-they-are",), weighting="normalized"
    ),
    **_of_networks("D27", "reading", "batch-norm-last"),
    "l2-not-halved": Reading("D32", "reading", ("training.weight_decay={twice}",)),
    "warm-up": Reading("D33", "departure", ("training.warmup={warmup}",)),
    "no-critic-dropout": Reading("D34", "departure", ("model.critic_dropout=0",)),
    **_of_networks("D35", "reading", "shortcut-conv-plus", "shortcut-per-channel", "strided-kernel"),
    **_of_networks("D35", "departure", "shortcut-pooled", "stride-in-transition"),
}


def experiment_of(name: str, base: Experiment, seed: int, precision: str) -> Experiment:
    values = {
        "wasserstein": base.objective.get("wasserstein", 0.0),
        "twice": 2 * base.training.weight_decay,
        # As many of three epochs as leave a short run one at the full rate before it falls
        "warmup": min((3, *(milestone - 1 for milestone in base.training.milestones))),
    }
    experiment = base
    for setting in READINGS[name].settings:
        experiment = with_setting(experiment, setting.format(**values))
    return replace(experiment, training=replace(experiment.training, seed=seed, precision=precision))


def that_apply_to(base: Experiment) -> list[str]:
    weighting = base.model.routing.weighting
    return [name for name, reading in READINGS.items() if reading.weighting in (None, weighting)]
