"""Section IV-B: the critics, their spectral norm, and the two that do not look (Table IV)."""

import math

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from twins import (
    BlockCriticTwin,
    JointCriticTwin,
    SpectralConvTwin,
    VectorCriticTwin,
    answers,
    assert_same_gradients,
    assert_same_state,
    close,
)
from wcapsnet.network.critic import (
    BlockCritic,
    ConstantFitness,
    JointCritic,
    RandomFitness,
    SpectralConv2d,
    VectorCritic,
)


def block_critic(dropout=0.0, height=5, width=3):
    return trained(BlockCritic(3, height, width, 2, dropout))


def vector_critic(dropout=0.0):
    return trained(VectorCritic(3, 2, dropout))


def trained(critic):
    """As after some training: biases and statistics are not zero any more."""
    with torch.no_grad():
        for layer in critic.layers:
            layer.bias.normal_(0, 0.3)
        critic.norm.weight.fill_(1.3)
        critic.norm.bias.fill_(-0.2)
        critic.norm.running_mean.fill_(0.1)
        critic.norm.running_var.fill_(0.7)
    return critic


kinds = pytest.mark.parametrize("critic", [block_critic, vector_critic], ids=["block", "vector"])


# Architecture


@pytest.mark.parametrize(
    ("size", "channels"),
    [
        ((16, 16), [32, 64, 96, 1]),  # Table I, levels 1 and 2 of a 32×32 image
        ((8, 8), [32, 64, 1]),  # level 3
        ((14, 14), [32, 64, 96, 1]),
        ((7, 7), [32, 64, 1]),
        ((17, 17), [32, 64, 96, 128, 1]),
        ((2, 5), [32, 64, 1]),
        ((2, 2), [1]),
        ((1, 1), [1]),
    ],
)
def test_a_block_critic_has_as_many_layers_as_bring_the_side_to_one(size, channels):
    critic = BlockCritic(4, *size, 32, 0.3)
    assert [layer.weight.shape[0] for layer in critic.layers] == channels
    assert all(layer.weight.shape[2:] == (3, 3) and layer.stride == 2 for layer in critic.layers)
    a = critic(torch.randn(2, 3, 4, *size))
    assert a.shape == (2, 3)


def test_a_vector_critic_has_four_1x1_layers():
    critic = VectorCritic(8, 32, 0.3)
    assert [tuple(layer.weight.shape) for layer in critic.layers] == [
        (32, 8, 1, 1),
        (64, 32, 1, 1),
        (96, 64, 1, 1),
        (1, 96, 1, 1),
    ]
    assert critic(torch.randn(2, 3, 8, 5, 4)).shape == (2, 3, 5, 4)


def test_what_a_critic_says_worked_by_hand():
    # zeros in, biases 0 but the last, ln 3: the batch norm of a new network only divides by √(1 + 1e-5)
    critic = VectorCritic(2, 1, 0.3).eval()
    with torch.no_grad():
        critic.layers[-1].bias.fill_(math.log(3))
    close(critic(torch.zeros(1, 1, 2, 1, 1)).flatten(), torch.tensor([0.75]), 1e-5)


@kinds
def test_fitness_lies_between_zero_and_one_and_is_float32(critic):
    a = critic()(100 * torch.randn(4, 3, 3, 5, 3))
    assert a.dtype == torch.float32
    assert ((a >= 0) & (a <= 1)).all()


# What it sees


@kinds
def test_swapping_two_capsules_swaps_their_fitness(critic):
    critic, c = critic(), torch.randn(4, 3, 3, 5, 3)
    for training in (False, True):
        a = critic.train(training)(c)
        swapped = critic(c[:, [1, 0, 2]])
        close(swapped, a[:, [1, 0, 2]], 1e-3 if training else 1e-5, 1e-3 if training else 1e-6)


@kinds
def test_each_capsule_is_judged_alone(critic):
    critic, c = critic().eval(), torch.randn(4, 3, 3, 5, 3)
    others = torch.randn_like(c)
    others[:, 1] = c[:, 1]
    close(critic(others)[:, 1], critic(c)[:, 1], 1e-5, 1e-6)
    assert (critic(others)[:, 0] != critic(c)[:, 0]).any()


