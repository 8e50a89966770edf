"""tools/readings.py, tools/try_readings.py: every part does what its name says, and its runs can be used later."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cli_helpers import environment
from PIL import Image
from torch.nn.functional import one_hot
from training_helpers import rows_of_light

from twins.tiny import quiet, tiny
from wcapsnet import parts
from wcapsnet.data import DataConfig, load_dataset
from wcapsnet.errors import InputError
from wcapsnet.experiment import Experiment, TrainingConfig
from wcapsnet.network import Level, Output, Routing, RoutingConfig, WCapsNet, WCapsNetConfig
from wcapsnet.network.per_capsule import BatchNorm, shared_over_capsules
from wcapsnet.objective import objective
from wcapsnet.settings import differing, model_from_dict, to_dict
from wcapsnet.training.run_folder import Run, read_json

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "tools/readings.py"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def tool():
    """tools/try_readings.py. Afterwards the registry is as it was: other tests run in this process."""
    before = [dict(kind) for kind in parts.Kind.every]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PLUGIN.parent))
        import try_readings

        yield try_readings
    for kind, registered in zip(parts.Kind.every, before, strict=True):
        kind.clear()
        kind.update(registered)
    for name in ("readings", "try_readings"):
        del sys.modules[name]


@pytest.fixture(scope="module")
def readings(tool):
    return sys.modules["readings"]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Three classes of 8×8 pictures, told apart by which rows are bright: a dataset that any process can read."""
    folder = tmp_path_factory.mktemp("pictures")
    for number, (image, name) in enumerate(zip(*rows_of_light(60, 0), strict=True)):
        (folder / f"{name}").mkdir(exist_ok=True)
        Image.fromarray(image[0].numpy()).save(folder / f"{name}" / f"{number}.png")
    return DataConfig(source=str(folder), height=8, width=8, channels=1, validation=0.2, test=0.2)


def toy(data=None, model=None, **training):
    return Experiment(
        name="toy",
        data=data or DataConfig(),
        model=model or tiny(channels=1),
        training=TrainingConfig(**{"epochs": 1, "milestones": (), "batch_size": 9, **training}),
    )


def network_of(readings, reading, model=None):
    base = replace(toy(), model=model or tiny())
    torch.manual_seed(0)
    return readings.experiment_of(reading, base, 0, "fp32").model.build()


# ---- every reading -------------------------------------------------------------------------------------------------


def test_a_reading_changes_the_fields_it_names_can_be_written_down_and_makes_a_step(readings):
    normalized = tiny(routing=RoutingConfig(weighting="normalized"))
    base = toy(model=normalized, milestones=(4, 8), epochs=10)
    images, labels = torch.randn(6, 2, 8, 8), torch.arange(6) % 3
    for name in readings.that_apply_to(base):
        experiment = readings.experiment_of(name, base, 0, "fp32")
        named = {setting.partition("=")[0] for setting in readings.READINGS[name].settings}
        assert {field for field, _, _ in differing(experiment, base)} == named, name
        assert model_from_dict(json.loads(json.dumps(to_dict(experiment.model)))) == experiment.model
        network = experiment.model.build()
        objective(network(images), images, labels, experiment.objective).total.backward()
        assert all(p.grad is not None for p in network.parameters()), name


def test_every_reading_has_its_decision_and_says_whether_the_text_may_mean_it(readings):
    decisions = (ROOT / "docs/decisions.md").read_text(encoding="utf-8")
    for name, reading in readings.READINGS.items():
        if not name.startswith("as-decided"):
            assert f'"{reading.question.lower()}"></a>{reading.question} · ' in decisions, name
            assert reading.kind in ("reading", "departure"), name


def test_what_a_network_cannot_notice_is_refused(tool, readings, tmp_path):
    assert "votes-as-they-are" not in readings.that_apply_to(toy())
    with pytest.raises(InputError, match="votes-as-they-are is about normalized weights, which toy does not have"):
        tool.train(tmp_path, ["votes-as-they-are"], toy(), [0], None, CPU)
    with pytest.raises(InputError, match="no reading 'fan-in'; did you mean 'fan-out'"):
        readings.ReadingConfig(reading="fan-in")


# ---- loss terms, weightings, fitness -------------------------------------------------------------------------------


