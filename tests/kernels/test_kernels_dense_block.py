"""DenseNet-BC by the kernels: baselines/densenet.py is the truth."""

import copy

import pytest
import torch
from kernel_helpers import Report, bf16, one_of_five, rounded, shaken, three
from torch import nn

from wcapsnet.baselines.densenet import DenseLayer, DenseNetConfig
from wcapsnet.engine import Engine
from wcapsnet.kernels import FusedEngine, layout
from wcapsnet.kernels import level as level_module
from wcapsnet.kernels.dense_block import FusedDenseBlock, dense_block
from wcapsnet.kernels.densenet import FusedDenseNet
from wcapsnet.kernels.level import to_chunks
from wcapsnet.kernels.prepare import Prepared
from wcapsnet.objective import Objective
from wcapsnet.training.step import summed

# images, channels, growth, layers, output, height, width
BLOCKS = [
    (3, 8, 8, 2, 16, 7, 5),
    (2, 12, 4, 3, 10, 8, 8),  # channels that do not fill their chunks
    (2, 24, 12, 2, 20, 6, 6),  # as in DenseNet-BC-100
    (5, 20, 12, 1, 70, 2, 2),  # several groups of output
    (2, 8, 4, 2, 8, 17, 18),  # too wide for shifted taps
    (2, 16, 12, 3, 13, 16, 16),
]


class Block(nn.Module):
    """A dense block and what follows: norm, ReLU, 1×1 convolution"""

    def __init__(self, channels, growth, layers, output):
        super().__init__()
        self.block = nn.Sequential(*(DenseLayer(channels + at * growth, growth) for at in range(layers)))
        self.norm = nn.BatchNorm2d(channels + layers * growth)
        self.conv = nn.Conv2d(channels + layers * growth, output, 1, bias=False)
        for norm in (one for one in self.modules() if isinstance(one, nn.BatchNorm2d)):
            norm.num_batches_tracked = None  # counted by the engine

    def forward(self, x):
        return self.conv(torch.relu(self.norm(self.block(x))))


def padded(x):
    """(m, channel, i, j) with zeros that fill the last chunk"""
    return torch.cat([x, x.new_zeros(len(x), -x.shape[1] % 8, *x.shape[2:])], 1)


def forward(fused, x, training):
    prepared = Prepared(fused.entries, training, x.device)
    z = dense_block(fused, to_chunks(padded(x)), None, training, prepared)
    return z.unflatten(1, x.shape[2:]).permute(0, 3, 1, 2)


def fused_of(one, height, width):
    return FusedDenseBlock(one.block, one.norm, one.conv.weight, height, width)


def play(case):
    m, channels, growth, layers, output, height, width = case
    fused = fused_of(Block(channels, growth, layers, output), height, width)
    x = torch.zeros(m, channels, height, width, requires_grad=True)
    with torch.no_grad():
        forward(fused, x, False)
    forward(fused, x, True).sum().backward()


@pytest.fixture(scope="module")
def compiled(emulator):
    emulator.compile_together([lambda case=case: play(case) for case in BLOCKS])


@one_of_five
def held_to_the_truth(case):
    m, channels, growth, layers, output, height, width = case
    one, truth, half = three(shaken(Block(channels, growth, layers, output)))
    fused = fused_of(one, height, width)
    x, d = rounded(m, channels, height, width, scale=1.5, shift=0.3), rounded(m, output, height, width)
    report = Report()

    leaf = x.clone().requires_grad_()
    z = forward(fused, leaf, True)
    assert not z[:, output:].any()
    (z[:, :output].float() * d).sum().backward()
    exact = x.double().requires_grad_()
    expected = truth(exact)
    (expected * d).sum().backward()
    rough = x.clone().requires_grad_()
    with bf16():
        yardstick = half(rough)
    (yardstick.float() * d).sum().backward()
    report.add("z", z[:, :output], expected, yardstick)
    report.add("dx", leaf.grad, exact.grad, rough.grad)
    report.gradients(one, truth, half)
    report.buffers(one, truth, half)

    for each in (one, truth, half):
        each.eval()
    before = [buffer.clone() for buffer in one.buffers()]
    with torch.no_grad():
        with bf16():
            yardstick = half(x)
        report.add("z in evaluation", forward(fused, x, False)[:, :output], truth(x.double()), yardstick)
    assert all(map(torch.equal, one.buffers(), before))
    report.check()