def test_a_vector_critic_judges_each_vector_alone():
    critic, c = vector_critic().eval(), torch.randn(2, 2, 3, 4, 4)
    elsewhere = torch.randn_like(c)
    elsewhere[:, :, :, 2, 1] = c[:, :, :, 2, 1]
    close(critic(elsewhere)[:, :, 2, 1], critic(c)[:, :, 2, 1], 1e-5, 1e-6)


@kinds
def test_no_gradient_goes_from_a_critic_to_the_capsules(critic):
    critic = critic()
    c = torch.randn(2, 3, 3, 5, 3, requires_grad=True)
    critic(c).square().sum().backward()
    assert c.grad is None
    assert all(p.grad is not None for p in critic.parameters())


# Dropout


@kinds
def test_dropout_disturbs_a_critic_in_training_only(critic):
    critic, c = critic(dropout=0.3), torch.randn(4, 3, 3, 5, 3)
    assert (critic(c) != critic(c)).any()
    critic.eval()
    assert torch.equal(critic(c), critic(c))


def test_a_critic_drops_three_tenths_of_its_hidden_values_and_none_of_its_answers(monkeypatch):
    import torch.nn.functional as F

    seen, dropout = [], F.dropout
    monkeypatch.setattr(F, "dropout", lambda *given: seen.append(given) or dropout(*given))
    VectorCritic(3, 4, 0.3)(torch.randn(2, 2, 3, 4, 4))
    assert [(x.shape[1], rate, training) for x, rate, training in seen] == [
        (4, 0.3, True),
        (8, 0.3, True),
        (12, 0.3, True),
    ]
    assert all((x >= 0).all() for x, _, _ in seen)  # after the ReLU


# Spectral norm (D9)


def largest_singular_value(weight):
    return torch.linalg.svdvals(weight.detach().double().flatten(1))[0].item()


@pytest.mark.parametrize(("kernel", "stride"), [(3, 2), (1, 1)])
def test_after_some_steps_on_fixed_weights_each_kernel_has_largest_singular_value_one(kernel, stride):
    layer = SpectralConv2d(4, 6, kernel, stride)
    with torch.no_grad():
        layer.weight.mul_(7)
    for _ in range(100):
        layer(torch.randn(1, 4, 4, 4))
    assert largest_singular_value(layer.normalized_weight()) == pytest.approx(1, abs=1e-3)


def test_a_new_critic_starts_with_largest_singular_values_close_to_one():
    for layer in BlockCritic(16, 16, 16, 32, 0.3).eval().layers:
        assert largest_singular_value(layer.normalized_weight()) == pytest.approx(1, abs=0.1)


def test_sigma_is_the_largest_singular_value_itself_for_a_kernel_of_rank_one():
    layer = SpectralConv2d(2, 3, 3, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.outer(torch.randn(3), torch.randn(18)).view_as(layer.weight))
    weight = layer.normalized_weight()  # one power iteration finds the only direction
    assert largest_singular_value(weight) == pytest.approx(1, abs=1e-5)


def test_the_spectral_norm_does_not_feel_the_scale_of_the_kernel():
    layer, x = SpectralConv2d(2, 3, 3, 2), torch.randn(1, 2, 4, 4)
    before = layer.eval()(x)
    with torch.no_grad():
        layer.weight.mul_(1000)
    close(layer(x), before, 1e-4, 1e-5)


def test_evaluation_does_not_update_u_and_v_and_training_does():
    layer, x = SpectralConv2d(4, 6, 3, 2), torch.randn(1, 4, 4, 4)
    with torch.no_grad():
        layer.weight.normal_()  # u and v belong to other weights now
    u, v = layer.u.clone(), layer.v.clone()
    layer.eval()(x)
    assert torch.equal(layer.u, u)
    assert torch.equal(layer.v, v)
    layer.train()(x)
    assert not torch.equal(layer.u, u)
    assert not torch.equal(layer.v, v)


