"""How many images go through a network at once, and on how many cores."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from ..network import WCapsNet

S = TypeVar("S")
T = TypeVar("T")


def good_batch(network: WCapsNet, device: torch.device, on_gpu: int = 500) -> int:
    """Small batches stay in a CPU's caches. `on_gpu` counts images of CIFAR's size; larger ones need more memory."""
    most = 16 if device.type == "cpu" else on_gpu
    return max(1, min(most, most * 32 * 32 // (network.config.height * network.config.width)))


def on_every_core(work: Callable[[S], T], items: Iterable[S], device: torch.device) -> Generator[T, None, None]:
    """What `work` answers, in order. On a CPU every core has an item of its own: nearly twice as fast as all cores in
    one large batch after another (benchmarks/evaluation_on_cpu.py). Autograd and autocast are modes of a thread, so
    `work` sets its own."""
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
