"""Batch sizes for evaluation, and the number of cores to use."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from ..network import WCapsNet

S = TypeVar("S")
T = TypeVar("T")


def good_batch(network: WCapsNet, device: torch.device, on_gpu: int = 500) -> int:
    """Small batches stay in the CPU's caches. `on_gpu` assumes CIFAR-sized images; larger ones need more memory."""
    most = 16 if device.type == "cpu" else on_gpu
    return max(1, min(most, most * 32 * 32 // (network.config.height * network.config.width)))


def on_every_core(work: Callable[[S], T], items: Iterable[S], device: torch.device) -> Generator[T, None, None]:
    """The results of `work`, in order. On a CPU each core processes its own items: nearly twice as fast as using all
    cores for one large batch after another (benchmarks/evaluation_on_cpu.py). Autograd and autocast modes are per
    thread, so `work` must set them itself."""
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:
        yield from map(work, items)
        return
    torch.set_num_threads(1)
    pool = ThreadPoolExecutor(threads)
    try:
        yield from pool.map(work, items)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)