def outcome(lead=2.0):
    """An output of two levels whose logits and fitness want gradients"""
    torch.manual_seed(0)
    labels = torch.arange(64) % 3
    logits = (torch.rand(64, 4) + lead * one_hot(labels, 4)).requires_grad_()
    fitness = [torch.rand(64, n).requires_grad_() for n in (5, 3)]
    routings = tuple(Routing(a, a.softmax(1)) for a in fitness)
    return Output(logits, torch.zeros(64, 1, 8, 8), routings, None, ()), labels, fitness


@pytest.mark.parametrize(
    ("name", "times"),
    [("wasserstein-sum", 2), ("wasserstein-b-given", 1), ("wasserstein-cos-not-detached", 1)],
)
def test_a_loss_term_has_the_value_of_the_papers_and_the_sum_over_two_levels_twice_that(tool, name, times):
    output, labels, _ = outcome()
    values = [parts.loss_term[one](output, output.reconstruction, labels) for one in (name, "wasserstein")]
    assert torch.allclose(values[0], times * values[1])


def test_what_the_terms_differentiate(tool):
    def gradients(name, lead=2.0):
        output, labels, fitness = outcome(lead)
        loss = parts.loss_term[name](output, output.reconstruction, labels)
        return torch.autograd.grad(loss, [output.logits, fitness[0]], allow_unused=True)

    assert gradients("wasserstein")[0] is None
    assert gradients("wasserstein-cos-not-detached")[0].any()
    assert not torch.allclose(gradients("wasserstein-b-given")[1], gradients("wasserstein")[1])
    # With b given the loss is linear in a, and a constant added to a does not change it.
    assert abs(float(gradients("wasserstein-b-given")[1].sum())) < 1e-6


@pytest.mark.parametrize("lead", [4.0, 8.0, 9.0, 12.0, 200.0])
def test_an_almost_certain_classifier_is_not_thrown_off_through_cos(tool, lead):
    output, labels, _ = outcome(lead)
    loss = parts.loss_term["wasserstein-cos-not-detached"](output, output.reconstruction, labels)
    gradient = torch.autograd.grad(loss, output.logits, allow_unused=True)[0]
    assert gradient.abs().max() < 0.05
    assert bool(gradient.any()) is (lead < 8.5), "left out where N_h is nothing but rounding"


def test_votes_below_zero_count_as_they_are(tool):
    a = torch.tensor([[0.5, -0.25, 0.75], [0.4, 0.4, 1.2]])
    expected = torch.tensor([[0.5, -0.25, 0.75], [0.2, 0.2, 0.6]])
    assert torch.allclose(parts.weighting["votes-as-they-are"](a), expected)


@pytest.fixture(params=[False, True], ids=["blocks", "vectors"])
def critic(request):
    def make(name):
        torch.manual_seed(0)
        last = request.param
        return parts.fitness[name](quiet(), Level(3, 2, 4, 1), (4, 4), last), torch.randn(5, 3, 4, 4, 4)

    return make


def test_a_rectified_critic_does_not_see_below_zero(tool, critic):
    judge, c = critic("critic-rectified")
    torch.nn.init.constant_(judge.layers[-1].bias, -100.0)
    assert torch.allclose(judge.eval()(c), torch.tensor(0.5), atol=1e-4)  # sigmoid(batch norm of 0)
    paper, c = critic("critic")
    torch.nn.init.constant_(paper.layers[-1].bias, -100.0)
    assert paper.eval()(c).max() < 1e-6


def test_gamma_1_is_not_trained_and_starts_as_the_papers_critic(tool, critic):
    judge, c = critic("critic-gamma-1")
    paper, _ = critic("critic")
    assert torch.equal(judge(c), paper(c))
    assert "norm.weight" not in dict(judge.named_parameters())
    assert judge.norm.weight == 1


@pytest.mark.parametrize("gamma", [50.0, -50.0])
def test_gamma_stays_within_sigma_on_both_sides(tool, critic, gamma):
    judge, c = critic("critic-gamma-budget")
    optimizer = torch.optim.SGD(judge.parameters(), lr=1.0)
    for _ in range(3):
        judge(c).sum().backward()
        optimizer.step()
        torch.nn.init.constant_(judge.norm.weight, gamma)
    judge.eval()
    sigma = float((judge.norm.running_var + judge.norm.eps).sqrt())
    assert float(judge.norm.weight.detach()) == pytest.approx(sigma if gamma > 0 else -sigma)


def test_without_a_batch_norm_the_sigmoid_acts_on_the_last_convolution(tool, critic):
    judge, c = critic("critic-no-norm")
    *hidden, last = judge.eval().layers
    x = c.flatten(0, 1)
    for layer in hidden:
        x = layer(x).relu()
    assert torch.allclose(judge(c).flatten(), last(x).sigmoid().flatten(), atol=1e-6)
    assert not [name for name, _ in judge.named_parameters() if "norm" in name]


