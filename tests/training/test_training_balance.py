"""Imbalanced classes: how they are drawn in training, and what is said beside an accuracy."""

from dataclasses import replace

import pytest
import torch
from training_helpers import CtrlC, begin, go_on, interrupted, same_tensors, toy_dataset, toy_experiment, trained

from wcapsnet.data import Split
from wcapsnet.data.device_data import epoch_order
from wcapsnet.training.evaluate import Evaluation

LABELS = torch.tensor([0] * 40 + [1] * 8 + [2] * 2)


def balanced(**training):
    experiment = toy_experiment(**training)
    return replace(experiment, data=replace(experiment.data, balance=True))


def lopsided():
    """30 training images of one class, 5 and 2 of the others."""
    data = toy_dataset(90)
    kept = torch.cat([torch.where(data.train.labels == r)[0][:n] for r, n in enumerate((30, 5, 2))])
    return replace(data, train=Split(data.train.images[kept], data.train.labels[kept]))


def test_every_class_is_drawn_equally_often_and_an_image_again_only_after_all_others_of_its_class():
    seen = torch.zeros(50, dtype=torch.int64)
    for epoch in range(20):
        order = epoch_order(50, 10, 3, epoch, LABELS)
        assert order.shape == epoch_order(50, 10, 3, epoch).shape
        counts = LABELS[order.flatten()].bincount(minlength=3)
        assert counts.max() - counts.min() <= 2  # 50 is not a multiple of three
        drawn = order.flatten().bincount(minlength=50)
        assert all(drawn[r == LABELS].max() - drawn[r == LABELS].min() <= 2 for r in range(3))
        seen += drawn
    assert seen.min() > 0
    assert torch.equal(epoch_order(50, 10, 3, 5, LABELS), epoch_order(50, 10, 3, 5, LABELS))
    assert not torch.equal(epoch_order(50, 10, 3, 5, LABELS), epoch_order(50, 10, 3, 6, LABELS))


def test_on_balanced_classes_balance_changes_nothing_bit_for_bit(tmp_path, unbroken):
    run = trained(tmp_path / "run", balanced())
    assert same_tensors(run.file("state.safetensors"), unbroken.file("state.safetensors"))


def test_imbalanced_classes_are_drawn_equally_often_and_a_resumed_run_draws_the_same_bit_for_bit(tmp_path):
    experiment, data = balanced(batch_size=12, epochs=2, milestones=()), lopsided()
    whole = trained(tmp_path / "whole", experiment, data)
    plain = replace(experiment, data=replace(experiment.data, balance=False))
    assert not same_tensors(
        trained(tmp_path / "plain", plain, data).file("last.safetensors"), whole.file("last.safetensors")
    )
    assert interrupted(begin(tmp_path / "broken", experiment, data, CtrlC(1, 1)))
    resumed = go_on(tmp_path / "broken", data)
    resumed.fit()
    assert same_tensors(resumed.run.file("state.safetensors"), whole.file("state.safetensors"))


@pytest.mark.parametrize(
    ("labels", "predicted", "accuracy", "balanced_accuracy", "majority", "said"),
    [
        ([0, 0, 0, 1], [0, 0, 0, 0], 0.75, 0.5, 0.75, True),
        ([0, 0, 0, 0], [0, 0, 0, 1], 0.75, 0.75, 1.0, True),  # one class only
        ([0, 0, 1, 1], [0, 1, 1, 1], 0.75, 0.75, 0.5, False),  # class 2 has no images
    ],
)
def test_balanced_accuracy_and_majority_worked_by_hand(labels, predicted, accuracy, balanced_accuracy, majority, said):
    found = Evaluation(torch.tensor(labels), torch.tensor(predicted), torch.ones(4), (), 0.0, (), 3)
    assert (found.accuracy, found.balanced_accuracy, found.majority) == (accuracy, balanced_accuracy, majority)
    assert ("balanced" in found.beside()) is said
    assert ("no images" in found.beside()) is (len(set(labels)) < 3)
    facts = found.summary(("a", "b", "c"))
    assert (facts["balanced_accuracy"], facts["majority"]) == (balanced_accuracy, majority)
