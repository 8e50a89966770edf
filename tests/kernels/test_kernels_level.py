"""The capsule blocks of a level by the kernels: network/capsules.py is the truth."""

import pytest
import torch
from kernel_helpers import Report, bf16, error, from_vectors, one_of_five, rounded, shaken, three, to_vectors

from wcapsnet.kernels import layout
from wcapsnet.kernels import level as level_module
from wcapsnet.kernels.level import FusedLevel, capsule_blocks, to_chunks
from wcapsnet.network.capsules import CapsuleBlocks
from wcapsnet.network.nonlinearity import squash, tilt

# images, capsules, channels, growth, layers, k, stride, height, width, non-linearity
LEVELS = [
    (3, 2, 16, 8, 2, 16, 2, 7, 5, tilt),  # a stride that does not divide the map
    (2, 3, 8, 3, 3, 8, 1, 9, 7, squash),
    (2, 1, 24, 12, 2, 24, 1, 3, 3, tilt),  # growth over a chunk; k that leaves a lane without work
    (9, 2, 8, 8, 2, 40, 1, 1, 2, squash),  # strips of several images, the last block not full
    (2, 2, 8, 8, 2, 8, 1, 14, 14, tilt),  # two tiles
    (2, 1, 8, 8, 3, 16, 1, 16, 16, tilt),
    (2, 2, 8, 3, 2, 8, 1, 17, 18, tilt),  # too wide for shifted taps; five tiles
    (2, 2, 16, 12, 2, 24, 3, 10, 7, squash),
    (5, 1, 8, 3, 1, 8, 2, 2, 2, tilt),  # one layer, one position left
    (3, 3, 40, 8, 2, 48, 1, 5, 4, tilt),
    (4, 2, 16, 8, 3, 8, 2, 9, 33, tilt),
    (3, 2, 8, 8, 2, 8, 3, 3, 3, squash),
    (2, 1, 24, 20, 1, 40, 2, 13, 4, tilt),
]
IN_LARGE_BLOCKS = [  # as with many images: several images in a block, several rows of a map for a warp
    (5, 2, 16, 8, 2, 16, 1, 7, 8, tilt),
    (3, 2, 8, 3, 2, 8, 2, 11, 13, tilt),
    (7, 1, 8, 12, 2, 24, 1, 5, 3, squash),
    (3, 1, 24, 8, 2, 8, 1, 16, 16, tilt),
    (2, 1, 8, 8, 2, 8, 1, 37, 18, tilt),  # of two tiles, the second not full
]


def name_of(case):
    m, n, c, g, layers, k, stride, height, width, nonlinearity = case
    return f"{m}x{height}x{width}-n{n}-c{c}-g{g}-L{layers}-k{k}-s{stride}-{nonlinearity.__name__}"


def forward(level, x, training):
    return from_vectors(capsule_blocks(level, to_chunks(x), None, training), level.height, level.width)


def step(level, x, d):
    leaf = x.clone().requires_grad_()
    c = forward(level, leaf, True)
    (c.float() * d).sum().backward()
    return c, leaf.grad


def play(case):
    m, n, c, g, layers, k, stride, height, width, nonlinearity = case
    level = FusedLevel(CapsuleBlocks(n, c, g, layers, k, stride, nonlinearity), height, width)
    with torch.no_grad():
        forward(level, torch.zeros(m, c, height, width), False)
    step(level, torch.zeros(m, c, height, width), torch.zeros(m, n, k, level.height, level.width))


@pytest.fixture(scope="module")
def compiled(emulator):
    emulator.compile_together([lambda case=case: play(case) for case in LEVELS])


@pytest.fixture
def one_multiprocessor(monkeypatch, emulator):
    for module in (layout, level_module):  # so that a block goes through several tiles, too
        monkeypatch.setattr(module, "MULTIPROCESSORS", 1)
    emulator.compile_together([lambda case=case: play(case) for case in IN_LARGE_BLOCKS])