# ---- networks ------------------------------------------------------------------------------------------------------


def test_the_loss_sees_b_after_its_dropout_in_training_only(readings):
    images, model = torch.randn(40, 2, 8, 8), quiet({"dropout": 0.5})
    network, paper = network_of(readings, "b-after-dropout", model), network_of(readings, "as-decided", model)
    torch.manual_seed(1)
    one = network(images)
    torch.manual_seed(1)
    other = paper(images)
    assert torch.equal(one.logits, other.logits)  # the same b weighs the capsules
    dropped, whole = one.routings[0].weights, other.routings[0].weights
    assert (dropped == 0).any()
    assert torch.allclose(dropped[dropped > 0], 2 * whole[dropped > 0])
    for a, b in zip(network.eval()(images).routings, paper.eval()(images).routings, strict=True):
        assert torch.equal(a.weights, b.weights)


def test_dropout_on_the_sum_drops_an_element_of_all_vectors_at_once(readings):
    network = network_of(readings, "dropout-on-the-sum")
    c = torch.ones(50, 2, 3, 4, 4)
    dropped = network.dropped(c)
    assert torch.equal(dropped, dropped[:, :1, :, :1, :1].expand_as(c))
    assert sorted(dropped.unique().tolist()) == pytest.approx([0, 1 / 0.7])
    assert torch.equal(network.eval().dropped(c), c)


def test_which_parameters_decay(readings):
    every, kernels, paper = (
        network_of(readings, name) for name in ("all-weights-decay", "all-kernels-decay", "as-decided")
    )
    assert len(every.decayed_parameters()) == len(list(every.parameters()))
    critics = sum(p.dim() == 4 for p in paper.routers.parameters())
    assert len(kernels.decayed_parameters()) == len(paper.decayed_parameters()) + critics


def test_fan_out_scales_the_same_draw(readings):
    one, other = (network_of(readings, name).init_conv.weight for name in ("fan-out", "as-decided"))
    assert torch.allclose(one, other * (2 / 4) ** 0.5)  # from 2 to 4 channels


@pytest.mark.parametrize(("name", "fact", "value"), [("momentum", "momentum", 0.01), ("epsilon", "eps", 1e-3)])
def test_batch_norms_as_in_tensorflow(readings, name, fact, value):
    norms = [one for one in network_of(readings, f"batch-norm-{name}").modules() if isinstance(one, BatchNorm)]
    assert norms
    assert {getattr(one, fact) for one in norms} == {value}


@pytest.mark.parametrize("training", [True, False])
def test_statistics_per_capsule_are_a_batch_norm_for_every_capsule(readings, training):
    torch.manual_seed(0)
    shared = BatchNorm(4, momentum=0.2, eps=1e-4)
    torch.nn.init.uniform_(shared.weight)
    own = readings.OwnStatistics(3, shared).train(training)
    torch.nn.init.uniform_(own.running_mean)
    torch.nn.init.uniform_(own.running_var)
    alone = [torch.nn.BatchNorm2d(4, momentum=0.2, eps=1e-4).train(training) for _ in range(3)]
    for one, mean, var in zip(alone, own.running_mean, own.running_var, strict=True):
        facts = {"weight": shared.weight, "bias": shared.bias, "running_mean": mean, "running_var": var}
        one.load_state_dict(facts, strict=False)
    c = torch.randn(5, 3, 4, 6, 6)
    expected = torch.stack([one(c[:, n]) for n, one in enumerate(alone)], dim=1)
    assert torch.allclose(shared_over_capsules(own, c), expected, atol=1e-5)
    assert torch.allclose(own.running_mean, torch.stack([one.running_mean for one in alone]), atol=1e-6)


def test_a_batch_norm_that_is_last_leaves_normalised_capsules(readings):
    c = network_of(readings, "batch-norm-last")(torch.randn(20, 2, 8, 8)).capsules[0]
    each = c.permute(2, 0, 1, 3, 4).flatten(1)
    assert torch.allclose(each.mean(1), torch.zeros(4), atol=1e-4)
    assert torch.allclose(each.std(1), torch.ones(4), atol=1e-2)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("as-decided", 723_032),  # 16 blocks see 24 channels, 4 see 32
        ("shortcut-conv-plus", 723_032 + 2 * (16 * 24 + 4 * 32)),
        ("shortcut-per-channel", 723_032 - 4 * (16 * 24 * 23 + 4 * 32 * 31)),
        ("shortcut-pooled", 723_032 - 4 * (16 * 24 * 24 + 4 * 32 * 32)),
        ("strided-kernel", 723_032 - 8 * (9 - 4) * (16 * 24 + 4 * 32)),
        ("stride-in-transition", 723_032 - 4 * (16 * 24 * 24 + 4 * 32 * 32)),
    ],
)
def test_what_a_stride_is_made_of_in_the_papers_network(readings, name, parameters):
    assert network_of(readings, name, WCapsNetConfig()).parameter_counts()["classifier"] == parameters


