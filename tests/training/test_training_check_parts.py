"""Parts from outside the package are tried before training: a wrong shape is refused, and no run folder is left."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import wcapsnet
from wcapsnet.data.augment import Mixed
from wcapsnet.errors import InputError
from wcapsnet.experiment import Experiment
from wcapsnet.parts import augmentation, fitness, loss_term, nonlinearity
from wcapsnet.recipes import recipe
from wcapsnet.settings import with_setting
from wcapsnet.training.check_parts import check_parts

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("clean")


class Mean(nn.Module):
    """One fitness per block or per vector: right only in one kind of level"""

    def __init__(self, per_vector: bool):
        super().__init__()
        self.per_vector = per_vector

    def forward(self, c):
        return c.mean(2) if self.per_vector else c.mean((2, 3, 4))


def experiment(setting: str) -> Experiment:
    return with_setting(recipe("demo"), setting)


def tried(setting: str) -> nn.Module:
    own = experiment(setting)
    network = own.model.build()
    check_parts(own, network, CPU)
    return network


@pytest.mark.parametrize(
    ("per_vector", "said"),
    [
        (False, r"in level 3 of 3 it turns .* \(2, 2, 8, 7, 7\) into \(2, 2\) float32 instead of \(2, 2, 7, 7\)"),
        (True, r"in level 1 of 3 it turns .* \(2, 4, 8, 14, 14\) into \(2, 4, 14, 14\) float32 instead of \(2, 4\)"),
    ],
)
def test_a_critic_must_return_a_fitness_per_block_and_in_the_last_level_per_vector(per_vector, said):
    fitness("own")(lambda config, level, size, last: Mean(per_vector))
    with pytest.raises(InputError, match=rf"model\.routing\.fitness is 'own', but {said}"):
        tried("model.routing.fitness=own")


def test_a_right_critic_is_accepted_and_nothing_changes():
    fitness("own")(lambda config, level, size, last: Mean(last))
    random = torch.get_rng_state()
    network = experiment("model.routing.fitness=own").model.build()
    torch.set_rng_state(random)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    check_parts(experiment("model.routing.fitness=own"), network, CPU)
    assert torch.equal(torch.get_rng_state(), random)
    assert network.training
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda output, images, labels: output.logits.mean(1), r"not \(2,\) float32"),
        (lambda output, images, labels: 1.0, "not float"),
        (lambda output, images, labels: None, "not nothing"),
    ],
)
def test_a_loss_term_must_return_a_number(function, said):
    loss_term("own")(function)
    with pytest.raises(InputError, match=f"The loss term 'own' must return a tensor with one number.*{said}"):
        tried("objective.own=1")


def test_a_loss_term_that_is_not_finite_from_the_start_is_reported(capsys):
    loss_term("own")(lambda output, images, labels: (output.logits.mean() - 5).log())
    tried("objective.own=1")
    assert "The loss term 'own' is nan for an untrained network" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda images, amount: images[:, :, 2:], r"not \(2, 1, 26, 28\) float32"),
        (lambda images, amount: images.double(), r"not \(2, 1, 28, 28\) float64"),
        (lambda images, amount: Mixed(images[:1], torch.ones(())), r"not \(1, 1, 28, 28\) float32"),
        (lambda images, amount: None, "not nothing"),
    ],
)
def test_an_augmentation_must_keep_shape_and_type(function, said):
    augmentation("own")(function)
    with pytest.raises(InputError, match=f"The augmentation 'own' must return the shape and type it is given.*{said}"):
        tried("data.augment.own=1")


def test_a_nonlinearity_must_keep_the_shape():
    nonlinearity("own")(lambda c: c.norm(dim=2, keepdim=True))
    with pytest.raises(InputError, match=r"The non-linearity 'own' .* \(2, 3, 4, 5, 5\) .* not \(2, 3, 1, 5, 5\)"):
        tried("model.nonlinearity=own")


def test_a_refused_part_leaves_no_run_folder(tmp_path):
    loss_term("own")(lambda output, images, labels: output.logits.mean(1))
    with pytest.raises(InputError, match="The loss term 'own'"):
        wcapsnet.train("demo", settings=["objective.own=1"], out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()
