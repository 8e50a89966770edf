"""The mistakes of published capsule code: each test fails if we make one of them."""

from itertools import product

import pytest
import torch
from small import batch, loss, small

from wcapsnet.baselines.attention_routing import AttentionRouting
from wcapsnet.baselines.capsnet import cropped
from wcapsnet.baselines.common import CapsuleOutput, lengths, log_odds, margin, windows
from wcapsnet.baselines.efficient_capsnet import steep_squash
from wcapsnet.data.augment import augment
from wcapsnet.models import model_config
from wcapsnet.network.nonlinearity import squash
from wcapsnet.objective import reconstruction
from wcapsnet.recipes import TABLE_V, recipe

WITH_LENGTHS = ("capsnet", "capsnet-cifar", "deepcaps", "deepcaps-64", "efficient-capsnet")
WITH_DECODER = ("capsnet", "deepcaps", "deepcaps-64", "efficient-capsnet")
CAPSULES = (*WITH_LENGTHS, "sr-capsnet", "sr-capsnet-2", "attention-routing")


def watched(network, *modules):
    """The inputs and the output of these modules in a forward pass"""
    seen = [None] * len(modules)
    for at, module in enumerate(modules):
        module.register_forward_hook(lambda module, given, out, at=at: seen.__setitem__(at, (given, out)))
    with torch.no_grad():
        network(batch(network)[0])
    return seen


# ── a view that mixes capsules with positions ──


def test_a_primary_capsule_of_capsnet_is_made_of_neighbouring_channels_at_one_position():
    network = small("capsnet", size=(21, 19)).eval()
    (_, x), ((u,), _) = watched(network, network.primary, network.class_capsules)
    types, d = network.config.types, network.config.primary_dimension
    height, width = x.shape[2:]
    for t, row, column in product(range(types), range(height), range(width)):
        expected = squash(x[:, t * d : (t + 1) * d, row, column], 1)
        torch.testing.assert_close(u[:, (t * height + row) * width + column], expected)


def test_the_class_capsules_of_deepcaps_see_the_capsules_of_cells_3_and_4():
    network = small("deepcaps", size=(28, 21)).eval()
    (_, (third, _)), (_, (fourth, _)), ((u,), _) = watched(network, *network.cells[2:], network.class_capsules)
    at = 0
    for x in (third, fourth):
        for t, row, column in product(range(x.shape[1]), range(x.shape[3]), range(x.shape[4])):
            assert torch.equal(u[:, at], x[:, t, :, row, column])
            at += 1
    assert at == u.shape[1]


def test_a_convolutional_capsule_of_deepcaps_is_made_of_neighbouring_channels():
    network = small("deepcaps").eval()
    first = network.cells[0].first
    (_, x), (_, capsules) = watched(network, first.conv, first)
    types, d = first.shape
    for t in range(types):
        torch.testing.assert_close(capsules[:, t], squash(x[:, t * d : (t + 1) * d], 1))


def test_the_class_layer_of_self_routing_sees_each_pose_with_its_own_activation():
    network = small("sr-capsnet", size=(20, 13)).eval()
    norms = network.activation_norm, network.pose_norm
    (_, a), (_, u), ((got_a, got_u), _) = watched(network, *norms, network.class_layer)
    d, n = network.config.dimension, network.config.capsules
    for row, column, t in product(range(5), range(4), range(n)):
        i = (row * 4 + column) * n + t
        torch.testing.assert_close(got_a[:, i], a[:, t, row, column].sigmoid())
        assert torch.equal(got_u[:, i], u[:, t * d : (t + 1) * d, row, column])


def test_the_second_layer_of_self_routing_sees_the_capsules_of_the_first_at_their_positions():
    network = small("sr-capsnet-2", size=(20, 13)).eval()  # running mean 0 and variance 1: batch norm does nothing
    torch.nn.init.normal_(network.layers[0].w2)  # starts at 0, with all activations equal
    (_, (a, u, _)), ((got_a, got_u), _) = watched(network, network.layers[0], network.class_layer)
    n, (height, width) = network.config.capsules, network.maps[1]
    for place, t in product(range(height * width), range(n)):
        torch.testing.assert_close(got_a[:, place * n + t], a.view(6, -1, n)[:, place, t])
        torch.testing.assert_close(got_u[:, place * n + t], u.view(6, height * width, n, -1)[:, place, t])


