"""One thread that computes. OpenMP keeps its thread team there, and outdated requests are dropped."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import torch

T = TypeVar("T")


class Superseded(Exception):
    """A newer request of the same kind arrived before this one was started."""


class Worker:
    def __init__(self) -> None:
        self._waiting: OrderedDict[object, tuple[Future[Any], Callable[[], Any]]] = OrderedDict()
        self._changed = threading.Condition()
        self._closed = False
        self._computing = False
        self._last = 0.0  # time of the last result
        self._threads = torch.get_num_threads()
        self._thread = threading.Thread(target=self._work, name="explore-worker", daemon=True)
        self._thread.start()

    def ask(self, key: object, job: Callable[[], T]) -> T:
        """The result of `job`, computed in the worker. Of the jobs waiting under one key only the newest runs, in the
        place of the oldest; the others raise `Superseded`. A job with key None is never replaced."""
        future: Future[T] = Future()
        key = object() if key is None else key
        with self._changed:
            if self._closed:
                raise Superseded
            older = self._waiting.get(key)
            self._waiting[key] = future, job
            self._changed.notify_all()  # notify() might wake a thread waiting for a pause
        if older:
            older[0].set_exception(Superseded())
        return future.result()

    def wait_for_a_lull(self, seconds: float = 0.3) -> bool:
        """For work that can wait: returns once there have been no requests for a while. False: the worker is closed."""
        with self._changed:
            while not self._closed:
                left = seconds - (time.monotonic() - self._last)
                if left <= 0 and not self._computing and not self._waiting:
                    return True
                self._changed.wait(max(left, 0.02))
        return False

    def close(self) -> None:
        """Waits for the current job: a thread inside torch while Python exits would crash the interpreter."""
        with self._changed:
            self._closed = True
            left = list(self._waiting.values())
            self._waiting.clear()
            self._changed.notify_all()
        for future, _ in left:
            future.set_exception(Superseded())
        self._thread.join(10)

    def _work(self) -> None:
        torch.set_num_threads(self._threads)  # this setting is per thread
        while True:
            with self._changed:
                self._computing, self._last = False, time.monotonic()
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                _, (future, job) = self._waiting.popitem(last=False)
                self._computing = True
            try:
                future.set_result(job())
            except BaseException as error:  # passed on to the caller
                future.set_exception(error)
