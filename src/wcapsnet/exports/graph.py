"""The computation of an exported file: from pixels to named answers, preprocessing included."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..classifier import Classifier
from ..data.device_data import normalize
from ..errors import InputError
from ..explanations.image import contributions
from ..network import BestCapsule, Output, WCapsNet
from ..network.critic import SpectralConv2d

INPUTS = {"uint8": torch.uint8, "float": torch.float32}  # 0 to 255, or 0 to 1
EXTRAS = ("fitness", "capsules", "vector", "contributions")


class Graph(nn.Module):
    """`images` (m, ch, h, w) → these tensors by name, in the order of `names`.

    | name | shape | |
    | --- | --- | --- |
    | probabilities | (m, N) | over the real classes |
    | logits | (m, r) | with "none of these" if the network has it |
    | weights_1 … weights_L | (m, n), the last (m, n, i, j) | b of each level |
    | best_capsule | (m, 3) int32 | block, row and column of the decoded vector |
    | reconstruction | (m, ch, h, w) | from 0 to 1 |
    | fitness_1 … fitness_L | like the weights | with the extra "fitness": a of each level |
    | capsules_1 … capsules_L | (m, n, k, i, j) | with "capsules": c of each level |
    | vector, position | (m, k), (m, 2) | with "vector": the decoder's input |
    | contributions | (m, r, n, i, j) | with "contributions": the terms of Eq. 14, whose sum is the logit |

    A network without routing or decoder has only what it has. With `switches` there are further inputs, `keep_1` …
    `keep_L` (n,) boolean: blocks to keep; the weights of the others go to these (`WCapsNet.keeping`).
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, classifier: Classifier, *, input: str = "uint8", extras: Sequence[str] = (), switches: bool = False
    ):
        super().__init__()
        if input not in INPUTS:
            raise InputError(f"The input must be {' or '.join(INPUTS)}, not {input!r}.")
        for name in extras:
            if name not in EXTRAS:
                raise InputError(f"There is no extra output {name!r}; choose from {', '.join(EXTRAS)}.")
        routed = isinstance(classifier.network, WCapsNet)
        if (extras or switches) and not routed:
            raise InputError("Extra outputs and switches need a network with routing.")
        self.network: Any = _fixed(classifier.network)
        self.classes, self.input = classifier.config.classes, input
        self.extras, self.switches = tuple(extras), switches
        self.register_buffer("mean", classifier.mean.detach().cpu().clone())
        self.register_buffer("std", classifier.std.detach().cpu().clone())
        self.levels: tuple[int, ...] = tuple(one.capsules for one in classifier.config.levels) if routed else ()
        self.eval()
        with torch.no_grad():
            self.names = list(self(*self.example(1)))

    def example(self, images: int) -> tuple[Tensor, ...]:
        """Inputs of the right shapes and types"""
        config = self.network.config
        pixels = torch.zeros(images, config.channels, config.height, config.width, dtype=INPUTS[self.input])
        return pixels, *(torch.ones(n, dtype=torch.bool) for n in (self.levels if self.switches else ()))

    @property
    def input_names(self) -> list[str]:
        return ["images", *(f"keep_{level}" for level in range(1, len(self.example(1))))]

    def forward(self, images: Tensor, *keep: Tensor) -> dict[str, Tensor]:
        x = normalize(images, self.mean, self.std) if self.input == "uint8" else (images - self.mean) / self.std
        # Not `keeping`, which looks at the masks: a graph cannot.
        output = self.network(x, routes=lambda level, router, c: router(c, keep[level])) if keep else self.network(x)
        answers = named(output, self.classes, self.mean, self.std)
        for extra in self.extras:
            answers |= _extra(extra, output, self.network)
        return answers


def named(output: Any, classes: int, mean: Tensor, std: Tensor) -> dict[str, Tensor]:
    """What any network's output holds, by the names of `Graph`"""
    answers = {"probabilities": output.logits[:, :classes].float().softmax(1), "logits": output.logits}
    routings = getattr(output, "routings", ())
    answers |= {f"weights_{level}": routing.weights for level, routing in enumerate(routings, 1)}
    if (best := getattr(output, "best", None)) is not None:
        answers["best_capsule"] = best.place.to(torch.int32)  # JavaScript's int64 are not numbers
    if (image := getattr(output, "reconstruction", None)) is not None:
        answers["reconstruction"] = (image * std + mean).clamp(0, 1)
    return answers


class DecoderGraph(nn.Module):
    """`vector` (m, k) and `position` (m, 2), x and y in [-1, 1] → `reconstruction` (m, ch, h, w) from 0 to 1"""

    mean: Tensor
    std: Tensor
    names = ("reconstruction",)
    input_names = ("vector", "position")

    def __init__(self, classifier: Classifier):
        super().__init__()
        if not isinstance(classifier.network, WCapsNet):
            raise InputError("Decoding a single vector needs a network with routing.")
        self.decoder = copy.deepcopy(classifier.network.decoder).cpu()
        self.dimension = classifier.config.levels[-1].dimension
        self.register_buffer("mean", classifier.mean.detach().cpu().clone())
        self.register_buffer("std", classifier.std.detach().cpu().clone())
        self.eval()

    def example(self, images: int) -> tuple[Tensor, ...]:
        return torch.zeros(images, self.dimension), torch.zeros(images, 2)

    def forward(self, vector: Tensor, position: Tensor) -> tuple[Tensor, ...]:
        image = self.decoder(BestCapsule(vector, position, position))  # the decoder does not use the place
        return ((image * self.std + self.mean).clamp(0, 1),)


def captured(graph: Graph | DecoderGraph) -> torch.export.ExportedProgram:
    """The computation as `torch.export` records it, for any batch size"""
    batch = torch.export.Dim("m", min=1)
    images, *rest = graph.example(2)  # not 1, which would be taken for a constant
    if isinstance(graph, DecoderGraph):
        shapes: tuple[Any, ...] = ({0: batch}, {0: batch})
    else:
        shapes = ({0: batch}, *([tuple({} for _ in rest)] if rest else []))  # `*keep` is one argument
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch.export calls deprecated functions of its own
        return torch.export.export(graph, (images, *rest), dynamic_shapes=shapes, strict=False)


def _extra(name: str, output: Output, network: WCapsNet) -> dict[str, Tensor]:
    if name == "fitness":
        return {f"fitness_{level}": routing.fitness for level, routing in enumerate(output.routings, 1)}
    if name == "capsules":
        return {f"capsules_{level}": c for level, c in enumerate(output.capsules, 1)}
    if name == "vector":
        return {"vector": output.best.vector, "position": output.best.position}
    return {"contributions": contributions(output, network.projection)}


def _fixed(network: nn.Module) -> nn.Module:
    """A copy for evaluation on the CPU. Its critics hold w / σ(w) itself: σ is constant now."""
    network = copy.deepcopy(network).cpu().float().eval().requires_grad_(False)
    for parent in list(network.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, SpectralConv2d):
                out_channels, channels, kernel, _ = layer.weight.shape
                plain = nn.Conv2d(channels, out_channels, kernel, layer.stride, layer.padding)
                plain.weight = nn.Parameter(layer.normalized_weight().detach(), requires_grad=False)
                plain.bias = layer.bias
                setattr(parent, name, plain)
    return network
