"""Self-Routing CapsNet (Hahn, Pyeon, Kim: Self-Routing Capsule Networks, 2019).

Table V quotes 92.14 % on CIFAR-10 and 96.88 % on SVHN, not compared with its paper, and 3.2M parameters, those of
depth 2: 3,187,536. With depth 1: 931,664, and 92.00 % in a run of this project (docs/results.md).

Left open, and decided here: on images of other sizes the class layer's window is the whole map.

At W2 = 0 the poses get no gradient, and each of 2048 capsules has a small share in the answer. This may be why learning
starts slowly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..parts import architecture, model
from .common import Baseline, Pictures, window_steps, windows


@architecture("sr-capsnet")
@dataclass(frozen=True)
class SRCapsNetConfig(Pictures):
    depth: int = 1  # capsule layers after the primary capsules, the class layer included
    widths: tuple[int, int, int] = (16, 32, 64)  # of the ResNet
    blocks: int = 3  # in each of its stages; 3: ResNet-20
    capsules: int = 32
    dimension: int = 16

    training: ClassVar[dict[str, object]] = {"nesterov": False}

    def build(self) -> SRCapsNet:
        return SRCapsNet(self)


@model("sr-capsnet")
def sr_capsnet(classes: int, channels: int, height: int, width: int) -> SRCapsNetConfig:
    """Self-Routing CapsNet, depth 1: 931,664 parameters on CIFAR-10."""
    return SRCapsNetConfig(classes, channels, height, width)


@model("sr-capsnet-2")
def sr_capsnet_2(classes: int, channels: int, height: int, width: int) -> SRCapsNetConfig:
    """Self-Routing CapsNet, depth 2: 3,187,536 parameters on CIFAR-10."""
    return SRCapsNetConfig(classes, channels, height, width, depth=2)


class SROutput(NamedTuple):
    logits: Tensor  # (m, r): log a_r; Σ_r a_r = 1, so cross entropy is the paper's negative log-likelihood
    routing: tuple[Tensor, ...]  # r_ij of each layer: (m, positions, i, j)


class Block(nn.Module):
    """Two 3×3 convolutions and a shortcut without parameters: every second pixel, zeros for the new channels"""

    def __init__(self, channels: int, out: int, stride: int):
        super().__init__()
        self.stride, self.new = stride, out - channels
        self.conv1 = nn.Conv2d(channels, out, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.new // 2, self.new - self.new // 2))
        return F.relu(x + y)


class SelfRouting(nn.Module):
    """One layer over k×k windows of capsules i, shared by all positions: each capsule decides by itself where it goes.

        r_ij = softmax_j(W2_i u_i + b2_i)
        a_j = Σ_i a_i r_ij / Σ_i a_i
        u_j = Σ_i a_i r_ij W1_ij u_i / Σ_i a_i r_ij

    Without `out_dimension` there are no poses u_j: the class layer.
    """

    def __init__(self, inputs: int, dimension: int, outputs: int, out_dimension: int | None = None):
        super().__init__()
        self.w2 = nn.Parameter(torch.zeros(inputs, dimension, outputs))
        self.b2 = nn.Parameter(torch.zeros(inputs, outputs))
        self.w1: nn.Parameter | None = None
        if out_dimension:
            self.w1 = nn.Parameter(torch.empty(outputs, inputs, dimension, out_dimension))
            # Kaiming-uniform in the authors' layout, (inputs, outputs · out_dimension, dimension). Batch norm follows:
            # the scale of W1 does not change the poses, but it does change how fast W1 learns.
            bound = (6 / (outputs * out_dimension * dimension)) ** 0.5
            nn.init.uniform_(self.w1, -bound, bound)

    def forward(self, a: Tensor, u: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """a (p, i), u (p, i, d) → a (p, j), u (p, j, d), r (p, i, j)"""
        r = (torch.einsum("pid,idj->pij", u, self.w2) + self.b2).float().softmax(2)
        routed = a[:, :, None] * r  # a_i r_ij
        total = routed.sum(1)  # (p, j)
        activation = total / a.sum(1, keepdim=True)
        return activation, None if self.w1 is None else self.poses(routed, u) / total[:, :, None], r

    def poses(self, routed: Tensor, u: Tensor, at_once: int = 32) -> Tensor:
        """Σ_i a_i r_ij W1_ij u_i  (p, j, d)

        The routing is applied before W1, to 32 input capsules at a time, which are computed again for the gradient: the
        votes of all capsules for all others, by far the largest tensor, never exist.
        """
        assert self.w1 is not None
        parts = zip(routed.split(at_once, 1), u.split(at_once, 1), self.w1.split(at_once, 1), strict=True)
        if not torch.is_grad_enabled():
            return torch.stack([_weighted_votes(*part) for part in parts]).sum(0)
        poses = [checkpoint(_weighted_votes, *p, use_reentrant=False, preserve_rng_state=False) for p in parts]
        return torch.stack(poses).sum(0)


def _weighted_votes(routed: Tensor, u: Tensor, w1: Tensor) -> Tensor:
    x = routed.to(u.dtype).permute(2, 0, 1)[..., None] * u  # (j, p, i, d)
    return torch.einsum("jpid,jido->pjo", x, w1).float()


class SRCapsNet(Baseline):
    couples = True

    def __init__(self, config: SRCapsNetConfig | None = None):
        super().__init__()
        self.config = config = config or SRCapsNetConfig()
        n, d, widths = config.capsules, config.dimension, config.widths
        self.conv = nn.Conv2d(config.channels, widths[0], 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(widths[0])
        self.blocks, channels = nn.Sequential(), widths[0]
        for stage, out in enumerate(widths):
            for block in range(config.blocks):
                self.blocks.append(Block(channels, out, 2 if stage > 0 and block == 0 else 1))
                channels = out
        self.activation_conv = nn.Conv2d(channels, n, 3, padding=1, bias=False)
        self.activation_norm = nn.BatchNorm2d(n)
        self.pose_conv = nn.Conv2d(channels, n * d, 3, padding=1, bias=False)
        self.pose_norm = nn.BatchNorm2d(n * d)
        self.layers, self.norms = nn.ModuleList(), nn.ModuleList()
        self.maps = [(-(-config.height // 4), -(-config.width // 4))]
        for _ in range(config.depth - 1):
            self.layers.append(SelfRouting(9 * n, d, n, d))
            self.norms.append(nn.BatchNorm2d(n * d))
            height, width = self.maps[-1]
            self.maps.append((window_steps(height, 3, 2, 1), window_steps(width, 3, 2, 1)))
        height, width = self.maps[-1]
        self.class_layer = SelfRouting(height * width * n, d, config.classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_uniform_(module.weight, nonlinearity="relu")

    def forward(self, images: Tensor) -> SROutput:
        m, n, d = images.shape[0], self.config.capsules, self.config.dimension
        x = self.blocks(F.relu(self.norm(self.conv(images))))  # (m, 64, 8, 8)
        a = self.activation_norm(self.activation_conv(x)).float().sigmoid()[:, :, None]  # (m, n, 1, 8, 8)
        u = self.pose_norm(self.pose_conv(x)).unflatten(1, (n, d))  # (m, n, d, 8, 8)
        routing = []
        for layer, norm, size in zip(self.layers, self.norms, self.maps[1:], strict=True):
            seen = [windows(part, (3, 3), 2, 1).flatten(0, 1) for part in (a, u)]
            a, u, r = layer(seen[0].squeeze(2), seen[1])  # (m·positions, j), (m·positions, j, d)
            routing.append(r.unflatten(0, (m, -1)))
            a = a.unflatten(0, (m, *size)).permute(0, 3, 1, 2)[:, :, None]  # (m, n, 1, 4, 4)
            u = norm(u.unflatten(0, (m, *size)).permute(0, 3, 4, 1, 2).flatten(1, 2)).unflatten(1, (n, d))
        every = [windows(part, self.maps[-1], 1, 0).squeeze(1) for part in (a, u)]  # (m, i, 1), (m, i, d)
        a, _, r = self.class_layer(every[0].squeeze(2), every[1])
        return SROutput((a + 1e-12).log(), (*routing, r[:, None]))
