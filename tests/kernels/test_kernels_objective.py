"""Eq. 15, its gradient and the optimizer by the kernels: objective.py and torch.optim are the truth."""

import copy

import pytest
import torch
from kernel_helpers import error

from wcapsnet.kernels.objective import objective as fused_objective
from wcapsnet.kernels.optimizer import FusedNesterov
from wcapsnet.network import BestCapsule, Output, Routing
from wcapsnet.objective import PAPER, Objective, Terms, objective
from wcapsnet.training.step import summed


def example(m=6, outputs=5, capsules=((3,), (2, 2, 3)), scale=2.0):
    routings = []
    for shape in capsules:
        a, b = torch.rand(m, *shape), torch.rand(m, *shape)
        routings.append(Routing(a, b / b.flatten(1).sum(1).view(m, *[1] * len(shape))))
    best = BestCapsule(torch.zeros(m, 1), torch.zeros(m, 2), torch.zeros(m, 3))
    return Output(torch.randn(m, outputs) * scale, torch.randn(m, 1, 4, 4), tuple(routings), best, ())


def leaves_of(output, dtype):
    def leaf(x):
        return x.detach().to(dtype).requires_grad_()

    routings = tuple(Routing(leaf(one.fitness), leaf(one.weights)) for one in output.routings)
    return output._replace(logits=leaf(output.logits), reconstruction=leaf(output.reconstruction), routings=routings)


def tensors(output):
    return [output.logits, output.reconstruction, *(x for routing in output.routings for x in routing)]


def both(monkeypatch, output, labels, config, dtype=torch.float64, factor=1.0, share=None):
    """Terms and gradients by the kernel and by objective.py, all of it in float64."""
    images = torch.randn_like(output.reconstruction)
    fused, truth = leaves_of(output, torch.float32), leaves_of(output, dtype)
    sums = torch.zeros(len(summed(config)), dtype=torch.float64)
    terms = fused_objective(fused, images, labels, config, output.logits.shape[1] - 1, sums, share)
    (terms.total * factor).backward()
    with monkeypatch.context() as patch:
        if dtype is torch.float64:
            patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        expected = objective(truth, images.to(dtype), labels, config)
        if share is not None:
            other = objective(truth, images.to(dtype), labels.roll(1), config)
            mean = {name: share * term + (1 - share) * other.named[name] for name, term in expected.named.items()}
            expected = Terms(share * expected.total + (1 - share) * other.total, mean)
        (expected.total * factor).backward()
    return terms, expected, tensors(fused), tensors(truth), sums


def values(terms):
    return {"total": terms.total, **terms.named}


def agree(terms, expected, fused, truth, tolerance=2e-5):
    for name, value in values(expected).items():
        got = values(terms)[name].double()
        torch.testing.assert_close(got, value.double(), rtol=tolerance, atol=tolerance, msg=name)
    for index, (one, other) in enumerate(zip(fused, truth, strict=True)):
        grad = torch.zeros_like(other) if other.grad is None else other.grad
        size = max(float(grad.norm()), 1e-6)
        assert float((one.grad.double() - grad).norm()) < tolerance * 10 * size + 1e-7, index


@pytest.mark.usefixtures("guarded")
@pytest.mark.parametrize(
    ("m", "outputs", "capsules"),
    [(6, 5, ((3,), (2, 2, 3))), (70, 41, ((16,), (8,), (4,), (2, 8, 8))), (2, 101, ((1, 5, 7),)), (1, 3, ((2,), (3,)))],
)
@pytest.mark.parametrize("ws", ["wasserstein", "centred_wasserstein"])
def test_terms_and_gradients_are_those_of_objective(monkeypatch, m, outputs, capsules, ws):
    output, labels = example(m, outputs, capsules), torch.randint(0, outputs - 1, (m,))
    config = Objective({"cross_entropy": 1.0, ws: 0.7, "reconstruction": 0.3})
    terms, expected, fused, truth, _ = both(monkeypatch, output, labels, config, factor=1.7)
    agree(terms, expected, fused, truth)


EVERY_TERM = {
    "label_smoothing": 0.2,
    "cross_entropy": 1.0,
    "information": 0.4,
    "reconstruction": 0.3,
    "centred_wasserstein": 0.7,
}


@pytest.mark.usefixtures("guarded")
@pytest.mark.parametrize("share", [None, 0.3, 1.0])
@pytest.mark.parametrize("left_out", [None, "centred_wasserstein", "information"])
@pytest.mark.parametrize(
    ("m", "outputs", "capsules"), [(6, 5, ((3,), (2, 2, 3))), (70, 41, ((16,), (4, 3, 5), (1,), (2, 8, 8)))]
)
def test_smoothed_labels_information_and_mixed_images_are_those_of_objective(
    monkeypatch, m, outputs, capsules, left_out, share
):
    output, labels = example(m, outputs, capsules), torch.randint(0, outputs - 1, (m,))
    config = Objective({name: value for name, value in EVERY_TERM.items() if name != left_out})
    share = None if share is None else torch.tensor(share)
    terms, expected, fused, truth, sums = both(monkeypatch, output, labels, config, factor=1.7, share=share)
    agree(terms, expected, fused, truth)
    predicted = output.logits[:, :-1].argmax(1)
    right, other = ((predicted == of).double().mean() for of in (labels, labels.roll(1)))
    accuracy = right if share is None else share * right + (1 - share) * other
    reported = [terms.total, *(terms.named[name] for name in config), accuracy, torch.tensor(1.0)]
    torch.testing.assert_close(sums, torch.stack([one.detach().double() for one in reported]), rtol=1e-6, atol=1e-6)


