"""Three ways to one answer: the kernels, the plain modules in float64 (the truth), the plain modules in bf16."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


def error(got: Tensor, truth: Tensor) -> float:
    """‖got − truth‖ / ‖truth‖"""
    got, truth = got.detach().double(), truth.detach().double()
    assert got.shape == truth.shape, (got.shape, truth.shape)
    return float((got - truth).norm() / truth.norm().clamp_min(1e-30))


class Report:
    """Errors against the truth, each with that of plain bf16 as its yardstick; `check` names all that are too large."""

    def __init__(self, factor: float = 1.75, more: float = 0.01):
        self.factor, self.more = factor, more
        self.failures: list[str] = []

    def add(
        self, name: str, got: Tensor, truth: Tensor, yardstick: Tensor | float, scale: float = 0.0, slack: float = 0.0
    ) -> None:
        """`scale`: below this norm, the truth counts as zero, and so must the answer, as far as plain bf16's does."""
        if not bool(got.isfinite().all()):
            self.failures.append(f"{name}: not finite")
            return
        if float(truth.detach().norm()) <= scale:
            allowed = 0.0 if isinstance(yardstick, float) else 3 * float(yardstick.detach().norm())
            if float(got.detach().norm()) > max(10 * scale, allowed):
                self.failures.append(f"{name}: {float(got.detach().norm()):.2e}, should be zero")
            return
        allowed = yardstick if isinstance(yardstick, float) else error(yardstick, truth)
        if (found := error(got, truth)) > self.factor * allowed + self.more + slack:
            self.failures.append(f"{name}: error {found:.4f}, plain bf16 {allowed:.4f}")

    def gradients(
        self, fused: nn.Module, truth: nn.Module, half: nn.Module, scale: float = 0.0, slack: float = 0.0
    ) -> None:
        """`slack`: where few samples make sums that nearly cancel."""
        single: dict[str, list[tuple[Tensor, ...]]] = {}  # numbers of a module, judged together: sums can cancel
        for (name, p), q, h in zip(fused.named_parameters(), truth.parameters(), half.parameters(), strict=True):
            if q.grad is None:
                if p.grad is not None:
                    self.failures.append(f"{name}: a gradient where there is none")
            elif p.grad is None:
                self.failures.append(f"{name}: no gradient")
            elif p.numel() == 1:
                single.setdefault(name.rpartition(".")[0], []).append((p.grad, q.grad, h.grad))
            else:
                self.add(f"gradient of {name}", p.grad, q.grad, h.grad, scale, slack)
        self._add_single("gradients", single, scale, slack)

    def _add_single(self, what: str, single: dict[str, list[tuple[Tensor, ...]]], *allowed: float) -> None:
        for name, some in single.items():
            got, truth, yardstick = (torch.stack([one.flatten() for one in ones]) for ones in zip(*some, strict=True))
            self.add(f"{what} of {name}", got, truth, yardstick, *allowed)

    def buffers(self, fused: nn.Module, truth: nn.Module, half: nn.Module) -> None:
        single: dict[str, list[tuple[Tensor, ...]]] = {}
        for (name, p), q, h in zip(fused.named_buffers(), truth.buffers(), half.buffers(), strict=True):
            if p.numel() == 1:
                single.setdefault(name.rpartition(".")[0], []).append((p, q, h))
            else:
                self.add(name, p, q, h)
        self._add_single("buffers", single)

    def check(self) -> None:
        assert not self.failures, "\n".join(self.failures)


def one_of_five(test: Callable[..., None]) -> Callable[..., None]:
    """A ReLU that rounding opens or closes is seen in gradients of few samples, now here, now there. What is wrong is
    wrong for every seed: a test fails when five fail."""

    @functools.wraps(test)
    def tried(*arguments: Any, **named: Any) -> None:
        for seed in (1, 2, 3, 4, 5):
            torch.manual_seed(seed)
            try:
                return test(*arguments, **named)
            except AssertionError:
                if seed == 5:
                    raise

    return tried


def three(module: nn.Module) -> tuple[nn.Module, nn.Module, nn.Module]:
    """For the kernels, for float64, for bf16."""
    return module, copy.deepcopy(module).double(), copy.deepcopy(module)


def bf16() -> Any:
    return torch.autocast("cpu", torch.bfloat16)


def shaken(module: nn.Module, by: float = 0.3) -> nn.Module:
    """Norms and biases away from where they start, so that each of them matters."""
    with torch.no_grad():
        for p in module.parameters():
            if p.dim() <= 2:
                p += by * torch.randn_like(p)
    return module


def rounded(*shape: int, scale: float = 1.0, shift: float = 0.0) -> Tensor:
    """Random float32 numbers that bf16 has too, so that rounding the input is nobody's error."""
    return (torch.randn(*shape) * scale + shift).bfloat16().float()


