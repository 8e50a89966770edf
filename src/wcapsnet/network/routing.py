"""From fitness to weights, and from weights to the next level or the prediction (Sections III-C to III-F)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..limits import EQUAL
from ..parts import weighting
from .per_capsule import channels_last


class Routing(NamedTuple):
    """The routing of one level: (m, n) for a feature level, (m, n, i, j) for the last and for weights per position."""

    fitness: Tensor  # a, from the critic, without noise
    weights: Tensor  # b, sums to 1 over all capsules of a sample


@weighting("softmax")
def softmax_weights(a: Tensor) -> Tensor:
    """Eq. 6:  b_n = softmax(a_n), over capsules, and over capsules × positions in the last level"""
    return a.flatten(1).softmax(1).view_as(a)


@weighting("normalized")
def normalized_weights(a: Tensor) -> Tensor:
    """Eq. 7:  b_n = a_n / Σ_n a_n"""
    # Noise can push a fitness below zero, and Eq. 7 needs weights that sum to one: negative values count as zero,
    # and if nothing is left the ε makes the weights equal.
    a = a.clamp_min(0) + 1e-6
    return a / a.flatten(1).sum(1).view(-1, *[1] * (a.dim() - 1))


def make_weighting(part: Any, shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """A registered weighting for a level with a fitness of this shape, (n,) or (n, i, j)

    A weighting with parameters is registered as an `nn.Module` class, and each level has its own instance.
    """
    return part(shape) if isinstance(part, type) else part


@functools.lru_cache(maxsize=256)
def fault_of(part: Any) -> str | None:
    """What is wrong with a registered weighting, tried on two fitnesses: its weights must sum to 1 over a sample"""
    with torch.no_grad(), torch.random.fork_rng(devices=[]), torch.device("cpu"):
        for shape in ((3,), (3, 4, 5)):  # of a feature level and of the last level
            a = torch.rand(2, *shape)
            b = make_weighting(part, shape)(a)
            if b.shape != a.shape:
                return f"it turns a fitness of shape {tuple(a.shape)} into {tuple(b.shape)}; keep the shape"
            total = float(b[0].sum())
            if not abs(total - 1) < 1e-3:
                return (
                    f"its weights sum to {total:.4g} for a fitness of shape {tuple(a.shape)}; divide them by their sum "
                    "over all capsules and positions of a sample"
                )
    return None


def heaviest(b: Tensor) -> Tensor:
    """Which of the weights b (…, n) are within 1 % of the largest (D31)"""
    return b >= EQUAL * b.amax(-1, keepdim=True)


def block_weights(b: Tensor) -> Tensor:
    """(…, n): the weight of every block; where positions have weights (m, n, i, j), the sum over them"""
    return b.float().flatten(2).sum(2) if b.dim() > 2 else b.float()


def winners(weights: Sequence[Tensor]) -> tuple[tuple[int, ...], ...]:
    """The winning blocks of each level for one sample: b is (n,), and (n, i, j) in the last level."""
    return tuple(tuple(heaviest(block_weights(b[None])[0]).nonzero().flatten().tolist()) for b in weights)


def kept(b: Tensor, keep: Tensor, per_position: bool = False) -> Tensor:
    """b_n / Σ_kept b_n for kept capsules, 0 for those switched off

    Where Σ_kept b_n = 0 the kept ones have equal weights; nan if none is kept. `keep` is (n,), or (m, n) with a
    mask per sample; a block is switched off at all positions. With `per_position`, every position is normalised alone.
    """
    mask = keep.view(*keep.shape, *[1] * (b.dim() - 2)).to(b.dtype).expand_as(b)
    axes = (1,) if per_position else tuple(range(1, b.dim()))
    b = b * mask
    b = torch.where(b.sum(axes, keepdim=True) == 0, mask, b)
    b = b / b.sum(axes, keepdim=True)
    return b / b[0, 0].numel() if per_position else b


def at_each_position(weigh: Callable[[Tensor], Tensor], a: Tensor) -> Tensor:
    """b (m, n, i, j): the blocks of a position share 1/(i·j), so that all weights of a sample sum to 1 (D39)"""
    m, n, i, j = a.shape
    b = weigh(a.movedim(1, 3).reshape(-1, n))  # positions as samples
    return b.view(m, i, j, n).movedim(3, 1) / (i * j)


def add_noise(a: Tensor, share: float, std: float) -> Tensor:
    """a_n + ε max_n(a_n),  ε ~ N(0, 0.5), on a random 5 % of the values (III-F, D8)"""
    largest = a.detach().flatten(1).amax(1).view(-1, *[1] * (a.dim() - 1))
    chosen = torch.rand_like(a) < share
    return a + chosen * torch.randn_like(a) * std * largest


class Router(nn.Module):
    """c → a (Eq. 5) → noise in training → b (Eq. 6 or 7)"""

    def __init__(
        self,
        critic: nn.Module,
        weigh: Callable[[Tensor], Tensor],
        noise_share: float,
        noise_std: float,
        sharpness: float = 1.0,
        per_position: bool = False,
    ):
        super().__init__()
        self.critic = critic
        self.weighting = weigh
        self.noise_share, self.noise_std = noise_share, noise_std
        self.sharpness = sharpness
        self.growing: Tensor | None = None  # the sharpness in training, while it grows
        self.per_position = per_position

    def forward(self, c: Tensor, keep: Tensor | None = None) -> Routing:
        a = self.critic(c)
        noisy = add_noise(a, self.noise_share, self.noise_std) if self.training and self.noise_share > 0 else a
        return Routing(fitness=a, weights=self.weights(noisy, keep))

    def weights(self, a: Tensor, keep: Tensor | None = None) -> Tensor:
        """b, over the kept capsules: Eq. 6 or 7 of the fitness times the sharpness (D37)"""
        a = a * (self.sharpness if self.growing is None or not self.training else self.growing)
        b = at_each_position(self.weighting, a) if self.per_position else self.weighting(a)
        return b if keep is None else kept(b, keep, self.per_position)


def sharpen(router: Router, share: float, device: torch.device) -> None:
    """Set the sharpness in training to  s_t = 1 + share · (s − 1)  (D42). A recorded step reads it from memory."""
    if router.growing is None:
        router.growing = torch.empty((), device=device)
    router.growing.fill_(1 + share * (router.sharpness - 1))


def route(b: Tensor, c: Tensor) -> Tensor:
    """Eq. 13:  c̃ = Σ_n b_n c_n;  with weights per position (D39):  c̃_ij = i·j Σ_n b_nij c_nij"""
    if b.dim() > 2:
        return torch.einsum("mnij,mnkij->mkij", (b * b[0, 0].numel()).to(c.dtype), c)
    if channels_last(c):  # keeps the layout, which einsum would not
        b = b.to(c.dtype)[:, :, None, None, None]
        return functools.reduce(torch.add, map(torch.mul, b.unbind(1), c.unbind(1)))
    return torch.einsum("mn,mnkij->mkij", b.to(c.dtype), c)


def predict(b: Tensor, c: Tensor, w: Tensor) -> Tensor:
    """Eq. 14:  p_r = Σ_nij b_nij Σ_k c_nijk W_kr"""
    with torch.autocast(c.device.type, enabled=False):  # the logits need full precision
        return torch.einsum("mnij,mnkij,kr->mr", b.float(), c.float(), w.float())
