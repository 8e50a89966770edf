"""results/readings.py: every other reading of the text really is another one, and none looks at the test images."""

import importlib.util
import json
import re
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from training_helpers import toy_dataset, toy_experiment

from twins.tiny import quiet, tiny
from wcapsnet.classifier import load_tensors
from wcapsnet.errors import InputError
from wcapsnet.lock import hold
from wcapsnet.network import Level, Output, Routing, WCapsNet
from wcapsnet.network.critic import Critic
from wcapsnet.network.per_capsule import BatchNorm, shared_over_capsules
from wcapsnet.network.routing import normalized_weights, predict
from wcapsnet.network.wcapsnet import RoutingConfig
from wcapsnet.objective import ObjectiveConfig, objective
from wcapsnet.report.records import shipped_records
from wcapsnet.report.tables import build
from wcapsnet.rounding import percent
from wcapsnet.settings import flat, to_dict
from wcapsnet.training import step
from wcapsnet.training.run import Run, read_json
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
    readings.train(tmp_path, readings.that_apply_to(base), base, [0], data, CPU)
    decided = last(tmp_path / "as-decided/seed=0")
    for name in readings.that_apply_to(base):
        weights, folder = last(tmp_path / name / "seed=0"), tmp_path / name / "seed=0"
        same = weights.shape == decided.shape and torch.equal(weights, decided)
        assert same is name.startswith("as-decided"), name  # on a CPU as-decided is computed plainly too
        assert not (folder / "test.json").exists()
        every = [record["validation_accuracy"] for record in Run.open(folder).metrics()]
        found = json.loads((folder / "validation.json").read_text())
        assert (found["best"], found["last"]) == (max(every), pytest.approx(sum(every) / 2))
        terms = [record["wasserstein"] for record in Run.open(folder).metrics()]
        assert found["wasserstein"] == pytest.approx(sum(terms) / 2)
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
    assert len(rows(readings.table(tmp_path))) == 2


def rows(table):
    """By reading: question, kind, computed by, seeds, best epoch, last epochs, difference, Wasserstein term"""
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")]
    return {name: [question, kind, *rest] for question, kind, name, *rest in cells[2:]}


def write(readings, folder, name, accuracies, base=None):
    """Runs of a reading as if they had been trained; None is one that diverged."""
    for seed, accuracy in enumerate(accuracies):
        experiment = readings.experiment_of(name, base or toy_experiment(epochs=1), seed, "fp32")
        by = "plain PyTorch" if readings.READINGS[name].plain else "fused kernels"
        run = Run.create(folder / name / f"seed={seed}", experiment, {"computed_by": by})
        if accuracy is None:
            run.fail("Training diverged.")
        else:
            figures = {"best": accuracy + 0.001, "last": accuracy, "wasserstein": -0.5 - seed / 100}
            run.write_json("validation.json", figures)


def test_every_difference_has_its_interval_and_p_from_the_spread_of_all_rows(readings, tmp_path):
    write(readings, tmp_path, "as-decided", [0.990, 0.991, 0.992])
    write(readings, tmp_path, "no-noise", [0.993, 0.994])
    write(readings, tmp_path, "warm-up", [0.989])
    # s² = (2·0.1² + 1·0.0707²)/3 = 0.00833 points², df = 3, t = 3.182
    # no-noise − as-decided = 0.25 points;  s √(1/3 + 1/2) = 0.0833;  t = 3.0, two-sided p = 0.0577
    # a single run: s √(1/3 + 1) = 0.1054, ± 0.335;  −0.2/0.1054 = −1.897, p = 0.154
    found = readings.table(tmp_path)
    assert rows(found) == {
        "as-decided": ["–", "–", "fused kernels", "3", "99.20 ± 0.10", "99.10 ± 0.10", "", "−0.510 ± 0.010"],
        "no-noise": [
            "D8",
            "departure",
            "fused kernels",
            "2",
            "99.45 ± 0.07",
            "99.35 ± 0.07",
            "+0.25 [−0.02, +0.52], t, p = 0.058, corrected 0.12",
            "−0.505 ± 0.007",
        ],
        "warm-up": [
            "D33",
            "departure",
            "fused kernels",
            "1",
            "99.00",
            "98.90",
            "−0.20 [−0.54, +0.14], t, p = 0.15, corrected 0.15",
            "−0.500",
        ],
    }
    above = found.split("|")[0]
    assert "Recipe toy, 1 epochs, fp32, fused kernels, seeds 0, 1, 2;" in above
    assert "varies by 0.091 (3 degrees of freedom)" in above
    assert "between 3 seeds and 3 a single difference of 0.237 would show" in above  # 3.182 · 0.0913 · √(2/3)


