"""Fine-tuning: start from the weights of a trained network, layer by layer where they fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..classifier import Classifier
from ..errors import InputError
from ..formatting import plural, some

SHOWN = 4  # new layers named in the sentence


@dataclass(frozen=True)
class TakenOver:
    """What a network took over from the one it started from"""

    tensors: int  # of its tensors, with the statistics of its batch norms
    of: int
    new: tuple[str, ...]  # layers that keep their random weights
    adapted: tuple[str, ...]  # layers adapted to another number of channels, which count as taken over

    def sentence(self, source: str) -> str:
        """`249 of 250 tensors taken from wcapsnet-cifar100; new: projection (12 classes)`"""
        parts = [f"{self.tensors} of {plural(self.of, 'tensor')} taken from {source}"]
        parts += [f"adapted: {', '.join(self.adapted)}"] if self.adapted else []
        parts += [f"new: {some(self.new, SHOWN)}"] if self.new else []
        return "; ".join(parts)


@torch.no_grad()
def take_over(network: nn.Module, classes: Sequence[str], source: Classifier) -> TakenOver:
    """Copy every layer of `source` that exists in `network` under the same name with tensors of the same shapes.

    A layer is taken over whole or not at all: a batch norm's statistics belong to its weights, a critic's singular
    vectors to its kernel. The first convolution is adapted to another number of channels. Layers that depend on the
    classes are taken over only if those are the same, by name and order.
    """
    config: Any = network.config
    own, found = network.state_dict(), source.network.state_dict()
    ignored = set() if tuple(classes) == source.classes else _depends_on_classes(network)
    channels = source.config.channels, config.channels
    taken, new, adapted = 0, [], []
    for layer, names in _layers(own).items():
        values = {name: _for_channels(found[name], own[name], *channels) for name in names if name in found}
        fits = all(name in values and values[name].shape == own[name].shape for name in names)
        if ignored & set(names):
            new.append(f"{layer} ({len(classes)} classes)")
            continue
        if not fits:
            new.append(layer)
            continue
        if any(values[name] is not found[name] for name in names):
            adapted.append(f"{layer} ({channels[0]} to {plural(channels[1], 'channel')})")
        for name, value in values.items():
            own[name].copy_(value)
        taken += len(names)
    if not taken:
        raise InputError("The network to start from has no layer in common with this one; use its architecture.")
    return TakenOver(taken, len(own), tuple(new), tuple(adapted))


def _layers(tensors: dict[str, Tensor]) -> dict[str, list[str]]:
    """The tensors of each layer; one that belongs to the network itself is a layer of its own."""
    layers: dict[str, list[str]] = {}
    for name in tensors:
        layers.setdefault(name.rpartition(".")[0] or name, []).append(name)
    return layers


def _depends_on_classes(network: nn.Module) -> set[str]:
    """The tensors that would have another shape with another number of classes"""
    config: Any = network.config
    with torch.random.fork_rng(devices=[]):
        other = replace(config, classes=config.classes + 1).build().state_dict()
    own = network.state_dict()
    return {name for name, tensor in own.items() if name not in other or other[name].shape != tensor.shape}


def _for_channels(value: Tensor, own: Tensor, channels: int, wanted: int) -> Tensor:
    """The kernel of the first convolution for another number of channels; any other tensor as it is.

    Every new channel gets the sum of the kernels divided by their new number, so that a gray picture gives what it gave
    before as an RGB picture, and the other way round.
    """
    output, _, *kernel = own.shape if own.dim() == 4 else (0, 0)
    if channels == wanted or own.shape[1:2] != (wanted,) or value.shape != (output, channels, *kernel):
        return value
    return value.sum(1, keepdim=True).div(wanted).expand_as(own)
