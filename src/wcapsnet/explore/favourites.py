"""One pass over the test images: the favourites of each block, and the misclassified images.

It starts in the background at the first request, pauses while the page is in use, and is cached. A run that saved its
survey at the end of training needs no pass.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..classifier import Classifier, checksum
from ..data import Split
from ..data.device_data import DeviceSplit
from ..data.types import checksum as images_checksum
from ..errors import InputError
from ..explanations import Specialization, Survey, explain_capsule, nearest, specialization, survey, vector_range
from .worker import Worker

SHOWN = 12  # favourite images of a block
BATCH = 4  # small: a request from the page waits for at most one batch


class Stopped(Exception):
    """The page was closed in the meantime."""


class Favourites:
    def __init__(
        self, classifier: Classifier, split: Split, worker: Worker, cache: Path | None, seen: Survey | None = None
    ):
        self._classifier, self._split, self._worker = classifier, split, worker
        self._cache = cache
        self._given = seen if seen is not None and self._fits(seen) else None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._done = 0
        self._failed = False
        self._seen: Survey | None = None
        self._found: Specialization | None = None

    def start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name="explore-survey", daemon=True)
                self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Whether the results are ready, after waiting at most this long"""
        if self._thread:
            self._thread.join(seconds)
        return self._seen is not None

    def status(self) -> dict[str, Any]:
        total, seen = len(self._split.labels), self._seen
        if seen is None:
            return {"state": "failed" if self._failed else "running", "done": self._done, "total": total}
        return {
            "state": "ready",
            "done": total,
            "total": total,
            "accuracy": seen.accuracy,
            "predicted": seen.predicted.tolist(),
            "ranges": [_range(seen, capsule) for capsule in range(seen.weights[-1].shape[1] if seen.weights else 0)],
        }

    def of(self, level: int, capsule: int) -> dict[str, Any] | None:
        """A block's favourite images and its classes; None until they are known

        `equal`: number of images whose weight ties with the largest, to within 1 %.
        """
        seen, found = self._seen, self._found
        if seen is None or found is None:
            return None
        one = explain_capsule(seen, found, level, capsule, SHOWN)
        images = zip(one.images.tolist(), one.weights.tolist(), strict=True)
        return {
            "images": [{"index": i, "label": int(seen.labels[i]), "weight": weight} for i, weight in images],
            "classes": list(one.classes),
            "wins": one.wins,
            "equal": one.equal,
            "total": len(seen),
        }

    def near(self, vector: Tensor, itself: int | None, count: int = 6) -> list[dict[str, Any]] | None:
        """Images with the nearest decoded vectors, without the image itself"""
        seen = self._seen
        if seen is None:
            return None
        found = nearest(seen, vector, count + 1)
        pairs = zip(found.images.tolist(), found.distances.tolist(), strict=True)
        images = [{"index": i, "label": int(seen.labels[i]), "distance": d} for i, d in pairs if i != itself]
        return images[:count]

    def _look(self) -> None:
        try:
            seen = self._given if self._given is not None else self._survey()
            self._found = specialization(seen) if seen.weights else None
            self._seen = seen
        except Stopped:
            pass
        except BaseException:
            self._failed = True
            raise

    def _survey(self) -> Survey:
        path = self._path()
        if path and path.exists():
            with suppress(InputError, KeyError, TypeError):  # damaged, or from another version: rebuild it
                seen, _ = Survey.load(path)
                if self._fits(seen):
                    return seen
        torch.set_num_threads(1)  # in this thread: leave the other cores to the page
        split = DeviceSplit(self._split, *self._classifier.normalization, self._classifier.mean.device)
        self._progress(0)
        seen = survey(self._classifier.network, split, batch_size=BATCH, progress=self._progress)
        if path:
            with suppress(OSError):  # cannot write: the next start rebuilds it
                seen.save(path)
        return seen

    def _fits(self, seen: Survey) -> bool:
        levels = len(getattr(self._classifier.config, "levels", ()))
        return len(seen.weights) == levels and torch.equal(seen.labels.long(), self._split.labels.long())

    def _progress(self, done: int) -> None:
        """Between batches: wait until the page is idle."""
        self._done = done
        if not self._worker.wait_for_a_lull():
            raise Stopped

    def _path(self) -> Path | None:
        """The file name depends on the weights and the images."""
        if self._cache is None:
            return None
        name = images_checksum(self._split, identity(self._classifier).encode())[:32]
        return self._cache / "explore" / f"{name}.safetensors"


def identity(classifier: Classifier) -> str:
    """Identical for the same weights, classes and preprocessing."""
    return checksum(classifier.network.state_dict(), classifier.description())


def _range(seen: Survey, capsule: int) -> dict[str, list[float]] | None:
    """The range of each element of a block's decoded vectors; None if none was decoded"""
    try:
        found = vector_range(seen, capsule)
    except InputError:
        return None
    return {"low": found.low.tolist(), "high": found.high.tolist()}
