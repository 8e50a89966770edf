"""Several processes train the same network as one. Equal up to rounding; noise, dropout and augmentation are off."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torchrun_script import at_random, digits, every_model, experiments, trained
from training_helpers import CPU, CtrlC, interrupted, tensors, toy_dataset

from twins.tiny import quiet
from wcapsnet.data import load_dataset
from wcapsnet.data.device_data import DeviceData
from wcapsnet.errors import InputError
from wcapsnet.launched import launcher
from wcapsnet.network import Routing, WCapsNet
from wcapsnet.objective import wasserstein_loss
from wcapsnet.training.data_parallel import GlobalBatchNorm
from wcapsnet.training.distributed import Group, Ranks, check_batch, merged
from wcapsnet.training.evaluate import evaluate
from wcapsnet.training.run_folder import Run
from wcapsnet.training.trainer import Trainer

SCRIPT, SRC = Path(__file__).with_name("torchrun_script.py"), Path(__file__).parents[2] / "src"
TOLERANCE = 2e-5  # of rounding, over eight steps
LONG = 600  # seconds; a busy machine is no failure


class Job(NamedTuple):
    code: int
    out: str
    err: str  # ours and torchrun's


def start(processes: int, *arguments: object) -> subprocess.Popen[str]:
    """torchrun on the loopback interface, at a port that it finds free"""
    environment = {**os.environ, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return subprocess.Popen(
        [*command, *map(str, arguments)],
        env=environment,
        cwd=SCRIPT.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(job: subprocess.Popen[str]) -> Job:
    try:
        out, err = job.communicate(timeout=LONG)
    finally:
        job.kill()
    return Job(job.returncode, out, err)


def train(processes: int, folder: Path, **options: Any) -> Job:
    return ended(start(processes, SCRIPT, "train", folder, json.dumps(options)))


def wait_for(path: Path, job: subprocess.Popen[str]) -> None:
    until = time.monotonic() + LONG
    while not path.exists() and job.poll() is None and time.monotonic() < until:
        time.sleep(0.1)


def sentences(job: Job) -> list[str]:
    """What the package says about an error; the rest is torchrun's"""
    return [line.removeprefix("error: ") for line in job.err.splitlines() if line.startswith("error: ")]


def differences(one: Path, other: Path) -> dict[str, float]:
    a, b = (tensors(path / "state.safetensors") for path in (one, other))
    assert a.keys() == b.keys()
    return {name: float((a[name].double() - b[name].double()).abs().max()) for name in a if name != "random.cpu"}