def test_a_reading_whose_seeds_lie_wide_keeps_its_spread_to_itself_and_is_named(readings, tmp_path):
    write(readings, tmp_path, "as-decided", [0.9900, 0.9904])
    write(readings, tmp_path, "no-noise", [0.9902, 0.9906])
    write(readings, tmp_path, "fan-out", [0.9700, 0.9800])
    found = readings.table(tmp_path)
    # s = 0.028 points of the first two, 0.707 of fan-out: F = 625 with 1 and 2 degrees of freedom, p = 0.0016 of 3 rows
    assert "varies by 0.028 (2 degrees of freedom)" in found
    assert "fan-out varies by 0.707, by more than chance more than others: compared by Welch's test." in found
    assert ", t, p = " in rows(found)["no-noise"][6]
    # −1.52 / √(0.707²/2 + 0.028²/2) = −3.04 with 1.003 degrees of freedom
    assert rows(found)["fan-out"][6] == "−1.52 [−7.83, +4.79], Welch, p = 0.20, corrected 0.40"


def test_without_seeds_nothing_is_said_of_noise(readings, tmp_path):
    write(readings, tmp_path, "as-decided", [0.990])
    write(readings, tmp_path, "no-noise", [0.993])
    found = readings.table(tmp_path)
    assert rows(found)["no-noise"][6] == "+0.30, spread over seeds not known"
    assert "would show" not in found


def test_seeds_that_agree_to_the_last_image_are_not_taken_for_no_noise(readings, tmp_path):
    write(readings, tmp_path, "as-decided", [0.990, 0.990])
    write(readings, tmp_path, "no-noise", [0.991, 0.991])
    assert rows(readings.table(tmp_path))["no-noise"][6] == "+0.10, spread over seeds not known"


@pytest.mark.parametrize("figures", ["{}", '{"best": 0.9, "last": 0.9}', '{"best": 1, "last": "x", "wasserstein": 0}'])
def test_damaged_figures_are_a_sentence(readings, tmp_path, figures):
    write(readings, tmp_path, "as-decided", [0.990])
    (tmp_path / "as-decided/seed=0/validation.json").write_text(figures)
    with pytest.raises(InputError, match="is damaged; delete"):
        readings.table(tmp_path)


def test_plain_readings_are_held_against_the_plain_control(readings, tmp_path):
    write(readings, tmp_path, "as-decided", [0.990, 0.991])
    write(readings, tmp_path, "critic-rectified", [0.994, 0.995])
    assert rows(readings.table(tmp_path))["critic-rectified"][6] == ""
    write(readings, tmp_path, "as-decided-plain", [0.993, 0.994])
    found = rows(readings.table(tmp_path))
    assert found["critic-rectified"][6].startswith("+0.10 [")
    assert found["as-decided-plain"][6].startswith("**+0.30** [")  # what the kernels do
    assert "seeds 0, 1" in readings.table(tmp_path)


