"""Does the routing point at what the prediction depends on? Measured by removing image regions.

The regions are the cells of the last level's grid. A method ranks them. *Deletion* replaces them by a baseline, most
relevant first, and tracks the probability of the predicted class: a good ranking makes it fall early, so the area
under the curve is small. *Insertion* starts from the baseline and restores them: a large area is good.

Captum's methods use gradients. Gradients do not pass through the paper's critics, which see detached capsules, but do
pass through joint critics (D44).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from scipy.ndimage import gaussian_filter
from torch import Tensor

from ..device import exact
from ..errors import InputError
from ..network import WCapsNet
from ..parts import suggestion
from ..training.evaluate import evaluating, good_batch, on_every_core
from .image import contributions, over_image, pixels_per_cell
from .specialization import confidence_margin, plain

BATCH = 16


@dataclass(frozen=True)
class Faithfulness:
    """Deletion and insertion curves of m images for one method's ranking."""

    removed: Tensor  # (steps + 1,): share of regions, from 0 to 1
    deletion: Tensor  # (m, steps + 1): probability of the predicted class with that share deleted
    insertion: Tensor  # (m, steps + 1): with that share restored

    @property
    def deletion_area(self) -> Tensor:
        """(m,): small is good"""
        return torch.trapezoid(self.deletion, self.removed)

    @property
    def insertion_area(self) -> Tensor:
        """(m,): large is good"""
        return torch.trapezoid(self.insertion, self.removed)

    def summary(self) -> dict[str, Any]:
        """Plain values, ready for JSON: mean areas with half their 95 % confidence intervals, and mean curves"""
        areas = {"deletion": mean_and_margin(self.deletion_area), "insertion": mean_and_margin(self.insertion_area)}
        return {
            **{name: {"area": mean, "margin": plain(margin)} for name, (mean, margin) in areas.items()},
            "removed": self.removed.tolist(),
            "deletion_curve": self.deletion.mean(0).tolist(),
            "insertion_curve": self.insertion.mean(0).tolist(),
        }


def mean_and_margin(areas: Tensor) -> tuple[float, float]:
    """(m,) → mean, and half its 95 % confidence interval (nan for a single image)"""
    areas = exact(areas)
    variance = areas.var() if len(areas) > 1 else torch.tensor(torch.nan, dtype=torch.float64)
    return float(areas.mean()), float(confidence_margin(variance, torch.tensor(len(areas))))


@torch.no_grad()
def faithfulness(
    network: WCapsNet,
    images: Tensor,
    methods: Sequence[str] | None = None,
    *,
    baseline: str = "blur",
    steps: int = 16,
    seed: int = 0,
) -> dict[str, Faithfulness]:
    """Normalised images (m, ch, h, w) → curves for each method; by default, all installed methods.

    `baseline` replaces a region: the blurred image, or the mean of each of its channels. Regions with equal relevance
    are ordered at random, using `seed`.
    """
    chosen = available_methods() if methods is None else methods
    for method in chosen:
        if method not in METHODS:
            raise InputError(f"There is no method {method!r}{suggestion(method, METHODS)}")
        if method not in available_methods():
            raise InputError(f"{method} needs captum; install it with: pip install 'wcapsnet[explain]'.")
    if baseline not in BASELINES:
        raise InputError(f"There is no baseline {baseline!r}{suggestion(baseline, BASELINES)}")
    if steps < 1:
        raise InputError(f"steps is {steps}, but it must be at least 1.")
    reference = BASELINES[baseline](images)
    generator = torch.Generator().manual_seed(seed)
    found = {}
    with evaluating(network):
        target = _answers(network, images).argmax(1)
        for method in chosen:
            relevance = METHODS[method](network, images, target, reference).flatten(1)
            rank = _ranks(relevance, generator)
            found[method] = Faithfulness(*_curves(network, images, reference, target, rank, steps))
    return found


# Ranking methods: (network, images, target, baseline) → relevance of each cell (m, i, j).
def _routing(network: WCapsNet, images: Tensor, target: Tensor, reference: Tensor) -> Tensor:
    """Σ_n b_nij"""
    parts = [network(part).routings[-1].weights.sum(1) for part in images.split(BATCH)]
    return torch.cat(parts)


def _contributions(network: WCapsNet, images: Tensor, target: Tensor, reference: Tensor) -> Tensor:
    """Σ_n b_nij Σ_k c_nijk W_kr for the predicted r"""
    parts = [
        contributions(network(part), network.projection[:, : network.config.classes]).sum(2)
        for part in images.split(BATCH)
    ]  # (m, r, i, j)
    return torch.cat(parts)[torch.arange(len(images)), target]


def _integrated_gradients(network: WCapsNet, images: Tensor, target: Tensor, reference: Tensor) -> Tensor:
    """Captum's integrated gradients, along the line from the baseline to the image"""
    from captum.attr import IntegratedGradients

    method = IntegratedGradients(_class_logits(network))
    with torch.enable_grad():
        parts = [
            method.attribute(image, base, target=label, n_steps=32, internal_batch_size=BATCH)
            for image, base, label in zip(images.split(8), reference.split(8), target.split(8), strict=True)
        ]
    return _cells(network, torch.cat(parts).sum(1))


