"""Fig. 1 with the kernels: the same as `network/wcapsnet.py`, computed by CUDA."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..network import BestCapsule, Output, WCapsNet
from ..network.critic import Critic
from ..network.decoder import best_capsule
from ..network.routing import Routing, predict, route
from .compile import Unavailable, rehearse
from .critic import FusedCritic, FusedRouter, Spectral, routed
from .decoder import FusedDecoder, decoded
from .head import FusedHead, predicted
from .images import FusedInit, draw, first_convolution
from .level import FusedLevel, capsule_blocks, to_chunks
from .prepare import Prepared, Zeros
from .side_stream import Aside
from .supports import check_network, unsupported_decoder, unsupported_routing


class Fused(ABC):
    """A network's forward pass in bf16; otherwise the plain modules are used."""

    def __init__(self) -> None:
        self.left: dict[str, str | None] = {}  # parts → why PyTorch computes them; None if the kernels do
        self.aside, self.zeros = Aside(), Zeros()
        self.compiled: set[tuple[int, bool]] = set()

    def serves(self, network: nn.Module, images: Tensor) -> bool:
        # A single image may have no statistics, and training needs no gradients through running ones.
        fit = len(images) > 1 if network.training else not torch.is_grad_enabled()
        return fit and torch.is_autocast_enabled("cuda")

    def __call__(self, network: Any, images: Tensor) -> Any:
        if not self.serves(network, images):
            return network(images)
        if (kind := (len(images), network.training)) not in self.compiled:
            self.compiled.add(kind)
            rehearse(lambda: self._rehearsal(network, images))
        return self._run(network, images)

    @abstractmethod
    def _run(self, network: Any, images: Tensor) -> Any: ...

    @abstractmethod
    def _rehearsal(self, network: Any, images: Tensor) -> None:
        """Forward and, in training, backward, without side effects: no kernel is launched."""


