"""Each routing procedure next to a literal twin with loops: the same answers, the same gradients."""

import gc
import math
import weakref

import pytest
import torch
from torch import nn

from wcapsnet.baselines.attention_routing import Attention
from wcapsnet.baselines.capsnet import dynamic_routing
from wcapsnet.baselines.common import windows
from wcapsnet.baselines.deepcaps import RoutedCaps
from wcapsnet.baselines.efficient_capsnet import SelfAttention
from wcapsnet.baselines.sr_capsnet import SelfRouting


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def assert_same(got, expected, leaves):
    """The same answers, and the same gradients of a random functional of them"""
    gradients = []
    for answers in (got, expected):
        probe = sum((a * torch.randn(a.shape, generator=torch.Generator().manual_seed(7))).sum() for a in answers)
        gradients.append(torch.autograd.grad(probe, leaves, retain_graph=True))
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def dot(a, b):
    return sum(a[k] * b[k] for k in range(len(a)))


def squashed(s):
    norm = torch.sqrt(dot(s, s))
    return s * norm / (1 + norm**2)


def softmax(values):
    total = sum(torch.exp(v) for v in values)
    return [torch.exp(v) / total for v in values]


# ── dynamic routing (Sabour et al.) ──


def slow_dynamic_routing(votes, bias, iterations, leaky):
    all_v, all_c = [], []
    for m in range(votes.shape[0]):
        inputs, classes = votes.shape[1:3]
        b = [[torch.zeros(()) for _ in range(classes)] for _ in range(inputs)]
        for _ in range(iterations):
            c = [softmax([*b[i], torch.zeros(())])[:classes] if leaky else softmax(b[i]) for i in range(inputs)]
            v = [squashed(sum(c[i][j] * votes[m, i, j] for i in range(inputs)) + bias[j]) for j in range(classes)]
            b = [[b[i][j] + dot(votes[m, i, j], v[j]) for j in range(classes)] for i in range(inputs)]
        all_v.append(torch.stack(v))
        all_c.append(torch.stack([torch.stack(row) for row in c]))
    return torch.stack(all_v), torch.stack(all_c)


@pytest.mark.parametrize("leaky", [False, True])
@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_dynamic_routing_equals_its_loops_through_all_iterations(iterations, leaky):
    votes, bias = drawn(2, 5, 3, 4), drawn(3, 4, seed=1)
    v, c = dynamic_routing(votes.transpose(1, 2), bias, iterations, leaky)
    assert_same((v, c.transpose(1, 2)), slow_dynamic_routing(votes, bias, iterations, leaky), [votes, bias])
    share = c.sum(1)
    assert (share < 1 - 1e-3).all() if leaky else torch.allclose(share, torch.ones_like(share))


def test_a_gradient_that_stops_early_leaves_the_next_one_right():
    votes, bias = drawn(2, 3, 5, 4), drawn(3, 4, seed=1)
    v, _ = dynamic_routing(votes, bias, 3)
    (expected,) = torch.autograd.grad(v.square().sum(), votes, retain_graph=True)
    torch.autograd.grad(v.square().sum(), bias, retain_graph=True)
    (again,) = torch.autograd.grad(v.square().sum(), votes)
    assert torch.equal(again, expected)


def test_the_graph_of_dynamic_routing_is_freed_without_a_backward_pass():
    votes, bias = drawn(2, 3, 5, 4), drawn(3, 4, seed=1)
    gc.disable()
    try:
        v, c = dynamic_routing(votes, bias, 3)
        torch.autograd.grad(v.sum(), bias, retain_graph=True)
        left = weakref.ref(c)
        del v, c
        assert left() is None
    finally:
        gc.enable()


def test_dynamic_routing_in_bf16_has_about_the_same_gradient():
    votes, bias = drawn(2, 3, 5, 4), drawn(3, 4, seed=1)
    (expected,) = torch.autograd.grad(dynamic_routing(votes, bias, 3)[0].square().sum(), votes)
    (rounded,) = torch.autograd.grad(dynamic_routing(votes.bfloat16(), bias, 3)[0].square().sum(), votes)
    assert (rounded - expected).norm() < 0.02 * expected.norm()


# ── 3-D dynamic routing (DeepCaps) ──