def test_a_mean_says_which_seeds_it_leaves_out(readings, tmp_path):
    write(readings, tmp_path, "as-decided", [0.990, None, 0.992])
    write(readings, tmp_path, "no-noise", [None, None])
    (tmp_path / "as-decided/seed=2/validation.json").unlink()
    found = rows(readings.table(tmp_path))
    assert found["as-decided"][3] == "1 of 3, 1 diverged, 1 not finished"
    assert found["no-noise"][3:] == ["0 of 2, 2 diverged", "", "", "", ""]


@pytest.mark.parametrize(
    ("name", "base", "field"),
    [
        ("no-noise", toy_experiment(epochs=2), "training.epochs is 2, not 1"),
        ("no-noise", toy_experiment(epochs=1, lr=0.2), "training.lr is 0.2, not 0.05"),
        ("as-decided", toy_experiment(epochs=1, lr=0.2), "training.lr is 0.05, not 0.2"),
        ("l2-not-halved", toy_experiment(epochs=1, weight_decay=1e-3), "training.weight_decay is 0.002, not 0.0002"),
    ],
)
def test_runs_that_differ_by_more_than_their_reading_share_no_table(readings, tmp_path, name, base, field):
    others = {"as-decided", "critic-rectified"} - {name}
    for other in others:
        write(readings, tmp_path, other, [0.990])
    write(readings, tmp_path, name, [0.995], base)
    with pytest.raises(InputError, match=field):
        readings.table(tmp_path)
    with pytest.raises(InputError, match="was begun with another"):  # before anything is trained
        readings.train(tmp_path, ["fan-out"], toy_experiment(epochs=1), [0], toy_dataset(), CPU)


def test_runs_that_were_computed_otherwise_share_no_table(readings, tmp_path):
    write(readings, tmp_path, "as-decided", [0.990])
    write(readings, tmp_path, "no-noise", [0.990])
    (tmp_path / "no-noise/seed=0/environment.json").write_text('{"computed_by": "plain PyTorch"}')
    with pytest.raises(InputError, match="computed by plain PyTorch, not by fused kernels"):
        readings.table(tmp_path)


def test_without_as_decided_there_is_a_table_without_differences(readings, tmp_path):
    write(readings, tmp_path, "no-extra-class", [0.990, 0.991])
    write(readings, tmp_path, "no-noise", [0.990, 0.991])
    assert [row[6] for row in rows(readings.table(tmp_path)).values()] == ["", ""]
    with pytest.raises(InputError, match="no runs of readings"):
        readings.table(tmp_path / "nowhere")


def test_records_of_what_is_over_are_kept_without_weights_and_paths(readings, tmp_path):
    out, kept = tmp_path / "runs", tmp_path / "kept"
    base = toy_experiment(epochs=1)
    readings.train(out, ["as-decided", "no-noise"], base, [0], toy_dataset(), CPU)
    for name in ("fan-out", "warm-up"):  # one diverged, one is under way
        experiment = readings.experiment_of(name, base, 0, "fp32")
        run = Run.create(out / name / "seed=0", experiment, {"computed_by": "plain PyTorch"})
        if name == "fan-out":
            run.fail("Training diverged.")
    for _ in range(2):
        readings.keep(out, kept)
        found = sorted(str(path.relative_to(kept)) for path in kept.rglob("*.json*"))
        records = ["environment.json", "experiment.json", "metrics.jsonl", "validation.json"]
        assert found == [
            *(f"as-decided/seed=0/{name}" for name in records),
            *(
                f"fan-out/seed=0/{name}"
                for name in ["environment.json", "experiment.json", "failed.json", "metrics.jsonl"]
            ),
            *(f"no-noise/seed=0/{name}" for name in records),
        ]
    environment = (kept / "no-noise/seed=0/environment.json").read_text()
    assert str(tmp_path) not in environment
    assert json.loads(environment)["reading"] == "no-noise"
    assert rows(readings.table(kept)) == {n: row for n, row in rows(readings.table(out)).items() if n != "warm-up"}
    (out / "no-noise/seed=0/validation.json").write_text('{"best": 0.5, "last": 0.5, "wasserstein": 0.5}')
    with pytest.raises(InputError, match=r"kept/no-noise/seed=0 is another run than .*; choose another .* --keep"):
        readings.keep(out, kept)
    readings.train(tmp_path / "longer", ["no-noise"], toy_experiment(epochs=2), [0], toy_dataset(), CPU)
    with pytest.raises(InputError, match="is another run than"):
        readings.keep(tmp_path / "longer", kept)
    readings.train(tmp_path / "more", ["fan-out", "no-extra-class"], toy_experiment(epochs=2), [1], toy_dataset(), CPU)
    with pytest.raises(InputError, match=r"training\.epochs is 2, not 1"):
        readings.keep(tmp_path / "more", kept)
    assert sorted(str(path.relative_to(kept)) for path in kept.rglob("*.json*")) == found, "all or none"
    with pytest.raises(InputError, match=f"no runs of readings in {tmp_path}/nowhere"):
        readings.keep(tmp_path / "nowhere", kept)