def test_a_shortcut_by_channels_and_one_by_means(readings):
    x = torch.randn(2, 3, 4, 5, 6)  # a side that the stride does not divide
    by_channel = readings.PerChannel(3, 4, 2)
    kernel = by_channel.conv.weight.view(3, 4, 2, 2)[2, 3]
    assert torch.allclose(by_channel(x)[1, 2, 3, 1, 2], (x[1, 2, 3, 2:4, 4:6] * kernel).sum(), atol=1e-6)
    assert torch.allclose(by_channel(x)[1, 2, 3, 2, 0], (x[1, 2, 3, 4, 0:2] * kernel[0]).sum(), atol=1e-6)
    pooled = readings.MeanPool(2)(x)
    assert torch.allclose(pooled[1, 2, 3, 1, 2], x[1, 2, 3, 2:4, 4:6].mean(), atol=1e-6)
    assert torch.allclose(pooled[1, 2, 3, 2, 0], x[1, 2, 3, 4, 0:2].mean(), atol=1e-6)


# ---- runs ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tool, pictures, tmp_path_factory):
    out, names = tmp_path_factory.mktemp("readings"), ["as-decided", "critic-gamma-budget", "shortcut-pooled"]
    tool.train(out, names, toy(pictures), [0], load_dataset(pictures), CPU)
    return out


def in_a_fresh_process(*arguments):
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), cwd=ROOT)


@pytest.mark.slow
def test_a_run_is_evaluated_later_with_the_plugin_and_refused_without(trained):
    folder = trained / "shortcut-pooled/seed=0"
    assert not (folder / "test.json").exists()
    command = ("-m", "wcapsnet", "evaluate", folder, "--split", "validation")
    said = in_a_fresh_process(*command, "--plugin", PLUGIN, "--json")
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["accuracy"] == pytest.approx(read_json(folder / "validation.json")["best"])
    said = in_a_fresh_process(*command)
    assert said.returncode == 2
    assert "readings.py" in said.stderr


def test_what_is_done_is_not_done_again_and_another_experiment_is_refused(tool, pictures, trained):
    before = (trained / "as-decided/seed=0/metrics.jsonl").stat().st_mtime_ns
    tool.train(trained, ["as-decided"], toy(pictures), [0], load_dataset(pictures), CPU)
    assert (trained / "as-decided/seed=0/metrics.jsonl").stat().st_mtime_ns == before
    with pytest.raises(InputError, match=r"another training\.lr \(0\.1, not 0\.2\)"):
        tool.train(trained, ["as-decided"], toy(pictures, lr=0.2), [0], load_dataset(pictures), CPU)


def test_gamma_over_sigma_of_a_run_with_a_budget_is_at_most_one(trained):
    figures = read_json(trained / "critic-gamma-budget/seed=0/validation.json")
    assert all(abs(ratio) <= 1.000001 for ratio in figures["gamma_over_sigma"])
    assert len(figures["alike"]) == 2
    assert figures["validation_reconstruction"] > 0


def test_a_record_has_the_table_of_its_runs_and_no_paths(tool, trained, tmp_path):
    file = tmp_path / "record.json"
    for _ in range(2):
        tool.keep(trained, file)
        assert tool.report(tool.records(file)) == tool.report(tool.records(trained))
    assert len(file.read_text().splitlines()) == 3 + 4  # one line a run
    assert str(trained) not in file.read_text()
    assert "settings" in file.read_text()
    file.write_text(file.read_text().replace('"best":', '"best":1'))
    with pytest.raises(InputError, match="has another run of as-decided, seed 0"):
        tool.keep(trained, file)


def test_a_run_that_diverged_is_counted_as_such(tool, pictures, tmp_path):
    tool.train(tmp_path, ["as-decided"], toy(pictures, lr=1e9), [0], load_dataset(pictures), CPU)
    assert Run.open(tmp_path / "as-decided/seed=0").failure
    assert "| (0, 1 diverged) |" in tool.report(tool.records(tmp_path))


