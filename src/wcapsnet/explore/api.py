"""Answers to the page's requests, in plain values. Independent of HTTP.

A request is a dictionary parsed from JSON; if it is invalid, an `InputError` says why in one sentence.
Arrays travel as base64: pixels as uint8 (ch, h, w), maps as little-endian float32.
"""

from __future__ import annotations

import base64
import binascii
import io
import math
import statistics
import threading
import timeit
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..classifier import Classifier
from ..data import Split, read_image
from ..data.decode import UnreadableImageError, from_array
from ..data.device_data import normalize
from ..errors import InputError
from ..explanations import ImageExplanation, Survey, check_routing, decode, explain_image, has_routing, without_routing
from ..explanations.image import pixels_per_cell
from ..prediction import check_finite
from .favourites import Favourites, identity
from .worker import Worker

Off: TypeAlias = tuple[tuple[int, int], ...]  # blocks switched off: level and capsule, from 0
Asked: TypeAlias = Mapping[str, Any]

DRAWABLE = 64  # sides up to this can be drawn by hand
CENTERED = ("mnist", "sample")  # datasets whose digits were scaled to a box of 20/28 and centred by mass
MAX_UPLOAD = 20 * 2**20  # bytes
MAX_PIXELS = 50_000_000  # of an uploaded picture: a small file can decode to a picture that fills the memory
MAP_SIDE = 64  # maps are averaged down to this side
REMEMBERED = 6  # explanations: now, with all blocks on, without the open block, pinned