ROOT = SCRIPT.parents[1]
PAGE = (ROOT / "docs/readings.md").read_text(encoding="utf-8")
TABLE = r"<!-- results/(readings/\S+) -->\n\n(.*?)\n\n<!-- end -->"


def test_the_tables_of_the_page_are_those_of_the_records(readings):
    tables = dict(re.findall(TABLE, PAGE, re.S))
    assert sorted(tables) == sorted(f"readings/{path.name}" for path in (ROOT / "results/readings").iterdir())
    for folder, shown in tables.items():
        assert shown == readings.table(ROOT / "results" / folder), f"results/readings.py --table --out results/{folder}"


WORDS = [re.sub(TABLE, "", part, flags=re.S) for part in PAGE.split("\n## ")]
TABLES = {folder: rows(shown) for folder, shown in re.findall(TABLE, PAGE, re.S)}
OF_PAPER = build("II", shipped_records()).rows


def differences(recipe, *taken):
    """Of the readings named, and of all others, as the table has them"""
    away = {name: row[6] for name, row in TABLES[f"readings/{recipe}"].items() if row[6]}
    return [away.pop(name).split()[0].strip("*+−") for name in taken], away


def epoch(path, number):
    line = (ROOT / "results" / path / "metrics.jsonl").read_text().splitlines()[number - 1]
    return percent(json.loads(line)["validation_accuracy"])


def test_figures_in_the_words_about_mnist_are_those_of_the_table():
    (cos, fan_out, shortcut), others = differences("mnist", "cos-not-detached", "fan-out", "shortcut-per-channel")
    assert fan_out == shortcut
    assert not any("**" in row[6] for row in TABLES["readings/mnist"].values())
    kept = {path: read_json(path)["last"] for path in (ROOT / "results/readings/mnist").glob("*/*/validation.json")}
    lowest = sorted(kept, key=kept.__getitem__)[:3]
    assert [path.parts[-3] for path in lowest[:2]] == ["cos-not-detached"] * 2
    assert f"lowest of the table's {len(kept)} runs" in WORDS[1]
    intervals = [re.search(r"\[(.*), (.*)\]", one).groups() for one in others.values()]
    bounds = [float(bound.replace("−", "-")) for interval in intervals for bound in interval]
    assert max(map(abs, bounds)) == 0.15
    assert max(bounds[::2]) < 0, "none is ahead"
    short, paper = percent(-OF_PAPER["softmax"]["mnist"].from_paper.difference), OF_PAPER["softmax"]["mnist"].paper
    away = percent(kept[lowest[2]] - kept[lowest[1]])
    assert re.findall(r"\d+\.\d+", WORDS[1]) == [cos, away, fan_out, "0.15", short, f"{paper:.2f}"]


