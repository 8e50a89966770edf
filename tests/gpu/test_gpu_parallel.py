"""On a CUDA device: runs side by side on streams of their own. Run with `pytest -m gpu`."""

import signal
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from typer.testing import CliRunner

from wcapsnet.cli import app
from wcapsnet.data import DataConfig, Dataset, Split
from wcapsnet.data.device_data import DeviceData
from wcapsnet.experiment import Experiment, TrainingConfig
from wcapsnet.training.console import Board, Progress
from wcapsnet.training.parallel import Randomness, train_together
from wcapsnet.training.run_folder import Run
from wcapsnet.training.trainer import Interrupted, Trainer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CUDA = torch.device("cuda")


def pictures(count: int, seed: int = 0) -> Split:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (count,), generator=generator)
    images = torch.randint(0, 128, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
    images[torch.arange(count), :, labels * 3] += 127  # something to learn: a bright row for each class
    return Split(images, labels)


@pytest.fixture(scope="module")
def data() -> DeviceData:
    dataset = Dataset("toy", tuple("0123456789"), pictures(1024), pictures(256, 1), pictures(256, 2))
    return DeviceData(dataset, "standardize", CUDA)


def experiment(seed: int, **training) -> Experiment:
    settings = TrainingConfig(**{"epochs": 2, "milestones": (), "lr": 0.02, "seed": seed, **training})
    return Experiment("gpu", DataConfig(source="cifar10", normalization="standardize", mirror=True), training=settings)


def together(place, data, experiments, parallel, board=None):
    def make(run, progress):
        trainer = Trainer(run, data, CUDA, progress)
        if not Run.is_run(run.path):
            run.begin({})
        return trainer

    runs = [Run(place / name, one) for name, one in experiments.items()]
    return train_together(runs, make, CUDA, parallel, board or Board())


def state(path: Path) -> dict[str, torch.Tensor]:
    with safe_open(path / "state.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in sorted(file.keys())}


def same(one, other) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# ── random numbers ──


class Drawing:
    """A recorded graph that does nothing but draw, long enough for several to be in flight at once."""

    def __init__(self, seed: int, stream: torch.cuda.Stream):
        self.random, self.stream = Randomness(CUDA), stream
        with self:
            torch.manual_seed(seed)
            self.total = torch.zeros(1 << 22, device=CUDA)
            self.draw()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=stream):
                for _ in range(4):
                    self.draw()

    def __enter__(self):
        self._stack = ExitStack()
        self._stack.enter_context(self.random)
        self._stack.enter_context(torch.cuda.stream(self.stream))

    def __exit__(self, *error):
        self._stack.close()

    def draw(self):
        self.total.mul_(0.5).add_(torch.rand_like(self.total))


def drawn(seeds: list[int], replays: int = 30) -> list[torch.Tensor]:
    streams = [torch.cuda.Stream() for _ in seeds]
    drawings = [Drawing(seed, stream) for seed, stream in zip(seeds, streams, strict=True)]
    for _ in range(replays):
        for drawing in drawings:
            with drawing:
                drawing.graph.replay()
    torch.cuda.synchronize()
    return [drawing.total.cpu() for drawing in drawings]


def test_graphs_side_by_side_draw_what_each_draws_alone():
    seeds = [0, 1, 2, 0]
    beside = drawn(seeds)
    for seed, numbers in zip(seeds, beside, strict=True):
        assert torch.equal(numbers, drawn([seed])[0])
    assert torch.equal(beside[0], beside[3])
    assert not torch.equal(beside[0], beside[1])


def test_a_graph_draws_what_eager_code_draws_from_the_same_seed():
    torch.manual_seed(3)
    total = torch.zeros(1 << 22, device=CUDA)
    for _ in range(1 + 4 * 5):
        total.mul_(0.5).add_(torch.rand_like(total))
    assert torch.equal(drawn([3], replays=5)[0], total.cpu())


def test_the_random_numbers_of_the_process_stay_as_they_were():
    torch.manual_seed(5)
    expected = torch.rand(3, device=CUDA)
    torch.manual_seed(5)
    drawn([0, 1], replays=2)
    assert torch.equal(torch.rand(3, device=CUDA), expected)


# ── runs ──


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_runs_side_by_side_give_what_they_give_alone(tmp_path, data, precision):
    experiments = {str(seed): experiment(seed, precision=precision) for seed in range(3)}
    for place, parallel in (("one", 1), ("two", 1), ("beside", 3)):
        assert not [o.failure for o in together(tmp_path / place, data, experiments, parallel) if o.failure]
    for name in experiments:
        one, two, beside = (state(tmp_path / place / name) for place in ("one", "two", "beside"))
        for which in ("random.cpu", "random.cuda"):
            assert torch.equal(beside[which], one[which])
        if same(one, two):  # where the kernels themselves repeat to the bit
            assert same(beside, one)
        losses = [
            [m["total"] for m in Run.open(tmp_path / place / name).metrics()] for place in ("one", "two", "beside")
        ]
        torch.testing.assert_close(losses[2], losses[0], rtol=3e-2, atol=0)
        print(f"run {name}, {precision}: repeats to the bit: {same(one, two)}; losses {losses}")


def test_a_run_in_a_lane_gives_what_fit_gives(tmp_path, data):
    run = Run.create(tmp_path / "fit", experiment(7), {})
    trainer = Trainer(run, data, CUDA, Progress())
    trainer.fit()
    trainer.finish()
    list(together(tmp_path, data, {"lane": experiment(7)}, 1))
    fit, lane = state(tmp_path / "fit"), state(tmp_path / "lane")
    assert torch.equal(fit["random.cuda"], lane["random.cuda"])
    losses = [[m["total"] for m in Run.open(tmp_path / name).metrics()] for name in ("fit", "lane")]
    torch.testing.assert_close(losses[0], losses[1], rtol=3e-2, atol=0)


def test_unequal_runs_pass_through_few_lanes_and_give_their_memory_back(tmp_path, data):
    experiments = {str(n): experiment(n, epochs=1 + n % 2, batch_size=32 * (1 + n % 2)) for n in range(8)}
    allocated = []
    for outcome in together(tmp_path, data, experiments, 2):
        assert outcome.failure is None
        allocated.append(torch.cuda.memory_allocated())  # with one run active besides the one that ended
    assert len(allocated) == 8
    assert max(allocated[4:7]) <= 1.1 * max(allocated[:4]) + 2**26


def test_runs_learn_side_by_side(tmp_path, data):
    experiments = {str(seed): experiment(seed, epochs=10, milestones=(8,), lr=0.05) for seed in range(2)}
    list(together(tmp_path, data, experiments, 2))
    assert all(Run.open(tmp_path / name).results()["accuracy"] > 0.8 for name in experiments)


def test_a_run_that_diverges_leaves_the_others_alone(tmp_path, data):
    experiments = {"wild": experiment(0, lr=1e6), "calm": experiment(1), "later": experiment(2)}
    failures = {o.run.path.name: o.failure for o in together(tmp_path, data, experiments, 2)}
    assert "diverged" in failures.pop("wild")
    assert failures == {"calm": None, "later": None}


def test_ctrl_c_saves_all_and_going_on_draws_what_the_unbroken_ones_drew(tmp_path, data):
    class Pressing(Progress):
        interval = 0.0

        def batch(self, epoch, epochs, step, *rest):
            if (epoch, step) == (1, 3):
                signal.raise_signal(signal.SIGINT)

    class PressingBoard(Board):
        def row(self, run):
            return Pressing() if run.path.name == "0" else super().row(run)

    experiments = {str(seed): experiment(seed) for seed in range(3)}
    list(together(tmp_path / "whole", data, experiments, 3))
    with pytest.raises(Interrupted):
        list(together(tmp_path / "broken", data, experiments, 3, PressingBoard()))
    assert all((tmp_path / "broken" / name / "state.safetensors").exists() for name in experiments)
    assert not (tmp_path / "broken" / "0" / "test.json").exists()
    left = {name: one for name, one in experiments.items() if not Run(tmp_path / "broken" / name, one).finished}
    list(together(tmp_path / "broken", data, left, 2))
    for name in experiments:
        whole, broken = state(tmp_path / "whole" / name), state(tmp_path / "broken" / name)
        assert torch.equal(whole["random.cuda"], broken["random.cuda"])
        losses = [[m["total"] for m in Run.open(tmp_path / p / name).metrics()] for p in ("whole", "broken")]
        torch.testing.assert_close(losses[0], losses[1], rtol=3e-2, atol=0)


def test_eager_steps_can_be_held_together_too(tmp_path, data):
    plain = {str(s): replace(experiment(s), training=TrainingConfig(1, 64, 0.02, (), cuda_graph=False)) for s in (0, 1)}
    assert not [o.failure for o in together(tmp_path, data, plain, 2) if o.failure]


def test_sweep_on_the_embedded_digits(tmp_path):
    options = ["--seeds", "4", "--parallel", "2", "--epochs", "1", "--out", str(tmp_path / "sweep")]
    answer = CliRunner().invoke(app, ["sweep", "demo", *options])
    assert answer.exit_code == 0, answer.output
    assert "2 at a time" in answer.output
    assert len(list((tmp_path / "sweep").glob("*/test.json"))) == 4
