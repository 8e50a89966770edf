"""Images in and out by the kernels: the batch with augmentation, the first convolution, the decoder."""

import math

import pytest
import torch
from kernel_helpers import Report, bf16, error, from_chunks, one_of_five, rounded, shaken, three
from torch import nn

from wcapsnet.data import Split
from wcapsnet.data.augment import mirror, shift
from wcapsnet.data.device_data import DeviceSplit
from wcapsnet.kernels.decoder import FusedDecoder, decoded
from wcapsnet.kernels.images import FusedInit, first_convolution, take
from wcapsnet.kernels.prepare import Prepared, Zeros
from wcapsnet.kernels.side_stream import Aside
from wcapsnet.network import BestCapsule
from wcapsnet.network.decoder import Decoder

CPU = torch.device("cpu")

# ── a batch ──


def pictures(count, channels, height, width):
    images = torch.randint(0, 256, (count, channels, height, width), dtype=torch.uint8)
    mean, std = (0.2, 0.4, 0.6)[:channels], (0.3, 0.25, 0.2)[:channels]
    return DeviceSplit(Split(images, torch.arange(count) * 7 % 10), mean, std, CPU)


@pytest.mark.usefixtures("guarded")
@pytest.mark.parametrize("shape", [(3, 9, 7), (1, 28, 28)])
def test_without_augmentation_a_batch_is_what_take_gives(shape):
    data, index = pictures(20, *shape), torch.tensor([3, 19, 0, 3])
    images, labels = take(data, index, False, 0)
    expected, expected_labels = data.take(index)
    assert torch.equal(labels, expected_labels)
    torch.testing.assert_close(images, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.usefixtures("guarded")
@pytest.mark.parametrize(("mirroring", "shifting"), [(True, 0), (False, 2), (True, 3)])
def test_every_image_is_mirrored_and_shifted_by_a_draw_of_its_own(mirroring, shifting):
    count = 600
    data, index = pictures(5, 3, 9, 7), torch.arange(count) % 5
    images, labels = take(data, index, mirroring, shifting)
    plain, expected_labels = data.take(index)
    assert torch.equal(labels, expected_labels)
    draws = torch.full((count, 3), -100)
    for flipped in (False, True) if mirroring else (False,):
        turned = mirror(plain, torch.full((count,), flipped))
        for down in range(-shifting, shifting + 1):
            for right in range(-shifting, shifting + 1):
                moved = shift(turned, torch.full((count,), down), torch.full((count,), right), shifting)
                same = (images - moved).abs().amax((1, 2, 3)) < 1e-5
                assert bool((draws[same] == -100).all())
                draws[same] = torch.tensor([flipped, down, right])
    assert bool((draws != -100).all())  # each is one of the images that augment.py can make
    places = 2 * shifting + 1
    if mirroring:
        assert abs(draws[:, 0].double().mean() - 0.5) < 4 * 0.5 / math.sqrt(count)
    for axis in (1, 2):
        shares = torch.bincount(draws[:, axis] + shifting, minlength=places) / count
        assert float((shares - 1 / places).abs().max()) < 4 * math.sqrt(1 / places / count)
    if shifting:  # down and right are drawn apart
        together = torch.corrcoef(draws.double().T[1:])[0, 1]
        assert abs(together) < 4 / math.sqrt(count)


@pytest.mark.usefixtures("guarded")
def test_images_that_lie_in_memory_in_another_order_are_taken_as_they_are():
    images = torch.randint(0, 256, (4, 9, 7, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    data, index = DeviceSplit(Split(images, torch.arange(4)), (0.0,) * 3, (1.0,) * 3, CPU), torch.tensor([2, 1])
    torch.testing.assert_close(take(data, index, False, 0)[0], data.take(index)[0], rtol=1e-6, atol=1e-6)


@pytest.mark.usefixtures("guarded")
def test_draws_follow_the_random_numbers_of_pytorch():
    data, index = pictures(5, 3, 9, 7), torch.arange(40) % 5
    torch.manual_seed(3)
    one, other = take(data, index, True, 2)[0], take(data, index, True, 2)[0]
    torch.manual_seed(3)
    again = take(data, index, True, 2)[0]
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


# ── the first convolution ──


@pytest.mark.usefixtures("guarded")
@pytest.mark.parametrize(("channels", "out", "height", "width"), [(3, 24, 9, 7), (1, 8, 16, 16), (10, 40, 8, 20)])
def test_the_first_convolution_agrees_with_its_module(channels, out, height, width):
    m = 3
    conv, truth, half = three(nn.Conv2d(channels, out, 3, padding=1, bias=False))
    init = FusedInit(conv, height, width, Zeros())
    images, d = torch.randn(m, channels, height, width), rounded(m, out, height, width)
    y, sums = first_convolution(init, images, True, Prepared([init.entry], True, CPU))
    y = from_chunks(y, height, width)
    y.backward(d.bfloat16())
    expected = truth(images.double())
    (expected * d).sum().backward()
    with bf16():
        yardstick = half(images)
    (yardstick.float() * d).sum().backward()
    report = Report(more=1e-3)
    report.add("y", y, expected, yardstick)
    report.add("Σy", sums[0], y.double().sum((0, 2, 3)), 0.0)
    report.add("Σy²", sums[1], y.double().square().sum((0, 2, 3)), 0.0)
    report.gradients(conv, truth, half)
    with torch.no_grad():
        again, _ = first_convolution(init, images, False, Prepared([init.entry], False, CPU))
    assert torch.equal(from_chunks(again, height, width), y)
    report.check()


# ── the decoder ──


@pytest.mark.usefixtures("guarded")
@pytest.mark.parametrize(
    ("k", "channels", "height", "width", "widths"),
    [(8, 3, 16, 16, (8, 16)), (24, 1, 14, 18, (32, 8)), (8, 3, 9, 40, (16, 40))],
)
@one_of_five
def test_the_decoder_agrees_with_its_module(k, channels, height, width, widths):
    m = 4
    decoder, truth, half = three(shaken(Decoder(k, channels, height, width, widths), by=0.1))
    fused = FusedDecoder(decoder, Aside(), Zeros())
    vector, position = rounded(m, k), rounded(m, 2)
    d = rounded(m, channels, height, width)
    leaves = [vector.clone().requires_grad_(), vector.double().requires_grad_(), vector.clone().requires_grad_()]
    place = torch.zeros(m, 3)
    images = decoded(fused, BestCapsule(leaves[0], position, place), True, Prepared(fused.entries, True, CPU))
    expected = truth(BestCapsule(leaves[1], position.double(), place))
    with bf16():
        yardstick = half(BestCapsule(leaves[2], position, place))
    for one in (images, expected, yardstick):
        (one * d.to(one.dtype)).sum().backward()
    report = Report()
    report.add("images", images, expected, yardstick)
    report.add("dvector", leaves[0].grad, leaves[1].grad, leaves[2].grad)
    # What a batch norm takes away again has no gradient.
    largest = max(float(q.grad.norm()) for q in truth.parameters())
    report.gradients(decoder, truth, half, scale=1e-2 * largest, slack=0.03)
    report.buffers(decoder, truth, half)
    for module in (decoder, truth, half):
        module.eval()
    with torch.no_grad():
        images = decoded(fused, BestCapsule(vector, position, place), False, Prepared(fused.entries, False, CPU))
        expected = truth(BestCapsule(vector.double(), position.double(), place))
        with bf16():
            yardstick = half(BestCapsule(vector, position, place))
    report.add("images in evaluation", images, expected, yardstick)
    assert error(images, expected) < 0.02
    report.check()