def test_figures_in_the_words_about_normalised_weights_are_those_of_the_records():
    named = ("mean-over-levels", "noise-variance", "no-noise", "as-decided-plain")
    (gain, *behind), others = differences("cifar10-normalized", *named)
    (room,) = (float(re.search(r"\+([\d.]+)\]", one).group(1)) for one in others.values())
    short = "readings/cifar10-normalized/as-decided-plain"
    left = "readings-left-out/cifar10-normalized"
    fused = sorted(epoch(f"readings/cifar10-normalized/as-decided/seed={seed}", 7) for seed in range(4))
    inside = ROOT / "results/looking-inside"

    def said_of(name):
        (path,) = inside.glob(f"*of-normalized_*/{name}.json")
        return json.loads(path.read_text())

    names = [f"{reading}-seed-{seed}" for reading in ("as-decided", "mean-over-levels") for seed in (0, 1)]
    levels = [said_of(name)["levels"] for name in names]
    blocks = [one[level]["effective_per_image"] for of in (levels[:2], levels[2:]) for level in range(3) for one in of]
    dropped = [said_of(f"reroute-{name}")["rerouted"]["dropout"] for name in names]
    changes = [*(one["one_level"][3] for one in dropped), *(one["all_levels"] for one in dropped)]
    full = ("mean-over-levels-full-length-seed-0", "cifar10-normalized-seed-1")
    in_full = [level["effective_per_image"] for name in full for level in said_of(name)["levels"][:3]]
    last = [said_of(f"reroute-{name}")["rerouted"]["dropout"]["one_level"][3] for name in full]
    cell = OF_PAPER["normalized"]["cifar10"]
    first, second = cell.records
    mean = Run.open(ROOT / "results/readings-full-length/cifar10-normalized/mean-over-levels/seed=0")
    reached = (mean.results()["validation_accuracy"], first.validation_accuracy, second.validation_accuracy)

    def advance(*seeds):
        of_mean, of_sum = (
            [read_json(ROOT / f"results/readings/cifar10-normalized/{name}/seed={s}/validation.json") for s in seeds]
            for name in ("mean-over-levels", "as-decided")
        )
        return percent(statistics.mean(m["last"] - s["last"] for m, s in zip(of_mean, of_sum, strict=True)))

    def points(some):
        return [percent(one[fact]).replace("-", "−") for one in some for fact in ("difference", "margin")]

    assert re.findall(r"−?\d+\.\d+", WORDS[2]) == [
        *(percent(second.accuracy - first.accuracy), f"{cell.paper - 100 * first.accuracy:.2f}"),
        *(gain, advance(0, 1), advance(2, 3), f"{room:.1f}", *behind),
        *(epoch(f"{left}/votes-as-they-are/seed=0", 8), *(epoch(f"{short}/seed={seed}", 8) for seed in (0, 1))),
        *(epoch(f"{left}/b-not-differentiated/seed={seed}", 7) for seed in (0, 1)),
        *(epoch(f"{short}/seed={seed}", 7) for seed in (0, 1)),
        *(fused[0], fused[-1]),
        *(percent(share) for share in (*reached, mean.results()["accuracy"], first.accuracy, second.accuracy)),
        f"{cell.paper:.2f}",
        *(f"{number:.1f}" for number in blocks),
        *points(changes),
        *(f"{number:.1f}" for number in in_full),
        *points(last),
        f"{mean.experiment.objective.lambda_ws}",
    ]


def test_figures_in_the_words_about_softmax_on_cifar10_are_those_of_the_table():
    gain, others = differences("cifar10", "mean-over-levels")
    assert re.findall(r"\d+\.\d+", WORDS[3]) == gain
    assert not others


def test_a_run_that_lies_under_another_readings_name_is_noticed(readings, tmp_path):
    readings.train(tmp_path, ["fan-out"], toy_experiment(epochs=1), [0], toy_dataset(), CPU)
    (tmp_path / "fan-out").rename(tmp_path / "as-decided")  # the same settings
    with pytest.raises(InputError, match="as-decided/seed=0 is a run of fan-out; it belongs into"):
        readings.table(tmp_path)