def _grad_cam(network: WCapsNet, images: Tensor, target: Tensor, reference: Tensor) -> Tensor:
    """Captum's Grad-CAM, on the maps that enter the last level"""
    from captum.attr import LayerGradCam

    method = LayerGradCam(_class_logits(network), network.capsules[-1])
    with torch.enable_grad():
        parts = [
            method.attribute(part, label, attribute_to_layer_input=True, relu_attributions=True).detach()
            for part, label in zip(images.split(BATCH), target.split(BATCH), strict=True)
        ]
    stride = pixels_per_cell(network) // network.config.levels[-1].stride
    return _cells(network, over_image(torch.cat(parts)[:, 0], images.shape[2:], stride))


def _random(network: WCapsNet, images: Tensor, target: Tensor, reference: Tensor) -> Tensor:
    """No ranking: all cells tie, and ties are ordered at random"""
    return images.new_zeros(len(images), *network.config.maps()[-1])


METHODS: dict[str, Callable[[WCapsNet, Tensor, Tensor, Tensor], Tensor]] = {
    "routing": _routing,
    "contributions": _contributions,
    "integrated gradients": _integrated_gradients,
    "grad-cam": _grad_cam,
    "random": _random,
}
NEED_CAPTUM = ("integrated gradients", "grad-cam")


def available_methods() -> tuple[str, ...]:
    """All methods; without captum (pip install 'wcapsnet[explain]'), those that do not need it."""
    try:
        import captum.attr  # noqa: F401
    except ImportError:
        return tuple(name for name in METHODS if name not in NEED_CAPTUM)
    return tuple(METHODS)


def _blur(images: Tensor) -> Tensor:
    """Gaussian, σ an eighth of the longer side, mirrored at the borders"""
    sigma = max(images.shape[2:]) / 8
    blurred = gaussian_filter(images.cpu().numpy(), (0, 0, sigma, sigma), mode="mirror", truncate=3)
    return torch.from_numpy(blurred).to(images)


def _mean(images: Tensor) -> Tensor:
    return images.mean((2, 3), keepdim=True).expand_as(images)


BASELINES: dict[str, Callable[[Tensor], Tensor]] = {"blur": _blur, "mean": _mean}


def _curves(
    network: WCapsNet, images: Tensor, reference: Tensor, target: Tensor, rank: Tensor, steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Shares (steps + 1,), and probabilities of the target (m, steps + 1) as regions are removed or restored in order
    of `rank`"""
    cells = rank.shape[1]
    steps = min(steps, cells)
    counts = [round(step * cells / steps) for step in range(steps + 1)]

    def curve(before: Tensor, after: Tensor) -> Tensor:
        """With the first `count` regions of `before` replaced by those of `after`, for every count"""
        first = (_over_pixels(network, rank < count) for count in counts)  # (m, 1, h, w)
        answers = (_answers(network, torch.where(some, after, before)) for some in first)
        return torch.cat([answer.gather(1, target[:, None]) for answer in answers], 1).cpu()

    return torch.tensor(counts) / cells, curve(images, reference), curve(reference, images)


def _answers(network: WCapsNet, images: Tensor) -> Tensor:
    """(m, N): probabilities"""
    size = min(good_batch(network, images.device), -(-len(images) // torch.get_num_threads()))  # one part per core

    @torch.no_grad()  # set here because the mode is per thread
    def answer(part: Tensor) -> Tensor:
        return network.class_logits(network(part)).softmax(1)

    return torch.cat(list(on_every_core(answer, images.split(size), images.device)))


def _ranks(relevance: Tensor, generator: torch.Generator) -> Tensor:
    """0 for the most relevant; ties in random order"""
    draw = torch.rand(relevance.shape, generator=generator).to(relevance.device)
    shuffled = draw.argsort(1)
    order = shuffled.gather(1, relevance.gather(1, shuffled).argsort(dim=1, descending=True, stable=True))
    return order.argsort(1)


def _class_logits(network: WCapsNet) -> Callable[[Tensor], Tensor]:
    return lambda images: network.class_logits(network(images))


def _over_pixels(network: WCapsNet, cells: Tensor) -> Tensor:
    """(m, i·j) → (m, 1, h, w): every pixel has the value of its cell"""
    config, side = network.config, pixels_per_cell(network)
    whole = cells.unflatten(1, config.maps()[-1]).repeat_interleave(side, 1).repeat_interleave(side, 2)
    return whole[:, None, : config.height, : config.width]


def _cells(network: WCapsNet, relevance: Tensor) -> Tensor:
    """(m, h, w) → (m, i, j): means over the pixels of each cell"""
    return F.avg_pool2d(relevance.detach(), pixels_per_cell(network), ceil_mode=True)
