"""One thread that computes, in which OpenMP keeps its thread team."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")


class Worker:
    def __init__(self) -> None:
        threads = torch.get_num_threads()  # this setting is per thread
        self._pool = ThreadPoolExecutor(1, "explore-worker", torch.set_num_threads, (threads,))
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._asked = 0  # requests without a result yet
        self._last = 0.0  # time of the last result

    def ask(self, job: Callable[[], T]) -> T:
        """The result of `job`, computed in the worker; raises `CancelledError` if the worker is closed before."""
        with self._lock:
            if self._closed.is_set():
                raise CancelledError
            future = self._pool.submit(job)
            self._asked += 1
        try:
            return future.result()
        finally:
            with self._lock:
                self._asked -= 1
                self._last = time.monotonic()

    def wait_for_a_lull(self, seconds: float = 0.3) -> bool:
        """For work that can wait: returns once there have been no requests for a while. False: the worker is closed."""
        while not self._closed.is_set():
            if not self._asked and time.monotonic() - self._last >= seconds:
                return True
            self._closed.wait(0.02)
        return False

    def close(self) -> None:
        """Waits for the current job: a thread inside torch while Python exits would crash the interpreter."""
        with self._lock:
            self._closed.set()
        self._pool.shutdown(cancel_futures=True)