def test_every_entry_says_whether_the_text_may_mean_it_and_its_decision_is_written_down(readings):
    decisions = (ROOT / "docs/decisions.md").read_text(encoding="utf-8")
    for name, reading in readings.READINGS.items():
        if not name.startswith("as-decided"):
            assert reading.kind in ("reading", "departure"), name
            assert f"\n| {reading.question} |" in decisions, name
    departures = {name for name, reading in readings.READINGS.items() if reading.kind == "departure"}
    assert departures == {
        "no-extra-class", "no-noise", "no-critic-dropout", "all-weights-decay", "all-kernels-decay", "warm-up",
        "batch-norm-momentum", "batch-norm-epsilon", "shortcut-pooled", "stride-in-transition",
    }  # fmt: skip


def test_settings_of_readings_change_nothing_else(readings):
    base = toy_experiment()
    changed = {}
    for name in readings.READINGS:
        before, after = (flat(to_dict(readings.experiment_of(n, base, 0, "fp32"))) for n in ("as-decided", name))
        changed[name] = {field: value for field, value in after.items() if before[field] != value}
        changed[name].pop("training.kernels", None)
    assert {name: fields for name, fields in changed.items() if fields} == {
        "no-extra-class": {"model.extra_class": False},
        "mean-over-levels": {"objective.lambda_ws": 0.1},  # two levels
        "noise-variance": {"model.routing.noise_std": 0.7071},
        "no-noise": {"model.routing.noise_share": 0},
        "no-critic-dropout": {"model.critic_dropout": 0},
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
        with torch.no_grad():  # as validation does
            found["evaluation"] = network.eval()(images).logits
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
    return {fact for fact in one if not alike(one[fact], other[fact])}


def alike(one, other):
    # Narrow, for batch norms take back how kernels are scaled (fan-out) but for what ε makes of it
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-6, atol=1e-8)


ANSWERS = {"fitness", "b", "logits", "reconstruction", "losses", "statistics", "evaluation"}
GRADIENTS = {f"gradient of {part}" for part in ("capsules", "critics", "W", "decoder")}
ABOUT = {
    "as-decided-plain": set(),
    "all-weights-decay": {"decay"},
    "all-kernels-decay": {"decay"},
    "fan-out": {"weights of capsules", *ANSWERS, *GRADIENTS},
    "batch-norm-momentum": {"norms", "statistics", "evaluation"},
    "warm-up": {"rates"},
    "batch-norm-epsilon": {"norms", *ANSWERS, *GRADIENTS},
    "statistics-per-capsule": {*ANSWERS, *GRADIENTS},
    "cos-not-detached": GRADIENTS - {"gradient of decoder"},
    "b-after-dropout": {"b", "losses", "gradient of critics"},
    "b-not-differentiated": {"gradient of critics"},
    "critic-rectified": {*ANSWERS, *GRADIENTS},
    "votes-as-they-are": set(),  # of a network with softmax
    "dropout-on-the-sum": {"logits", "losses", *GRADIENTS} - {"gradient of decoder"},
    "batch-norm-last": {*ANSWERS, *GRADIENTS},
    # One more batch norm with parameters and statistics of its own, or kernels of another shape
    "shortcut-conv-plus": {"weights of capsules", "norms", "decay", *ANSWERS, *GRADIENTS},
    "shortcut-per-channel": {"weights of capsules", *ANSWERS, *GRADIENTS},
    "shortcut-pooled": {"weights of capsules", "decay", *ANSWERS, *GRADIENTS},
    "strided-kernel": {"weights of capsules", *ANSWERS, *GRADIENTS},
    "stride-in-transition": {"weights of capsules", "decay", *ANSWERS, *GRADIENTS},
}


@pytest.mark.parametrize("name", ABOUT)
def test_a_reading_changes_what_it_is_about_and_nothing_else(readings, name):
    assert differing(readings, name, tiny(channels=1)) == ABOUT[name]


