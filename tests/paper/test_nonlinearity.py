"""Section III-A: squash (Eq. 1) and tilt (Eq. 2)."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from twins import close, squash_twin, tilt_twin
from wcapsnet.network.nonlinearity import squash, tilt
from wcapsnet.parts import nonlinearity

LN3 = math.log(3)
vectors = st.lists(st.floats(-6, 6, width=32), min_size=2, max_size=6).map(torch.tensor)


def alone(function, x):
    """`function` of one vector, as a level with one sample, one capsule and one position sees it."""
    return function(x.view(1, 1, -1, 1, 1)).view(-1)


def test_tilt_worked_by_hand():
    # x = (0, ln 3): softmax = (¼, ¾);  c = ½ (1 + ¼)·0,  ½ (1 + ¾)·ln 3
    close(alone(tilt, torch.tensor([0.0, LN3])), torch.tensor([0.0, 0.875 * LN3]), 1e-6)


def test_tilt_of_a_negative_element_worked_by_hand():
    # x = (-ln 3, 0): softmax = (¼, ¾);  c = ½ · 5/4 · (-ln 3), 0
    close(alone(tilt, torch.tensor([-LN3, 0.0])), torch.tensor([-0.625 * LN3, 0.0]), 1e-6)


def test_squash_worked_by_hand():
    # ‖(3, 4)‖ = 5:  25/26 · (3/5, 4/5)
    close(alone(squash, torch.tensor([3.0, 4.0])), torch.tensor([15 / 26, 20 / 26]), 1e-6)


@given(vectors.filter(lambda x: x.max() > 0.1))
def test_tilt_turns_a_vector_towards_its_largest_component(x):
    largest = x.argmax()
    c = alone(tilt, x)
    assert c[largest] / c.norm() >= x[largest] / x.norm() - 1e-6


@given(vectors)
def test_tilt_keeps_signs_and_between_half_and_all_of_every_element(x):
    c = alone(tilt, x)
    assert (c.sign() == x.sign()).all() or (x.abs()[c == 0] < 1e-30).all()
    assert (c.abs() <= x.abs() + 1e-7).all()
    assert (c.abs() >= 0.5 * x.abs() - 1e-7).all()


@given(vectors)
def test_squash_keeps_direction_and_bounds_length(x):
    c, squared = alone(squash, x), x.square().sum()
    assert c.norm() < 1
    close(c.norm(), squared / (1 + squared), 1e-4, 1e-5)
    close(c * x.norm(), x * c.norm(), 1e-4, 1e-5)


@pytest.mark.parametrize("function", nonlinearity.values(), ids=nonlinearity)
def test_the_order_of_the_elements_does_not_matter(function):
    x, order = torch.randn(2, 3, 5, 2, 2), torch.randperm(5)
    close(function(x[:, :, order]), function(x)[:, :, order], 1e-6, 1e-7)


@pytest.mark.parametrize("function", nonlinearity.values(), ids=nonlinearity)
def test_every_vector_is_changed_alone(function):
    x = torch.randn(2, 3, 4, 2, 3, requires_grad=True)
    function(x)[1, 2, 0, 1, 2].backward()
    touched = x.grad.abs().sum(2).nonzero().tolist()  # over k
    assert touched == [[1, 2, 1, 2]]


@pytest.mark.parametrize("function", nonlinearity.values(), ids=nonlinearity)
def test_the_zero_vector_stays_and_has_a_finite_gradient(function):
    x = torch.zeros(1, 2, 3, 1, 1, requires_grad=True)
    y = function(x)
    y.sum().backward()
    assert (y == 0).all()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("function", nonlinearity.values(), ids=nonlinearity)
def test_the_precision_of_the_vector_is_kept_and_long_vectors_stay_finite(function, dtype):
    y = function(torch.full((1, 1, 8, 1, 1), 300.0, dtype=dtype))
    assert y.dtype == dtype
    assert y.isfinite().all()


@pytest.mark.parametrize(("function", "twin"), [(squash, squash_twin), (tilt, tilt_twin)], ids=["squash", "tilt"])
def test_both_agree_with_the_equation_element_by_element(function, twin, double):
    x = torch.randn(2, 2, 4, 3, 2, dtype=torch.float64, requires_grad=True)
    probe = torch.randn_like(x)
    y = function(x)
    (gradient,) = torch.autograd.grad((y * probe).sum(), x)
    for m in range(2):
        for n in range(2):
            for i in range(3):
                for j in range(2):
                    vector = x[m, n, :, i, j].detach().requires_grad_()
                    expected = twin(vector)
                    close(y[m, n, :, i, j], expected)
                    (one,) = torch.autograd.grad((expected * probe[m, n, :, i, j]).sum(), vector)
                    close(gradient[m, n, :, i, j], one)
