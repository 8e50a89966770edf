"""results/readings.py: every other reading of the text really is another one, and none looks at the test images."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from training_helpers import toy_dataset, toy_experiment

from twins.tiny import quiet, tiny
from wcapsnet.classifier import load_tensors
from wcapsnet.errors import InputError
from wcapsnet.lock import hold
from wcapsnet.network import Output, Routing, WCapsNet
from wcapsnet.network.critic import Critic
from wcapsnet.network.per_capsule import BatchNorm
from wcapsnet.network.routing import predict
from wcapsnet.objective import ObjectiveConfig, objective
from wcapsnet.settings import flat, to_dict
from wcapsnet.training import step
from wcapsnet.training.run import Run
from wcapsnet.training.trainer import Interrupted

SCRIPT = Path(__file__).parents[2] / "results" / "readings.py"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def readings():
    spec = importlib.util.spec_from_file_location("readings", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, "readings", module)  # where its dataclass looks for itself
        spec.loader.exec_module(module)
    return module


def last(folder):
    tensors, _ = load_tensors(folder / "last.safetensors")
    return torch.cat([tensor.double().flatten() for _, tensor in sorted(tensors.items())])


def test_every_reading_trains_otherwise_and_leaves_no_trace(readings, tmp_path):
    base, data = toy_experiment(epochs=2), toy_dataset()
    readings.train(tmp_path, list(readings.READINGS), base, [0], data, CPU)
    decided = last(tmp_path / "as-decided/seed=0")
    for name in readings.READINGS:
        weights, folder = last(tmp_path / name / "seed=0"), tmp_path / name / "seed=0"
        same = weights.shape == decided.shape and torch.equal(weights, decided)
        assert same is (name == "as-decided"), name
        assert not (folder / "test.json").exists()
        every = [record["validation_accuracy"] for record in Run.open(folder).metrics()]
        found = json.loads((folder / "validation.json").read_text())
        assert (found["best"], found["last"]) == (max(every), pytest.approx(sum(every) / 2))
    readings.train(tmp_path / "again", ["as-decided"], base, [0], data, CPU)
    assert torch.equal(last(tmp_path / "again/as-decided/seed=0"), decided), "a reading outlived its runs"


def test_the_same_command_skips_what_is_done_and_the_table_has_a_line_a_reading(readings, tmp_path, capsys):
    base, data = toy_experiment(epochs=1), toy_dataset()
    readings.train(tmp_path, ["as-decided", "no-noise"], base, [0], data, CPU)
    said = capsys.readouterr().out
    assert "validation accuracy" in said
    assert "test accuracy" not in said
    before = (tmp_path / "no-noise/seed=0/metrics.jsonl").stat().st_mtime_ns
    readings.train(tmp_path, ["as-decided", "no-noise"], base, [0, 1], data, CPU)
    assert (tmp_path / "no-noise/seed=0/metrics.jsonl").stat().st_mtime_ns == before
    for seed, (best, mean) in enumerate(((0.9960, 0.9950), (0.9970, 0.9960))):
        (tmp_path / f"no-noise/seed={seed}/validation.json").write_text(json.dumps({"best": best, "last": mean}))
        (tmp_path / f"as-decided/seed={seed}/validation.json").write_text(json.dumps({"best": 0.99, "last": 0.99}))
    lines = readings.table(tmp_path).splitlines()
    assert lines[2] == "| – | as-decided | 2 | 99.00 ± 0.00 | 99.00 ± 0.00 |  |"
    assert lines[3] == "| D8 | no-noise | 2 | 99.65 ± 0.07 | 99.55 ± 0.07 | +0.55 |"
    assert len(lines) == 4


def test_every_entry_says_whether_the_text_may_mean_it_and_its_decision_is_written_down(readings):
    decisions = (SCRIPT.parents[1] / "docs" / "decisions.md").read_text()
    for name, reading in readings.READINGS.items():
        if not name.startswith("as-decided"):
            assert reading.kind in ("reading", "departure"), name
            assert f"\n| {reading.question} |" in decisions, name
    departures = {name for name, reading in readings.READINGS.items() if reading.kind == "departure"}
    assert departures == {
        "no-extra-class", "no-noise", "all-weights-decay", "all-kernels-decay", "warm-up", "batch-norm-momentum",
        "batch-norm-epsilon",
    }  # fmt: skip


def test_settings_of_readings_change_nothing_else(readings):
    base = toy_experiment()
    changed = {}
    for name in set(readings.READINGS) - {"as-decided"}:
        before, after = (flat(to_dict(readings.experiment_of(n, base, 0, "fp32"))) for n in ("as-decided", name))
        changed[name] = {field: value for field, value in after.items() if before[field] != value}
        del changed[name]["name"]
        changed[name].pop("training.kernels", None)
    assert {name: fields for name, fields in changed.items() if fields} == {
        "no-extra-class": {"model.extra_class": False},
        "mean-over-levels": {"objective.lambda_ws": 0.1},  # two levels
        "noise-variance": {"model.routing.noise_std": 0.7071},
        "no-noise": {"model.routing.noise_share": 0},
        "l2-not-halved": {"training.weight_decay": 2e-4},
        "dropout-on-the-sum": {"model.projection_dropout": 0},
    }


def facts(readings, name, model, lambda_ws=0.2, prepare=lambda network: None):
    """What one training step makes of a network under a reading, all random numbers fixed."""
    base = replace(toy_experiment(), model=model)
    with readings.READINGS[name].changed():
        experiment = readings.experiment_of(name, base, 0, "fp32")
        torch.manual_seed(0)
        network = WCapsNet(experiment.model)
        drawn = {part: torch.cat([p.detach().flatten() for p in every]) for part, every in parts(network).items()}
        prepare(network)
        norms = [layer for layer in network.modules() if isinstance(layer, BatchNorm)]
        images, labels = torch.rand(6, 1, 8, 8), torch.arange(6) % 3
        torch.manual_seed(1)
        output = network(images)
        terms = step.objective(output, images, labels, ObjectiveConfig(lambda_ws=lambda_ws))
        terms.total.backward()
        decayed = {id(p) for p in network.decayed_parameters()}
        found = {
            **{f"weights of {part}": values for part, values in drawn.items()},
            "norms": torch.tensor([(layer.eps, layer.momentum) for layer in norms]),
            "decay": torch.tensor([id(p) in decayed for p in network.parameters()]),
            "rates": torch.tensor([experiment.training.learning_rate(epoch) for epoch in range(4)]),
            "fitness": torch.cat([one.fitness.flatten() for one in output.routings]),
            "b": torch.cat([one.weights.flatten() for one in output.routings]),
            "logits": output.logits,
            "reconstruction": output.reconstruction,
            "losses": torch.stack(terms),
            "statistics": torch.cat([values.flatten() for _, values in network.named_buffers()]),
        }
        for part, every in parts(network).items():
            found[f"gradient of {part}"] = torch.cat([p.grad.flatten() for p in every])
        return {fact: value.detach() for fact, value in found.items()}


def parts(network):
    return {
        "capsules": [*network.init_conv.parameters(), *network.capsules.parameters()],
        "critics": list(network.routers.parameters()),
        "W": [network.projection],
        "decoder": list(network.decoder.parameters()),
    }


def differing(readings, name, model, **circumstances):
    one, other = (facts(readings, n, model, **circumstances) for n in ("as-decided", name))
    return {fact for fact in one if not torch.allclose(one[fact], other[fact], rtol=1e-5, atol=1e-7)}


ANSWERS = {"fitness", "b", "logits", "reconstruction", "losses", "statistics"}
GRADIENTS = {f"gradient of {part}" for part in ("capsules", "critics", "W", "decoder")}
ABOUT = {
    "all-weights-decay": {"decay"},
    "all-kernels-decay": {"decay"},
    "fan-out": {"weights of capsules", *ANSWERS, *GRADIENTS},
    "batch-norm-momentum": {"norms", "statistics"},
    "warm-up": {"rates"},
    "batch-norm-epsilon": {"norms", *ANSWERS, *GRADIENTS},
    "cos-not-detached": GRADIENTS - {"gradient of decoder"},
    "b-after-dropout": {"b", "losses", "gradient of critics"},
    "b-not-differentiated": {"gradient of critics"},
    "critic-rectified": {*ANSWERS, *GRADIENTS},
    "dropout-on-the-sum": {"logits", "losses", *GRADIENTS} - {"gradient of decoder"},
    "batch-norm-last": {*ANSWERS, *GRADIENTS},
}


@pytest.mark.parametrize("name", ABOUT)
def test_a_reading_changes_what_it_is_about_and_nothing_else(readings, name):
    assert differing(readings, name, tiny(channels=1)) == ABOUT[name]


def test_every_reading_that_changes_the_code_is_held_to_what_it_is_about(readings):
    by_settings = {name for name, r in readings.READINGS.items() if r.settings and r.changed is readings.nullcontext}
    assert set(ABOUT) == set(readings.READINGS) - by_settings - {"as-decided"}


def always_positive(network):
    with torch.no_grad():
        for layer in network.modules():
            if isinstance(layer, Critic):
                layer.layers[-1].bias.fill_(10.0)


def without_nonlinearity(network):
    for blocks in network.capsules:
        blocks.trans.nonlinearity = torch.nn.Identity()


@pytest.mark.parametrize(
    ("name", "circumstances"),
    [
        ("cos-not-detached", {"lambda_ws": 0.0}),
        ("b-after-dropout", {}),
        ("b-not-differentiated", {"lambda_ws": 0.0}),
        ("critic-rectified", {"prepare": always_positive}),
        ("batch-norm-last", {"prepare": without_nonlinearity}),
    ],
)
def test_where_its_question_does_not_arise_a_reading_changes_nothing(readings, name, circumstances):
    assert differing(readings, name, quiet(channels=1), **circumstances) == set()


def test_dropout_on_the_sum_leaves_the_logits_their_precision(readings):
    b, c = torch.rand(4, 2, 3, 3).flatten(1).softmax(1).view(4, 2, 3, 3), torch.randn(4, 2, 8, 3, 3)
    w = torch.randn(8, 11)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):  # nothing is dropped
        found, plain = readings.of_the_sum(b, c, w), predict(b, c, w)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("lead", [4.0, 7.0, 8.0, 9.0, 10.0, 12.0, 20.0, 200.0])
def test_an_almost_sure_classifier_is_not_thrown_by_the_loss_of_its_critics(readings, lead):
    torch.manual_seed(0)
    labels = torch.arange(64) % 3
    logits = (torch.rand(64, 4) + lead * torch.nn.functional.one_hot(labels, 4)).requires_grad_()
    images, a = torch.zeros(64, 1, 8, 8), torch.rand(64, 5)
    output = Output(logits, images, (Routing(a, a.softmax(1)),), None)
    own, decided = (f(output, images, labels, ObjectiveConfig()) for f in (readings.not_detached, objective))
    assert torch.allclose(torch.stack(own), torch.stack(decided))
    gradient = torch.autograd.grad(own.total, logits)[0] - torch.autograd.grad(decided.total, logits)[0]
    assert gradient.abs().max() < 0.01
    assert bool(gradient.any()) is (lead < 8.5), "left out where nothing but rounding is left of N_h"


def test_a_run_that_diverges_is_said_to(readings, tmp_path):
    base = toy_experiment(epochs=1, lr=1e9)
    readings.train(tmp_path, ["as-decided"], base, [0], toy_dataset(), CPU)
    assert "diverged" in json.loads((tmp_path / "as-decided/seed=0/failed.json").read_text())["failure"]
    assert "| – | as-decided | 1 | diverged | | |" in readings.table(tmp_path)
    before = (tmp_path / "as-decided/seed=0/failed.json").stat().st_mtime_ns
    readings.train(tmp_path, ["as-decided"], base, [0], toy_dataset(), CPU)
    assert (tmp_path / "as-decided/seed=0/failed.json").stat().st_mtime_ns == before


def test_other_runs_in_the_folder_are_not_mixed_in_and_trouble_is_no_divergence(readings, tmp_path):
    data = toy_dataset()
    readings.train(tmp_path, ["no-noise"], toy_experiment(epochs=1), [0], data, CPU)
    with pytest.raises(InputError, match=r"was begun with another training.epochs \(1, not 2\)"):
        readings.train(tmp_path, ["no-noise"], toy_experiment(epochs=2), [0, 1], data, CPU)
    folder = tmp_path / "no-noise/seed=0"
    (folder / "validation.json").unlink()
    let_go = hold(folder)
    with pytest.raises(InputError, match="Another process is training"):
        readings.train(tmp_path, ["no-noise"], toy_experiment(epochs=1), [0], data, CPU)
    let_go()
    assert not (folder / "failed.json").exists()
    readings.train(tmp_path, ["no-noise"], toy_experiment(epochs=1), [0], data, CPU)
    assert (folder / "validation.json").exists()


def test_data_that_are_not_there_are_a_sentence(readings, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["readings.py", str(tmp_path / "out"), "--data-dir", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        readings.main()
    said = capsys.readouterr().err
    assert end.value.code == 2
    assert said.startswith("error: ")
    assert "are not there" in said


def test_ctrl_c_says_how_to_go_on(readings, tmp_path, monkeypatch, capsys):
    def interrupted(*args):
        raise Interrupted

    monkeypatch.setattr(readings, "train", interrupted)
    monkeypatch.setattr("sys.argv", [str(SCRIPT), "out", "--recipe", "demo"])
    with pytest.raises(SystemExit) as end:
        readings.main()
    assert end.value.code == 130
    assert capsys.readouterr().out == "Stopped and saved. Go on with: python results/readings.py out --recipe demo\n"