def test_every_reading_that_changes_the_code_is_held_to_what_it_is_about(readings):
    by_settings = {name for name, r in readings.READINGS.items() if r.settings and r.changed is readings.nullcontext}
    assert set(ABOUT) == set(readings.READINGS) - by_settings - {"as-decided"}


def test_votes_below_zero_are_kept_as_they_are(readings):
    noisy = RoutingConfig(weighting="normalized", noise_share=0.5)
    assert differing(readings, "votes-as-they-are", tiny(channels=1, routing=noisy)) >= {"b", "logits", *GRADIENTS}
    a = torch.tensor([[0.5, -0.25, 0.75], [0.2, 0.2, 0.6]])
    assert torch.allclose(readings.votes_as_they_are(a), torch.tensor([[0.5, -0.25, 0.75], [0.2, 0.2, 0.6]]))
    clamped = normalized_weights(a)
    assert torch.allclose(clamped, torch.tensor([[0.4, 0.0, 0.6], [0.2, 0.2, 0.6]]), atol=1e-5)


def test_what_a_network_cannot_notice_is_not_tried_on_it(readings, tmp_path):
    base = toy_experiment()
    assert "votes-as-they-are" not in readings.that_apply_to(base)
    with pytest.raises(InputError, match="votes-as-they-are is about normalized weights, which toy does not have"):
        readings.train(tmp_path, ["votes-as-they-are"], base, [0], toy_dataset(), CPU)
    normalized = replace(base, model=tiny(channels=1, routing=RoutingConfig(weighting="normalized")))
    assert readings.that_apply_to(normalized) == list(readings.READINGS)


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


@pytest.mark.parametrize("training", [True, False])
def test_statistics_of_their_own_are_a_batch_norm_for_every_capsule(readings, training):
    torch.manual_seed(0)
    shared = BatchNorm(4, momentum=0.2, eps=1e-4)
    torch.nn.init.uniform_(shared.weight)
    torch.nn.init.uniform_(shared.bias)
    own = readings.OwnStatistics(3, shared).train(training)
    torch.nn.init.uniform_(own.running_mean)
    torch.nn.init.uniform_(own.running_var)
    alone = [torch.nn.BatchNorm2d(4, momentum=0.2, eps=1e-4).train(training) for _ in range(3)]
    for one, mean, var in zip(alone, own.running_mean, own.running_var, strict=True):
        one.load_state_dict(
            {"weight": shared.weight, "bias": shared.bias, "running_mean": mean, "running_var": var}, strict=False
        )
    c = torch.randn(5, 3, 4, 6, 6)
    expected = torch.stack([one(c[:, n]) for n, one in enumerate(alone)], dim=1)
    assert torch.allclose(shared_over_capsules(own, c), expected, atol=1e-5)
    assert torch.allclose(own.running_mean, torch.stack([one.running_mean for one in alone]), atol=1e-6)
    assert sum(1 for _ in own.parameters()) == 2


STRIDED = ("shortcut-conv-plus", "shortcut-per-channel", "shortcut-pooled", "strided-kernel", "stride-in-transition")


@pytest.mark.parametrize("name", STRIDED)
def test_without_a_stride_there_is_no_shortcut_to_read_otherwise(readings, name):
    even = tiny(channels=1, levels=(Level(3, 2, 4, 1), Level(2, 2, 3, 1)))
    assert differing(readings, name, even) == set()


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("as-decided", 723_032),
        ("shortcut-conv-plus", 723_032 + 2 * (16 * 24 + 4 * 32)),
        ("shortcut-per-channel", 723_032 - 4 * (16 * 24 * 23 + 4 * 32 * 31)),
        ("shortcut-pooled", 723_032 - 4 * (16 * 24 * 24 + 4 * 32 * 32)),
        ("strided-kernel", 723_032 - 8 * (9 - 4) * (16 * 24 + 4 * 32)),
        ("stride-in-transition", 723_032 - 4 * (16 * 24 * 24 + 4 * 32 * 32)),
    ],
)
def test_what_the_stride_is_made_of_in_the_papers_network(readings, name, parameters):
    with readings.READINGS[name].changed():
        network = WCapsNet()
    assert network.parameter_counts()["classifier"] == parameters  # 16 blocks see 24 channels, 4 see 32