def test_a_kernel_of_zeros_says_its_bias():
    layer = SpectralConv2d(2, 3, 3, 2)
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.fill_(0.5)
    y = layer(torch.randn(1, 2, 4, 4))
    y.sum().backward()
    assert (y == 0.5).all()
    assert layer.bias.grad.isfinite().all()


def test_two_steps_forward_before_one_step_back_are_allowed():
    layer, x = SpectralConv2d(2, 3, 3, 2), torch.randn(1, 2, 4, 4)
    (layer(x).sum() + layer(x).sum()).backward()
    assert layer.weight.grad.isfinite().all()


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_the_spectral_norm_is_the_one_of_torch(training):
    layer = SpectralConv2d(3, 4, 3, 2).double().train(training)
    theirs = parametrizations.spectral_norm(nn.Conv2d(3, 4, 3, 2, 1).double(), n_power_iterations=1)
    with torch.no_grad():
        theirs.parametrizations.weight.original.copy_(layer.weight)
        theirs.bias.copy_(layer.bias)
        theirs.parametrizations.weight[0]._u.copy_(layer.u)
        theirs.parametrizations.weight[0]._v.copy_(layer.v)
    theirs.train(training)
    x = torch.randn(2, 3, 5, 5, dtype=torch.float64)
    y, _ = answers(layer, x)
    expected, _ = answers(theirs, x)
    # Miyato et al. iterate v before u, torch u before v: in training the two are half an iteration apart.
    close(y, expected, 1e-3 if training else 1e-8, 1e-3 if training else 1e-9)
    if not training:
        close(layer.weight.grad, theirs.parametrizations.weight.original.grad)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 2), (1, 1)])
def test_a_spectral_convolution_agrees_with_its_twin(kernel, stride, training):
    layer = SpectralConv2d(3, 4, kernel, stride).double()
    twin = SpectralConvTwin(3, 4, kernel, stride).double().same_as(layer.train(training))
    x = torch.randn(2, 3, 5, 4, dtype=torch.float64)
    for _ in range(2):
        y, (gradient,) = answers(layer, x)
        expected, (expected_gradient,) = answers(twin, x)
        close(y, expected)
        close(gradient, expected_gradient)
    assert_same_gradients(layer, twin)
    assert_same_state(layer, twin)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize(
    ("make", "twin"),
    [
        (lambda: block_critic(), lambda: BlockCriticTwin(3, 5, 3, 2)),
        (lambda: block_critic(height=2, width=1), lambda: BlockCriticTwin(3, 2, 1, 2)),
        (lambda: vector_critic(), lambda: VectorCriticTwin(3, 2)),
    ],
    ids=["block", "block of one layer", "vector"],
)
def test_a_critic_agrees_with_one_that_is_handed_capsule_after_capsule(make, twin, training, double):
    critic = make().double().train(training)
    twin = twin().double().same_as(critic)
    size = (2, 1) if len(critic.layers) == 1 else (5, 3)
    for _ in range(2):
        c = torch.randn(3, 4, 3, *size, dtype=torch.float64)
        a, (gradient,) = answers(critic, c)
        expected, _ = answers(twin, c)
        close(a, expected)
        assert (gradient == 0).all()
    assert_same_gradients(critic, twin)
    assert_same_state(critic, twin)


# The joint critic (D44)


def joint_critic(per_position):
    critic = JointCritic(4, 3, 5, per_position)
    with torch.no_grad():
        for parameter in critic.parameters():
            parameter.normal_()
    return critic


def test_a_joint_critic_judges_single_vectors_and_single_images():
    a = JointCritic(2, 3, 4, per_position=True)(torch.randn(1, 2, 3, 1, 1))
    assert a.shape == (1, 2, 1, 1)
    assert a.isfinite().all()


