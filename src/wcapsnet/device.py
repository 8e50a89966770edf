"""The device by name, and what differs between devices: precision, random state, float64."""

from __future__ import annotations

import torch
from torch import Tensor

from .errors import InputError

KNOWN = "auto, cpu, cuda, cuda:N or mps"
WITHOUT_FLOAT64 = {"mps"}


def choose_device(name: str = "auto") -> torch.device:
    """`auto` is a CUDA GPU if there is one, else the CPU; mps only by name, as it is untested on hardware."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"There is no device {name!r}; use {KNOWN}.") from error
    if device.type not in ("cpu", "cuda", "mps"):
        raise InputError(f"The device {name!r} is not supported; use {KNOWN}.")
    if device.type == "mps" and ((device.index or 0) > 0 or not torch.backends.mps.is_available()):
        raise InputError(
            f"The device {name!r} is not available: PyTorch {torch.__version__} sees no such Apple GPU; use --device "
            "cpu."
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"The device {name!r} is not available: PyTorch {torch.__version__} sees {torch.cuda.device_count()} "
            "CUDA devices; use --device cpu."
        )
    return device


def device_name(device: torch.device) -> str:
    """For people: the GPU's model, or CPU"""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return "Apple GPU" if device.type == "mps" else "CPU"


def arithmetic(precision: str, device: torch.device) -> torch.autocast:
    """bf16: convolutions and matrix products in bfloat16, sensitive operations in float32. fp32: all float32."""
    if device.type == "cuda":
        torch.backends.cudnn.allow_tf32 = False  # on by default, and it is not fp32
    # The cache of cast weights would outlive a CUDA graph's memory.
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False)


def sum_dtype(device: torch.device) -> torch.dtype:
    """For sums that stay on the device: float64, or float32 if the device has no float64"""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


def exact(tensor: Tensor) -> Tensor:
    """In float64; on the CPU if the tensor's device has none"""
    return (tensor.cpu() if tensor.device.type in WITHOUT_FLOAT64 else tensor).double()


def random_state(device: torch.device) -> Tensor | None:
    """The state of the device's own random numbers; None for the CPU, whose state PyTorch keeps apart"""
    if device.type == "mps":
        return torch.mps.get_rng_state()
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def set_random_state(device: torch.device, state: Tensor) -> None:
    if device.type == "mps":
        torch.mps.set_rng_state(state)
    else:
        torch.cuda.set_rng_state(state, device)


def synchronize(device: torch.device) -> None:
    """Wait for everything that was launched on the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
