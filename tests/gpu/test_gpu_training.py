"""On a CUDA device: the recorded step against the plain one. Run with `pytest -m gpu`."""

from dataclasses import replace

import pytest
import torch

from wcapsnet.data import DataConfig, Dataset, Split
from wcapsnet.data.device_data import DeviceSplit
from wcapsnet.engine import Engine
from wcapsnet.experiment import Experiment, TrainingConfig
from wcapsnet.network import RoutingConfig, WCapsNet, WCapsNetConfig
from wcapsnet.training.console import Progress
from wcapsnet.training.run_folder import Run
from wcapsnet.training.step import GraphedStep, Step, make_optimizer
from wcapsnet.training.trainer import Trainer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

STEADY = WCapsNetConfig(critic_dropout=0.0, projection_dropout=0.0, routing=RoutingConfig(noise_share=0.0, dropout=0.0))


def pictures(count: int, seed: int = 0) -> Split:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (count,), generator=generator)
    images = torch.randint(0, 128, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
    images[torch.arange(count), :, labels * 3] += 127  # something to learn: a bright row for each class
    return Split(images, labels)


def losses(precision: str, graph: bool, steps: int = 6) -> list[float]:
    device = torch.device("cuda")
    experiment = Experiment("gpu", DataConfig(source="cifar10"), STEADY, training=TrainingConfig(precision=precision))
    torch.manual_seed(0)
    engine = Engine(WCapsNet(STEADY).to(device))
    optimizer = make_optimizer(engine, experiment, device)
    step = Step(experiment, engine, optimizer, DeviceSplit(pictures(512), (0.25,) * 3, (0.2,) * 3, device))
    if graph:
        step = GraphedStep(step, 64)
    totals, before = [], 0.0
    for start in range(0, 64 * steps, 64):
        step(torch.arange(start, start + 64, device=device))
        totals.append(float(step.sums[0]) - before)
        before += totals[-1]
    return totals


def test_recorded_step_equals_the_eager_one_in_fp32():
    torch.testing.assert_close(losses("fp32", graph=True), losses("fp32", graph=False), rtol=2e-3, atol=0)


def test_bf16_in_a_graph_stays_near_fp32_eager_on_the_first_steps():
    torch.testing.assert_close(losses("bf16", graph=True), losses("fp32", graph=False), rtol=4e-2, atol=0)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_training_with_noise_and_dropout_learns_and_resumes(tmp_path, precision):
    training = TrainingConfig(epochs=4, milestones=(3,), precision=precision, lr=0.05)
    experiment = Experiment("gpu", DataConfig(source="cifar10", mirror=True), training=training)
    dataset = Dataset("toy", tuple("0123456789"), pictures(2048), pictures(512, 1), pictures(512, 2))
    device = torch.device("cuda")
    run = Run.create(tmp_path / "whole", experiment, {})
    trainer = Trainer(run, dataset, device, Progress())
    trainer.fit()
    assert trainer.finish().accuracy > 0.9

    broken = Run.create(tmp_path / "broken", replace(experiment, training=replace(training, epochs=2)), {})
    Trainer(broken, dataset, device, Progress()).fit()
    resumed = Trainer(Run(broken.path, experiment), dataset, device, Progress())
    assert resumed.state.epoch == 2
    resumed.fit()
    assert resumed.finish().accuracy > 0.9
    assert [m["epoch"] for m in resumed.run.metrics()] == [1, 2, 3, 4]


def test_no_random_draw_repeats_between_replays():
    torch.manual_seed(0)
    device = torch.device("cuda")
    experiment = Experiment("gpu", DataConfig(source="cifar10"), training=TrainingConfig(lr=1e-12))
    engine = Engine(WCapsNet().to(device))
    optimizer = make_optimizer(engine, experiment, device)
    data = DeviceSplit(pictures(64), (0.25,) * 3, (0.2,) * 3, device)
    step = GraphedStep(Step(experiment, engine, optimizer, data), 64)
    totals = []
    for _ in range(4):  # the same batch, weights that do not move: only noise and dropout differ
        step.sums.zero_()
        step(torch.arange(64, device=device))
        totals.append(float(step.sums[0]))
    assert len(set(totals)) == 4
