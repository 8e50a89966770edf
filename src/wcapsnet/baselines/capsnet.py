"""CapsNet (Sabour, Frosst, Hinton: Dynamic Routing Between Capsules, 2017).

Published (second-hand): MNIST 99.75 %; CIFAR-10 89.4 % as an ensemble of 7. Table V quotes 99.62 % and 70.01 %.
8,215,728 parameters on MNIST: 6,804,384 without the decoder, including 160 of the class bias, which many ports omit;
22.48M on CIFAR-10.

Left open, and decided here: SAME padding is symmetric. The random brightness of the CIFAR-10 network is left out,
because the standardisation of each image undoes it. The loss is that of the authors' code: half the margin loss,
averaged over images and classes, and 0.0005 times the summed squared error of the reconstruction. Also from that code:
each type of primary capsules gets an equal share of the first convolution's output, 1/32 on MNIST, as if it were
routed once. Otherwise, primary capsules start with length 1, and so do class capsules after three iterations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..errors import InputError
from ..network.nonlinearity import squash
from ..parts import architecture, model
from .common import Baseline, CapsuleOutput, DenseDecoder, Pictures, lengths, log_odds, one_class


@architecture("capsnet")
@dataclass(frozen=True)
class CapsNetConfig(Pictures):
    """The defaults are the MNIST network."""

    channels: int = 1
    height: int = 28
    width: int = 28
    conv_channels: int = 256
    types: int = 32  # of primary capsules
    primary_dimension: int = 8
    class_dimension: int = 16
    iterations: int = 3
    same_padding: bool = False
    leaky: bool = False  # a further, constant logit, "none of the classes", takes part in the softmax
    decoder: bool = True
    crop: int = 0  # > 0: see a square of this side, random in training, otherwise the centre
    standardize: bool = False  # each image by its own mean and deviation

    least_side: ClassVar[int] = 17
    may_be_zero: ClassVar[tuple[str, ...]] = ("crop",)
    training: ClassVar[dict[str, object]] = {"optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.0}  # Adam
    normalization: ClassVar[str] = "unit"

    def __post_init__(self) -> None:
        super().__post_init__()
        least, most = 1 if self.same_padding else self.least_side, min(self.height, self.width)
        if self.crop and not least <= self.crop <= most:
            raise InputError(f"model.crop is {self.crop}, but it must be 0 or between {least} and {most}.")

    def build(self) -> CapsNet:
        return CapsNet(self)

    @property
    def terms(self) -> dict[str, float]:
        pixels = self.channels * self.height * self.width
        return {"margin": 0.5 / self.classes, **({"reconstruction": 0.0005 * pixels} if self.decoder else {})}


@model("capsnet")
def capsnet(classes: int, channels: int, height: int, width: int) -> CapsNetConfig:
    """CapsNet for MNIST: 8,215,728 parameters there."""
    return CapsNetConfig(classes, channels, height, width)


@model("capsnet-cifar")
def capsnet_cifar(classes: int, channels: int, height: int, width: int) -> CapsNetConfig:
    """CapsNet for CIFAR-10: leaky routing, 64 types of primary capsules, crops; 22.48M parameters."""
    config = CapsNetConfig(classes, channels, height, width, types=64, same_padding=True, leaky=True, decoder=False)
    return replace(config, crop=min(height, width) * 3 // 4, standardize=True)


class ClassCapsules(nn.Module):
    """Votes û_ij = W_ij u_i of all capsules i for all classes j, routed by agreement."""

    def __init__(self, inputs: int, dimension: int, classes: int, out_dimension: int, iterations: int, leaky: bool):
        super().__init__()
        self.iterations, self.leaky = iterations, leaky
        self.weight = nn.Parameter(torch.empty(inputs, dimension, classes, out_dimension))
        self.bias = nn.Parameter(torch.full((classes, out_dimension), 0.1))
        nn.init.trunc_normal_(self.weight, std=0.1, a=-0.2, b=0.2)

    def forward(self, u: Tensor) -> tuple[Tensor, Tensor]:
        # Copied once into the order in which every iteration reads them.
        votes = torch.einsum("mip,ipjd->mjid", u, self.weight).contiguous()
        v, c = dynamic_routing(votes, self.bias, self.iterations, self.leaky)
        return v, c.transpose(1, 2)


def dynamic_routing(votes: Tensor, bias: Tensor, iterations: int, leaky: bool = False) -> tuple[Tensor, Tensor]:
    """c_ij = softmax_j(b_ij);  v_j = squash(Σ_i c_ij û_ij + bias_j);  b_ij ← b_ij + û_ij·v_j

    û (m, j, i, d), v (m, j, d), c (m, j, i). The gradient flows through all iterations.
    """
    known = votes.detach()
    uses = zip(*(parts.unbind() for parts in Uses.apply(votes, 2 * iterations - 1)), strict=True)
    b = torch.zeros(votes.shape[:3], device=votes.device)
    c = coupling(b, leaky)
    v = squash(WeightedSum.apply(c.to(votes.dtype), known, *next(uses)) + bias, -1)
    for _ in range(iterations - 1):
        b = b + Agreement.apply(v.to(votes.dtype), known, *next(uses))
        c = coupling(b, leaky)
        v = squash(WeightedSum.apply(c.to(votes.dtype), known, *next(uses)) + bias, -1)
    return v, c


class Uses(torch.autograd.Function):
    """The gradient of votes that are used several times, as one product.

    The votes are by far the largest tensor, and every iteration uses them twice. Autograd would write a gradient of
    their size for each use and add these gradients. But the gradient of a use is an outer product of two small tensors,
    (m, j, i) and (m, j, d). Each use gets two placeholders of these shapes and returns the factors as their gradients.
    """

    @staticmethod
    def forward(ctx: Any, votes: Tensor, count: int) -> tuple[Tensor, Tensor]:
        m, j, i, d = votes.shape
        zero = votes.new_zeros(())
        return zero.expand(count, m, j, i), zero.expand(count, m, j, d)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weights: Tensor, vectors: Tensor) -> tuple[Tensor, None]:
        return torch.einsum("umji,umjd->mjid", weights, vectors), None


class WeightedSum(torch.autograd.Function):
    """s_j = Σ_i c_ij û_ij"""

    @staticmethod
    def forward(ctx: Any, c: Tensor, votes: Tensor, weights: Tensor, vectors: Tensor) -> Tensor:
        ctx.save_for_backward(c, votes)
        return torch.einsum("mji,mjid->mjd", c, votes)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor, Tensor]:
        c, votes = ctx.saved_tensors
        grad = grad.to(votes.dtype)
        return torch.einsum("mjid,mjd->mji", votes, grad), None, c, grad


class Agreement(torch.autograd.Function):
    """û_ij·v_j"""

    @staticmethod
    def forward(ctx: Any, v: Tensor, votes: Tensor, weights: Tensor, vectors: Tensor) -> Tensor:
        ctx.save_for_backward(v, votes)
        return torch.einsum("mjid,mjd->mji", votes, v)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor, Tensor]:
        v, votes = ctx.saved_tensors
        grad = grad.to(votes.dtype)
        return torch.einsum("mji,mjid->mjd", grad, votes), None, grad, v


class FirstConvolution(nn.Conv2d):
    """On GPUs, a single input channel is convolved by one matrix product: cuDNN takes three times as long."""

    def forward(self, x: Tensor) -> Tensor:
        return self.as_product(x) if x.is_cuda and self.in_channels == 1 else super().forward(x)

    def as_product(self, x: Tensor) -> Tensor:
        _, _, height, width = self.weight.shape
        down, right = (int(side) for side in self.padding)
        windows = F.pad(x, (right, right, down, down)).unfold(2, height, 1).unfold(3, width, 1)
        windows = windows.permute(0, 2, 3, 1, 4, 5).flatten(3)  # (m, y, x, ch · height · width)
        return F.linear(windows, self.weight.flatten(1), self.bias).permute(0, 3, 1, 2)


def coupling(b: Tensor, leaky: bool) -> Tensor:
    """Softmax over classes; leaky: over the classes and a logit 0, whose share is lost"""
    return F.pad(b, (0, 0, 1, 0)).softmax(1)[:, 1:] if leaky else b.softmax(1)


class CapsNet(Baseline):
    couples = True
    takes_labels = True

    def __init__(self, config: CapsNetConfig | None = None):
        super().__init__()
        self.config = config = config or CapsNetConfig()
        padding, sides = 4 * config.same_padding, [config.crop or side for side in (config.height, config.width)]
        height, width = ((side + 4 * padding - 16 - 1) // 2 + 1 for side in sides)  # after conv1 and primary
        inputs, outputs = config.types * height * width, config.classes * config.class_dimension
        self.conv1 = FirstConvolution(config.channels, config.conv_channels, 9, padding=padding)
        self.primary = nn.Conv2d(
            config.conv_channels, config.types * config.primary_dimension, 9, stride=2, padding=padding
        )
        dimensions = config.primary_dimension, config.classes, config.class_dimension
        self.class_capsules = ClassCapsules(inputs, *dimensions, config.iterations, config.leaky)
        image = config.channels, config.height, config.width
        self.decoder = DenseDecoder(outputs, image) if config.decoder else None
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                std = 0.05 if module is self.conv1 else 0.1
                nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
                nn.init.constant_(module.bias, 0.1)  # type: ignore[arg-type]

    def forward(self, images: Tensor, labels: Tensor | None = None) -> CapsuleOutput:
        """`labels`: the classes to decode, as in training; without them, the longest capsule is decoded."""
        config = self.config
        shares = config.types + config.leaky  # each type gets an equal share of the input, and so does "none of them"
        x = F.relu(self.conv1(self.seen(images)) / shares)  # (m, 256, 20, 20)
        x = self.primary(x).unflatten(1, (config.types, config.primary_dimension))  # (m, 32, 8, 6, 6)
        u = squash(x.movedim(2, -1).flatten(1, 3), -1)  # (m, i, 8), i = type · row · column
        v, c = self.class_capsules(u)  # (m, r, 16), (m, i, r)
        length = lengths(v)  # (m, r)
        image = self.decoder(v, one_class(length, labels)) if self.decoder else None
        return CapsuleOutput(log_odds(length), length, v, (c,), image)

    def seen(self, images: Tensor) -> Tensor:
        """The crop, standardised: (x − mean) / max(deviation, 1 / √pixels)"""
        if side := self.config.crop:
            images = cropped(images, side, self.training)
        if self.config.standardize:
            std, mean = torch.std_mean(images, (1, 2, 3), correction=0, keepdim=True)
            images = (images - mean) / std.clamp_min(images[0].numel() ** -0.5)
        return images


def cropped(images: Tensor, side: int, anywhere: bool) -> Tensor:
    """A square of every image: its own random one, or the centre"""
    m, _, height, width = images.shape
    if not anywhere:
        top, left = (height - side) // 2, (width - side) // 2
        return images[:, :, top : top + side, left : left + side]
    across = torch.arange(side, device=images.device)
    rows = torch.randint(height - side + 1, (m, 1), device=images.device) + across
    columns = torch.randint(width - side + 1, (m, 1), device=images.device) + across
    samples = torch.arange(m, device=images.device)[:, None, None]
    return images.permute(0, 2, 3, 1)[samples, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
