"""Networks side by side."""

import json

import pytest
import torch
from cli_helpers import call
from torch import nn

import wcapsnet
from wcapsnet import InputError, kernels
from wcapsnet.bench import compare
from wcapsnet.bench.work import kept_for_gradient, multiply_adds, total, work_of
from wcapsnet.models import create, model_config, parameter_count
from wcapsnet.network import WCapsNet
from wcapsnet.recipes import PAPER, RECORDED, TABLE_V
from wcapsnet.reports.charts import Point, scatter
from wcapsnet.reports.records import NETWORK, Record


def record(row, correct, seed=0, dataset="mnist"):
    facts = {"epochs": 40, "best_epoch": 9, "validation_accuracy": 0.9, "images": 10000, "seconds": 600.0}
    ran = {"precision": "bf16", "computed_by": None, "hardware": "a GPU", "at_a_time": 1, "started": "2026-11-18"}
    return Record(dataset=dataset, row=row, seed=seed, correct=correct, **facts, **ran)


@pytest.mark.slow  # the counter takes seconds to import
def test_multiply_adds_of_capsnet_worked_by_hand():
    convolutions = 20 * 20 * 256 * 81 + 6 * 6 * 256 * 256 * 81
    votes = 1152 * 8 * 160
    routing = (3 + 2) * 1152 * 160  # three weighted sums, two agreements
    decoder = 160 * 512 + 512 * 1024 + 1024 * 784
    network = create("capsnet", channels=1, size=28)
    assert multiply_adds(network) == convolutions + votes + routing + decoder


@pytest.mark.slow  # the counter takes seconds to import
def test_multiply_adds_of_self_routing_include_its_votes():
    network = create("sr-capsnet-2")
    with_votes = 16 * 288 * 16 * 32 * (1 + 16)  # positions · inputs · d · outputs · (routing + votes)
    classes = 16 * 32 * 16 * 10
    layers = total(work_of(network, 3, 32, 32)).macs
    assert multiply_adds(network) == layers + with_votes + classes


@pytest.mark.slow  # the counter takes seconds to import
def test_both_ways_of_counting_agree_on_wcapsnet_but_for_the_routing():
    parts = work_of(WCapsNet(), 3, 32, 32)
    counted = multiply_adds(WCapsNet())
    layers = total(parts).macs - parts["routing"].macs
    assert 0 <= counted - layers <= 2 * parts["routing"].macs + 500_000


class Plain(nn.Module):
    """3×4×4 → convolution (keeps its input) → ReLU (keeps its output)"""

    def __init__(self):
        super().__init__()
        self.config = model_config("vgg-19", 2, 3, 8, 8)
        self.conv = nn.Conv2d(3, 5, 3, padding=1)

    def forward(self, images):
        return self.conv(images).relu()


def test_memory_kept_for_the_gradient_worked_by_hand():
    assert kept_for_gradient(Plain()) == 4 * (3 + 5) * 8 * 8


def test_every_dataset_has_wcapsnet_and_the_systems_with_a_recipe_there():
    for dataset in PAPER:
        names = compare.names_for(dataset)
        assert next(iter(names)) == NETWORK
        recipes = {name for name, experiment in TABLE_V.items() if experiment().data.source == dataset}
        assert recipes <= {f"{name}-{dataset}" for name in names}


def test_the_costs_in_the_package_are_those_of_the_code():
    for dataset, facts in compare.packaged_facts().items():
        for name, system in compare.names_for(dataset).items():
            config = compare.experiment_of(name, system, dataset).model
            assert facts["costs"][name]["parameters"] == parameter_count(config), (dataset, name)


@pytest.mark.slow
def test_the_work_in_the_package_is_that_of_the_code():
    small = compare.packaged_facts()["mnist"]["costs"]["efficient-capsnet"]
    network = create("efficient-capsnet", channels=1, size=28)
    assert (small["multiply_adds"], small["kept"]) == (multiply_adds(network), kept_for_gradient(network))


def test_accuracies_are_those_of_the_records_and_a_row_without_a_run_says_so():
    records = [record(NETWORK, 9960, 0), record(NETWORK, 9970, 1), record("capsnet", 9950)]
    found = compare.build("mnist", None, records)
    rows = {row.name: row for row in found.rows}
    assert rows["capsnet"].accuracies == (0.995,)
    assert rows["capsnet"].minutes == 10
    assert (rows["capsnet"].published, rows["capsnet"].source) == (99.75, "its paper, second-hand")
    lines = {line[0]: line for line in found.grid()}
    assert "99.65 ± 0.07 (2)" in lines["WCapsNet"]
    assert compare.NOT_RUN in lines["DeepCaps"]
    assert compare.NOT_RUN not in lines["CapsNet"]
    facts = {row["name"]: row for row in found.as_json()["rows"]}
    assert facts[NETWORK]["accuracy"]["runs"] == 2
    assert facts["deepcaps"]["accuracy"] is None
    drawing = found.figure()
    assert str(drawing.body).count("<circle") == 4 + 2 + 2  # published, our own, and these over minutes