def slow_routing_3d(layer, u):
    (types, dimension), iterations = layer.shape, layer.iterations
    _, inputs, _, height, width = u.shape
    places = [(j, y, x) for j in range(types) for y in range(height) for x in range(width)]
    all_s, all_c = [], []
    for m in range(len(u)):
        votes = torch.zeros(inputs, types, dimension, height, width)
        for i in range(inputs):  # the same kernels for every input type
            votes[i] = nn.functional.conv2d(u[m, i][None], layer.conv.weight, padding=1)[0].view(
                types, dimension, height, width
            )
        b = [{place: torch.zeros(()) for place in places} for _ in range(inputs)]
        for _ in range(iterations):
            c = [dict(zip(places, softmax(list(b[i].values())), strict=True)) for i in range(inputs)]
            s = torch.zeros(types, dimension, height, width)
            for j, y, x in places:
                s[j, :, y, x] = sum(c[i][j, y, x] * votes[i, j, :, y, x] for i in range(inputs))
            s = torch.stack([squashed((s[j] + layer.bias[j]).flatten()).view_as(s[j]) for j in range(types)])
            for i in range(inputs):
                for j, y, x in places:
                    b[i][j, y, x] = b[i][j, y, x] + dot(votes[i, j, :, y, x], s[j, :, y, x])
        all_s.append(s)
        all_c.append(torch.stack([torch.stack(list(c[i].values())).view(types, height, width) for i in range(inputs)]))
    return torch.stack(all_s), torch.stack(all_c)


def test_3d_routing_equals_its_loops_and_its_softmax_is_over_types_and_places():
    torch.manual_seed(0)
    layer, u = RoutedCaps(3, 2, 4, iterations=3), drawn(2, 3, 3, 2, 3)
    got = layer(u)
    assert_same(got, slow_routing_3d(layer, u), [u, layer.conv.weight, layer.bias])
    torch.testing.assert_close(got[1].sum((2, 3, 4)), torch.ones(2, 3))


# ── self-routing ──


