"""Multiply-adds, counted by hand."""

import torch

from twins import tiny
from wcapsnet.baselines import DenseNet
from wcapsnet.bench.work import total, work_of
from wcapsnet.network import WCapsNet


def test_the_cifar10_network_worked_by_hand():
    parts = work_of(WCapsNet(), 3, 32, 32)
    macs = {name: work.macs for name, work in parts.items()}
    assert macs["init_conv"] == 3 * 24 * 9 * 32 * 32
    # shortcut 24 → 24 of 2×2; Dense Layers from 24, 32, … 64 channels to 8; CapsTrans 72 → 16: at 16×16, 16 times
    assert macs["level 1"] == 16 * 256 * (24 * 24 * 4 + (24 + 32 + 40 + 48 + 56 + 64) * 8 * 9 + 72 * 16)
    # no stride, no shortcut: from 16, 24, … 56 channels; CapsTrans 64 → 32: at 16×16, 8 times
    assert macs["level 2"] == 8 * 256 * ((16 + 24 + 32 + 40 + 48 + 56) * 8 * 9 + 64 * 32)
    # 16→8→4→2→1: 16 → 32 → 64 → 96 → 1 channels, for each of 16 capsules
    assert macs["critic 1"] == 16 * 9 * (16 * 32 * 64 + 32 * 64 * 16 + 64 * 96 * 4 + 96)
    assert macs["critic 4"] == 2 * 64 * (8 * 32 + 32 * 64 + 64 * 96 + 96)
    # linear 10 → 8·8·32; transposed 32 → 64 from 8×8, 64 → 3 from 16×16
    assert macs["decoder"] == 10 * 2048 + 9 * (32 * 64 * 64 + 64 * 3 * 256)
    assert 163e6 < total(parts).macs < 170e6


def test_values_are_what_each_layer_reads_and_writes():
    parts = work_of(WCapsNet(), 3, 32, 32)
    assert parts["init_conv"].values == (3 + 24) * 32 * 32
    assert parts["decoder"].values == 10 + 2048 + 32 * 64 + 64 * 256 + 64 * 256 + 3 * 1024


def test_densenet_is_counted_too():
    parts = work_of(DenseNet(), 3, 32, 32)
    assert parts["linear"].macs == 3420
    layers = [24 + 12 * at for at in range(16)]
    assert parts["block 1"].macs == 1024 * sum(width * 48 + 48 * 12 * 9 for width in layers)


def test_counting_leaves_the_network_as_it_was():
    network = WCapsNet(tiny())
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    assert work_of(network, 2, 8, 8) == work_of(network, 2, 8, 8)
    assert network.training
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