def test_speeds_come_from_the_record_with_its_environment():
    speed = {"training": 1000.0, "inference": 3000.0, "latency": 1.5, "peak_mib": 700.0}
    ran = {"hardware": "a GPU", "torch": "2", "precision": "bf16", "batch": 64, "started": "2026-11-18T"}
    costs = compare.packaged_facts()["mnist"]["costs"]
    facts = {"mnist": {"costs": costs, "speeds": {"environment": ran, "rows": {"capsnet": speed}}}}
    found = compare.build("mnist", None, [], facts)
    line = next(line for line in found.speed_grid() if line[0] == "CapsNet")
    assert line[1:5] == ["1,000", "3,000", "1.5", "700"]
    assert any("a GPU" in note for note in found.notes())
    assert compare.build("mnist", ["deepcaps"], [], facts).measured is None


@pytest.mark.parametrize(
    ("dataset", "models", "says"),
    [
        ("mnits", None, "did you mean 'mnist'"),
        ("mnist", ["capsnte"], "did you mean 'capsnet'"),
        ("mnist", [], "at least"),
    ],
)
def test_unknown_names_are_refused(dataset, models, says):
    with pytest.raises(InputError, match=says):
        wcapsnet.compare(dataset, models)


def test_the_command_prints_a_table_json_and_plots(tmp_path):
    shown = call("compare", "cifar10", "--plot", str(tmp_path / "a.svg"), "--out", str(tmp_path / "a.json"))
    assert "DenseNet-BC-100" in shown.out
    assert "no full-length" in shown.out  # the cell may be wrapped
    assert "<circle" in (tmp_path / "a.svg").read_text()
    as_json = json.loads(call("compare", "mnist", "--json").out)
    assert {row["name"] for row in as_json["rows"]} >= {"wcapsnet", "capsnet", "efficient-capsnet"}


@pytest.mark.slow
def test_speeds_are_measured_side_by_side(cpu):
    found = wcapsnet.compare(
        "mnist", ["efficient-capsnet", "wcapsnet-quick"], speed=True, batch=2, repeats=1, window=0, device="cpu"
    )
    for row in found.rows:
        assert row.speed.training > 0
        assert row.speed.inference > 0
        assert row.speed.latency > 0
        assert row.speed.peak_mib is None
    assert found.measured["batch"] == 2


def test_a_network_is_measured_as_it_trains(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(kernels, "start", lambda: None)
    chosen = {
        (name, precision): compare._as_trained(name, RECORDED["cifar10", name](), precision, torch.device("cuda")).name
        for name in ("wcapsnet", "densenet-bc-100", "sr-capsnet")
        for precision in ("bf16", "fp32")
    }
    assert {one for one, implementation in chosen.items() if implementation == "fused"} == {
        ("wcapsnet", "bf16"),
        ("densenet-bc-100", "bf16"),
    }


def test_points_keep_their_order_on_a_logarithmic_axis_and_names_do_not_cover_each_other():
    points = [Point(name, x, y, "", 0) for name, x, y in (("a", 1, 90), ("b", 10, 90.01), ("c", 10.1, 90.02))]
    body = str(scatter("it", points, x_name="x", y_name="y").body)
    at = [float(part.split('"')[0]) for part in body.split('cx="')[1:]]
    assert sorted(at, reverse=True) == at  # drawn from the best accuracy down
    heights = [
        float(part.split('y="')[1].split('"')[0]) for part in body.split("<text ")[1:] if 'class="label"' in part
    ]
    assert abs(heights[0] - heights[1]) >= 11


def test_a_name_covers_no_point():
    """The second point is where the name of the first would go."""
    points = [Point("first", 1, 90, ""), Point("b", 1.1, 90, ""), Point("c", 10, 80, "")]
    body = str(scatter("it", points, x_name="x", y_name="y").body)
    height = float(body.split('cy="')[1].split('"')[0])
    name = next(part for part in body.split("<text ") if ">first<" in part)
    assert abs(float(name.split('y="')[1].split('"')[0]) - (height + 4)) >= 11


def test_many_names_stay_in_the_picture():
    points = [Point(f"network number {number}", 1 + number / 100, 90, "") for number in range(9)]
    body = str(scatter("it", points, x_name="x", y_name="y").body)
    names = [part for part in body.split("<text ")[1:] if ">network number" in part]
    assert len(names) == 9
    assert all(26 <= float(part.split('y="')[1].split('"')[0]) <= 298 for part in names)


def test_counting_parameters_draws_and_changes_nothing():
    state, drawn = torch.get_rng_state(), nn.init.normal_
    config = model_config("densenet-bc-100", 10, 3, 32, 32)
    parameter_count.cache_clear()
    assert parameter_count(config) == sum(p.numel() for p in config.build().parameters())
    assert nn.init.normal_ is drawn
    torch.set_rng_state(state)
    first = torch.rand(1)
    torch.set_rng_state(state)
    parameter_count.cache_clear()
    parameter_count(config)
    assert torch.equal(torch.rand(1), first)