def test_the_primary_capsules_of_attention_routing_and_of_efficient_capsnet():
    network = small("attention-routing").eval()
    (_, x), ((children, _), _) = watched(network, network.primary, network.layers[0])
    d = network.config.pose**2
    for t, row, column in product(range(network.config.capsules), range(3), range(3)):
        expected = network.primary_norm(x[:, t * d : (t + 1) * d, row, column])
        torch.testing.assert_close(children[:, t, :, row, column], expected)
    network = small("efficient-capsnet").eval()
    (_, x), ((u,), _) = watched(network, network.primary, network.attention)
    for i in range(u.shape[1]):
        torch.testing.assert_close(u[:, i], steep_squash(x[:, 8 * i : 8 * i + 8, 0, 0]))


def test_windows_hold_the_capsules_of_their_positions():
    x = torch.arange(2 * 3 * 2 * 5 * 4, dtype=torch.float32).view(2, 3, 2, 5, 4)
    seen = windows(x, (3, 2), 2, 1)
    padded = torch.nn.functional.pad(x, (1, 1, 1, 1))
    assert seen.shape == (2, 3 * 3, 3 * 2 * 3, 2)
    for y, column, k, q, t in product(range(3), range(3), range(3), range(2), range(3)):
        expected = padded[:, t, :, 2 * y + k, 2 * column + q]
        assert torch.equal(seen[:, y * 3 + column, (k * 2 + q) * 3 + t], expected)


# ── softmax over the wrong axis, squash over the wrong axis ──


@pytest.mark.parametrize("name", CAPSULES)
def test_each_capsule_shares_itself_out_among_the_classes(name):
    network = small(name, classes=4).eval()
    with torch.no_grad():
        output = network(batch(network)[0])
    c = output.routing if isinstance(output.routing, torch.Tensor) else output.routing[-1]
    assert c.shape[-1] == 4
    assert c.shape[-2] > 4
    shares = c.sum(-1)
    if name == "capsnet-cifar":  # leaky
        assert (shares < 1).all()
    else:
        torch.testing.assert_close(shares, torch.ones_like(shares))


def test_squashing_keeps_directions_and_maps_lengths_as_written():
    s = torch.tensor([[3.0, 4.0], [0.6, 0.8], [0.0, -0.5]])  # lengths 5, 1, 0.5
    torch.testing.assert_close(lengths(squash(s, 1)), torch.tensor([25 / 26, 0.5, 0.2]))
    torch.testing.assert_close(lengths(steep_squash(s)), 1 - torch.exp(-torch.tensor([5.0, 1.0, 0.5])))
    for squashed in (squash(s, 1), steep_squash(s)):
        torch.testing.assert_close(squashed / lengths(squashed)[:, None], s / lengths(s)[:, None])


@pytest.mark.parametrize("name", WITH_LENGTHS)
def test_class_capsules_are_shorter_than_one_and_their_lengths_are_the_scores(name):
    network = small(name).eval()
    with torch.no_grad():
        output = network(batch(network)[0])
    torch.testing.assert_close(output.lengths, output.capsules.norm(dim=2), rtol=1e-4, atol=1e-5)
    assert (output.lengths < 1).all()
    assert torch.equal(output.logits.argmax(1), output.lengths.argmax(1))


def test_the_signal_reaches_the_last_cell_of_deepcaps():
    # A convolution that shortens vectors before each squash, which is quadratic near zero, leaves nothing of them.
    torch.manual_seed(0)
    network = model_config("deepcaps", 10, 1, 28, 28).build()
    network(torch.rand(2, 1, 28, 28)).lengths.sum().backward()
    first, last = network.cells[0].main[1].conv.weight, network.cells[3].main[1].conv.weight
    assert last.grad.norm() > 0.01 * first.grad.norm()


