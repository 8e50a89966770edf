"""torch.optim.SGD with Nesterov momentum, with one or two launches per step."""

from __future__ import annotations

import torch

from .compile import Kernel, structures
from .layout import build

NESTEROV = structures("nesterov.cu")
AT_ONCE = 96  # parameters per launch (PARAMETERS in the source)


class FusedNesterov(torch.optim.SGD):
    """For float32 parameters whose momentum buffers exist from the start."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            moved = [(p, p.grad.contiguous()) for p in group["params"] if p.grad is not None]  # until the launch
            parameters = [
                build(
                    NESTEROV["Parameter"],
                    p=p,
                    g=g,
                    v=self.state[p]["momentum_buffer"],
                    count=p.numel(),
                    decay=group["weight_decay"],
                )
                for p, g in moved
            ]
            for start in range(0, len(parameters), AT_ONCE):
                some = parameters[start : start + AT_ONCE]
                arguments = build(NESTEROV["Nesterov"], parameter=some, rate=group["lr"], momentum=group["momentum"])
                parts = max(1, min(32, -(-max(one.count for one in some) // 1024)))
                Kernel("nesterov.cu", "nesterov")((parts, len(some), 1), 256, 0, arguments)