def test_a_shortcut_by_channels_and_one_by_means_are_what_they_say(readings):
    x = torch.randn(2, 3, 4, 5, 6)  # a side that the stride does not divide
    torch.manual_seed(0)
    by_channel = readings.PerChannel(3, 4, 2)
    weight = by_channel.conv.weight.view(3, 4, 2, 2)
    y = by_channel(x)
    assert y.shape == (2, 3, 4, 3, 3)
    assert torch.allclose(y[1, 2, 3, 1, 2], (x[1, 2, 3, 2:4, 4:6] * weight[2, 3]).sum(), atol=1e-6)
    assert torch.allclose(y[1, 2, 3, 2, 0], (x[1, 2, 3, 4, 0:2] * weight[2, 3, 0]).sum(), atol=1e-6)
    pooled = readings.MeanPool(2)(x)
    assert torch.allclose(pooled[1, 2, 3, 1, 2], x[1, 2, 3, 2:4, 4:6].mean(), atol=1e-6)
    assert torch.allclose(pooled[1, 2, 3, 2, 0], x[1, 2, 3, 4, 0:2].mean(), atol=1e-6)


@pytest.mark.parametrize(
    ("epochs", "milestones", "rates"),
    [(6, (5,), [0.25, 0.5, 0.75, 1, 1, 0.1]), (5, (2, 4), [0.5, 1, 0.1, 0.1, 0.01]), (2, (), [0.25, 0.5])],
)
def test_a_warm_up_leaves_a_short_run_its_falls_and_an_epoch_at_the_full_rate(readings, epochs, milestones, rates):
    training = replace(toy_experiment().training, lr=1.0, epochs=epochs, milestones=milestones)
    with readings.READINGS["warm-up"].changed():
        assert [training.learning_rate(epoch) for epoch in range(epochs)] == pytest.approx(rates)


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
    assert rows(readings.table(tmp_path))["as-decided"][3] == "0 of 1, 1 diverged"
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
    monkeypatch.setattr("sys.argv", ["readings.py", "--out", str(tmp_path / "out"), "--data-dir", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        readings.main()
    said = capsys.readouterr().err
    assert end.value.code == 2
    assert said.startswith("error: ")
    assert "are not there" in said
    monkeypatch.setattr("sys.argv", ["readings.py", "--help"])
    with pytest.raises(SystemExit):
        readings.main()
    has = capsys.readouterr().out
    assert all(option in has for option in re.findall(r"--[a-z-]+", said)), "it advises what the script can do"


def test_ctrl_c_says_how_to_go_on(readings, tmp_path, monkeypatch, capsys):
    def interrupted(*args):
        raise Interrupted

    monkeypatch.setattr(readings, "train", interrupted)
    monkeypatch.setattr("sys.argv", [str(SCRIPT), "--out", "out", "--recipe", "demo"])
    with pytest.raises(SystemExit) as end:
        readings.main()
    assert end.value.code == 130
    assert capsys.readouterr().out == f"Stopped and saved. Go on with: python {SCRIPT} --out out --recipe demo\n"


def test_where_memory_is_short_no_option_is_named_that_the_script_does_not_have(readings, monkeypatch, capsys):
    def full(*args, **options):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(readings, "load_dataset", full)
    monkeypatch.setattr("sys.argv", [str(SCRIPT)])
    with pytest.raises(SystemExit) as end:
        readings.main()
    assert end.value.code == 1
    assert capsys.readouterr().err == "error: The device is out of memory; end other programs that use it.\n"