@pytest.mark.parametrize("per_position", [True, False], ids=["positions", "blocks"])
def test_a_joint_fitness_does_not_depend_on_the_memory_layout(per_position):
    critic, c = joint_critic(per_position).eval(), torch.randn(2, 4, 3, 5, 2)
    stored = c.permute(0, 3, 4, 1, 2).contiguous().permute(0, 3, 4, 1, 2)
    close(critic(stored), critic(c), 1e-5, 1e-6)


per_position = pytest.mark.parametrize("per_position", [True, False], ids=["positions", "blocks"])


def test_a_joint_fitness_worked_by_hand():
    # one block, k = 1, two positions with 1 and 3: W₁ x = 1, 3 and W₂ x̄ = 2 · 2, so h = 5, 7 and a = σ(h − 5)
    critic = JointCritic(1, 1, 1, per_position=True).eval()
    with torch.no_grad():
        for layer, value in ((critic.local[0], 1.0), (critic.whole[0], 2.0), (critic.last, 1.0)):
            layer.weight.fill_(value)
        critic.last.bias.fill_(-5.0)
    a = critic(torch.tensor([1.0, 3.0]).view(1, 1, 1, 1, 2))
    close(a.flatten(), torch.tensor([0.5, 1 / (1 + math.exp(-2))]), 1e-4)


@per_position
def test_a_joint_critic_judges_a_block_by_all_of_them_and_an_image_alone(per_position):
    critic, c = joint_critic(per_position).eval(), torch.randn(2, 4, 3, 5, 2)
    a, other = critic(c), c.clone()
    other[0, 3] += 1
    changed = critic(other)
    assert a.shape == ((2, 4, 5, 2) if per_position else (2, 4))
    assert (changed[0, 0] != a[0, 0]).any()
    close(changed[1], a[1], 1e-5, 1e-6)


@per_position
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_a_joint_critic_and_what_it_asks_of_the_capsules_agree_with_the_twin(per_position, training, double):
    critic = joint_critic(per_position).double().train(training)
    twin = JointCriticTwin(4, 3, 5, per_position).double().same_as(critic)
    for _ in range(2):
        c = torch.randn(3, 4, 3, 5, 2, dtype=torch.float64)
        a, (gradient,) = answers(critic, c)
        expected, (expected_gradient,) = answers(twin, c)
        close(a, expected)
        close(gradient, expected_gradient)
        assert (gradient != 0).any()
    assert_same_gradients(critic, twin)
    assert_same_state(critic, twin)


# The two that do not look


def test_the_constant_fitness_is_the_same_for_every_capsule():
    c = torch.randn(3, 4, 2, 5, 5, dtype=torch.bfloat16)
    for shape in ((4,), (4, 5, 5)):
        a = ConstantFitness(*shape)(c)
        assert a.shape == (3, *shape)
        assert a.dtype == torch.float32
        assert a.unique().numel() == 1


def test_the_random_fitness_is_drawn_anew_for_every_sample_in_training():
    critic, c = RandomFitness(4, 3, 3), torch.randn(50, 4, 2, 3, 3)
    a = critic(c)
    assert a.shape == (50, 4, 3, 3)
    assert a.flatten(1).unique(dim=0).shape[0] == 50
    assert not torch.equal(a, critic(c))


def test_the_random_fitness_is_uniform_between_zero_and_one():
    a = RandomFitness(100)(torch.zeros(1000, 1, 1, 1, 1))
    assert ((a >= 0) & (a < 1)).all()
    assert abs(a.mean().item() - 0.5) < 5 * math.sqrt(1 / 12 / a.numel())
    assert abs(a.var().item() - 1 / 12) < 5 * math.sqrt(1 / 180 / a.numel())


def test_the_random_fitness_of_an_evaluated_network_is_one_draw_kept_with_its_weights():
    critic, c = RandomFitness(4).eval(), torch.randn(3, 4, 2, 3, 3)
    a = critic(c)
    assert torch.equal(a, critic(c))
    assert a.unique(dim=0).shape[0] == 1
    other = RandomFitness(4).eval()
    assert not torch.equal(other(c), a)
    other.load_state_dict(critic.state_dict())
    assert torch.equal(other(c), a)