# ── no epsilon in the norm ──


@pytest.mark.parametrize(
    "function", [lambda s: squash(s, -1), steep_squash, lengths], ids=["squash", "steep", "length"]
)
def test_zero_vectors_have_finite_gradients(function):
    s = torch.zeros(2, 3, requires_grad=True)
    function(s).sum().backward()
    assert s.grad.isfinite().all()


def test_a_class_that_no_capsule_chooses_has_a_finite_logit():
    network = small("sr-capsnet").eval()
    with torch.no_grad():
        network.class_layer.b2[:, 0] = 1000  # the softmax of the others underflows to 0
        assert network(batch(network)[0]).logits.isfinite().all()


# ── scores and losses ──


def test_logits_are_log_probabilities_that_only_this_class_is_present():
    length = torch.tensor([[0.9, 0.2, 0.5]])
    alone = []
    for r in range(3):
        probability = 1.0
        for q in range(3):
            probability *= float(length[0, q] if q == r else 1 - length[0, q])
        alone.append(probability)
    torch.testing.assert_close(log_odds(length).softmax(1)[0], torch.tensor(alone) / sum(alone))
    assert log_odds(torch.tensor([0.0, 1.0])).isfinite().all()


def answered(length):
    return CapsuleOutput(None, torch.tensor(length), None, (), None)


def test_margin_loss_worked_by_hand():
    # present: 0.9 − 0.6 and 0.9 − 0.95 < 0; absent: 0.3 − 0.1 and 0.05 − 0.1 < 0
    output = answered([[0.6, 0.3], [0.05, 0.95]])
    assert float(margin(output, None, torch.tensor([0, 1]))) == pytest.approx((0.3**2 + 0.5 * 0.2**2 + 0) / 2)


def test_capsnet_weighs_reconstruction_against_margin_as_its_authors_do():
    experiment = recipe("capsnet-mnist")
    images, shown = torch.rand(4, 1, 28, 28), torch.rand(4, 1, 28, 28)
    length, labels = torch.rand(4, 10), torch.arange(4)
    output = CapsuleOutput(None, length, None, (), shown)
    true = torch.nn.functional.one_hot(labels, 10)
    per_class = true * (0.9 - length).clamp_min(0) ** 2 + 0.5 * (1 - true) * (length - 0.1).clamp_min(0) ** 2
    weights = experiment.objective
    assert weights["margin"] * margin(output, images, labels) == pytest.approx(float(0.5 * per_class.mean()))
    summed = (shown - images).square().sum((1, 2, 3)).mean()
    assert weights["reconstruction"] * reconstruction(output, images, labels) == pytest.approx(float(0.0005 * summed))


def test_efficient_capsnet_and_deepcaps_add_the_mean_squared_error_with_their_own_weights():
    assert dict(recipe("efficient-capsnet-mnist").objective) == pytest.approx({"margin": 1, "reconstruction": 0.392})
    assert dict(recipe("deepcaps-cifar10").objective) == {"margin": 1, "reconstruction": 0.4}


# ── the decoder's mask ──


@pytest.mark.parametrize("name", WITH_DECODER)
def test_the_true_class_is_decoded_in_training_and_the_longest_otherwise(name):
    network = small(name).eval()
    images, _ = batch(network)
    output = network(images)
    longest = output.lengths.argmax(1)
    assert torch.equal(network(images, longest).reconstruction, output.reconstruction)
    other = (longest + 1) % 3
    assert not torch.allclose(network(images, other).reconstruction, output.reconstruction)
    seen = network(images, other)
    (gradient,) = torch.autograd.grad(seen.reconstruction.square().sum(), seen.capsules)
    chosen = torch.nn.functional.one_hot(other, 3).bool()
    assert gradient[chosen].any()
    assert not gradient[~chosen].any()


