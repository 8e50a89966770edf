"""The plain networks of Table V against literal twins, layer by layer as their papers draw them."""

import pytest
import torch
import torch.nn.functional as F
from small import batch, small
from torch import nn

import wcapsnet
from wcapsnet.baselines.capsnet import FirstConvolution


def normed(x, norm):
    """Batch norm over the batch, then ReLU"""
    mean, variance = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), unbiased=False, keepdim=True)
    x = (x - mean) / (variance + norm.eps).sqrt()
    return (x * norm.weight[:, None, None] + norm.bias[:, None, None]).clamp_min(0)


def resnet(network, x):
    blocks, widths = list(network.blocks), network.config.widths
    x = F.conv2d(x, network.conv.weight, padding=1)
    each = (network.config.depth - 2) // 9
    assert len(blocks) == each * len(widths)
    for index, block in enumerate(blocks):
        first, stride = index % each == 0, 2 if index in (each, 2 * each) else 1
        inside = normed(x, block.norm1)
        shortcut = F.conv2d(inside, block.shortcut.weight, stride=stride) if first else x
        y = normed(F.conv2d(inside, block.conv1.weight, stride=stride), block.norm2)
        y = normed(F.conv2d(y, block.conv2.weight, padding=1), block.norm3)
        x = shortcut + F.conv2d(y, block.conv3.weight)
        assert x.shape[1] == 4 * widths[index // each]
    return normed(x, network.norm)


def densenet(network, x):
    x, growth = F.conv2d(x, network.init_conv.weight, padding=1), network.config.growth
    for index, block in enumerate(network.blocks):
        maps = [x]
        for layer in block:
            y = normed(torch.cat(maps, 1), layer.norm1)
            y = normed(F.conv2d(y, layer.conv1.weight), layer.norm2)
            assert y.shape[1] == 4 * growth
            maps.append(F.conv2d(y, layer.conv2.weight, padding=1))
        x = torch.cat(maps, 1)
        if index < 2:
            transition = network.transitions[index]
            x = F.avg_pool2d(F.conv2d(normed(x, transition.norm), transition.conv.weight), 2)
            assert x.shape[1] == sum(map_.shape[1] for map_ in maps) // 2
    return normed(x, network.norm)


def vgg(network, x):
    for stage in network.stages:
        for conv, norm, _ in zip(*[iter(stage)] * 3, strict=True):
            x = normed(F.conv2d(x, conv.weight, padding=1), norm)
        x = F.max_pool2d(x, 2)
    return x


TWINS = {"resnet-1001": resnet, "densenet-bc-100": densenet, "densenet-bc-250": densenet, "vgg-19": vgg}


@pytest.mark.parametrize("name", TWINS)
def test_a_plain_network_computes_what_its_paper_draws(name):
    network = small(name, size=(32, 32)).double()
    for norm in (one for one in network.modules() if isinstance(one, nn.BatchNorm2d)):
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.uniform_(norm.bias, -0.5, 0.5)
    images = batch(network)[0].double()
    expected = network.linear(TWINS[name](network, images).mean((2, 3)))
    torch.testing.assert_close(network(images).logits, expected)


@pytest.mark.parametrize("name", ["resnet-1001", "densenet-bc-100", "vgg-19"])
def test_convolutions_start_with_the_variance_of_their_output_fan(name):
    torch.manual_seed(0)
    network = wcapsnet.create(name, **({"depth": 29} if name == "resnet-1001" else {}))
    convolutions = [one for one in network.modules() if isinstance(one, nn.Conv2d) and one.weight.numel() > 4000]
    assert len(convolutions) > 5
    for conv in convolutions:
        fan = conv.out_channels * conv.kernel_size[0] * conv.kernel_size[1]
        assert conv.weight.std().item() == pytest.approx((2 / fan) ** 0.5, rel=0.08)


@pytest.mark.parametrize("name", ["resnet-1001", "densenet-bc-100"])
def test_as_in_the_authors_code_the_bias_of_the_classes_starts_at_zero(name):
    assert not small(name).linear.bias.any()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("padding", [0, 4])
def test_capsnets_first_convolution_as_a_matrix_product_is_the_convolution(channels, padding):
    conv = FirstConvolution(channels, 7, 9, padding=padding).double()
    x = torch.randn(2, channels, 11, 14, dtype=torch.float64)
    torch.testing.assert_close(conv.as_product(x), F.conv2d(x, conv.weight, conv.bias, padding=padding))
