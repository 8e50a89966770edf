"""Networks small enough to loop over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from wcapsnet.network import Level, RoutingConfig, WCapsNetConfig

QUIET = RoutingConfig(noise_share=0.0, dropout=0.0)
"""No chance anywhere in the routing."""


def tiny(routing: RoutingConfig | None = None, **changes: Any) -> WCapsNetConfig:
    """Two levels, three classes, 8×8 images; dropout and noise as in the paper."""
    defaults: dict[str, Any] = {
        "classes": 3,
        "channels": 2,
        "height": 8,
        "width": 8,
        "levels": (Level(3, 2, 4, 2), Level(2, 2, 3, 1)),
        "init_channels": 4,
        "dense_layers": 2,
        "critic_channels": 3,
        "decoder_channels": (4, 5),
        "routing": routing or RoutingConfig(),
    }
    return WCapsNetConfig(**(defaults | changes))


def quiet(routing: dict[str, Any] | None = None, **changes: Any) -> WCapsNetConfig:
    """`tiny` without dropout and noise: what a twin can be compared with."""
    return tiny(replace(QUIET, **(routing or {})), critic_dropout=0.0, projection_dropout=0.0, **changes)
