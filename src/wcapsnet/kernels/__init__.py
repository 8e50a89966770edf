"""Speed, behind one seam: `network.engine` computes a forward pass in place of the plain PyTorch modules.

The modules stay what they are (parameters, buffers, the slow truth); an engine reads them.
"""

from __future__ import annotations

import torch

from ..errors import InputError
from ..network import WCapsNet
from .compile import Unavailable, start
from .forward import Engine
from .images import take
from .objective import objective
from .optimizer import FusedNesterov

__all__ = ["Engine", "FusedNesterov", "objective", "take", "use"]


def use(network: WCapsNet, wanted: str, precision: str, device: torch.device) -> str:
    """Choose once what computes this network; the answer is a line for the log."""
    network.engine = None
    if wanted == "plain":
        return "plain PyTorch"
    try:
        _check(precision, device)
        network.engine = Engine(network)
    except Unavailable as reason:
        if wanted == "fused":
            raise InputError(f"The fused kernels cannot be used: {reason}; choose --kernels auto or plain.") from None
        return f"plain PyTorch ({reason})" if device.type == "cuda" else "plain PyTorch"
    return str(network.engine.description)


def _check(precision: str, device: torch.device) -> None:
    if device.type != "cuda":
        raise Unavailable("they need a CUDA device")
    if precision != "bf16":
        raise Unavailable(f"they compute in bf16, not in {precision}")
    if torch.cuda.get_device_capability(device) < (8, 0):
        raise Unavailable("they need a GPU of compute capability 8.0 or newer")
    start()
