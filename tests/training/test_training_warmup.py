"""The learning-rate warm-up."""

from dataclasses import replace

import pytest

from wcapsnet.errors import InputError
from wcapsnet.experiment import TrainingConfig


def test_a_warm_up_rises_in_equal_steps_to_the_full_rate_and_then_the_schedule_is_the_same():
    plain = TrainingConfig(epochs=8, lr=0.4, milestones=(6,))
    warm = replace(plain, warmup=3)
    assert [warm.learning_rate(epoch) for epoch in range(4)] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert [warm.learning_rate(epoch) for epoch in range(4, 8)] == [plain.learning_rate(epoch) for epoch in range(4, 8)]
    assert warm.with_epochs(16).warmup == 6
    with pytest.raises(InputError, match=r"training\.warmup is -1"):
        replace(plain, warmup=-1)