# ---- tables --------------------------------------------------------------------------------------------------------


def run_of(reading, seed, last, baseline="as-decided", **more):
    facts = {"question": "–", "recipe": "toy", "epochs": 1, "precision": "fp32", "computed_by": "fused kernels"}
    figures = {"last": last, "validation_reconstruction": 0.5, "alike": [0.125, 1.0], "environment": {"hardware": "x"}}
    return {"reading": reading, "seed": seed, "baseline": baseline, **facts, **figures, **more}


def test_every_difference_has_its_interval_and_p_from_the_spread_of_all_rows(tool):
    found = [run_of("as-decided", seed, accuracy) for seed, accuracy in enumerate((0.990, 0.991, 0.992))]
    found += [run_of("no-noise", seed, accuracy) for seed, accuracy in enumerate((0.993, 0.994))]
    found += [run_of("warm-up", 0, 0.5, invalid="which was stopped")]
    said = tool.report(found)
    # s² = (2·0.1² + 1·0.0707²)/3 = 0.00833 points², df = 3, t = 3.182; s √(1/3 + 1/2) = 0.0833, ± 0.265; t = 3.0
    assert (
        "| no-noise | – | fused kernels | 99.35 ± 0.07 (2) | +0.25 [−0.02, +0.52] | as-decided | t, p = 0.058," in said
    )
    assert "| 0.5000 ± 0.0000 | 13 / 100 |" in said
    assert "Left out: warm-up, which was stopped." in said


def test_two_one_sided_tests_agree_with_the_90_percent_interval(tool):
    one, other = (0.810, 0.812, 0.814, 0.816), (0.811, 0.813, 0.815, 0.817)
    # s = 0.2582 points, s √(1/4 + 1/4) = 0.1826, df = 6, t₀.₉₅ = 1.9432: −0.1 ± 0.3548
    found = tool.tost(one, other, 0.01)
    assert (found.difference, found.half) == (pytest.approx(-0.001), pytest.approx(0.003548, abs=1e-6))
    assert (found.test, found.shown) == ("t", True)
    assert tool.tost(one, other, 0.0045).p == pytest.approx(0.0515, abs=5e-4)  # t = 0.35/0.1826 = 1.917
    assert [tool.tost(one, other, margin).shown for margin in (0.0045, 0.0046)] == [False, True]
    assert tool.tost(one, other, 0.0005).p > 0.5
    with pytest.raises(InputError, match="at least two seeds on each side"):
        tool.tost(one, other[:1], 0.01)


def test_an_equivalence_needs_fused_kernels_and_one_margin(tool):
    def runs(margin=1.0, computed_by="fused kernels"):
        fused = [run_of("as-decided", s, a, margin=1.0, computed_by=computed_by) for s, a in enumerate((0.81, 0.82))]
        plain = {"margin": margin, "computed_by": "plain PyTorch", "settings": ["training.kernels=plain"]}
        return fused + [run_of("as-decided-plain", s, a, **plain) for s, a in enumerate((0.811, 0.819))]

    assert "| toy | 81.50 ± 0.71 (2) | 81.50 ± 0.57 (2) | +0.00 | [−1.87, +1.87] | 1 | t, p = 0.129 | not shown |" in (
        tool.report(runs())
    )
    with pytest.raises(InputError, match="different margins"):
        tool.report(runs(margin=2.0))
    with pytest.raises(InputError, match="use a CUDA device"):
        tool.report(runs(computed_by="plain PyTorch"))


def test_the_table_of_the_page_is_that_of_its_record(tool):
    page = (ROOT / "docs/readings.md").read_text(encoding="utf-8")
    for file in (ROOT / "results/readings").glob("*.json"):
        _, shown = page.split(f"<!-- results/readings/{file.name} -->\n\n")
        assert shown.split("\n\n<!-- end -->")[0] == tool.report(tool.records(file))


def test_the_command_answers_what_is_wrong_in_a_sentence(tmp_path):
    said = in_a_fresh_process(ROOT / "tools/try_readings.py", "--table", "--out", tmp_path)
    assert said.returncode == 2
    assert said.stderr == f"error: There are no runs of readings in {tmp_path}.\n"


def test_as_decided_is_the_papers_network_on_the_kernels(readings):
    assert type(network_of(readings, "as-decided")) is WCapsNet
    assert type(network_of(readings, "fan-out")) is WCapsNet  # so the kernels compute it too
