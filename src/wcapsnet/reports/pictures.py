"""Which images a page shows, what is known about each, and pictures for pages and figures."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from markupsafe import Markup
from PIL import Image
from torch import Tensor

from ..classifier import Classifier
from ..data import Dataset
from ..data.decode import from_array
from ..data.device_data import DeviceSplit
from ..explanations import ImageExplanation, Survey, explain_images
from ..explanations.survey import evenly
from .survey_cache import Seen
from .svg import n, path, tag

MISTAKES, EXAMPLES, RECONSTRUCTIONS = 24, 8, 20
LARGEST_PICTURE = 96  # largest side in pixels: larger ones are reduced, to keep the file small


@dataclass(frozen=True)
class Shown:
    """An image on the page, and its prediction."""

    index: int
    name: str  # file name, or number
    pixels: Tensor  # (ch, h, w) uint8
    label: int
    predicted: int
    probability: float  # of the predicted class
    squared_error: float  # of its reconstruction

    @property
    def right(self) -> bool:
        return self.label == self.predicted


@dataclass(frozen=True)
class Example:
    shown: Shown
    explained: ImageExplanation
    reconstruction: Tensor  # (ch, h, w) in [0, 1]


class Rebuilt(NamedTuple):
    shown: Shown
    reconstruction: Tensor  # (ch, h, w) in [0, 1]


@dataclass(frozen=True)
class Pictures:
    mistakes: list[Shown]
    examples: list[Example]  # none for a network without routing
    reconstructions: list[Rebuilt]  # none for a network without a decoder


def choose(classifier: Classifier, dataset: Dataset, seen: Seen, device: torch.device) -> Pictures:
    """The most confident mistakes; for evenly spaced classes, the correct image of median probability, and the two
    worst mistakes; for evenly spaced classes, the reconstruction of median error."""
    found, split = seen.survey, getattr(dataset, seen.part)
    files: Sequence[str] = getattr(dataset, f"{seen.part}_files")
    places = evenly(len(split.labels), len(found))  # positions of the survey's images in the split
    right, sure = found.labels == found.predicted, found.probabilities.max(1).values
    wrong = (~right).nonzero().flatten()
    mistakes = wrong[sure[wrong].argsort(descending=True, stable=True)][:MISTAKES].tolist()
    few = mistakes[:2]
    typical = _medians(sure, [right & (found.labels == r) for r in _present(found, EXAMPLES - len(few))])
    decoded = ~found.squared_error.isnan()
    rebuilt = _medians(found.squared_error, [decoded & (found.labels == r) for r in _present(found, RECONSTRUCTIONS)])

    def shown(one: int) -> Shown:
        index = int(places[one])
        named = files[index] if files else f"image {index}"
        label, predicted, error = int(found.labels[one]), int(found.predicted[one]), float(found.squared_error[one])
        return Shown(index, named, split.images[index], label, predicted, float(sure[one]), error)

    def normalized(chosen: Sequence[int]) -> Tensor:
        images = split.some(places[list(chosen)])
        return DeviceSplit(images, *classifier.normalization, device).take(slice(None))[0]

    examples, pairs = [], []
    if found.weights and (chosen := typical + few):
        for one, answer in zip(chosen, explain_images(classifier.network, normalized(chosen)), strict=True):
            examples.append(Example(shown(one), answer, classifier.pixels(answer.reconstruction).cpu()))
    if rebuilt:
        with torch.no_grad():
            images = classifier(normalized(rebuilt)).reconstruction
        pairs = [Rebuilt(shown(one), classifier.pixels(x).cpu()) for one, x in zip(rebuilt, images, strict=True)]
    return Pictures([shown(one) for one in mistakes], examples, pairs)


def _present(found: Survey, count: int) -> list[int]:
    """This many classes that have images, evenly spaced"""
    classes = found.counts.nonzero().flatten()
    return classes[evenly(len(classes), count)].tolist()


def _medians(values: Tensor, masks: Sequence[Tensor]) -> list[int]:
    """The position of the median for each non-empty mask"""
    chosen = [mask.nonzero().flatten() for mask in masks if mask.any()]
    return [int(places[values[places].argsort(stable=True)[(len(places) - 1) // 2]]) for places in chosen]


class Picture(NamedTuple):
    """A picture as a page or a drawing shows it, in CSS pixels."""

    uri: str
    alt: str
    width: int
    height: int
    marks: Markup = Markup()  # drawn over it

    @property
    def drawn(self) -> Markup:
        """As a part of a drawing"""
        drawn = tag(
            "image", href=self.uri, class_="pixels", preserveAspectRatio="none", width=self.width, height=self.height
        )
        return drawn + self.marks


def picture(pixels: Tensor, alt: str, side: int) -> Picture:
    """(ch, h, w), bytes or values in [0, 1]. `side` is the longer side."""
    height, width = pixels.shape[-2:]
    shown = side / max(height, width)
    return Picture(data_uri(pixels), alt, round(width * shown), round(height * shown))


def marked(
    shown: Picture, size: Sequence[int], stride: int, outlines: Sequence[tuple[int, int]], dot: Sequence[int] | None
) -> Picture:
    """With outlines around squares of `stride` pixels of the image (h, w), and a dot in one. Positions are i, j."""
    y_scale, x_scale = shown.height / size[0], shown.width / size[1]

    def square(i: int, j: int) -> tuple[float, float, float, float]:
        """Squares in the last row and column may extend beyond the border (D18)"""
        x, y = j * stride * x_scale, i * stride * y_scale
        return x, y, min(stride * x_scale, shown.width - x), min(stride * y_scale, shown.height - y)

    edges = ""
    for place in outlines:
        x, y, wide, tall = square(*place)
        edges += f"M{n(x + 1)} {n(y + 1)}h{n(wide - 2)}v{n(tall - 2)}h{n(2 - wide)}z"
    marks = path(edges, "halo") + path(edges, "tied") if edges else Markup()
    if dot:
        x, y, wide, tall = square(*dot)
        radius = 0.2 * stride * min(x_scale, y_scale)
        marks += tag("circle", cx=x + wide / 2, cy=y + tall / 2, r=max(2.0, radius), class_="decoded")
    return shown._replace(marks=marks)


def data_uri(pixels: Tensor) -> str:
    """PNG, or JPEG if that is much smaller."""
    image = from_array(pixels.clamp(0, 1) if pixels.is_floating_point() else pixels)
    image.thumbnail((LARGEST_PICTURE, LARGEST_PICTURE), Image.Resampling.LANCZOS)
    kind, best = "png", _encoded(image, "PNG", optimize=True)
    if len(best) > 4000:
        other = _encoded(image, "JPEG", quality=88)
        if len(other) < len(best) / 2:
            kind, best = "jpeg", other
    return f"data:image/{kind};base64,{base64.b64encode(best).decode()}"


def _encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()
