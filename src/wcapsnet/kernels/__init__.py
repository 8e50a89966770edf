"""Speed, behind one seam: `network.engine` computes a forward pass in place of the plain PyTorch modules.

The modules stay what they are (parameters, buffers, the slow truth); an engine reads them.
"""

from __future__ import annotations

import torch

from ..errors import InputError
from ..network import WCapsNet


def use(network: WCapsNet, wanted: str, precision: str, device: torch.device) -> str:
    """Choose once what computes this network; the answer is a line for the log."""
    network.engine = None
    why_not = "they are not there yet"
    if wanted == "fused":
        raise InputError(f"The fused kernels cannot be used: {why_not}; choose --kernels auto or plain.")
    return "plain PyTorch"