def probe(fitness: Tensor) -> Tensor:
    """A gradient of the fitness under which the sums over all of it, dβ and dγ, do not cancel."""
    fitness = fitness.detach().float()
    return 0.3 * torch.randn_like(fitness) + 0.5 + 2 * (fitness - 0.5)


def assert_drawn_apart(mask: Tensor, keep: float) -> None:
    """Each place has a draw of its own: neighbours along any axis agree as often as chance has it, and the share of
    what is kept is the same everywhere."""
    assert abs(mask.double().mean() - keep) < 4 * math.sqrt(keep * (1 - keep) / mask.numel())
    agreeing = keep**2 + (1 - keep) ** 2
    for axis, size in enumerate(mask.shape):
        if size > 1:
            same = mask.narrow(axis, 0, size - 1) == mask.narrow(axis, 1, size - 1)
            assert abs(same.double().mean() - agreeing) < 5 * math.sqrt(agreeing * (1 - agreeing) / same.numel()), axis
            shares = mask.double().transpose(0, axis).flatten(1).mean(1)
            allowed = 5 * math.sqrt(keep * (1 - keep) * size / mask.numel())
            assert float((shares - keep).abs().max()) < allowed, axis


def from_chunks(x: Tensor, height: int, width: int) -> Tensor:
    """(chunk, m, position, 8) → (m, channel, i, j)"""
    return x.permute(1, 0, 3, 2).flatten(1, 2).unflatten(2, (height, width))


def to_vectors(c: Tensor) -> Tensor:
    """(m, n, k, i, j) → (m, n, position, k)"""
    return c.permute(0, 1, 3, 4, 2).flatten(2, 3).contiguous()


def from_vectors(c: Tensor, height: int, width: int) -> Tensor:
    return c.unflatten(2, (height, width)).permute(0, 1, 4, 2, 3)


class Guards:
    """torch.empty and its like with NaN inside and around."""

    MARGIN = 64  # elements: alignment stays what it was

    def __init__(self, monkeypatch: Any):
        self.buffers: list[tuple[Tensor, int]] = []
        self.real = torch.empty
        monkeypatch.setattr(torch, "empty", self.empty)
        monkeypatch.setattr(torch, "empty_like", self.empty_like)
        monkeypatch.setattr(torch, "zeros", self.zeros)

    def _make(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        count = math.prod(shape)
        buffer = self.real(count + 2 * self.MARGIN, dtype=dtype)
        buffer.view(torch.uint8).fill_(0xFF)
        self.buffers.append((buffer, count))
        return buffer[self.MARGIN : self.MARGIN + count].view(shape)

    def empty(self, *size: Any, dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
        (shape,) = size if len(size) == 1 and isinstance(size[0], Iterable) else (size,)
        return self._make(tuple(shape), dtype or torch.float32)

    def empty_like(self, other: Tensor, **_: Any) -> Tensor:
        assert other.is_contiguous()
        return self._make(tuple(other.shape), other.dtype)

    def zeros(self, *size: Any, **more: Any) -> Tensor:
        return self.empty(*size, **more).zero_()

    def check(self) -> None:
        for buffer, count in self.buffers:
            for beside in (buffer[: self.MARGIN], buffer[self.MARGIN + count :]):
                assert bool((beside.contiguous().view(torch.uint8) == 0xFF).all()), "written outside of its memory"


# ── what the kernels' Python side is made of, put together in one place ──


def fused_critic(critic: Any, height: int, width: int, salt: int = 10) -> tuple[Any, Any]:
    """With the spectral norms of its kernels, to be brought up to date before every pass."""
    from wcapsnet.kernels.critic import FusedCritic, Spectral
    from wcapsnet.kernels.prepare import Zeros
    from wcapsnet.kernels.side_stream import Aside

    spectral = Spectral(list(critic.layers))
    return FusedCritic(critic, spectral, height, width, salt, Aside(), Zeros()), spectral


def judged(critic: nn.Module, c: Tensor, masks: list[Tensor]) -> Tensor:
    """What `Critic.judge` computes with dropout, its masks (0 or 1/keep) being given: c (images, k, i, j) → a"""
    *hidden, last = critic.layers
    x = c.detach()
    for layer, mask in zip(hidden, masks, strict=True):
        x = torch.relu(layer(x)) * mask
    return critic.norm(last(x)).sigmoid()


def hidden_values(values: list[Tensor], maps: list[tuple[int, int]], critic: nn.Module) -> list[Tensor]:
    """What the kernels kept of a critic's hidden layers, as (images, channel, i, j)."""
    found = []
    for value, (height, width), layer in zip(values[1:-1], maps[1:-1], critic.layers, strict=False):
        channels = layer.weight.shape[0]
        found.append(value.float().mT[:, :channels].unflatten(2, (height, width)))
    return found