@one_of_five
def held_to_the_truth(case):
    m, n, c, g, layers, k, stride, height, width, nonlinearity = case
    blocks, truth, half = three(shaken(CapsuleBlocks(n, c, g, layers, k, stride, nonlinearity)))
    level = FusedLevel(blocks, height, width)
    x = rounded(m, c, height, width, scale=1.5, shift=0.3)
    d = rounded(m, n, k, level.height, level.width)
    report = Report()
    got, dx = step(level, x, d)

    exact = x.double().requires_grad_()
    expected = truth(exact)
    (expected * d).sum().backward()
    rough = x.clone().requires_grad_()
    with bf16():
        yardstick = half(rough)
    (yardstick.float() * d).sum().backward()
    report.add("c", got, expected, yardstick)
    report.add("dx", dx, exact.grad, rough.grad)
    report.gradients(blocks, truth, half)
    report.buffers(blocks, truth, half)

    for module in (blocks, truth, half):
        module.eval()
    before = [buffer.clone() for buffer in blocks.buffers()]
    with torch.no_grad():
        with bf16():
            yardstick = half(x)
        report.add("c in evaluation", forward(level, x, False), truth(x.double()), yardstick)
    for one, other in zip(blocks.buffers(), before, strict=True):
        assert torch.equal(one, other)
    report.check()


@pytest.mark.usefixtures("compiled", "guarded")
@pytest.mark.parametrize("case", LEVELS, ids=name_of)
def test_a_level_agrees_with_its_modules(case):
    held_to_the_truth(case)


@pytest.mark.usefixtures("one_multiprocessor", "guarded")
@pytest.mark.parametrize("case", IN_LARGE_BLOCKS, ids=name_of)
def test_many_images_are_shared_out_among_few_blocks(case):
    held_to_the_truth(case)


@pytest.mark.usefixtures("compiled", "guarded")
def test_sums_that_are_known_already_give_the_same():
    m, n, c, g, layers, k, stride, height, width, nonlinearity = LEVELS[0]
    level = FusedLevel(CapsuleBlocks(n, c, g, layers, k, stride, nonlinearity), height, width)
    x = to_chunks(rounded(m, c, height, width))
    sums = torch.stack([x.double().sum((1, 2)).flatten(), x.double().square().sum((1, 2)).flatten()]).float()
    torch.testing.assert_close(capsule_blocks(level, x, sums, True), capsule_blocks(level, x, None, True))


@pytest.mark.usefixtures("compiled", "guarded")
def test_the_softmax_of_a_vector_far_below_zero():
    """Lanes beyond the vector's end hold zeros, which are larger than all of it and must not count."""
    m, n, c, g, layers, k, stride, height, width, nonlinearity = LEVELS[2]
    blocks, truth, _ = three(CapsuleBlocks(n, c, g, layers, k, stride, nonlinearity))
    for one in (blocks, truth):
        torch.nn.init.constant_(one.trans.norm.bias, -200.0)
    x, d = rounded(m, c, height, width), rounded(m, n, k, height, width)
    got, _ = step(FusedLevel(blocks, height, width), x, d)
    expected = truth(x.double())
    (expected * d).sum().backward()
    assert error(got, expected) < 0.01
    assert error(blocks.trans.norm.weight.grad, truth.trans.norm.weight.grad) < 0.05


@pytest.mark.usefixtures("compiled", "guarded")
def test_each_capsule_is_computed_alone():
    """Other weights for one capsule leave the other's vectors as they were, in evaluation."""
    m, n, c, g, layers, k, stride, height, width, nonlinearity = LEVELS[0]
    blocks = CapsuleBlocks(n, c, g, layers, k, stride, nonlinearity).eval()
    level = FusedLevel(blocks, height, width)
    x = rounded(m, c, height, width)
    with torch.no_grad():
        before = forward(level, x, False)
        for p in blocks.parameters():
            if p.shape[0] == n and p.dim() > 1:
                p[1] += 1
        after = forward(level, x, False)
    assert torch.equal(before[:, 0], after[:, 0])
    assert not torch.equal(before[:, 1], after[:, 1])


def test_vectors_are_laid_out_as_the_modules_have_them():
    c = torch.randn(2, 3, 4, 5, 6)
    assert torch.equal(from_vectors(to_vectors(c), 5, 6), c)


@pytest.mark.usefixtures("emulator")
def test_shortcuts_that_go_back_some_at_a_time_add_up_to_all_at_once():
    torch.manual_seed(0)
    blocks = CapsuleBlocks(5, 8, 8, 1, 8, 2, tilt)
    x, gradients = torch.randn(2, 8, 6, 6), []
    for at_once in (5, 2):
        level = FusedLevel(blocks, 6, 6)
        level.through_at_once = at_once
        leaf = x.clone().requires_grad_()
        c = capsule_blocks(level, to_chunks(leaf), None, True)
        c.float().square().sum().backward()
        gradients.append(leaf.grad)
    assert error(gradients[1], gradients[0]) < 0.01
