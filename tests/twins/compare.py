"""A twin next to its original: the same state, the same gradients."""

from __future__ import annotations

import torch
from torch import Tensor, nn

Tensors = dict[str, Tensor | list[Tensor]]
"""Name in the original → the tensor of the twin, or a list with one for each capsule."""


class Twin(nn.Module):
    def tensors(self) -> Tensors:
        raise NotImplementedError

    def same_as(self, original: nn.Module) -> Twin:
        """Takes over the parameters, buffers and mode of `original`."""
        state = original.state_dict()
        mine = self.tensors()
        assert set(mine) == set(state), set(mine) ^ set(state)
        with torch.no_grad():
            for name, tensor in mine.items():
                if isinstance(tensor, list):
                    assert len(tensor) == len(state[name])
                    for one, source in zip(tensor, state[name], strict=True):
                        one.copy_(source)
                else:
                    tensor.copy_(state[name])
        return self.train(original.training)


def prefixed(prefix: str, tensors: Tensors) -> Tensors:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def per_capsule(prefix: str, tensors: list[Tensors]) -> Tensors:
    """One dict for each capsule → one dict of lists."""
    return {f"{prefix}.{name}": [one[name] for one in tensors] for name in tensors[0]}


def norm_tensors(norm: nn.BatchNorm2d) -> Tensors:
    return {
        "weight": norm.weight,
        "bias": norm.bias,
        "running_mean": norm.running_mean,
        "running_var": norm.running_var,
    }


def close(got: Tensor, expected: Tensor | float, rtol: float = 1e-8, atol: float = 1e-9) -> None:
    torch.testing.assert_close(got, torch.as_tensor(expected, dtype=got.dtype), rtol=rtol, atol=atol, check_dtype=False)


def assert_same_state(original: nn.Module, twin: Twin, rtol: float = 1e-8, atol: float = 1e-9) -> None:
    """Running statistics and power iterations too."""
    state = original.state_dict()
    for name, tensor in twin.tensors().items():
        value = torch.stack(tensor) if isinstance(tensor, list) else tensor
        torch.testing.assert_close(state[name], value.detach(), rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


def assert_same_gradients(original: nn.Module, twin: Twin, rtol: float = 1e-7, atol: float = 1e-9) -> None:
    tensors = twin.tensors()
    for name, parameter in original.named_parameters():
        mine = tensors[name]
        ones = mine if isinstance(mine, list) else [mine]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in ones]
        value = torch.stack(grads) if isinstance(mine, list) else grads[0]
        got = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(got, value, rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


def answers(module: nn.Module, *inputs: Tensor) -> tuple[Tensor, list[Tensor]]:
    """What a module answers, and the gradients that a fixed random functional of the answer leaves on its inputs."""
    leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    y = module(*leaves)
    probe = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(5))
    (y * probe).sum().backward()
    return y.detach(), [torch.zeros_like(x) if x.grad is None else x.grad for x in leaves]
