"""Sections III-A and IV-A: Dense Blocks, CapsTrans, and all capsule blocks of a level at once."""

import pytest
import torch
from torch import nn

from twins import LevelTwin, answers, assert_same_gradients, assert_same_state, close
from wcapsnet.network.capsules import CapsTrans, CapsuleBlocks, ConvPlus, DenseBlock
from wcapsnet.network.nonlinearity import tilt
from wcapsnet.network.per_capsule import (
    BatchNorm,
    PerCapsuleConv2d,
    PerCapsuleShortcut,
    for_each_capsule,
    shared_over_capsules,
)
from wcapsnet.parts import nonlinearity as nonlinearities


def disturb(module):
    """Statistics and affine parameters as after some training: nothing is 0 or 1 any more."""
    with torch.no_grad():
        for norm in module.modules():
            if isinstance(norm, BatchNorm):
                norm.weight.uniform_(0.5, 1.5)
                norm.bias.normal_(0, 0.3)
                norm.running_mean.normal_(0, 0.3)
                norm.running_var.uniform_(0.5, 1.5)
    return module


# One layer for all capsules


def test_every_capsule_convolves_with_its_own_kernel_worked_by_hand():
    # capsule 1 multiplies by 2, capsule 2 by 3
    conv = PerCapsuleConv2d(2, 1, 1, kernel=1)
    with torch.no_grad():
        conv.weight.copy_(torch.tensor([2.0, 3.0]).view(2, 1, 1, 1, 1))
    x = torch.tensor([1.0, 10.0]).view(1, 2, 1, 1, 1)
    assert conv(x).flatten().tolist() == [2, 30]


def test_a_capsule_is_moved_by_its_own_input_and_its_own_kernel_alone():
    conv = PerCapsuleConv2d(3, 2, 2, kernel=3)
    x = torch.randn(2, 3, 2, 4, 4, requires_grad=True)
    conv(x)[:, 1].square().sum().backward()
    assert x.grad.abs().sum((0, 2, 3, 4)).nonzero().flatten().tolist() == [1]
    assert conv.weight.grad.abs().sum((1, 2, 3, 4)).nonzero().flatten().tolist() == [1]


