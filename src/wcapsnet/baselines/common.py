"""What the networks of Table V share: the shape of their pictures, their outputs, and what capsules need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import InputError
from ..parts import loss_term


@dataclass(frozen=True)
class Pictures:
    """The first fields of every configuration, and how such a network is trained where no recipe says otherwise."""

    classes: int = 10
    channels: int = 3
    height: int = 32
    width: int = 32

    least_side: ClassVar[int] = 8
    may_be_zero: ClassVar[tuple[str, ...]] = ()  # all other numbers are at least 1
    training: ClassVar[dict[str, object]] = {}  # changes to TrainingConfig
    normalization: ClassVar[str] = "standardize"

    def __post_init__(self) -> None:
        leasts = dict.fromkeys(self.may_be_zero, 0)
        leasts |= {"classes": 2, "height": self.least_side, "width": self.least_side}
        for name, value in vars(self).items():
            least, several = leasts.get(name, 1), isinstance(value, tuple)
            for one in value if several else (value,):
                if not isinstance(one, int) or (one < least and not isinstance(one, bool)):
                    must = "contain whole numbers" if several else "be a whole number"
                    raise InputError(f"model.{name} is {value!r}, but it must {must} of at least {least}.")

    @property
    def terms(self) -> dict[str, float]:
        """The loss: its terms and their weights"""
        return {"cross_entropy": 1.0}


class Baseline(nn.Module):
    couples = False  # True: it routes, and the field `routing` of its output says how
    takes_labels = False  # True: `forward(images, labels)` decodes the true class instead of the predicted one

    def decayed_parameters(self) -> list[nn.Parameter]:
        """Weight decay applies to all parameters."""
        return list(self.parameters())


class LogitsOutput(NamedTuple):
    logits: Tensor  # (m, r)


class CapsuleOutput(NamedTuple):
    logits: Tensor  # (m, r): log-odds of the lengths
    lengths: Tensor  # (m, r): ‖v_r‖
    capsules: Tensor  # (m, r, d): v, the class capsules
    routing: tuple[Tensor, ...]  # coupling coefficients of each routed layer; the last is (m, i, r)
    reconstruction: Tensor | None  # (m, ch, h, w)


def lengths(v: Tensor) -> Tensor:
    """‖v‖ over the last axis, in float32"""
    return (v.float().square().sum(-1) + 1e-12).sqrt()  # the ε keeps the gradient finite at v = 0


def log_odds(lengths: Tensor) -> Tensor:
    """log ‖v‖ / (1 − ‖v‖)

    A length is the probability that its class is present. Given that exactly one class is, class r has the probability
    ∝ ‖v_r‖ Π_{q≠r} (1 − ‖v_q‖) ∝ ‖v_r‖ / (1 − ‖v_r‖), which is the softmax of these logits.
    """
    return torch.logit(lengths, eps=1e-6)


def one_class(lengths: Tensor, labels: Tensor | None) -> Tensor:
    """(m, r): 1 for the true class, or without labels for the longest capsule; 0 elsewhere"""
    chosen = lengths.argmax(1) if labels is None else labels
    return (chosen[:, None] == torch.arange(lengths.shape[1], device=lengths.device)).to(lengths.dtype)


@loss_term("margin")
def margin(output: CapsuleOutput, images: Tensor, labels: Tensor) -> Tensor:
    """Σ_r T_r max(0, 0.9 − ‖v_r‖)² + 0.5 (1 − T_r) max(0, ‖v_r‖ − 0.1)², the mean over images"""
    true = one_class(output.lengths, labels)
    present, absent = F.relu(0.9 - output.lengths).square(), F.relu(output.lengths - 0.1).square()
    return (true * present + 0.5 * (1 - true) * absent).sum(1).mean()


def windows(x: Tensor, kernel: tuple[int, int], stride: int, padding: int) -> Tensor:
    """The capsules under a sliding window: (m, n, d, h, w) → (m, positions, kh·kw·n, d), zero capsules as padding"""
    x = F.pad(x, (padding,) * 4).unfold(3, kernel[0], stride).unfold(4, kernel[1], stride)  # (m, n, d, y, x, kh, kw)
    return x.permute(0, 3, 4, 5, 6, 1, 2).flatten(3, 5).flatten(1, 2)


def window_steps(size: int, kernel: int, stride: int, padding: int) -> int:
    return (size + 2 * padding - kernel) // stride + 1


class DenseDecoder(nn.Module):
    """Class capsules, masked but for one → 512 → 1024 → the image; ReLU, ReLU, sigmoid (Sabour et al.)"""

    def __init__(self, inputs: int, image: tuple[int, int, int]):
        super().__init__()
        self.image = image
        pixels = image[0] * image[1] * image[2]
        self.layers = nn.ModuleList([nn.Linear(inputs, 512), nn.Linear(512, 1024), nn.Linear(1024, pixels)])

    def forward(self, v: Tensor, mask: Tensor) -> Tensor:
        x = (v * mask[:, :, None]).flatten(1)
        first, second, last = self.layers
        return last(F.relu(second(F.relu(first(x))))).sigmoid().unflatten(1, self.image)