class FusedNetwork(Fused):
    def __init__(self, network: WCapsNet):
        super().__init__()
        config = network.config
        check_network(network)
        capsules: Any = network.capsules
        routers: Any = network.routers
        maps = config.maps()
        for name, value in [
            ("init_channels", config.init_channels),
            *((f"levels.{index}.dimension", level.dimension) for index, level in enumerate(config.levels)),
        ]:
            if value % 8 or value > 256:
                raise Unavailable(f"model.{name} is {value}, but it must be a multiple of 8 up to 256")
        for index, level in enumerate(config.levels):
            if level.stride > 1 and level.capsules > 64:
                raise Unavailable(
                    f"model.levels.{index} has a stride and {level.capsules} capsules, but at most 64 fit"
                )
        if config.dense_layers > 14 or len(config.levels) > 16:
            raise Unavailable("the network has too many levels or dense layers")
        self.classes = config.classes
        inputs = [(config.height, config.width), *maps[:-1]]
        self.init = FusedInit(network.init_conv, config.height, config.width, self.zeros)
        self.levels = [
            FusedLevel(blocks, *size, self.aside, self.zeros) for blocks, size in zip(capsules, inputs, strict=True)
        ]
        self.decoder: FusedDecoder | None = None
        self.left = {"routing": unsupported_routing(network), "decoder": unsupported_decoder(network)}
        if not self.left["decoder"]:
            self.decoder = FusedDecoder(network.decoder, self.aside, self.zeros)
        critics = [router.critic for router in routers]
        routes = not self.left["routing"]
        learned = routes and all(isinstance(critic, Critic) for critic in critics)
        self.spectral = Spectral([conv for critic in critics for conv in critic.layers] if learned else [])
        if len(self.spectral.convolutions) > 32:
            raise Unavailable("the critics have too many convolutions")
        if routes and config.levels[-1].capsules * maps[-1][0] * maps[-1][1] > 20_000:
            raise Unavailable("the last level has more capsule vectors than fit the shared memory")
        self.critics = [
            FusedCritic(critic, self.spectral, *size, salt=100 * index + 10, aside=self.aside, zeros=self.zeros)
            for index, (critic, size) in enumerate(zip(critics, maps, strict=True))
            if learned
        ]
        self.routers: list[FusedRouter] = []
        self.head: FusedHead | None = None
        if routes:
            routing = config.routing
            judges: list[FusedCritic | None] = [*self.critics] if learned else [None] * len(routers)
            *features, last = judges
            for index, (router, critic) in enumerate(zip(routers, features, strict=False)):
                self.routers.append(
                    FusedRouter(router, critic, routing.stop_gradient, routing.dropout, 100 * index, self.zeros)
                )
            self.head = FusedHead(
                routers[-1], last, network.projection, config.classes, *maps[-1],
                routing.stop_gradient, routing.dropout, config.projection_dropout, 100 * len(maps), self.zeros,
            )  # fmt: skip

        self.entries = [self.init.entry, *(entry for level in self.levels for entry in level.entries)]
        self.entries += [entry for critic in self.critics for entry in critic.entries]
        if self.decoder is not None:
            self.entries += self.decoder.entries

        self._check_widths()

    def _check_widths(self) -> None:
        self.init.layer.check(self.init.size[1])
        for level in self.levels:
            for entry in level.entries:
                entry.layer.check(level.width)
        for critic in self.critics:
            for layer, (_, width) in zip(critic.layers, critic.maps[1:], strict=True):
                layer.check(width)
        for stage in self.decoder.stages if self.decoder else ():
            stage.layer.check(stage.size[1])
            stage.reading.check(stage.size[1])

    def blocks(self, network: WCapsNet, index: int, x: Tensor) -> Tensor:
        """The capsule blocks of one level alone: x (m, c, i, j) → c (m, n, k, i/s, j/s)"""
        level = self.levels[index]
        return _as_maps(capsule_blocks(level, to_chunks(x), None, network.training), level)

    def level(self, network: WCapsNet, index: int, x: Tensor) -> Tensor:
        """One level with its critic alone: x (m, c, i, j) → its output, or the logits."""
        last = index == len(self.levels) - 1
        if self.head is None:
            raise Unavailable("the level is routed by PyTorch")
        training, seed = network.training, draw(x.device)
        self.zeros.begin(x.device)
        self.spectral.forward(training)
        entries = [*self.levels[index].entries, *(self.critics[index].entries if self.critics else [])]
        prepared = Prepared(entries, training, x.device)
        c = capsule_blocks(self.levels[index], to_chunks(x), None, training, prepared)
        if last:
            return predicted(self.head, c, training, seed, prepared)[1]
        return routed(self.routers[index], c, training, seed, prepared)[1]

    def _rehearsal(self, network: WCapsNet, images: Tensor) -> None:
        """The parts that PyTorch computes, on uninitialised memory, change neither their buffers nor the random
        numbers."""
        plain = [module for part in (network.routers, network.decoder) for module in part.modules()]
        modes = [module.training for module in plain]
        with torch.random.fork_rng([images.device] if images.is_cuda else []):
            try:
                for module in plain:
                    module.training = False
                output = self._run(network, images)
            finally:
                for module, mode in zip(plain, modes, strict=True):
                    module.training = mode
        if network.training:
            values = [output.logits, output.reconstruction, *(r.fitness for r in output.routings)]
            values = [value for value in values if value.requires_grad]  # an untrained fitness has no gradient
            parameters = [p for p in network.parameters() if p.requires_grad]
            torch.autograd.grad(values, parameters, [torch.zeros_like(v) for v in values], allow_unused=True)

    def _run(self, network: WCapsNet, images: Tensor) -> Output:
        training, routings, seed = network.training, [], draw(images.device)
        self.zeros.begin(images.device)
        self.spectral.forward(training)
        prepared = Prepared(self.entries, training, images.device)
        x, sums = first_convolution(self.init, images, training, prepared)  # (chunk, m, position, 8)
        if self.head is None:
            return self._with_plain_routing(network, x, sums, prepared)
        capsules = []
        for level, router in zip(self.levels, self.routers, strict=False):
            c = capsule_blocks(level, x, sums, training, prepared)  # (m, n, position, k)
            routing, x, sums = routed(router, c, training, seed, prepared)
            if router.per_position:  # (m, n, position) → (m, n, i, j)
                routing = Routing(*(one.unflatten(2, (level.height, level.width)) for one in routing))
            capsules.append(_as_maps(c, level))
            routings.append(routing)
        c = capsule_blocks(self.levels[-1], x, sums, training, prepared)
        routing, logits, best = predicted(self.head, c, training, seed, prepared)
        capsules.append(_as_maps(c, self.levels[-1]))
        routings.append(routing)
        return Output(logits, self._decode(network, best, prepared), tuple(routings), best, tuple(capsules))

    def _decode(self, network: WCapsNet, best: BestCapsule, prepared: Prepared) -> Tensor:
        if self.decoder is None:
            return network.decoder(best)
        return decoded(self.decoder, best, network.training, prepared)

    def _with_plain_routing(self, network: WCapsNet, x: Tensor, sums: Tensor | None, prepared: Prepared) -> Output:
        """The blocks with kernels, the routing with its own modules."""
        training, capsules, routings = network.training, [], []
        routers: Any = network.routers
        *features, last = zip(self.levels, routers, strict=True)
        for level, router in features:
            c = _as_maps(capsule_blocks(level, x, sums, training, prepared), level)
            routing = router(c)
            x, sums = to_chunks(route(network.applied(routing.weights), c)), None
            capsules.append(c)
            routings.append(routing)
        level, router = last
        c = _as_maps(capsule_blocks(level, x, sums, training, prepared), level)
        routing = router(c)
        dropped = F.dropout(c, network.config.projection_dropout, training)
        logits = predict(network.applied(routing.weights), dropped, network.projection)
        best = best_capsule(router.weights(routing.fitness), c, network.class_projection)
        reconstruction = self._decode(network, best, prepared)
        return Output(logits, reconstruction, (*routings, routing), best, (*capsules, c))


def _as_maps(c: Tensor, level: FusedLevel) -> Tensor:
    """(m, n, position, k) → (m, n, k, i, j)"""
    return c.unflatten(2, (level.height, level.width)).permute(0, 1, 4, 2, 3)
