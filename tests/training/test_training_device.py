"""Devices: by name, and a step on one without float64, as mps is. The CPU takes its place; no Apple GPU was tried."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from training_helpers import CPU, rows_of_light, toy_experiment

from twins.tiny import tiny
from wcapsnet import device
from wcapsnet.data.device_data import DeviceSplit
from wcapsnet.device import choose_device, exact, sum_dtype
from wcapsnet.engine import Engine
from wcapsnet.errors import InputError
from wcapsnet.training.step import Average, Step, make_optimizer


class NoFloat64(TorchDispatchMode):
    """Refuses every operation that gives a float64 tensor."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor) and value.dtype == torch.float64:
                raise TypeError(f"{function} gives float64")
        return result


def take_a_step(optimizer):
    experiment = toy_experiment(optimizer=optimizer, averaging=0.9)
    network = tiny(channels=1).build()
    engine = Engine(network)
    data = DeviceSplit(rows_of_light(12, 0), (0.5,), (0.2,), CPU)
    step = Step(experiment, engine, make_optimizer(engine, experiment, CPU), data, Average(network, 0.9))
    step(torch.arange(6))
    return step


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_step_on_a_device_without_float64_makes_none(monkeypatch, optimizer):
    monkeypatch.setattr(device, "WITHOUT_FLOAT64", {"mps", "cpu"})
    with NoFloat64():
        step = take_a_step(optimizer)
    means = step.means()
    assert step.sums.dtype == torch.float32
    assert means["total"] > 0


def test_the_same_step_elsewhere_sums_in_float64():
    with NoFloat64(), pytest.raises(TypeError, match="float64"):
        take_a_step("sgd")
    assert take_a_step("sgd").sums.dtype == torch.float64


def test_of_the_known_devices_only_mps_is_without_float64():
    assert sum_dtype(torch.device("mps")) == torch.float32
    assert sum_dtype(CPU) == sum_dtype(torch.device("cuda")) == torch.float64
    assert exact(torch.ones(2)).dtype == torch.float64


@pytest.mark.parametrize("name", ["tpu", "", "cuda:99", "mps", "meta"])
def test_a_device_that_is_not_there_is_refused_by_name(name):
    with pytest.raises(InputError, match=f"'{name}'"):
        choose_device(name)


def test_mps_is_accepted_by_name_where_there_is_one_and_never_chosen_by_itself(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("mps").type == "mps"
    assert choose_device("auto") == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto").type == "cuda"