class Explorer:
    """A trained network and, if available, its test set. All methods are thread-safe."""

    def __init__(
        self,
        classifier: Classifier,
        name: str,
        test: Split | None = None,
        *,
        source: str = "",
        cache: Path | None = None,
        seen: Survey | None = None,  # of the test images, if already made
    ):
        if classifier.config.channels not in (1, 3):
            raise InputError(
                f"The page supports gray and colour pictures, but {name} takes {classifier.config.channels} channels."
            )
        self.classifier, self.name, self.test, self.source = classifier.eval(), name, test, source
        self.routed = has_routing(classifier.network)
        self.worker = Worker()
        self.favourites = Favourites(classifier, test, self.worker, cache, seen) if test is not None else None
        self._explained = lru_cache(REMEMBERED)(self._explain)  # used only by the worker
        self._decoding = threading.Lock()  # one picture at a time: each may take a few hundred megabytes
        self._identity = identity(classifier)[:12]
        self._shape = dict(zip(("channels", "height", "width"), classifier.shape, strict=True))

    def warm_up(self) -> None:
        """The first pass through a network takes several times as long as the others."""
        blank = torch.zeros(self.classifier.shape, dtype=torch.uint8)
        self.worker.ask(lambda: self._choose_threads(self._normalized(blank)))

    def _choose_threads(self, image: Tensor) -> None:
        """Use all cores or one, whichever is faster here: for one small image, threads may wait for each other
        longer than they work."""
        self._ask(image)
        if image.is_cpu:
            ways = sorted({torch.get_num_threads(), 1})
            torch.set_num_threads(min(ways, key=lambda threads: self._seconds(threads, image)))

    def _seconds(self, threads: int, image: Tensor) -> float:
        torch.set_num_threads(threads)
        return statistics.median(timeit.repeat(lambda: self._ask(image), number=1, repeat=5))

    @torch.no_grad()
    def _ask(self, image: Tensor) -> Any:
        if self.routed:
            return explain_image(self.classifier.network, image, without=False)
        return self.classifier(image[None])

    def close(self) -> None:
        self.worker.close()
        if self.favourites:
            self.favourites.wait(10)  # for its current batch

    # ── requests that do not need the network ─────────────────────────────────────────────────────────────────────────

    def about(self) -> dict[str, Any]:
        config, network, test = self.classifier.config, self.classifier.network, self.test
        small = config.channels == 1 and max(config.height, config.width) <= DRAWABLE
        return {
            "name": self.name,
            "id": self._identity,
            "parameters": sum(p.numel() for p in network.parameters()),
            "classes": list(self.classifier.classes),
            **self._shape,
            **(self._about_levels() if self.routed else {"levels": [], "unrouted": without_routing(network)}),
            "draw": {"dark": self._dark(), "center": self.source in CENTERED} if small else None,
            "test": None if test is None else {"images": len(test.labels), "labels": test.labels.tolist()},
            "max_upload": MAX_UPLOAD,
        }

    def _about_levels(self) -> dict[str, Any]:
        config = self.classifier.config
        levels: list[dict[str, Any]] = [
            {"capsules": level.capsules, "dimension": level.dimension, "map": list(size)}
            for level, size in zip(config.levels, config.maps(), strict=True)
        ]
        for level in levels:
            level["per_position"] = config.routing.per_position or level is levels[-1]
        return {"levels": levels, "cell": pixels_per_cell(self.classifier.network)}

    def picture(self, data: bytes) -> dict[str, Any]:
        """A picture file → the network's input pixels, prepared as by `predict`"""
        if len(data) > MAX_UPLOAD:
            raise InputError(f"The picture is larger than {MAX_UPLOAD // 2**20} MB; make it smaller.")
        try:
            with self._decoding:
                pixels = read_image(data, **self._shape, most_pixels=MAX_PIXELS)
        except UnreadableImageError as error:
            raise InputError(f"This picture cannot be read: {error.reason}.") from error
        return {"pixels": _text(pixels)}

    def test_picture(self, index: int) -> bytes:
        """A test image as PNG, at most 96 pixels a side"""
        picture = from_array(self._test_pixels(index))
        picture.thumbnail((96, 96))
        file = io.BytesIO()
        picture.save(file, "PNG")
        return file.getvalue()

    def survey(self) -> dict[str, Any]:
        """Progress of the pass over the test images; the first request starts it."""
        if self.favourites is None:
            return {"state": "none"}
        self.favourites.start()
        return self.favourites.status()

    # ── requests that do ──────────────────────────────────────────────────────────────────────────────────────────────

    def explain(self, asked: Asked) -> dict[str, Any]:
        """One image: probabilities, weights, winners, heat maps, and the decoded vector; for a test image, also its
        pixels and its label"""
        pixels = self._pixels(asked)
        answer = self._routed(pixels, asked) if self.routed else self._plain(pixels, asked)
        if self.test is None or "test" not in asked:
            return answer
        return answer | {"pixels": _text(pixels), "label": int(self.test.labels[asked["test"]])}

    def _routed(self, pixels: Tensor, asked: Asked) -> dict[str, Any]:
        off = self._off(asked)
        one = self.worker.ask(lambda: self._look(pixels, off))
        target = self._class(asked, one.predicted)
        parts = one.contributions[target]
        return {
            "probabilities": one.probabilities.tolist(),
            "predicted": one.predicted,
            "target": target,
            "logit": float(one.logits[target]),
            "levels": [
                {
                    "weights": one.block_weights(level).tolist(),
                    "fitness": a.flatten(1).amax(1).tolist() if a.dim() > 1 else a.tolist(),
                    "winners": list(one.winners[level]),
                }
                for level, a in enumerate(one.fitness)
            ],
            "map": list(parts.shape),
            "weights": _text(one.weights[-1]),
            "contributions": _text(parts),
            "block_contributions": parts.flatten(1).sum(1).tolist(),
            "vector": one.vector.tolist(),
            "position": one.position.tolist(),
            "place": list(one.place),
            "tied": one.tied.nonzero().tolist(),
            "reconstruction": self._picture_text(one.reconstruction),
        }

    def _plain(self, pixels: Tensor, asked: Asked) -> dict[str, Any]:
        """For a network without routing: probabilities, and the reconstruction if it has a decoder"""
        output = self.worker.ask(lambda: self._ask(self._normalized(pixels)))
        probabilities = self.classifier.probabilities(output)[0].cpu()
        check_finite(probabilities)
        predicted = int(probabilities.argmax())
        rebuilt = getattr(output, "reconstruction", None)
        return {
            "probabilities": probabilities.tolist(),
            "predicted": predicted,
            "target": self._class(asked, predicted),
            "levels": [],
            "reconstruction": None if rebuilt is None else self._picture_text(rebuilt[0].float().cpu()),
        }

    def block(self, asked: Asked) -> dict[str, Any]:
        """One block: its maps for an image, the prediction without it, and its favourite images"""
        network = self.classifier.network
        check_routing(network)
        pixels, off = self._pixels(asked), self._off(asked)
        level, capsule = self._place(asked.get("block"))
        more: Off = tuple(sorted({*off, (level, capsule)}))
        left = self.classifier.config.levels[level].capsules - sum(one == level for one, _ in more)

        def look() -> tuple[Tensor, ImageExplanation | None]:
            with torch.no_grad():
                routes = network.keeping(self._keep(off))
                c = network(self._normalized(pixels)[None], routes=routes).capsules[level][0, capsule]
            return c.float().cpu(), self._look(pixels, more) if left else None

        c, without = self.worker.ask(look)
        small = _at_most(c, MAP_SIDE)
        return {
            "level": level,
            "capsule": capsule,
            "map": list(small.shape),
            "maps": _text(small),
            "length": _text(_at_most(c.norm(dim=0, keepdim=True), MAP_SIDE)),
            "without": without
            and {
                "predicted": without.predicted,
                "probability": float(without.probabilities[without.predicted]),
            },
            "favourites": self.favourites and self.favourites.of(level, capsule),
        }

    def decode(self, asked: Asked) -> dict[str, Any]:
        """A capsule vector at a position → its reconstruction"""
        vector, position = self._vector(asked), _numbers(asked.get("position"), 2, "position")
        image = self.worker.ask(lambda: decode(self.classifier.network, vector[None], position[None])[0])
        return {"reconstruction": self._picture_text(image)}

    def near(self, asked: Asked) -> dict[str, Any]:
        """The test images whose decoded vectors are nearest to this one"""
        vector, index = self._vector(asked), asked.get("test")
        return {"near": self.favourites and self.favourites.near(vector, index if isinstance(index, int) else None)}

    # ── helpers ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _look(self, pixels: Tensor, off: Off) -> ImageExplanation:
        return self._explained(pixels.numpy().tobytes(), off)

    def _explain(self, data: bytes, off: Off) -> ImageExplanation:
        image = self._normalized(self._from_bytes(data))
        return explain_image(self.classifier.network, image, keep=self._keep(off), without=False)

    def _normalized(self, pixels: Tensor) -> Tensor:
        classifier = self.classifier
        return normalize(pixels[None].to(classifier.mean.device), classifier.mean, classifier.std)[0]

    def _keep(self, off: Off) -> list[Tensor | None]:
        masks: list[Tensor | None] = []
        for level, row in enumerate(self.classifier.config.levels):
            capsules = [n for of, n in off if of == level]
            mask = torch.ones(row.capsules, dtype=torch.bool, device=self.classifier.mean.device)
            mask[capsules] = False
            masks.append(mask if capsules else None)
        return masks

    def _picture_text(self, image: Tensor) -> str:
        return _text((self.classifier.pixels(image) * 255).round().to(torch.uint8))

    def _dark(self) -> bool:
        """Whether the network was trained on light strokes on a dark background"""
        if self.test is not None:
            return float(self.test.images[:1000].float().mean()) < 128
        mean, _ = self.classifier.normalization
        return sum(mean) / len(mean) < 0.5

    # ── parsing requests ──────────────────────────────────────────────────────────────────────────────────────────────

    def _pixels(self, asked: Asked) -> Tensor:
        """uint8 (ch, h, w)"""
        if "test" in asked:
            return self._test_pixels(asked["test"])
        try:
            data = base64.b64decode(asked.get("pixels", ""), validate=True)
        except (binascii.Error, ValueError, TypeError):
            data = b""
        if len(data) != math.prod(self.classifier.shape):
            raise InputError(f"`pixels` must be {'×'.join(map(str, self.classifier.shape))} bytes in base64.")
        return self._from_bytes(data)

    def _from_bytes(self, data: bytes) -> Tensor:
        return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(self.classifier.shape)

    def _test_pixels(self, index: object) -> Tensor:
        if self.test is None:
            raise InputError("The test images are not available.")
        count = len(self.test.labels)
        if not _whole(index) or not 0 <= index < count:  # type: ignore[operator]
            raise InputError(f"Test images are numbered from 0 to {count - 1:,}.")
        return self.test.images[index]  # type: ignore[index]

    def _off(self, asked: Asked) -> Off:
        given = asked.get("off", [])
        if not isinstance(given, list):
            raise InputError("`off` must be a list of blocks, each a level and a capsule, counted from 0.")
        off = tuple(sorted({self._place(one) for one in given}))
        for level, row in enumerate(self.classifier.config.levels):
            if sum(of == level for of, _ in off) == row.capsules:
                raise InputError(f"All blocks of level {level + 1} are off; at least one must stay on.")
        return off

    def _place(self, given: object) -> tuple[int, int]:
        if not isinstance(given, Sequence) or len(given) != 2 or not all(map(_whole, given)):
            raise InputError("A block must be a level and a capsule, counted from 0.")
        level, capsule = given
        levels = self.classifier.config.levels
        if not 0 <= level < len(levels) or not 0 <= capsule < levels[level].capsules:
            raise InputError(f"The network has no block {level + 1}.{capsule}.")
        return level, capsule

    def _class(self, asked: Asked, predicted: int) -> int:
        """The class to explain"""
        given = asked.get("class")
        given = predicted if given is None else given
        if not _whole(given) or not 0 <= given < len(self.classifier.classes):
            raise InputError(f"Classes are numbered from 0 to {len(self.classifier.classes) - 1}.")
        return given

    def _vector(self, asked: Asked) -> Tensor:
        check_routing(self.classifier.network)
        return _numbers(asked.get("vector"), self.classifier.config.levels[-1].dimension, "vector")


def _at_most(maps: Tensor, side: int) -> Tensor:
    """(k, i, j), averaged to at most side×side"""
    return F.adaptive_avg_pool2d(maps, (min(side, maps.shape[1]), min(side, maps.shape[2])))


def _whole(value: object) -> bool:
    """A number that a message can hold: Python prints at most 4,300 digits."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _numbers(given: object, count: int, name: str) -> Tensor:
    numbers = isinstance(given, list) and all(
        isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e6 for value in given
    )
    if not numbers or len(given) != count:  # type: ignore[arg-type]
        raise InputError(f"`{name}` must be a list of {count} numbers.")
    return torch.tensor(given, dtype=torch.float32)


def _text(values: Tensor | np.ndarray) -> str:
    array = np.asarray(values)
    kind = "<f4" if array.dtype.kind == "f" else "u1"
    return base64.b64encode(array.astype(kind).tobytes()).decode()