@pytest.mark.usefixtures("compiled", "guarded")
@pytest.mark.parametrize("case", BLOCKS, ids=str)
def test_a_dense_block_agrees_with_its_modules(case):
    held_to_the_truth(case)


@pytest.fixture
def one_multiprocessor(monkeypatch, emulator):
    for one in (layout, level_module):  # so that a block goes through several tiles, too
        monkeypatch.setattr(one, "MULTIPROCESSORS", 1)
    emulator.compile_together([lambda case=case: play(case) for case in BLOCKS[:3]])


@pytest.mark.usefixtures("one_multiprocessor", "guarded")
@pytest.mark.parametrize("case", BLOCKS[:3], ids=str)
def test_many_images_are_shared_out_among_few_blocks(case):
    held_to_the_truth(case)


# ── the whole network ──

SMALL = DenseNetConfig(classes=5, channels=3, height=9, width=8, depth=16, growth=12)


@pytest.fixture
def served(emulator):
    """As under torch.autocast("cuda"), which does not go without a device."""
    torch.set_autocast_enabled("cuda", True)
    yield
    torch.set_autocast_enabled("cuda", False)


@pytest.mark.usefixtures("served", "guarded")
@one_of_five
def test_densenet_agrees_with_its_modules():
    network, truth, half = networks = three(shaken(SMALL.build(), by=0.1))
    fused, images, labels = FusedDenseNet(network), rounded(6, 3, 9, 8), torch.arange(6) % 5
    with bf16():
        outputs = fused(network, images).logits, truth(images.double()).logits, half(images).logits
    for output in outputs:
        nn.functional.cross_entropy(output.float() if output is not outputs[1] else output, labels).backward()
    report = Report()
    report.add("logits", *outputs)
    for each in networks:
        assert {int(norm.num_batches_tracked) for norm in each.modules() if isinstance(norm, nn.BatchNorm2d)} == {1}
        for norm in each.modules():
            if isinstance(norm, nn.BatchNorm2d):
                norm.num_batches_tracked = None
        each.eval()
    report.gradients(network, truth, half)
    report.buffers(network, truth, half)
    with torch.no_grad(), bf16():
        report.add("in evaluation", fused(network, images).logits, truth(images.double()).logits, half(images).logits)
    report.check()


@pytest.mark.usefixtures("served", "emulator")
@pytest.mark.parametrize("share", [None, 0.3])
@one_of_five
def test_the_engine_takes_densenet_through_the_step_of_plain_pytorch(share):
    """Also with smoothed labels and mixed images; a single image, which has no statistics, by the modules."""
    network, weights = shaken(SMALL.build(), by=0.1), Objective({"cross_entropy": 0.7, "label_smoothing": 0.1})
    plain, images, labels = copy.deepcopy(network), rounded(6, 3, 9, 8), torch.arange(6) % 5
    share = None if share is None else torch.tensor(share)
    engines, answers = (FusedEngine(network, weights, {}), Engine(plain)), []
    for engine in engines:
        sums = torch.zeros(len(summed(weights)), dtype=torch.float64)
        with bf16():
            terms = engine.terms(engine.forward(images), images, labels, weights, sums, share)
        Engine.backward(engine, terms.total)  # without the second stream of a GPU
        answers.append((sums[:3], torch.cat([p.grad.flatten() for p in engine.network.parameters()])))
    (sums, gradient), (expected_sums, expected) = answers
    torch.testing.assert_close(sums, expected_sums, rtol=0.02, atol=0.01)
    assert torch.cosine_similarity(gradient, expected, dim=0) > 0.9
    with bf16():
        ours, theirs = (engine.forward(images[:1]).logits for engine in engines)
    assert torch.equal(ours, theirs)
