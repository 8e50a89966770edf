"""Fig. 1 once more, on the kernels: what `network/wcapsnet.py` says, computed by CUDA."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..network import Output, WCapsNet
from ..network.decoder import best_capsule
from ..network.routing import predict, route
from .level import FusedLevel, capsule_blocks


class Engine:
    """Computes a network's forward pass where bf16 was asked for; elsewhere the plain modules do."""

    def __init__(self, network: WCapsNet):
        config = network.config
        sizes = [(config.height, config.width), *config.maps()[:-1]]
        self.levels = [
            FusedLevel(blocks, *size) for blocks, size in zip(network.capsules, sizes, strict=True)
        ]

    def serves(self, network: WCapsNet, images: Tensor) -> bool:
        # Gradients through running statistics are nothing that training needs.
        return torch.is_autocast_enabled("cuda") and (network.training or not torch.is_grad_enabled())

    def __call__(self, network: WCapsNet, images: Tensor) -> Output:
        if not self.serves(network, images):
            return network.plain(images)
        training = network.training
        routings = []
        x = network.init_conv(images)
        *feature_levels, last = zip(self.levels, network.routers, strict=True)
        for level, router in feature_levels:
            c = capsule_blocks(level, x, training)  # (m, n, k, i, j)
            routing = router(c)
            x = route(network.applied(routing.weights), c)
            routings.append(routing)
        level, router = last
        c = capsule_blocks(level, x, training)
        routing = router(c)
        routings.append(routing)
        dropped = F.dropout(c, network.config.projection_dropout, training)
        logits = predict(network.applied(routing.weights), dropped, network.projection)
        best = best_capsule(routing.weights, c)
        return Output(logits, network.decoder(best), tuple(routings), best)
