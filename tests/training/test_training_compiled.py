"""`--kernels compiled`: the network through torch.compile."""

import pytest
import torch
from training_helpers import CPU, rows_of_light

from wcapsnet import kernels
from wcapsnet.baselines import DenseNetConfig
from wcapsnet.data import DataConfig
from wcapsnet.data.device_data import DeviceSplit
from wcapsnet.engine import check_compiler
from wcapsnet.errors import InputError
from wcapsnet.experiment import Experiment, TrainingConfig
from wcapsnet.models import model_config
from wcapsnet.training.step import Step, make_optimizer

SMALL = DenseNetConfig(classes=3, channels=1, height=8, width=8, depth=10, growth=4)
QUICK = model_config("wcapsnet-quick", classes=3, channels=1, height=16, width=16)


def losses(wanted: str, steps: int = 4) -> list[float]:
    experiment = Experiment("small", DataConfig(source="toy"), SMALL, training=TrainingConfig(kernels=wanted))
    torch.manual_seed(0)
    engine = kernels.choose(SMALL.build(), experiment, CPU)
    assert engine.description == {"plain": "plain PyTorch", "compiled": "torch.compile"}[wanted]
    split = DeviceSplit(rows_of_light(32, 0), (0.5,), (0.25,), CPU)
    step = Step(experiment, engine, make_optimizer(engine, experiment, CPU), split)
    totals = []
    for start in range(steps):
        step.sums.zero_()
        step(torch.arange(8) + 8 * start % 32)
        totals.append(float(step.sums[0]))
    return totals


@pytest.mark.parametrize("wanted", ["plain", "auto"])
@pytest.mark.parametrize(("model", "last"), [(SMALL, True), (QUICK, False)], ids=["densenet", "wcapsnet"])
def test_on_a_gpu_ordinary_convolutions_are_computed_with_channels_last(model, last, wanted):
    network = model.build()
    experiment = Experiment("small", DataConfig(source="toy"), model, training=TrainingConfig(kernels=wanted))
    kernels.choose(network, experiment, torch.device("cuda"))
    weights = [p for p in network.parameters() if p.dim() == 4 and p.shape[1] > 1 and p.shape[2] > 1]
    assert weights
    assert all(p.is_contiguous(memory_format=torch.channels_last) == last for p in weights)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch itself
def test_a_compiled_network_trains_as_the_plain_one_does():
    torch.testing.assert_close(losses("compiled"), losses("plain"), rtol=1e-4, atol=0)


def test_without_a_compiler_training_is_refused_in_a_sentence(monkeypatch):
    def broken(function, **options):
        raise RuntimeError("no C++ compiler\nand a long trace")

    monkeypatch.setattr(torch, "compile", broken)
    check_compiler.cache_clear()
    with pytest.raises(InputError, match=r"torch.compile does not work here \(RuntimeError: no C\+\+ compiler\)\.$"):
        losses("compiled")
    check_compiler.cache_clear()
