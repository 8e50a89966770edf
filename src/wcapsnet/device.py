"""The device, by name, and the precision (fp32 or bf16) used on it."""

from __future__ import annotations

import torch

from .errors import InputError


def choose_device(name: str = "auto") -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"There is no device {name!r}; use auto, cpu, cuda or cuda:N.") from error
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"The device {name!r} is not supported; use auto, cpu, cuda or cuda:N.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"The device {name!r} is not available: PyTorch {torch.__version__} sees {torch.cuda.device_count()} "
            "CUDA devices; use --device cpu."
        )
    return device


def arithmetic(precision: str, device: torch.device) -> torch.autocast:
    """bf16: convolutions and matrix products in bfloat16, sensitive operations in float32. fp32: all float32."""
    if device.type == "cuda":
        torch.backends.cudnn.allow_tf32 = False  # on by default, and it is not fp32
    # The cache of cast weights would outlive a CUDA graph's memory.
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False)