def slow_self_routing(layer, a, u, kernel, stride, padding):
    """On maps a (m, n, h, w) and u (m, n, d, h, w): a (m, j, y, x), u (m, j, d, y, x)"""
    m_, n, d, height, width = u.shape
    outputs, o = layer.b2.shape[1], layer.w1.shape[3]
    across = [(size + 2 * padding - kernel) // stride + 1 for size in (height, width)]
    activation = torch.zeros(m_, outputs, *across)
    poses = torch.zeros(m_, outputs, o, *across)
    for m in range(m_):
        for y in range(across[0]):
            for x in range(across[1]):
                total, weight, pose = 0.0, [0.0] * outputs, [torch.zeros(o) for _ in range(outputs)]
                for k in range(kernel):
                    for q in range(kernel):
                        row, column = y * stride + k - padding, x * stride + q - padding
                        if not (0 <= row < height and 0 <= column < width):
                            continue
                        for capsule in range(n):
                            i = (k * kernel + q) * n + capsule
                            one, own = u[m, capsule, :, row, column], a[m, capsule, row, column]
                            r = softmax([dot(layer.w2[i, :, j], one) + layer.b2[i, j] for j in range(outputs)])
                            total = total + own
                            for j in range(outputs):
                                vote = sum(layer.w1[j, i, p] * one[p] for p in range(d))
                                weight[j] = weight[j] + own * r[j]
                                pose[j] = pose[j] + own * r[j] * vote
                for j in range(outputs):
                    activation[m, j, y, x] = weight[j] / total
                    poses[m, j, :, y, x] = pose[j] / weight[j]
    return activation, poses


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_self_routing_equals_its_loops(at_once, monkeypatch):
    torch.manual_seed(0)
    layer = SelfRouting(9 * 2, 3, 3, 4)
    nn.init.normal_(layer.w2)
    nn.init.normal_(layer.b2)
    plain = layer.poses
    monkeypatch.setattr(layer, "poses", lambda routed, u: plain(routed, u, at_once))
    logits, u = drawn(2, 2, 4, 3), drawn(2, 2, 3, 4, 3, seed=1)
    a = logits.sigmoid()
    seen = [windows(part, (3, 3), 2, 1).flatten(0, 1) for part in (a[:, :, None], u)]
    got_a, got_u, r = layer(seen[0].squeeze(2), seen[1])
    got = got_a.view(2, 2, 2, 3).permute(0, 3, 1, 2), got_u.view(2, 2, 2, 3, 4).permute(0, 3, 4, 1, 2)
    assert_same(got, slow_self_routing(layer, a, u, 3, 2, 1), [logits, u, layer.w1, layer.w2, layer.b2])
    torch.testing.assert_close(r.sum(2), torch.ones(r.shape[:2]))
    with torch.no_grad():  # without checkpointing
        torch.testing.assert_close(layer(seen[0].squeeze(2), seen[1])[1], got_u)


def test_the_activations_of_the_class_layer_are_probabilities():
    layer = SelfRouting(6, 3, 4)
    nn.init.normal_(layer.w2)
    a, u, _ = layer(drawn(5, 6).sigmoid(), drawn(5, 6, 3))
    assert u is None
    torch.testing.assert_close(a.sum(1), torch.ones(5))


# ── inverted dot-product attention ──


def slow_attention(layer, children, parents):
    m_, n, d, height, width = children.shape
    pose, (kernel, _), stride, outputs = layer.weight.shape[-1], layer.kernel, layer.stride, layer.parents
    across = [(size - kernel) // stride + 1 for size in (height, width)]
    states = torch.zeros(m_, outputs, d, *across)
    for m in range(m_):
        for y in range(across[0]):
            for x in range(across[1]):
                sums = [torch.zeros(d) for _ in range(outputs)]
                for k in range(kernel):
                    for q in range(kernel):
                        for capsule in range(n):
                            i = (k * kernel + q) * n + capsule
                            child = children[m, capsule, :, y * stride + k, x * stride + q].view(pose, pose)
                            votes = [(child @ layer.weight[i, j]).flatten() for j in range(outputs)]
                            if parents is None:
                                r = [1 / outputs] * outputs
                            else:
                                r = softmax(
                                    [dot(votes[j], parents[m, j, :, y, x]) / math.sqrt(d) for j in range(outputs)]
                                )
                            for j in range(outputs):
                                sums[j] = sums[j] + r[j] * votes[j]
                for j in range(outputs):
                    states[m, j, :, y, x] = layer.norm(sums[j])
    return states


def test_attention_equals_its_loops_in_the_uniform_iteration_and_in_the_next():
    torch.manual_seed(0)
    layer = Attention(2, (3, 3), 2, 3, 2)
    nn.init.normal_(layer.norm.weight)
    children, parents = drawn(2, 2, 4, 5, 3), drawn(2, 3, 4, 2, 1, seed=1)
    assert_same(
        [layer(children, None)[0]], [slow_attention(layer, children, None)], [children, layer.weight, layer.norm.weight]
    )
    states, r = layer(children, parents)
    leaves = [children, parents, layer.weight, layer.norm.weight]
    assert_same([states], [slow_attention(layer, children, parents)], leaves)
    torch.testing.assert_close(r.sum(2), torch.ones(r.shape[:2]))
    with torch.no_grad():  # without checkpointing
        torch.testing.assert_close(layer(children, parents)[0], states)


# ── self-attention (Efficient-CapsNet) ──


def slow_self_attention(layer, u):
    classes, inputs, dimension, _ = layer.weight.shape
    all_v, all_c = [], []
    for m in range(len(u)):
        votes = [
            [sum(layer.weight[r, i, p] * u[m, i, p] for p in range(dimension)) for i in range(inputs)]
            for r in range(classes)
        ]
        scale = math.sqrt(len(votes[0][0]))
        agreement = [
            [sum(dot(votes[r][i], votes[r][k]) for k in range(inputs)) / scale for i in range(inputs)]
            for r in range(classes)
        ]
        c = [softmax([agreement[r][i] for r in range(classes)]) for i in range(inputs)]  # over classes
        v = []
        for r in range(classes):
            s = sum((c[i][r] + layer.bias[r, i]) * votes[r][i] for i in range(inputs))
            norm = torch.sqrt(dot(s, s))
            v.append((1 - torch.exp(-norm)) * s / norm)
        all_v.append(torch.stack(v))
        all_c.append(torch.stack([torch.stack(row) for row in c]))
    return torch.stack(all_v), torch.stack(all_c)


def test_self_attention_equals_its_loops():
    torch.manual_seed(0)
    layer, u = SelfAttention(4, 3, 3, 5), drawn(2, 4, 3)
    nn.init.normal_(layer.bias, std=0.3)
    assert_same(layer(u), slow_self_attention(layer, u), [u, layer.weight, layer.bias])
