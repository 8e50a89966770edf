"""Section IV: the whole network as Fig. 1, and Table I."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from twins import NetworkTwin, assert_same_gradients, assert_same_state, close, quiet, tiny
from wcapsnet.network import (
    CIFAR10_LEVELS,
    CIFAR100_LEVELS,
    Level,
    Routing,
    RoutingConfig,
    WCapsNet,
    WCapsNetConfig,
)
from wcapsnet.network.per_capsule import BatchNorm
from wcapsnet.network.routing import kept
from wcapsnet.objective import PAPER, objective

THREE = (Level(3, 2, 4, 2), Level(3, 2, 4, 1), Level(2, 2, 3, 1))


def batch(config, m=4, dtype=torch.float32):
    images = torch.randn(m, config.channels, config.height, config.width, dtype=dtype)
    return images, torch.arange(m) % config.classes


def loss_of(network, m=4):
    images, labels = batch(network.config, m)
    return objective(network(images), images, labels, PAPER)


def values(terms):
    return torch.stack([terms.total, *terms.named.values()])


def assert_all_finite(network, output):
    assert all(p.grad is None or p.grad.isfinite().all() for p in network.parameters())
    tensors = [
        output.logits,
        output.reconstruction,
        *output.best,
        *output.capsules,
        *(t for r in output.routings for t in r),
    ]
    assert all(t.isfinite().all() for t in tensors)


def warmed_up(config, steps=2):
    """A network whose statistics are not those of a new one."""
    network = WCapsNet(config)
    for _ in range(steps):
        network(batch(config, 8)[0])
    return network.eval()


# Table I


def test_table_one_is_the_default_configuration():
    assert WCapsNetConfig().levels == CIFAR10_LEVELS
    assert [(row.capsules, row.growth, row.dimension, row.stride) for row in CIFAR10_LEVELS] == [
        (16, 8, 16, 2),
        (8, 8, 32, 1),
        (4, 8, 64, 2),
        (2, 8, 8, 1),
    ]
    assert CIFAR100_LEVELS[:3] == CIFAR10_LEVELS[:3]
    assert CIFAR100_LEVELS[3] == Level(2, 8, 24, 1)


@pytest.mark.parametrize(
    ("config", "classifier", "critics", "decoder"),
    [
        (WCapsNetConfig(), 723_032, 209_764, 42_947),
        (WCapsNetConfig(classes=100, levels=CIFAR100_LEVELS), 726_648, 212_612, 75_715),
    ],
    ids=["CIFAR-10", "CIFAR-100"],
)
def test_the_parameters_are_counted_as_in_table_one(config, classifier, critics, decoder):
    network = WCapsNet(config)
    counts = network.parameter_counts()
    assert counts == {"classifier": classifier, "critics": critics, "decoder": decoder}
    assert sum(counts.values()) == sum(p.numel() for p in network.parameters())


def test_the_maps_of_the_paper_are_16_16_8_8_and_of_mnist_14_14_7_7():
    assert WCapsNetConfig().maps() == [(16, 16), (16, 16), (8, 8), (8, 8)]
    assert WCapsNetConfig(channels=1, height=28, width=28).maps() == [(14, 14), (14, 14), (7, 7), (7, 7)]


def test_the_settings_of_the_paper_are_the_defaults():
    config = WCapsNetConfig()
    assert (config.init_channels, config.dense_layers, config.critic_channels) == (24, 6, 32)
    assert (config.critic_dropout, config.projection_dropout, config.routing.dropout) == (0.3, 0.3, 0.1)
    assert (config.routing.noise_share, config.routing.noise_std) == (0.05, 0.5)
    assert (config.nonlinearity, config.routing.weighting, config.decoder_channels) == ("tilt", "softmax", (32, 64))


def test_the_network_of_the_paper_answers_one_batch():
    network = WCapsNet().eval()
    with torch.no_grad():
        output = network(torch.randn(2, 3, 32, 32))
    assert output.logits.shape == (2, 11)
    assert output.reconstruction.shape == (2, 3, 32, 32)
    assert [tuple(r.weights.shape) for r in output.routings] == [(2, 16), (2, 8), (2, 4), (2, 2, 8, 8)]


def test_without_a_configuration_the_network_is_the_paper_s():
    assert WCapsNet().config == WCapsNetConfig()


# Fig. 1 as a loop


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize(
    "config",
    [
        quiet(),
        quiet(
            levels=(Level(2, 2, 3, 3), Level(2, 1, 4, 1), Level(2, 2, 3, 1)), height=9, width=8, nonlinearity="squash"
        ),
        quiet(levels=(Level(2, 2, 3, 2),), channels=1),
        quiet({"weighting": "normalized", "stop_gradient": True}, levels=(Level(2, 2, 3, 2), Level(1, 2, 3, 2))),
    ],
    ids=["paper", "three levels, squash", "one level", "normalized, WS"],
)
def test_the_network_agrees_with_a_loop_over_everything(config, training, double):
    network = WCapsNet(config).double()
    with torch.no_grad():
        for norm in network.modules():
            if isinstance(norm, BatchNorm):
                norm.weight.uniform_(0.5, 1.5)
                norm.bias.normal_(0, 0.3)
                norm.running_mean.normal_(0, 0.1)
    twin = NetworkTwin(config).double().same_as(network.train(training))
    images, labels = batch(config, 3, torch.float64)
    totals, gradients = [], []
    for one in (network, twin):
        leaf = images.clone().requires_grad_()
        output = one(leaf)
        terms = objective(output, images, labels, PAPER)
        terms.total.backward()
        totals.append((output, terms))
        gradients.append(leaf.grad)
    (output, terms), (expected, expected_terms) = totals
    guard = config.routing.weighting == "normalized"  # Eq. 7 has an ε of 1e-6
    rtol, atol = (1e-4, 1e-5) if guard else (1e-7, 1e-8)
    assert torch.equal(output.best.place, expected.best.place)
    close(output.best.position, expected.best.position, 1e-6)
    close(output.best.vector, expected.best.vector, rtol, atol)
    close(output.logits, expected.logits, rtol, atol)
    close(output.reconstruction, expected.reconstruction, max(rtol, 1e-5), max(atol, 1e-6))  # position is float32
    for c, other in zip(output.capsules, expected.capsules, strict=True):
        close(c, other, rtol, atol)
    for routing, other in zip(output.routings, expected.routings, strict=True):
        close(routing.fitness, other.fitness, rtol, atol)
        close(routing.weights, other.weights, rtol, atol)
    close(values(terms), values(expected_terms), max(rtol, 1e-6), max(atol, 1e-7))
    close(gradients[0], gradients[1], max(rtol, 1e-5), max(atol, 1e-6))
    assert_same_gradients(network, twin, max(rtol, 1e-5), max(atol, 1e-6))
    assert_same_state(network, twin, max(rtol, 1e-6), max(atol, 1e-7))


# Parts of the forward pass


def test_a_pass_that_starts_at_a_later_level_ends_like_the_whole_one():
    network, images = warmed_up(quiet(levels=THREE)), torch.randn(3, 2, 8, 8)
    output = network(images)
    for start in (1, 2):
        b, c = output.routings[start - 1].weights, output.capsules[start - 1]
        rest = network(network.handed_on(start - 1, b, c), start=start)
        assert len(rest.routings) == len(rest.capsules) == 3 - start
        assert torch.equal(rest.logits, output.logits)
        assert torch.equal(rest.reconstruction, output.reconstruction)
        assert all(torch.equal(one, other) for one, other in zip(rest.capsules, output.capsules[start:], strict=True))
    assert torch.equal(network.handed_on(2, output.routings[2].weights, output.capsules[2]), output.logits)


def test_routes_replace_the_weights_of_the_critics_level_by_level():
    network, images, seen = warmed_up(quiet(levels=THREE)), torch.randn(3, 2, 8, 8), []

    def first_capsule_in_level_one(level, router, c):
        seen.append(level)
        routing = router(c)
        only_first = torch.eye(c.shape[1])[:1].expand(len(c), -1)
        return Routing(routing.fitness, only_first) if level == 1 else routing

    output, plain = network(images, routes=first_capsule_in_level_one), network(images)
    assert seen == [0, 1, 2]
    assert torch.equal(output.capsules[1], plain.capsules[1])
    assert torch.equal(output.capsules[2], network.capsules[2](plain.capsules[1][:, 0]))


def test_capsules_that_are_switched_off_have_no_weight_and_the_others_share_it_in_proportion():
    network, images = warmed_up(quiet(levels=THREE)), torch.randn(3, 2, 8, 8)
    plain = network(images)
    each = torch.tensor([[True, False, True], [True, True, False], [True, True, True]])  # for every image its own
    keep = [torch.tensor([True, False, True]), each, torch.tensor([False, True])]
    for level in range(3):
        alone = [mask if at == level else None for at, mask in enumerate(keep)]
        routing, before = network(images, routes=network.keeping(alone)).routings[level], plain.routings[level]
        mask = keep[level].expand(3, -1)
        mask = mask if level < 2 else mask[..., None, None].expand_as(before.weights)
        left = before.weights * mask
        close(routing.weights, left / left.flatten(1).sum(1).view(-1, *[1] * (left.dim() - 1)), 1e-5, 1e-6)
        assert (routing.weights[~mask] == 0).all()
    for everything in (None, [None] * 3, [torch.ones(n, dtype=torch.bool) for n in (3, 3, 2)]):
        close(network(images, routes=network.keeping(everything)).logits, plain.logits, 1e-5, 1e-6)


@pytest.mark.parametrize("positions", [(), (2, 2)])
def test_capsules_that_had_no_weight_share_it_equally_if_all_others_are_switched_off(positions):
    first = (torch.arange(3) == 0).view(1, 3, *[1] * len(positions)).expand(2, 3, *positions)
    b = (first / first[0].sum()).requires_grad_()
    weights = kept(b, torch.tensor([[False, True, True], [True, True, False]]))
    count = 2 * math.prod(positions)
    close(weights[0, 1:], torch.full((2, *positions), 1 / count))
    assert (weights[0, 0] == 0).all()
    close(weights[1], b[1])
    weights.square().sum().backward()
    assert b.grad.isfinite().all()


@pytest.mark.parametrize(
    ("keep", "said"),
    [
        ([None], "has 1 entries, but the network has 3 levels"),
        ([torch.ones(3), None, None], r"keep\[0\] must be boolean"),
        ([None, torch.ones(4, dtype=torch.bool), None], r"keep\[1\] must be boolean, \(3,\)"),
        ([None, None, torch.zeros(2, dtype=torch.bool)], r"keep\[2\] switches all capsules off"),
        ([torch.tensor([[True] * 3, [False] * 3]), None, None], r"keep\[0\] switches all capsules off"),
    ],
)
def test_what_cannot_be_kept_is_refused(keep, said):
    with pytest.raises(ValueError, match=said):
        WCapsNet(quiet(levels=THREE)).keeping(keep)


# The order of capsules


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("at", [0, 1])
def test_permuting_the_capsules_of_a_level_leaves_the_answer_unchanged(at, training):
    config = quiet(levels=(Level(4, 2, 4, 2), Level(4, 2, 3, 1)))
    network, permuted = warmed_up(config).train(training).double(), WCapsNet(config).train(training).double()
    order = torch.tensor([2, 0, 3, 1])
    own = f"capsules.{at}."
    permuted.load_state_dict(
        {
            name: value[order] if name.startswith(own) and "trans.norm" not in name else value
            for name, value in network.state_dict().items()
        }
    )
    images = torch.randn(3, 2, 8, 8, dtype=torch.float64)
    output, other = network(images), permuted(images)
    close(other.logits, output.logits, 1e-4, 1e-5)
    close(other.reconstruction, output.reconstruction, 1e-4, 1e-5)
    for level, (one, two) in enumerate(zip(output.routings, other.routings, strict=True)):
        close(two.weights, one.weights[:, order] if level == at else one.weights, 1e-4, 1e-5)


# Evaluation


@pytest.mark.parametrize("fitness", ["critic", "joint", "random", "constant"])
@pytest.mark.parametrize("weighting", ["softmax", "normalized"])
def test_an_evaluated_network_is_deterministic_and_answers_each_image_alone(fitness, weighting):
    network = warmed_up(tiny(RoutingConfig(fitness=fitness, weighting=weighting)))
    images = torch.randn(5, 2, 8, 8)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    with torch.no_grad():
        output, again, alone = network(images), network(images), network(images[2:3])
    assert torch.equal(output.logits, again.logits)
    assert torch.equal(output.reconstruction, again.reconstruction)
    close(output.logits[2:3], alone.logits, 1e-4, 1e-5)
    close(output.reconstruction[2:3], alone.reconstruction, 1e-4, 1e-5)
    for routing, one in zip(output.routings, alone.routings, strict=True):
        close(routing.weights[2:3], one.weights, 1e-4, 1e-5)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_a_saved_network_answers_as_before():
    network, images = warmed_up(tiny(RoutingConfig(fitness="random"))), torch.randn(2, 2, 8, 8)
    other = WCapsNet(network.config).eval()
    other.load_state_dict(network.state_dict())
    assert torch.equal(network(images).logits, other(images).logits)


def test_training_disturbs_the_answer():
    network, images = WCapsNet(tiny()), torch.randn(4, 2, 8, 8)
    assert not torch.equal(network(images).logits, network(images).logits)


def test_images_in_channels_last_order_are_the_same_images():
    network, images = warmed_up(tiny()), torch.randn(3, 2, 8, 8)
    other = network(images.to(memory_format=torch.channels_last))
    close(other.logits, network(images).logits, 1e-4, 1e-5)
    network.train()(images.to(memory_format=torch.channels_last)).logits.sum().backward()


# Sizes


@pytest.mark.parametrize(
    "config",
    [
        tiny(channels=1),
        tiny(channels=4, height=9, width=13),
        tiny(height=8, width=21, levels=(Level(2, 1, 2, 3), Level(1, 1, 2, 2), Level(2, 1, 2, 2))),
        tiny(classes=2),
        tiny(classes=1000),
        tiny(extra_class=False),
        tiny(levels=(Level(1, 1, 1, 1),)),
        tiny(levels=(Level(1, 1, 1, 8),)),
        tiny(levels=(Level(1, 2, 3, 8), Level(1, 2, 3, 1))),
        tiny(levels=(Level(2, 2, 3, 1), Level(2, 2, 3, 1))),
        tiny(dense_layers=1, init_channels=1, critic_channels=1, decoder_channels=(1, 1)),
        tiny(nonlinearity="squash"),
    ],
    ids=lambda config: f"{config.channels}x{config.height}x{config.width}-{config.classes}-{len(config.levels)}",
)
@pytest.mark.parametrize("m", [1, 3])
def test_odd_sizes_few_channels_many_classes_and_single_images_train(config, m):
    network = WCapsNet(config)
    images, labels = batch(config, m)
    output = network(images)
    terms = objective(output, images, labels, PAPER)
    terms.total.backward()
    assert terms.total.isfinite()
    assert output.logits.shape == (m, config.outputs)
    assert output.reconstruction.shape == images.shape
    assert network.class_logits(output).shape == (m, config.classes)
    assert_all_finite(network, output)
    with torch.no_grad():
        assert_all_finite(network, network.eval()(images))


def test_a_network_does_not_remember_the_gradient_of_an_earlier_batch():
    network = WCapsNet(tiny())
    loss_of(network).total.backward()
    loss_of(network).total.backward()  # a second graph, no leftovers of the first


def test_class_logits_are_the_outputs_without_none_of_these():
    network = warmed_up(tiny())
    output = network(torch.randn(2, 2, 8, 8))
    assert output.logits.shape == (2, 4)
    assert torch.equal(network.class_logits(output), output.logits[:, :3])


def test_without_the_extra_class_there_are_as_many_outputs_as_classes():
    network = warmed_up(tiny(extra_class=False))
    output = network(torch.randn(2, 2, 8, 8))
    assert output.logits.shape == (2, 3)
    assert torch.equal(network.class_logits(output), output.logits)


@pytest.mark.parametrize("shape", [(2, 8, 8), (1, 3, 8, 8), (1, 2, 9, 8), (1, 2, 8, 9), (1, 1, 2, 8, 8), (128,)])
def test_an_image_of_another_shape_is_refused_with_both_shapes(shape):
    with pytest.raises(ValueError, match=r"\(m, 2, 8, 8\).*\(" + str(shape[0])) as error:
        WCapsNet(tiny())(torch.zeros(shape))
    assert str(shape) in str(error.value)


def test_weight_decay_falls_on_the_convolution_kernels_outside_the_critics():
    network = WCapsNet(tiny())
    decayed = {id(p) for p in network.decayed_parameters()}
    names = {name for name, p in network.named_parameters() if id(p) in decayed}
    expected = {"init_conv.weight", "decoder.conv1.weight", "decoder.conv2.weight"}
    for at, level in enumerate(network.config.levels):
        expected |= {f"capsules.{at}.dense.shortcut.weight"} if level.stride > 1 else set()
        expected |= {f"capsules.{at}.dense.layers.{layer}.conv.weight" for layer in range(2)}
        expected |= {f"capsules.{at}.trans.conv_plus.conv.weight"}
    assert names == expected  # D10
    assert len(network.decayed_parameters()) == len(names)


# Every configuration


@st.composite
def configurations(draw):
    small = st.integers(1, 3)
    height, width = draw(st.integers(8, 13)), draw(st.integers(8, 13))
    levels, side = [], min(height, width)
    for _ in range(draw(small)):
        stride = draw(st.integers(1, min(3, side)))  # a stride is at most the side it strides over
        levels.append(Level(draw(small), draw(small), draw(st.integers(1, 4)), stride))
        side = -(-side // stride)
    return WCapsNetConfig(
        classes=draw(st.integers(2, 5)),
        channels=draw(st.integers(1, 4)),
        height=height,
        width=width,
        levels=tuple(levels),
        init_channels=draw(small),
        dense_layers=draw(small),
        nonlinearity=draw(st.sampled_from(["tilt", "squash"])),
        routing=RoutingConfig(
            fitness=draw(st.sampled_from(["critic", "joint", "random", "constant"])),
            weighting=draw(st.sampled_from(["softmax", "normalized"])),
            stop_gradient=draw(st.booleans()),
            noise_share=draw(st.sampled_from([0.0, 0.05, 1.0])),
            dropout=draw(st.sampled_from([0.0, 0.1, 0.9])),
        ),
        critic_channels=draw(small),
        decoder_channels=(draw(small), draw(small)),
        extra_class=draw(st.booleans()),
        max_pooling=draw(st.booleans()),
        stem=tuple(draw(st.lists(st.just(1), max_size=2))),  # never wider: pooling would not leave room for all strides
    )


@settings(max_examples=30)
@given(configurations(), st.integers(1, 3))
def test_every_valid_configuration_trains_one_step_and_answers_as_documented(config, m):
    network = WCapsNet(config)
    images, labels = batch(config, m)
    output = network(images)
    terms = objective(output, images, labels, PAPER)
    terms.total.backward()
    assert terms.total.isfinite()
    assert_all_finite(network, output)
    assert output.logits.shape == (m, config.classes + config.extra_class)
    assert output.reconstruction.shape == images.shape
    maps = config.maps()
    assert len(output.routings) == len(maps) == len(config.levels)
    for c, level, size, routing in zip(output.capsules, config.levels, maps, output.routings, strict=True):
        assert c.shape == (m, level.capsules, level.dimension, *size)
        last = level is config.levels[-1] and routing is output.routings[-1]
        assert routing.weights.shape == routing.fitness.shape == (m, level.capsules, *(size if last else ()))
        close(routing.weights.flatten(1).sum(1), torch.ones(m), 1e-4)
        assert ((routing.fitness >= 0) & (routing.fitness <= 1)).all()
    rows, columns = maps[-1]
    assert output.best.vector.shape == (m, config.levels[-1].dimension)
    assert (output.best.place < torch.tensor([config.levels[-1].capsules, rows, columns])).all()
    assert (output.best.position.abs() <= 1).all()


# Other precisions and export


def test_in_bfloat16_the_network_trains_and_answers_close_to_float32():
    config = quiet()
    network = warmed_up(config)
    images, labels = batch(config, 6)
    plain = network(images)
    with torch.autocast("cpu", torch.bfloat16):
        half = network(images)
    assert half.logits.dtype == torch.float32
    assert all(r.weights.dtype == torch.float32 for r in half.routings)
    close(half.logits, plain.logits, 0.05, 0.05)
    for one, other in zip(half.routings, plain.routings, strict=True):
        close(one.fitness, other.fitness, atol=0.03)
    network.train()
    with torch.autocast("cpu", torch.bfloat16):
        output = network(images)
    terms = objective(output, images, labels, PAPER)
    terms.total.backward()
    assert terms.total.isfinite()
    assert_all_finite(network, output)
    gradients = {name: p.grad.clone() for name, p in network.named_parameters()}
    network.zero_grad()
    objective(network(images), images, labels, PAPER).total.backward()
    flat = torch.cat([p.grad.flatten() for p in network.parameters()])
    other = torch.cat([gradients[name].flatten() for name, _ in network.named_parameters()])
    assert torch.cosine_similarity(flat, other, dim=0) > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("fitness", ["critic", "joint", "random", "constant"])
def test_the_exported_network_answers_batches_of_any_size_as_the_network_does(fitness):
    network = warmed_up(tiny(RoutingConfig(fitness=fitness)))
    with torch.no_grad():
        exported = torch.export.export(
            network, (torch.randn(2, 2, 8, 8),), dynamic_shapes=({0: torch.export.Dim("m", min=1)},)
        ).module()
        for m in (1, 2, 5):
            images = torch.randn(m, 2, 8, 8)
            output, expected = exported(images), network(images)
            close(output.logits, expected.logits, 1e-5, 1e-6)
            close(output.reconstruction, expected.reconstruction, 1e-5, 1e-6)
            close(output.routings[0].weights, expected.routings[0].weights, 1e-5, 1e-6)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("strides", [(2, 1), (3, 2)])
def test_channels_last_is_the_same_network(channels, strides):
    levels = (Level(3, 2, 4, strides[0]), Level(2, 2, 3, strides[1]))
    config = quiet(max_pooling=True, channels=channels, levels=levels, stem=(4, 6))
    network = WCapsNet(config).double()
    images, labels = batch(config, dtype=torch.float64)
    before = {name: value.clone() for name, value in network.state_dict().items()}

    def trained():
        network.load_state_dict(before)
        network.zero_grad()
        output = network(images)
        objective(output, images, labels, PAPER).total.backward()
        return output, [p.grad for p in network.parameters()], [value.clone() for value in network.buffers()]

    fast = trained()
    network.config = replace(config, max_pooling=False)  # the blocks keep their pooling; only the layout changes
    plain = trained()
    assert fast[0].capsules[0].stride(2) == 1  # stored as (m, i, j, n, k)
    assert plain[0].capsules[0].stride(2) > 1
    torch.testing.assert_close(fast, plain)


def test_the_stem_is_conv_plus_layers_and_pools_where_it_widens():
    network = WCapsNet(quiet(stem=(5, 6, 6, 8), height=14, width=8)).double()
    images = torch.randn(3, 2, 14, 8, dtype=torch.float64)
    x = network.init_conv(images)
    for layer, pooled in zip(network.stem, (False, True, False, True), strict=True):
        x = F.max_pool2d(x, 2, ceil_mode=True) if pooled else x
        x = F.relu(F.batch_norm(x, None, None, training=True))  # weight 1, bias 0 at the start
        x = F.conv2d(x, layer.conv.weight[0], padding=1)
    close(network.initial(images), x)
    assert x.shape[2:] == network.config.first_map() == (4, 2)
    assert network.config.maps()[0] == (2, 1)
    assert {id(layer.conv.weight) for layer in network.stem} <= {id(p) for p in network.decayed_parameters()}
    counts = network.parameter_counts()
    assert sum(counts.values()) == sum(p.numel() for p in network.parameters())
