"""Fig. 1 with the literal parts. Without dropout and noise: compared with a network whose rates are 0."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from wcapsnet.network import BestCapsule, Output, Routing, WCapsNetConfig

from .capsules import LevelTwin
from .compare import Tensors, Twin, prefixed
from .critic import BlockCriticTwin, VectorCriticTwin
from .decoder import DecoderTwin, best_capsule_twin
from .routing import normalized_twin, predict_twin, route_twin, softmax_twin


class NetworkTwin(Twin):
    def __init__(self, config: WCapsNetConfig):
        super().__init__()
        self.config = config
        self.init_conv = nn.Conv2d(config.channels, config.init_channels, 3, padding=1, bias=False)
        self.levels, self.critics = nn.ModuleList(), nn.ModuleList()
        channels, height, width = config.init_channels, config.height, config.width
        for at, row in enumerate(config.levels):
            self.levels.append(
                LevelTwin(
                    row.capsules,
                    channels,
                    row.growth,
                    config.dense_layers,
                    row.dimension,
                    row.stride,
                    config.nonlinearity,
                )
            )
            height, width = (height + row.stride - 1) // row.stride, (width + row.stride - 1) // row.stride
            last = at == len(config.levels) - 1
            self.critics.append(
                VectorCriticTwin(row.dimension, config.critic_channels)
                if last
                else BlockCriticTwin(row.dimension, height, width, config.critic_channels)
            )
            channels = row.dimension
        self.projection = nn.Parameter(torch.zeros(channels, config.classes + 1))
        self.decoder = DecoderTwin(channels, config.channels, config.height, config.width, config.decoder_channels)
        self.weighting = {"softmax": softmax_twin, "normalized": normalized_twin}[config.routing.weighting]

    def forward(self, images: Tensor) -> Output:
        capsules, routings = [], []
        x = self.init_conv(images)
        for level, critic in zip(self.levels[:-1], self.critics[:-1], strict=True):
            c = level(x)
            a = critic(c)
            b = self.weighting(a)
            capsules.append(c)
            routings.append(Routing(a, b))
            x = route_twin(self.used(b), c)
        c = self.levels[-1](x)
        a = self.critics[-1](c)
        b = self.weighting(a)
        routings.append(Routing(a, b))
        logits = predict_twin(self.used(b), c, self.projection)
        vector, position, place = best_capsule_twin(b, c, self.projection[:, : self.config.classes])
        best = BestCapsule(vector, position, place)
        return Output(logits, self.decoder(vector, position), tuple(routings), best, (*capsules, c))

    def used(self, b: Tensor) -> Tensor:
        return b.detach() if self.config.routing.stop_gradient else b

    def tensors(self) -> Tensors:
        named: Tensors = {"init_conv.weight": self.init_conv.weight, "projection": self.projection}
        for at, (level, critic) in enumerate(zip(self.levels, self.critics, strict=True)):
            named |= prefixed(f"capsules.{at}", level.tensors())
            named |= prefixed(f"routers.{at}.critic", critic.tensors())
        return named | prefixed("decoder", self.decoder.tensors())
