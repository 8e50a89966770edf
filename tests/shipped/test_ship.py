"""Making a shipped network from runs, and using it by its name."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_helpers import call
from PIL import Image
from safetensors import safe_open

import wcapsnet
from ship import best_on_validation, main, ship, shortened
from wcapsnet import InputError, shipped
from wcapsnet.classifier import Classifier, load_tensors, sealed
from wcapsnet.data import DATASETS, load_dataset
from wcapsnet.experiment import Experiment
from wcapsnet.formatting import mean_and_deviation
from wcapsnet.objective import Objective
from wcapsnet.recipes import RECIPES, recipe
from wcapsnet.recipes.repeat import rebuild
from wcapsnet.reports.records import NETWORK, shipped_records
from wcapsnet.settings import from_dict, to_dict, with_setting
from wcapsnet.training.console import clock
from wcapsnet.training.environment import runs_at_a_time
from wcapsnet.training.run_folder import Run

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]
NAME = "wcapsnet-toy"


@pytest.fixture
def made(runs, checkout):
    return ship(NAME, [runs], checkout, None, CPU)


def change(path, **fields):
    facts = json.loads(path.read_text())
    path.write_text(json.dumps({**facts, **fields}))


# ── choosing ──


def test_the_seed_is_chosen_by_validation_and_the_test_set_has_no_say(own_runs):
    for seed, (validation, wrong) in enumerate(((0.8, 1), (0.9, 90), (0.85, 50))):
        figures = {
            "images": 100,
            "errors": wrong,
            "accuracy": 1 - wrong / 100,
            "confusion": [[100 - wrong, wrong], [0, 0]],
        }
        change(own_runs / f"seed={seed}/test.json", validation_accuracy=validation, **figures)
    runs = [Run.open(own_runs / f"seed={seed}") for seed in range(3)]
    assert best_on_validation(runs) is runs[1]
    for run in runs:
        change(run.file("test.json"), validation_accuracy=0.9, best_epoch=1)
    losses = {0: 0.5, 1: 0.4, 2: 0.4}
    for seed, run in enumerate(runs):
        run.write_metrics([{**run.metrics()[0], "validation_loss": losses[seed]}])
    assert best_on_validation(runs) is runs[1]  # the lower loss, then the smaller seed


def test_different_experiments_are_not_to_choose_from(own_runs, checkout):
    other = Run.open(own_runs / "seed=1").experiment
    experiment = replace(other, objective=Objective({**other.objective, "wasserstein": 0.7}))
    (own_runs / "seed=1/experiment.json").write_text(json.dumps(to_dict(experiment)))
    with pytest.raises(InputError, match=r"are different experiments: objective.wasserstein is 0.7 and 0.2"):
        ship(NAME, [own_runs], checkout, None, CPU)


# ── the file ──


def test_the_shipped_network_answers_as_its_run_on_every_test_image(made, runs, checkout):
    best = best_on_validation([Run.open(runs / f"seed={seed}") for seed in range(3)])
    assert made.run.path == best.path
    recorded = best.results()
    assert made.facts["test"] == {"correct": recorded["images"] - recorded["errors"], "images": 60}
    one, other = wcapsnet.load(NAME), wcapsnet.load(best.path)
    images = load_dataset(recipe("toy").data).test.images.numpy()
    answers = [[answer.label for answer in model.classify(images, 1, [None] * 60)] for model in (one, other)]
    assert answers[0] == answers[1]
    assert one.classes == ("top", "middle", "bottom")
    assert one.normalization == other.normalization


def test_the_metadata_hold_experiment_preprocessing_classes_figures_and_checksum(made, checkout):
    _, facts = load_tensors(shipped.path_of(NAME))
    assert from_dict(Experiment, facts["experiment"]) == made.run.experiment
    assert {"model", "classes", "mean", "std", "epoch", "test", "validation", "fingerprint", "checksum"} <= set(facts)
    assert facts["stored"] in ("float16", "float32")
    assert shipped.names() == [NAME]


def stored_types():
    with safe_open(shipped.path_of(NAME), "pt") as file:
        return {file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118 (not a dict)


def test_half_precision_is_taken_if_and_only_if_it_changes_no_answer(own_runs, checkout):
    run = Run.open(own_runs / "seed=0")
    exact = Classifier.load(run.weights())
    exact.network.load_state_dict(
        {n: t.half().float() if t.is_floating_point() else t for n, t in exact.network.state_dict().items()}
    )
    exact.save(run.weights(), epoch=1)
    made = ship(NAME, [run.path], checkout, None, CPU)
    assert (made.half.flips, made.facts["stored"]) == (0, "float16")
    assert stored_types() <= {torch.float16, torch.int64}
    size = shipped.path_of(NAME).stat().st_size

    fine = exact.network.projection
    with torch.no_grad():  # columns that half precision cannot tell apart decide between two classes
        fine[:, 1] = fine[:, 0] * (1 + 1e-5)
    exact.save(run.weights(), epoch=1)
    made = ship(NAME, [run.path], checkout, None, CPU)
    assert made.half.flips > 0
    assert made.facts["stored"] == "float32"
    assert stored_types() <= {torch.float32, torch.int64}
    assert shipped.path_of(NAME).stat().st_size > size
    assert f"would change the prediction for {made.half.flips} of the validation and test images" in card(checkout)
    assert torch.equal(wcapsnet.load(NAME).network.projection, exact.network.projection)


@pytest.mark.parametrize(
    ("environment", "runs"),
    [
        ({}, 1),
        ({"command": ["wcapsnet", "train", "mnist"], "runs_at_a_time": 1}, 1),
        ({"command": ["wcapsnet", "sweep", "mnist"], "runs_at_a_time": 4}, 4),
        ({"command": ["wcapsnet", "sweep", "mnist", "--parallel", "5"]}, 5),
        ({"command": ["wcapsnet", "sweep", "mnist", "--parallel", "9"], "runs_at_a_time": 2}, 2),
        ({"runs_at_a_time": 2, "resumed": [{"runs_at_a_time": 3}, {"runs_at_a_time": 1}]}, 3),
        ({"runs_at_a_time": "2", "command": 7, "resumed": [[], {"runs_at_a_time": []}]}, 1),  # damaged
    ],
)
def test_how_many_runs_shared_a_device_is_known(environment, runs):
    assert runs_at_a_time(environment) == runs


def test_the_card_says_when_several_runs_shared_the_device(own_runs, checkout):
    for seed in range(3):
        change(own_runs / f"seed={seed}/environment.json", runs_at_a_time=3)
    ship(NAME, [own_runs], checkout, None, CPU)
    assert ", several runs at a time. On a GPU" in card(checkout)


# ── damage ──


def flipped(content):
    """One bit of a weight"""
    return content[:-3] + bytes([content[-3] ^ 0x10]) + content[-2:]


def swapped(content):
    return content.replace(b'\\"top\\", \\"middle\\"', b'\\"middle\\", \\"top\\"')


@pytest.mark.parametrize("spoil", [flipped, swapped, lambda content: content[:-100], lambda content: b""])
def test_a_damaged_file_is_refused_in_one_sentence(made, spoil, tmp_path):
    content = shipped.path_of(NAME).read_bytes()
    shipped.path_of(NAME).write_bytes(spoil(content))
    assert spoil(content) != content
    with pytest.raises(InputError, match=f"The shipped network {NAME} cannot be used ") as error:
        wcapsnet.load(NAME)
    assert str(error.value).endswith(".")
    Image.new("L", (8, 8)).save(tmp_path / "x.png")
    for words in (("predict", NAME, tmp_path / "x.png"), ("evaluate", NAME)):
        code, _, said = call(*words)
        assert code == 2
        assert len(said.strip().splitlines()) == 1
        assert "cannot be used" in said
    code, out, _ = call("list", "weights")
    assert code == 0
    assert "cannot be used" in " ".join(out.split())


def test_a_checksum_depends_on_every_tensor_its_type_and_every_fact():
    tensors = {"a": torch.zeros(2, 3), "b": torch.tensor(1)}
    facts = {"x": [1, 2], "y": "é"}
    one = sealed(tensors, facts)["checksum"]
    assert sealed(dict(reversed(tensors.items())), dict(reversed(facts.items())))["checksum"] == one
    others = [
        ({**tensors, "b": torch.tensor(2)}, facts),
        ({**tensors, "a": torch.zeros(3, 2)}, facts),
        ({**tensors, "a": torch.zeros(2, 3).half()}, facts),
        ({"a": tensors["a"]}, facts),
        (tensors, {**facts, "x": [2, 1]}),
    ]
    assert len({one, *(sealed(*other)["checksum"] for other in others)}) == 6


# ── by name ──


def test_evaluate_gives_the_cards_number_to_the_last_image(made):
    right = made.facts["test"]["correct"]
    code, out, _ = call("evaluate", NAME)
    assert code == 0
    assert f"{right:,} images correct; its model card says {right:,}." in out
    code, out, _ = call("evaluate", NAME, "--json")
    assert json.loads(out)["images"] - json.loads(out)["errors"] == right
    code, out, _ = call("evaluate", NAME, "--split", "validation", "--json")
    assert json.loads(out)["images"] - json.loads(out)["errors"] == made.facts["validation"]["correct"]


def test_evaluate_refuses_other_images_than_those_of_the_card(made, monkeypatch):
    info = DATASETS["toy"]

    def other(root):
        raw = info.read(root)
        raw.test.images[0, 0, 0, 0] ^= 1
        return raw

    monkeypatch.setitem(DATASETS, "toy", replace(info, read=other))
    code, _, said = call("evaluate", NAME)
    assert code == 2
    assert f"The test images of toy are not those of {NAME}" in said


def test_weights_that_do_not_know_their_data_cannot_be_evaluated(runs):
    code, _, said = call("evaluate", runs / "seed=0/best.safetensors")
    assert code == 2
    assert "does not say what it was trained on" in said


def test_predict_and_list_know_it(made, tmp_path):
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "x.png")
    code, out, _ = call("predict", NAME, tmp_path / "x.png", "--json")
    assert code == 0
    assert json.loads(out)[0]["class"] in ("top", "middle", "bottom")
    for words in (("list",), ("list", "weights")):
        code, out, _ = call(*words)
        assert code == 0
        assert NAME in out
        assert f"{made.facts['test']['correct']} of 60" in out


def test_a_folder_of_the_same_name_does_not_hide_it(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path(NAME).mkdir()
    assert wcapsnet.load(NAME).classes == ("top", "middle", "bottom")
    with pytest.raises(InputError, match="is not a run folder"):
        wcapsnet.load(f"./{NAME}")


def test_an_unknown_name_suggests_the_nearest(made, checkout, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=f"nor a shipped network of that name; did you mean '{NAME}'"):
        wcapsnet.load("wcapsnet-toi")
    assert "did you mean" in call("evaluate", "wcapsnet-toi")[2]
    Path("runs/photos").mkdir(parents=True)
    Path("runs/photos/experiment.json").write_text("{}")
    for name in ("photos", "runs/photo"):
        with pytest.raises(InputError, match="did you mean 'runs/photos'"):
            wcapsnet.load(name)


# ── card, pages, tool ──


def card(checkout):
    return (checkout / "docs/model-cards" / f"{NAME}.md").read_text()


def test_the_card_says_how_good_how_chosen_and_how_to_rebuild_it(made, runs, checkout):
    text, test = card(checkout), made.facts["test"]
    assert f"**{test['correct'] / 60:.2%}**: {test['correct']} of 60 images" in text
    assert made.facts["checksum"] in text
    assert text.count("| shipped |") == 1
    for seed in range(3):
        facts = Run.open(runs / f"seed={seed}").results()
        assert f"| {seed} | {facts['validation_accuracy']:.2%} | {facts['accuracy']:.2%} |" in text
    assert f"wcapsnet train toy --seed {made.run.experiment.training.seed} --precision fp32" in text
    assert "Apache-2.0" in text
    assert ": 100 training and 30 validation images |\n| augmentation | none |" in text
    assert "in the paper" not in text
    assert f"{NAME}.svg" in text
    assert (checkout / "docs/model-cards" / f"{NAME}.svg").read_text().startswith("<svg")
    assert str(runs) not in text
    assert made.rounding.flips == 0
    assert made.rounding.error < 1e-4


def test_a_card_of_a_hundred_classes_names_the_hardest_and_the_easiest(made):
    from model_card import _by_class
    from wcapsnet.training.evaluate import Evaluation

    labels = torch.arange(100).repeat_interleave(2)
    predicted = labels.clone()
    predicted[:6] = 99  # classes 0, 1, 2
    none = torch.zeros(200)
    test = Evaluation(labels, predicted, none, none[:, None], 0.0, (), 100)
    lines = _by_class(replace(made, test=test, classes=tuple(f"c{r}" for r in range(100))))
    assert lines[4:7] == [f"| c{r} | 2 | 0.0% | c99 (2) |" for r in range(3)]
    assert len(lines) == 14


@pytest.mark.parametrize(("name", "figure"), [("cifar10", "93.43%"), ("svhn-ws", "96.56%"), ("svhn", "96.46%")])
def test_a_card_of_an_experiment_of_the_paper_has_the_papers_figure_beside_ours(name, figure):
    from model_card import _paper

    assert _paper(recipe(name)) == {"test accuracy in the paper": figure}
    assert _paper(recipe("fashion-mnist")) == {}
    shorter = replace(recipe(name), training=recipe(name).training.with_epochs(3))
    assert _paper(shorter) == {}


@pytest.mark.parametrize("name", ["toy", "cifar100-squash", "quick"])
def test_the_rebuilding_command_leads_back_to_the_experiment(name):
    experiment = recipe(name)
    levels = experiment.model.levels[:2]
    experiment = replace(
        experiment,
        model=replace(experiment.model, levels=levels, dense_layers=2),
        data=replace(experiment.data, shift=3, validation=0.25),
        training=replace(experiment.training, seed=5, precision="bf16", epochs=77, patience=9),
    )
    words = shlex.split(rebuild(experiment))
    assert words[:2] == ["wcapsnet", "train"]
    again = RECIPES[words[2]]()
    options = {"--seed": "training.seed", "--precision": "training.precision"}
    for option, value in zip(words[3::2], words[4::2], strict=True):
        again = with_setting(again, f"{options[option]}={value}" if option in options else value)
    assert replace(again, name="x") == replace(experiment, name="x")


@pytest.mark.parametrize(
    ("name", "field"),
    [("cifar10", "objective.reconstruction"), ("cifar10-plus", "data.augment.cutmix")],
)
def test_the_rebuilding_command_leaves_out_what_the_experiment_left_out(name, field):
    words = rebuild(with_setting(recipe(name), f"{field}=null"))
    assert words.endswith(f"train {name} --seed 0 --precision fp32 --set {field}=null")


def test_the_tool_writes_file_card_curve_and_guide(runs, checkout, capsys):
    main([NAME, str(runs), "--device", "cpu"], checkout)
    said = capsys.readouterr().out
    assert "test images right" in said
    for path in (f"shipped/weights/{NAME}.safetensors", f"{NAME}.md", f"{NAME}.svg", "docs/guide.md"):
        assert f"{path}\n" in said
    assert f"[`{NAME}`](model-cards/{NAME}.md)" in (checkout / "docs/guide.md").read_text()


def other_data(runs):
    for path in runs.glob("*/data.json"):
        change(path, fingerprint={**json.loads(path.read_text())["fingerprint"], "test": "0"})


@pytest.mark.parametrize(
    ("name", "spoil", "says"),
    [
        (NAME, lambda runs: (runs / "seed=2/test.json").unlink(), "seed=2 is not finished"),
        (NAME, lambda runs: [path.unlink() for path in runs.glob("*/best.safetensors")], "has lost its weights"),
        (NAME, other_data, "The test images of toy are not those"),
        ("wcapsnet", None, "cannot name a shipped network"),
        ("../x", None, "cannot name a shipped network"),
        ("toy", None, "cannot name a shipped network"),
    ],
)
def test_bad_input_to_the_tool_is_one_sentence_and_leaves_nothing(own_runs, checkout, name, spoil, says, capsys):
    if spoil:
        spoil(own_runs)
    before = {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file()}
    with pytest.raises(SystemExit, match="2"):
        main([name, str(own_runs)], checkout)
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert says in said
    assert len(said.splitlines()) == 1
    assert {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file()} == before


def test_pictures_are_shipped_without_the_place_where_they_lay(tmp_path, checkout):
    for kind, value in (("dark", 40), ("light", 200)):
        (tmp_path / "photos" / kind).mkdir(parents=True)
        for number in range(12):
            noise = np.random.default_rng(number).integers(-20, 20, (8, 12, 3))
            Image.fromarray((value + noise).astype(np.uint8)).save(tmp_path / "photos" / kind / f"{number}.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WCAPSNET_CACHE", str(tmp_path / "cache"))
        small = ("--model", "wcapsnet-quick", "--size", "8x12", "--epochs", 1)
        code, _, said = call("train", tmp_path / "photos", *small, "--device", "cpu", "--out", tmp_path / "run", "-q")
        assert code == 0, said
        ship("own-photos", [tmp_path / "run"], checkout, None, CPU)
        facts = shipped.describe("own-photos")
        assert facts["experiment"]["data"]["source"] == "photos"
        assert str(tmp_path).encode() not in shipped.path_of("own-photos").read_bytes()
        assert str(tmp_path) not in (checkout / "docs/model-cards/own-photos.md").read_text()
        code, out, said = call("evaluate", "own-photos", "--data-dir", tmp_path / "photos")
        assert code == 0, said
        right = facts["test"]["correct"]
        assert f"{right} images correct; its model card says {right}." in out


# ── what this version ships ──


@pytest.mark.parametrize("name", shipped.names())
def test_every_shipped_network_has_a_card_with_its_number_and_checksum(name):
    facts = shipped.describe(name)
    text = (ROOT / "docs/model-cards" / f"{name}.md").read_text()
    assert facts["checksum"] in text
    assert f"{facts['test']['correct']:,} of {facts['test']['images']:,} images" in text
    assert shipped.path_of(name).stat().st_size < 4.5e6
    classifier = wcapsnet.load(name)
    assert classifier.predict(np.zeros((40, 50, 3), np.uint8)).label in classifier.classes


def test_the_small_network_is_that_of_its_record():
    facts = shipped.describe("wcapsnet-small-cifar100")
    record = json.loads((ROOT / "results/small-cifar100/seed=0.json").read_text())
    assert facts["test"]["correct"] == record["test"]["images"] - record["test"]["errors"]
    assert facts["epoch"] == record["test"]["best_epoch"]
    assert [epoch["validation_accuracy"] for epoch in facts["history"]] == record["metrics"]["validation_accuracy"]


@pytest.mark.parametrize("name", [name for name in shipped.names() if name != "wcapsnet-small-cifar100"])
def test_the_figures_on_a_card_are_those_of_the_committed_records(name):
    source, training = (shipped.describe(name)["experiment"][part] for part in ("data", "training"))
    row = "wcapsnet-plus" if name.startswith("wcapsnet-plus-") else NETWORK
    text = (ROOT / "docs/model-cards" / f"{name}.md").read_text()
    records = [r for r in shipped_records() if (r.dataset, r.row) == (source["source"], row)]
    lines = []
    for r in records:
        mark = "shipped" if r.seed == training["seed"] else ""
        lines.append(f"| {r.seed} | {r.validation_accuracy:.2%} | {r.accuracy:.2%} | {mark} |")
    assert "\n".join(["| seed | validation | test | |", "| --- | --- | --- | --- |", *lines, ""]) in text
    if len(records) > 1:
        assert f"seeds: {mean_and_deviation([r.accuracy for r in records])} %" in text
    (own,) = [r for r in records if r.seed == training["seed"]]
    assert f"This took {clock(own.seconds)} on {own.hardware}, " in text
    figures = json.loads((ROOT / "results" / own.place).read_text())["test"]
    shown = re.findall(r"^\| (.+?) \| (\d+) \| ([\d.]+)% \|", text, re.MULTILINE)
    assert len(shown) == 10
    for label, images, right in shown:
        assert figures["per_class"][label]["images"] == int(images)
        assert f"{100 * figures['per_class'][label]['accuracy']:.1f}" == right


@pytest.mark.data
@pytest.mark.parametrize("name", shipped.names())
def test_every_shipped_network_reaches_its_cards_number_to_the_last_image(name):
    code, out, said = call("evaluate", name, "--json", "--device", "cpu")
    if "not found" in said:
        pytest.skip(said)
    assert code == 0, said
    facts = json.loads(out)
    assert facts["images"] - facts["errors"] == shipped.describe(name)["test"]["correct"]


# ── its explanation ──


def test_a_shipped_network_is_explained_by_its_name(made):
    code, out, said = call("explain", NAME, "--json")
    assert code == 0, said
    facts = json.loads(out)
    assert facts["accuracy"] == json.loads(call("evaluate", NAME, "--json")[1])["accuracy"]
    assert (
        len(facts["probes"])
        == len(facts["levels"])
        == len(shipped.experiment_of(shipped.load(NAME, CPU), NAME).model.levels)
    )
    assert call("explain", NAME, "--capsule", "1.0")[0] == 0


# ── its report ──


def test_a_shipped_network_has_a_report_by_its_name(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = call("report", NAME)
    assert (code, out, err) == (0, f"The report is {NAME}-report.html.\n", "")
    page = (tmp_path / f"{NAME}-report.html").read_text(encoding="utf-8")
    right = made.facts["test"]["correct"]
    assert f"{right} images of 60 correct" in page
    assert "All numbers as a table" in page
    assert f"seed {made.run.experiment.training.seed}" in page
    assert made.run.metrics()
    assert [m["epoch"] for m in shipped.describe(NAME)["history"]] == [m["epoch"] for m in made.run.metrics()]
    assert "mean weight" in page
    assert "<article" in page


def test_the_report_of_a_shipped_network_says_when_its_data_are_not_there(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(DATASETS, "toy")
    assert call("report", NAME)[0] == 0
    page = (tmp_path / f"{NAME}-report.html").read_text(encoding="utf-8")
    assert "The pictures cannot be shown." in page
    assert f"{made.facts['test']['correct']} images of 60 correct" in page


def test_single_precision_is_stored_with_sixteen_significant_bits():
    exact = torch.tensor([0.0, 1.0, -1.0, 1 + 2**-15, 96.5, -(2.0**-40)])
    assert torch.equal(shortened(exact), exact)
    assert shortened(torch.tensor(1 + 2**-17)) == 1
    x = torch.randn(1000) * torch.logspace(-20, 20, 1000)
    rounded = shortened(x)
    assert (rounded.view(torch.int32) & 0xFF == 0).all()  # the eight lowest bits
    assert ((rounded - x).abs() <= x.abs() * 2**-16).all()
    assert torch.equal(shortened(torch.arange(3)), torch.arange(3))