@pytest.mark.usefixtures("guarded")
@pytest.mark.parametrize("right", [True, False])
def test_nobody_right_and_nobody_wrong(monkeypatch, right):
    """N_p or N_h is zero, to the last bit (D3)."""
    output, labels = example(), torch.randint(0, 4, (6,))
    logits = torch.full((6, 5), 0.0)
    logits[torch.arange(6), labels] = 300.0 if right else -300.0
    terms, expected, fused, truth, sums = both(
        monkeypatch, output._replace(logits=logits), labels, PAPER, dtype=torch.float32
    )
    assert all(bool(x.grad.isfinite().all()) for x in fused)
    agree(terms, expected, fused, truth)
    assert float(sums[4]) == right


@pytest.mark.usefixtures("guarded")
def test_a_level_with_one_capsule_has_nothing_to_choose(monkeypatch):
    output, labels = example(capsules=((1,), (1, 1, 1), (2,))), torch.randint(0, 4, (6,))
    terms, expected, fused, truth, _ = both(monkeypatch, output, labels, Objective({**PAPER, "wasserstein": 0.5}))
    agree(terms, expected, fused, truth)
    assert float(fused[2].grad.norm()) == float(fused[5].grad.norm()) == 0


@pytest.mark.usefixtures("guarded")
def test_sums_grow_by_the_terms_and_by_the_accuracy_among_the_real_classes(monkeypatch):
    m, outputs = 40, 4
    output = example(m, outputs)
    labels = torch.randint(0, outputs - 1, (m,))
    output.logits[: m // 2, -1] += 50  # "none of these" is the largest, and is no answer (D5)
    terms, _, _, _, sums = both(monkeypatch, output, labels, PAPER)
    accuracy = (output.logits[:, :-1].argmax(1) == labels).double().mean()
    assert 0 < accuracy < 1
    expected = torch.stack([*(term.double() for term in values(terms).values()), accuracy, torch.tensor(1.0).double()])
    torch.testing.assert_close(sums, expected, rtol=1e-6, atol=1e-6)
    fused_objective(fused_output(output), torch.zeros_like(output.reconstruction), labels, PAPER, 3, sums)
    assert float(sums[-1]) == 2
    torch.testing.assert_close(sums[4], 2 * accuracy)


def fused_output(output):
    return leaves_of(output, torch.float32)


@pytest.mark.usefixtures("guarded")
def test_lambda_zero_switches_a_term_off(monkeypatch):
    output, labels = example(), torch.randint(0, 4, (6,))
    terms, expected, fused, truth, _ = both(
        monkeypatch, output, labels, Objective(cross_entropy=1.0, wasserstein=0.0, reconstruction=0.0)
    )
    agree(terms, expected, fused, truth)
    assert all(float(x.grad.norm()) == 0 for x in fused[1:])


@pytest.mark.usefixtures("guarded")
@pytest.mark.parametrize("left_out", ["wasserstein", "reconstruction"])
def test_a_term_without_a_weight_leaves_no_gradient(monkeypatch, left_out):
    output, labels = example(), torch.randint(0, 4, (6,))
    config = Objective({name: weight for name, weight in PAPER.items() if name != left_out})
    terms, expected, fused, truth, _ = both(monkeypatch, output, labels, config)
    assert left_out not in expected.named
    agree(terms, expected, fused, truth)


# ── the optimizer ──


@pytest.mark.usefixtures("guarded")
def test_steps_are_those_of_sgd_with_nesterov_momentum():
    sizes = [(5,), (3, 1000), (1,), *[(7,)] * 120]  # more than one launch takes
    ours = [torch.nn.Parameter(torch.randn(size)) for size in sizes]
    theirs = [copy.deepcopy(p) for p in ours]

    def make(kind, parameters, **more):
        groups = [{"params": parameters[:2], "weight_decay": 0.1}, {"params": parameters[2:], "weight_decay": 0.0}]
        optimizer = kind(groups, lr=torch.tensor(0.1), momentum=0.9, nesterov=True, fused=True)
        for p in parameters:
            optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)
        return optimizer

    one, other = make(FusedNesterov, ours), make(torch.optim.SGD, theirs)
    for step in range(4):
        for optimizer in (one, other):
            for group in optimizer.param_groups:
                group["lr"].fill_(0.1 / (step + 1))
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        ours[4].grad = theirs[4].grad = None  # one without a gradient stays as it is
        one.step()
        other.step()
    for p, q in zip(ours, theirs, strict=True):
        assert error(p, q) < 1e-6
        assert error(one.state[p]["momentum_buffer"], other.state[q]["momentum_buffer"]) < 1e-6


@pytest.mark.usefixtures("guarded")
def test_a_gradient_that_is_not_contiguous_is_read_in_the_order_of_its_parameter():
    p = torch.nn.Parameter(torch.zeros(2, 3))
    optimizer = FusedNesterov([p], lr=torch.tensor(1.0), momentum=0.5, nesterov=True, fused=True)
    optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)
    gradient = torch.arange(6.0).view(3, 2).T
    p.grad = gradient
    optimizer.step()
    torch.testing.assert_close(p.detach(), -1.5 * gradient)
