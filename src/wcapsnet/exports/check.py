"""Compare an exported file with the network it came from, on the same images."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from ..classifier import Classifier
from ..data.device_data import normalize
from ..errors import InputError
from ..prediction import check_finite
from ..training.evaluate import evaluating, good_batch
from .graph import named

Answers = dict[str, np.ndarray]
Run = Callable[[np.ndarray], Answers]  # pixels (m, ch, h, w) uint8 → the file's outputs

CLOSE = 1e-3  # the largest difference of a probability, weight or pixel that rounding explains
SAME_PLACES = 0.95  # share of images whose best capsule must be the same; the others are ties (D31)
SAME_INT8 = 0.9  # share of images whose class must survive int8


class Images(NamedTuple):
    """Images to compare on."""

    pixels: np.ndarray  # (m, ch, h, w) uint8
    what: str  # such as "100 test images of mnist"


@dataclass(frozen=True)
class Comparison:
    images: int
    what: str  # which images
    largest: float  # difference of a probability
    same: int  # images with the same class

    def __str__(self) -> str:
        classes = "identical classes" if self.same == self.images else f"{self.same} of {self.images} classes identical"
        return f"largest difference in probability {self.largest:.1e}, {classes} on {self.what}"


def compared(classifier: Classifier, run: Run, images: Images, int8: bool = False) -> Comparison:
    """How far the file's answers are from the network's; an `InputError` if rounding does not explain it."""
    count, size = len(images.pixels), good_batch(classifier.network, torch.device("cpu"))
    batches = [images.pixels[start : start + size] for start in range(0, count, size)]
    expected, found = _joined(reference(classifier, pixels) for pixels in batches), _joined(map(run, batches))
    if missing := expected.keys() - found.keys():
        raise InputError(f"The exported file has no output {', '.join(sorted(missing))}.")
    alike = np.ones(count, bool)
    if "best_capsule" in expected:
        alike = (expected["best_capsule"] == found["best_capsule"]).all(1)
    largest = {}  # difference by output
    for name in expected.keys() - {"logits", "best_capsule"}:
        chosen = alike if name == "reconstruction" else slice(None)
        gap = np.abs(expected[name][chosen] - found[name][chosen])
        largest[name] = float(gap.max(initial=0)) if np.isfinite(gap).all() else np.inf
    same = int((expected["probabilities"].argmax(1) == found["probabilities"].argmax(1)).sum())
    result = Comparison(count, images.what, largest["probabilities"], same)
    if int8:
        good = same >= SAME_INT8 * count and np.isfinite(result.largest)
    else:
        places = (~alike).sum() <= (1 - SAME_PLACES) * count
        good = same == count and max(largest.values()) <= CLOSE and places
    if not good:
        raise InputError(f"The exported file differs from the network ({result}), so it was removed; report this bug.")
    return result


def _joined(batches: Iterable[Answers]) -> Answers:
    parts = list(batches)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@torch.no_grad()
def reference(classifier: Classifier, pixels: np.ndarray) -> Answers:
    """The network's own answers, under the names of `Graph`"""
    images = torch.from_numpy(np.ascontiguousarray(pixels)).to(classifier.mean.device)
    with evaluating(classifier):
        output = classifier(normalize(images, classifier.mean, classifier.std))
    answers = named(output, classifier.config.classes, classifier.mean, classifier.std)
    check_finite(answers["probabilities"].cpu())
    return {name: value.float().cpu().numpy() for name, value in answers.items()}