@pytest.mark.parametrize("size", [(8, 8), (7, 7), (9, 5), (1, 3)])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_a_stride_takes_a_side_to_its_quotient_rounded_up_for_both_kinds_of_kernel(stride, size):
    x = torch.randn(1, 2, 3, *size)
    expected = tuple(-(-side // stride) for side in size)
    assert PerCapsuleConv2d(2, 3, 4, 3, stride)(x).shape == (1, 2, 4, *expected)
    assert PerCapsuleShortcut(2, 3, stride)(x).shape == (1, 2, 3, *expected)


@pytest.mark.parametrize("stride", [1, 2, 3, 4])
def test_the_3x3_kernel_of_a_dense_layer_is_centred_on_the_pixel_it_strides_to(stride):
    # A kernel that only looks at its centre reads every s-th pixel, whatever the stride.
    layer = DenseBlock(1, 1, 1, 1, stride).layers[0].eval()
    with torch.no_grad():
        layer.conv.weight.zero_()[..., 1, 1] = 1
    x = torch.arange(64.0).view(1, 1, 1, 8, 8)
    close(layer(x), x[..., ::stride, ::stride], 1e-4)  # a new batch norm only divides by √(1 + 1e-5)


def test_the_shortcut_sees_every_pixel_once():
    conv = PerCapsuleConv2d(1, 1, 1, kernel=2, stride=2)
    with torch.no_grad():
        conv.weight.fill_(1)
    x = torch.randn(1, 1, 1, 7, 5)
    close(conv(x).sum(), x.sum(), 1e-5, 1e-5)


@pytest.mark.parametrize("size", [8, 7])
def test_an_input_that_all_capsules_share_is_convolved_as_if_each_had_its_own(size):
    shortcut = PerCapsuleShortcut(3, 2, stride=2).double()
    x = torch.randn(2, 2, size, size, dtype=torch.float64)
    shared, gradients = answers(lambda x: shortcut(for_each_capsule(x, 3)), x)
    weights = shortcut.weight.grad.clone()
    shortcut.weight.grad = None
    own, expected = answers(lambda x: shortcut(for_each_capsule(x, 3).contiguous()), x)
    close(shared, own)
    close(gradients[0], expected[0])
    close(weights, shortcut.weight.grad)


def test_batch_norm_of_a_capsule_and_channel_worked_by_hand():
    # capsule 1 has values 1, 3 (mean 2, variance 1), capsule 2 has 10, 30 (mean 20, variance 100)
    norm = BatchNorm(2, 1, eps=1e-12)
    x = torch.tensor([[1.0, 10.0], [3.0, 30.0]]).view(2, 2, 1, 1, 1)
    close(norm(x).flatten(), torch.tensor([-1.0, -1.0, 1.0, 1.0]), 1e-6)
    # momentum .1; the running variance is the unbiased one: 2 and 200
    close(norm.running_mean.flatten(), torch.tensor([0.2, 2.0]), 1e-6)
    close(norm.running_var.flatten(), torch.tensor([0.9 + 0.2, 0.9 + 20.0]), 1e-6)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_agrees_with_torch_capsule_by_capsule(training):
    norm = disturb(BatchNorm(3, 2)).double().train(training)
    singles = [nn.BatchNorm2d(2).double().train(training) for _ in range(3)]
    for n, single in enumerate(singles):
        single.load_state_dict({name: value[n] for name, value in norm.state_dict().items()}, strict=False)
    x = torch.randn(4, 3, 2, 3, 3, dtype=torch.float64)
    y = norm(x)
    for n, single in enumerate(singles):
        close(y[:, n], single(x[:, n]))
        close(norm.running_mean[n], single.running_mean)
        close(norm.running_var[n], single.running_var)


def test_one_value_has_no_variance_so_the_running_statistics_serve():
    norm = disturb(BatchNorm(2))
    x, before = torch.randn(1, 2, 1, 1), {name: value.clone() for name, value in norm.state_dict().items()}
    y = norm(x)
    assert torch.equal(y, norm.eval()(x))
    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())


def test_a_shared_layer_treats_capsules_as_samples():
    layer, c = nn.Conv2d(2, 3, 1), torch.randn(4, 5, 2, 3, 3)
    y = shared_over_capsules(layer, c)
    for n in range(5):
        close(y[:, n], layer(c[:, n]), 1e-5, 1e-6)


def test_every_capsule_of_a_level_sees_the_same_input():
    x = torch.randn(2, 3, 4, 5)
    assert torch.equal(for_each_capsule(x, 3), torch.stack([x, x, x], 1))


# Dense Blocks


def test_conv_plus_is_batch_norm_then_relu_then_convolution_worked_by_hand():
    # values -1, 1 stay as they are under the batch norm, ReLU makes 0, 1, the kernel multiplies by 5
    conv_plus = ConvPlus(1, 1, 1, kernel=1)
    with torch.no_grad():
        conv_plus.conv.weight.fill_(5)
    x = torch.tensor([-1.0, 1.0]).view(2, 1, 1, 1, 1)
    close(conv_plus(x).flatten(), torch.tensor([0.0, 5.0]), 1e-4)


@pytest.mark.parametrize("layers", [1, 2, 6])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_dense_block_adds_g_channels_for_each_layer(layers, stride):
    block = DenseBlock(2, 3, growth=4, layers=layers, stride=stride)
    y = block(torch.randn(2, 2, 3, 8, 8))
    assert block.out_channels == 3 + 4 * layers
    assert y.shape == (2, 2, 3 + 4 * layers, 8 // stride, 8 // stride)


def test_a_dense_block_keeps_its_input_in_front_of_what_it_adds():
    x = torch.randn(2, 2, 3, 8, 8)
    block = DenseBlock(2, 3, 4, 3, stride=1)
    assert torch.equal(block(x)[:, :, :3], x)
    strided = DenseBlock(2, 3, 4, 3, stride=2)
    assert torch.equal(strided(x)[:, :, :3], strided.shortcut(x))


def test_without_a_stride_there_is_no_shortcut_convolution():
    assert not list(DenseBlock(2, 3, 4, 1, stride=1).shortcut.parameters())
    assert DenseBlock(2, 3, 4, 1, stride=2).shortcut.weight.shape == (2, 3, 3, 2, 2)


def test_every_dense_layer_sees_all_channels_before_it():
    block = DenseBlock(1, 3, 2, 3, stride=1)
    assert [layer.conv.weight.shape[2] for layer in block.layers] == [3, 5, 7]


@pytest.mark.parametrize("size", [(8, 8), (7, 5)])
def test_with_max_pooling_a_level_is_one_without_a_stride_on_the_pooled_input(size):
    pooled = CapsuleBlocks(2, 3, 4, 2, 5, 2, tilt, pool=True).eval()
    plain = CapsuleBlocks(2, 3, 4, 2, 5, 1, tilt).eval()
    plain.load_state_dict(pooled.state_dict())
    x = torch.randn(2, 3, *size)
    below, right = (-side % 2 for side in size)
    padded = nn.functional.pad(x, (0, right, 0, below), value=-torch.inf)
    quarters = padded.unflatten(3, (-1, 2)).unflatten(2, (-1, 2))  # (m, c, i/2, 2, j/2, 2)
    close(pooled(x), plain(quarters.amax((3, 5))))


# CapsTrans


def test_the_batch_norm_before_the_nonlinearity_is_one_for_all_capsules():
    # D4: over the capsules together mean 0 and variance 1, of a single capsule not
    trans = CapsTrans(3, 4, 2, nonlinearity=lambda x: x)
    with torch.no_grad():
        trans.conv_plus.conv.weight[1] += 3
    y = trans(torch.randn(8, 3, 4, 5, 5))
    close(y.mean((0, 1, 3, 4)), torch.zeros(2), atol=1e-5)
    close(y.var((0, 1, 3, 4), unbiased=False), torch.ones(2), 1e-3)
    assert y.mean((0, 3, 4)).abs().max() > 0.2
    assert trans.norm.weight.shape == (2,)


def test_the_nonlinearity_comes_last_and_acts_on_the_vectors():
    trans = disturb(CapsTrans(2, 4, 3, nonlinearity=tilt)).eval()
    plain = CapsTrans(2, 4, 3, nonlinearity=lambda x: x).eval()
    plain.load_state_dict(trans.state_dict())
    x = torch.randn(2, 2, 4, 5, 5)
    assert torch.equal(trans(x), tilt(plain(x)))


# A level


def level(stride, nonlinearity="tilt", capsules=3):
    arguments = (capsules, 2, 2, 2, 3, stride)
    original = disturb(CapsuleBlocks(*arguments, nonlinearities[nonlinearity])).double()
    return original, LevelTwin(*arguments, nonlinearity).double()


@pytest.mark.parametrize("nonlinearity", nonlinearities)
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize(("stride", "size"), [(1, (4, 3)), (2, (4, 4)), (2, (5, 3)), (3, (6, 6)), (3, (5, 7))])
def test_a_level_agrees_with_a_loop_over_its_capsules(stride, size, training, nonlinearity, double):
    original, twin = level(stride, nonlinearity)
    twin.same_as(original.train(training))
    x = torch.randn(2, 2, *size, dtype=torch.float64)
    y, (gradient,) = answers(original, x)
    expected, (expected_gradient,) = answers(twin, x)
    close(y, expected)
    close(gradient, expected_gradient, 1e-7)
    assert_same_gradients(original, twin)
    assert_same_state(original, twin)


def test_two_training_steps_leave_the_same_statistics_as_in_the_loop(double):
    original, twin = level(2)
    twin.same_as(original.train())
    for _ in range(2):
        x = torch.randn(2, 2, 4, 4, dtype=torch.float64)
        original(x), twin(x)
    assert_same_state(original, twin)
    close(original.eval()(x), twin.eval()(x))


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_permuting_the_capsules_of_a_level_permutes_what_it_says(training):
    original, _ = level(2, capsules=4)
    permuted, _ = level(2, capsules=4)
    order = torch.tensor([2, 0, 3, 1])
    shared = {"trans.norm.weight", "trans.norm.bias", "trans.norm.running_mean", "trans.norm.running_var"}
    permuted.load_state_dict(
        {name: value if name in shared else value[order] for name, value in original.state_dict().items()}
    )
    x = torch.randn(3, 2, 6, 6, dtype=torch.float64)
    close(permuted.train(training)(x), original.train(training)(x)[:, order], 1e-7)
