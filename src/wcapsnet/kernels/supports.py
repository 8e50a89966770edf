"""What the kernels implement: exactly these parts. Subclasses, other functions and hooks are not supported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from ..network import WCapsNet
from ..network.capsules import CapsTrans, CapsuleBlocks, ConvPlus, DenseBlock
from ..network.critic import BlockCritic, ConstantFitness, RandomFitness, SpectralConv2d, VectorCritic
from ..network.decoder import Decoder
from ..network.nonlinearity import squash, tilt
from ..network.per_capsule import BatchNorm, PerCapsuleConv2d, PerCapsuleShortcut
from ..network.routing import Router, normalized_weights, softmax_weights
from .compile import Unavailable

# The weightings and non-linearities with a kernel, and the flag that selects it.
NORMALIZED: dict[Callable[..., Any], bool] = {softmax_weights: False, normalized_weights: True}
SQUASHED: dict[Callable[..., Any], bool] = {tilt: False, squash: True}
CRITICS = (BlockCritic, VectorCritic)
GIVEN = (ConstantFitness, RandomFitness)  # they have no gradient, so any kernel can read their output
EPSILON = 1e-5  # of every batch norm


def check_network(network: WCapsNet) -> None:
    """Raise `Unavailable` unless the blocks of every level and the network around them are the paper's."""
    exactly(network, WCapsNet)
    exactly(network.init_conv, nn.Conv2d)
    if len(network.stem):
        raise Unavailable("no kernel for a stem")
    for blocks in network.capsules:
        _check_blocks(blocks)


def unsupported_routing(network: WCapsNet) -> str | None:
    """Why PyTorch must do the routing; None if the kernels can."""
    routers: list[Any] = list(network.routers)
    try:
        for router in routers:
            exactly(router, Router)
            if router.weighting not in NORMALIZED:
                raise Unavailable(f"no kernel for the weighting {_name(router.weighting)}")
            single = router.per_position or router is routers[-1]
            exactly(router.critic, VectorCritic if single else BlockCritic, *GIVEN)
            if isinstance(router.critic, CRITICS):
                _check_norm(router.critic.norm)
                for layer in router.critic.layers:
                    exactly(layer, SpectralConv2d)
    except Unavailable as reason:
        return str(reason)
    if len({isinstance(router.critic, CRITICS) for router in routers}) > 1:
        return "some levels have a critic and some do not"
    if any(level.capsules > 64 for level in network.config.levels):
        return "a level has more than 64 capsules"
    return None


def unsupported_decoder(network: WCapsNet) -> str | None:
    """Why PyTorch must do the decoding; None if the kernels can."""
    config, decoder = network.config, network.decoder
    if config.channels > 8:
        return f"the images have {config.channels} channels, more than 8"
    if any(width % 8 for width in config.decoder_channels):
        return "its widths are not multiples of 8"
    try:
        exactly(decoder, Decoder)
        exactly(decoder.linear, nn.Linear)
        for conv, norm in ((decoder.conv1, decoder.norm1), (decoder.conv2, decoder.norm2)):
            exactly(conv, nn.ConvTranspose2d)
            _check_norm(norm)
    except Unavailable as reason:
        return str(reason)
    return None


def exactly(module: nn.Module, *types: type) -> None:
    """`module` has one of these types, not a subclass, and its methods are neither hooked nor replaced."""
    if type(module) not in types:
        raise Unavailable(f"no kernel for {_name(type(module))}")
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    replaced = [name for name in vars(module) if callable(getattr(type(module), name, None))]
    if any(hooks) or replaced:
        raise Unavailable(f"a {_name(type(module))} has hooks or replaced methods")


def _check_blocks(blocks: Any) -> None:
    exactly(blocks, CapsuleBlocks)
    if blocks.pool > 1:
        raise Unavailable("no kernel for max pooling")
    exactly(blocks.dense, DenseBlock)
    exactly(blocks.trans, CapsTrans)
    first, *rest = blocks.dense.layers
    exactly(blocks.dense.shortcut, PerCapsuleShortcut if first.conv.stride > 1 else nn.Identity)
    for conv_plus, kernel in [*((layer, 3) for layer in (first, *rest)), (blocks.trans.conv_plus, 1)]:
        exactly(conv_plus, ConvPlus)
        exactly(conv_plus.conv, PerCapsuleConv2d)
        _check_norm(conv_plus.norm)
        if conv_plus.conv.kernel != kernel or (conv_plus is not first and conv_plus.conv.stride != 1):
            raise Unavailable("no kernel for these convolutions")
    _check_norm(blocks.trans.norm)
    if blocks.trans.nonlinearity not in SQUASHED:
        raise Unavailable(f"no kernel for the non-linearity {_name(blocks.trans.nonlinearity)}")


def _check_norm(norm: Any) -> None:
    exactly(norm, BatchNorm)
    if norm.eps != EPSILON:
        raise Unavailable(f"a batch norm has ε = {norm.eps:g}, not {EPSILON:g}")


def _name(part: Any) -> str:
    return str(getattr(part, "__name__", type(part).__name__))