def test_the_training_step_gives_the_labels_to_the_decoder():
    network = small("capsnet")
    images, _ = batch(network)
    longest = network(images).lengths.argmax(1)
    wrong = (longest + 1) % 3
    expected = reconstruction(network(images, wrong), images, wrong)
    torch.testing.assert_close(loss(network, images, wrong).named["reconstruction"], expected)


# ── evaluation ──


def test_crops_are_random_in_training_and_central_in_evaluation():
    images = torch.arange(6 * 8, dtype=torch.float32).view(1, 1, 6, 8).expand(64, 1, 6, 8)
    assert torch.equal(cropped(images, 4, False)[0, 0], images[0, 0, 1:5, 2:6])
    corners = cropped(images, 4, True)[:, 0, 0, 0].long()
    assert {int(c) for c in corners} <= {8 * top + left for top in range(3) for left in range(5)}
    assert len(corners.unique()) > 5
    crop = cropped(images, 4, True)[3, 0]
    assert torch.equal(crop - crop[0, 0], images[0, 0, :4, :4])


@pytest.mark.parametrize("name", TABLE_V)
def test_every_recipe_selects_on_held_out_training_images(name):
    assert recipe(name).data.validation in (5000, 10000)


# ── routing in all layers at once ──


def test_the_second_routing_of_all_layers_starts_from_the_states_of_the_first():
    network: AttentionRouting = small("attention-routing", classes=12).eval()
    assert len(network.layers) == 4  # with the layer before the classes
    with torch.no_grad():
        ((primary, _), _), (_, _) = watched(network, network.layers[0], network.linear)
        first = [primary]
        for layer in network.layers:
            first.append(layer(first[-1], None)[0])
        classes, _ = network.layers[-1](first[-2], first[-1])
        logits = network.linear(classes.flatten(2)).squeeze(2)
        torch.testing.assert_close(network(batch(network)[0]).logits, logits)


# ── augmentation ──


@pytest.mark.parametrize(("name", "amount"), [("contrast", 0.8), ("zoom", 0.2), ("rotate", 30), ("erase", 0.4)])
def test_augmentations_change_every_image_in_its_own_way(name, amount):
    torch.manual_seed(0)
    images = 0.1 + torch.rand(1, 2, 12, 9).expand(16, -1, -1, -1)
    changed = augment(images, {name: amount})
    assert changed.shape == images.shape
    assert len({tuple(one.flatten().tolist()) for one in changed}) > 8
    torch.testing.assert_close(augment(images, {name: 0}), images, rtol=0, atol=1e-5)
    if name == "erase":
        assert torch.equal(changed[changed != 0], images[changed != 0])
    if name == "contrast":
        torch.testing.assert_close(changed.mean((2, 3)), images.mean((2, 3)))


# ── a start from which little is learned ──


@pytest.mark.parametrize("name", ["capsnet-mnist", "capsnet-cifar10"])
def test_capsnet_starts_with_short_capsules_where_squash_is_steep(name):
    # If every type got the whole convolution instead of its share, 9216 primary capsules of length 1 would agree.
    torch.manual_seed(0)
    network = recipe(name).model.build()
    (_, _), ((u,), _) = watched(network, network.primary, network.class_capsules)
    with torch.no_grad():
        length = network(batch(network, 2)[0]).lengths
    assert lengths(u).mean() < 0.5
    assert 0.05 < length.mean() < 0.5


def test_the_weights_of_two_routings_start_as_small_as_their_authors_chose():
    # kaiming_uniform_ and he_normal count the fan-in of a tensor with more than two axes over several of them.
    torch.manual_seed(0)
    votes = model_config("sr-capsnet-2", 10, 3, 32, 32).build().layers[0].w1
    assert float(votes.detach().abs().max()) == pytest.approx((6 / (32 * 16 * 16)) ** 0.5, rel=1e-3)
    weight = model_config("efficient-capsnet", 10, 1, 28, 28).build().attention.weight
    assert float(weight.detach().std()) == pytest.approx((2 / (10 * 16 * 8)) ** 0.5, rel=0.05)