# ── the step ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every experiment of the script, trained by two processes"""
    folder = tmp_path_factory.mktemp("two")
    job = ended(start(2, SCRIPT, "equal", folder))
    assert job.code == 0, job.err
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", [*experiments(), *every_model()])
def test_two_processes_train_as_one_does_on_the_whole_batch(two, tmp_path, name):
    trained(tmp_path / "run", {**experiments(), **every_model()}[name], Ranks(CPU))
    found = differences(tmp_path / "run", two / name)
    assert any(".running_var" in tensor for tensor in found) or "capsnet" in name
    if name == "adamw":  # a bias before a batch norm has no gradient, and Adam makes steps of the rounding errors
        found = {tensor: by for tensor, by in found.items() if not tensor.endswith(("bias", "running_mean"))}
    assert max(found.values()) < TOLERANCE, max(found, key=found.__getitem__)
    one, other = (Run.open(path).metrics() for path in (tmp_path / "run", two / name))
    for a, b in zip(one, other, strict=True):
        same = {key: value for key, value in a.items() if key not in ("seconds", "images_per_s")}
        assert {key: b[key] for key in same} == pytest.approx(same, abs=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize(("wrong", "right"), [("wrong-normalisers", "normalized"), ("wrong-norms", "softmax")])
def test_the_comparison_notices_what_each_rank_computes_alone(two, wrong, right):
    found = differences(two / wrong, two / right)
    assert max(found.values()) > 100 * TOLERANCE


@pytest.mark.slow
def test_noise_dropout_and_augmentation_are_drawn_by_each_rank(two, tmp_path):
    trained(tmp_path / "run", at_random(), Ranks(CPU))
    assert max(differences(tmp_path / "run", two / "random").values()) > 100 * TOLERANCE
    assert [line["epoch"] for line in Run.open(two / "random").metrics()] == [1, 2]


@pytest.mark.slow
def test_processes_agree_on_the_epochs_that_fit_into_some_minutes(two):
    run = Run.open(two / "minutes")
    assert len(run.metrics()) == run.experiment.training.epochs


def test_normalisers_of_each_image_alone_give_another_wasserstein_loss():
    """Two images, both routed to the first of two capsules, with F_s = 1 and 0, F_ns = 0 and cos θ = 1 and ½"""
    routing = Routing(fitness=torch.tensor([[1.0, 0.0], [0.0, 0.0]]), weights=torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    cos = torch.tensor([1.0, 0.5])
    whole = wasserstein_loss(routing, cos)
    alone = [wasserstein_loss(Routing(routing.fitness[m], routing.weights[m]), cos[m]) for m in ([0], [1])]
    assert whole.item() == pytest.approx(-2 / 3)  # N_p = 3/2
    assert torch.stack(alone).mean().item() == pytest.approx(-1 / 2)  # N_p = 1 and 1/2


class Echo:
    """A group in which all ranks have the same values"""

    def __init__(self, world: int):
        self.world = world

    def sum(self, tensor: torch.Tensor) -> None:
        tensor *= self.world


@pytest.mark.parametrize(("world", "shape"), [(1, (5, 4)), (1, (5, 4, 3, 2)), (3, (5, 4, 3, 2)), (3, (1, 4))], ids=str)
def test_a_global_batch_norm_is_the_batch_norm_of_the_whole_batch(world, shape):
    torch.manual_seed(0)
    x = (torch.randn(shape) + 1000).requires_grad_()  # far from zero: E[x²] − E[x]² must not lose the variance
    weight, bias = torch.rand(4, requires_grad=True), torch.rand(4, requires_grad=True)
    toward, found = torch.randn(shape), []
    for together in (True, False):
        running = torch.zeros(4), torch.ones(4)
        repeats = 1 if together else world
        many = torch.cat([x] * repeats)
        if together:
            with GlobalBatchNorm(Echo(world)):  # type: ignore[arg-type]
                y = F.batch_norm(many, *running, weight, bias, True, 0.1, 1e-5)
        else:
            y = F.batch_norm(many, *running, weight, bias, True, 0.1, 1e-5)
        gradients = torch.autograd.grad((y * torch.cat([toward] * repeats)).sum() / repeats, (x, weight, bias))
        found.append([y[: shape[0]], *running, *gradients])
    for global_, whole in zip(*found, strict=True):
        assert torch.allclose(global_, whole, rtol=1e-3, atol=1e-3)


def test_evaluations_of_parts_merge_into_that_of_the_whole():
    torch.manual_seed(0)
    network, data = WCapsNet(quiet(channels=1)), DeviceData(toy_dataset(), "unit", CPU).validation
    whole = evaluate(network, data)
    together = merged([evaluate(network, data.part(0, 2)), evaluate(network, data.part(2, 13))])
    assert torch.equal(together.predicted, whole.predicted)
    assert all(torch.equal(a, b) for a, b in zip(together.winners, whole.winners, strict=True))
    assert together.loss == pytest.approx(whole.loss)
    for a, b in zip(together.mean_weights, whole.mean_weights, strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_a_batch_that_processes_cannot_share_is_refused():
    check_batch(12, 3)
    for size, world in ((64, 3), (2, 4)):
        with pytest.raises(InputError, match=f"{size}.*multiple of {world}"):
            check_batch(size, world)


def test_the_random_numbers_of_workers_differ_from_each_other_and_over_time():
    def draw(rank: int, *place: int) -> float:
        worker = Group.__new__(Group)
        worker.rank = rank
        torch.manual_seed(7)
        worker.reseed(*place)
        return float(torch.rand(()))

    drawn = [draw(0, 7, 1, 0), draw(1, 7, 1, 0), draw(2, 7, 1, 0), draw(1, 7, 2, 0), draw(1, 8, 1, 0)]
    assert len(set(drawn)) == len(drawn)
    assert draw(1, 7, 1, 0) == drawn[1]
    assert draw(0, 9, 9, 9) == drawn[0]  # rank 0 keeps those of the run


# ── the job ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_a_killed_worker_ends_the_job_and_other_numbers_of_processes_resume_it(tmp_path):
    """Two processes, killed in a step; then one, stopped by Ctrl-C; then three: the same as one that never stopped"""
    data = load_dataset(digits().data)
    Trainer(Run.create(tmp_path / "unbroken", digits(), {}), data, CPU, CtrlC(9)).fit()
    run = tmp_path / "run"

    job = train(2, tmp_path, out=str(run), signal=[1, 2, signal.SIGKILL])
    assert job.code != 0
    assert len(sentences(job)) == 1
    assert f"--resume {run}" in sentences(job)[0]
    assert not list(tmp_path.glob("answer-*"))

    alone = Trainer(Run.open(run), data, CPU, CtrlC(0, 4))
    assert (alone.state.epoch, alone.state.step) == (0, 2)  # only the current step is lost
    assert interrupted(alone)

    job = train(3, tmp_path, resume=str(run))
    assert job.code == 0, job.err
    assert max(differences(run, tmp_path / "unbroken").values()) < TOLERANCE
    answers = [json.loads(path.read_text()) for path in tmp_path.glob("answer-*")]
    assert answers == [Run.open(run).results()] * 3
    assert [line["epoch"] for line in Run.open(run).metrics()] == [1, 2]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are listed by Linux only")
def test_no_thread_of_the_backend_outlives_the_group(tmp_path):
    """A thread that needs the interpreter while it shuts down would abort the process."""
    job = train(2, tmp_path, out=str(tmp_path / "run"))
    assert job.code == 0, job.err
    threads = [path.read_text() for path in tmp_path.glob("threads-*")]
    assert len(threads) == 2
    assert "gloo" not in "".join(threads)


@pytest.mark.slow
def test_only_rank_0_writes_and_prints(tmp_path):
    settings = ["model.dense_layers=1", "model.init_channels=4", "model.decoder_channels=4,4", "data.validation=40"]
    options = [word for setting in settings for word in ("--set", setting)]
    folder = tmp_path / "run"
    arguments = ["train", "demo", "--batch-size", 20, "--set", "training.epoch_steps=2", "--epochs", 1, "--out", folder]
    job = ended(start(2, "-m", "wcapsnet", *arguments, *options))
    assert job.code == 0, job.err
    assert job.out.count("2 processes") == 1
    assert job.out.count("epoch   1/1") == 1
    assert job.out.count("Test accuracy") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert len(list((folder / "tensorboard").iterdir())) == 1
    assert {"best.safetensors", "state.safetensors", "test.json", "report.html"} <= {f.name for f in folder.iterdir()}
    assert "2 processes (gloo)" in Run.open(folder).facts("environment")["computed_by"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_torchrun_saves_and_stops(tmp_path, number):
    run = tmp_path / "run"
    training = {"epochs": 1000, "epoch_steps": 5}
    job = start(2, SCRIPT, "train", tmp_path, json.dumps({"out": str(run), "training": training}))
    wait_for(run / "metrics.jsonl", job)
    job.send_signal(number)
    stopped = ended(job)
    assert stopped.code != 0
    assert stopped.out.count(f"train --resume {run}") == 1, stopped
    state = Trainer(Run.open(run), load_dataset(digits().data), CPU, CtrlC(9)).state
    assert state.epoch >= 1


@pytest.mark.slow
def test_rank_0_does_not_wait_for_ever_for_a_worker_that_hangs(tmp_path):
    options = {"out": str(tmp_path / "run"), "signal": [1, 2, signal.SIGSTOP]}
    job = start(2, SCRIPT, "train", tmp_path, json.dumps(options))
    wait_for(tmp_path / "signalled", job)
    job.send_signal(signal.SIGTERM)
    stuck = ended(job)  # torchrun kills the worker after 30 seconds
    assert stuck.code != 0
    assert ["does not answer" in sentence for sentence in sentences(stuck)] == [True], stuck.err


@pytest.mark.slow
@pytest.mark.parametrize(("wrong", "said"), [("missing", "no images here"), ("other", "images of process 1")])
def test_rank_0_says_what_is_wrong_on_a_worker(tmp_path, wrong, said):
    job = train(2, tmp_path, out=str(tmp_path / "run"), wrong=wrong)
    assert job.code != 0
    assert [said in sentence for sentence in sentences(job)] == [True], job.err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["train", "demo", "--batch-size", 5], "multiple of 2"),
        (["train", "demo", "--epochs", "x"], "Invalid value"),
        (["train", "demo", "--kernels", "fused"], "torchrun"),
        (["sweep", "demo"], "torchrun"),
    ],
    ids=["batch", "usage", "kernels", "command"],
)
def test_bad_input_is_one_sentence_of_rank_0(tmp_path, arguments, word):
    out = ["--out", tmp_path / "run"]
    job = ended(start(2, "-m", "wcapsnet", *arguments, *out))
    assert job.code != 0
    assert job.err.count(word) == 1, job.err
    assert "src/wcapsnet" not in job.err  # no trace of ours
    assert not list(tmp_path.iterdir())


def test_the_command_to_resume_with_names_torchrun(monkeypatch):
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)
    assert launcher() == []
    for name, value in {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert launcher()[:5] == ["torchrun", "--nnodes", "2", "--nproc-per-node", "4"]
