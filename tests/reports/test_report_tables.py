"""`wcapsnet tables`: the paper's figures next to ours."""

import json
import re
import sys

import pytest
from report_helpers import ENVIRONMENT, finished

from wcapsnet import cli
from wcapsnet.data import DATASETS
from wcapsnet.network import WCapsNet
from wcapsnet.recipes import PAPER
from wcapsnet.recipes.ablations import NUMERALS, PAPER_FIGURES, TABLES
from wcapsnet.recipes.published import PAPER_COLUMNS, PAPER_TABLES
from wcapsnet.reports import tables
from wcapsnet.reports.records import read_record, read_records, runs_in
from wcapsnet.training.run_folder import Run


def call(*words):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["wcapsnet", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
    return int(end.value.code or 0)


@pytest.fixture
def runs(tmp_path):
    """CIFAR-10: three seeds of WS+CE and of Uniform, one of WS and squash; MNIST: one of WS+CE; Fashion-MNIST: one."""
    folder = tmp_path / "runs"
    for seed, (reference, uniform) in enumerate(((9340, 9300), (9350, 9290), (9360, 9310))):
        finished(folder / f"a{seed}", "cifar10", reference, seed)
        finished(folder / f"b{seed}", "cifar10-uniform", uniform, seed)
    finished(folder / "c", "cifar10-ws", 9349)
    finished(folder / "d", "cifar10-squash", 9200)
    finished(folder / "e", "mnist", 9970)
    finished(folder / "f", "fashion-mnist", 9350)
    return folder


# ── the paper ──


def test_the_papers_tables_have_the_rows_that_can_be_trained_and_its_columns():
    for numeral, name in NUMERALS.items():
        assert list(PAPER_TABLES[numeral].rows) == list(TABLES[name])
        assert PAPER_TABLES[numeral].reference in PAPER_TABLES[numeral].rows
        for figures in PAPER_TABLES[numeral].rows.values():
            assert tuple(figures) == PAPER_COLUMNS
    assert set(PAPER_TABLES["V"].parameters) == set(PAPER_TABLES["V"].rows)


def test_how_large_our_networks_are_is_said_as_it_is():
    (said,) = (note for note in PAPER_TABLES["V"].notes if "ours has" in note)
    for dataset, base in PAPER.items():
        count = f"{sum(p.numel() for p in WCapsNet(base().model).parameters()):,}"
        before, found, _ = said.partition(DATASETS[dataset].title)
        assert found
        assert re.findall(r"[\d,]*\d{3}", before)[-1] == count


def test_the_papers_network_has_the_same_figures_in_tables_two_to_four():
    shared = [table.rows[table.reference] for table in PAPER_TABLES.values()]
    assert shared[0] == shared[1] == shared[2] == {"cifar10": 93.43, "cifar100": 70.39, "svhn": 96.46, "mnist": 99.68}
    assert shared[3] == shared[0] | {"svhn": 96.56}


def test_the_papers_figures_row_by_row():
    # CIFAR-10, CIFAR-100, SVHN, MNIST as printed
    printed = {
        "normalized": (93.04, 69.75, 96.33, 99.58),
        "squash": (92.91, 64.42, 96.51, 99.64),
        "ws": (92.54, 69.10, 96.56, 99.60),
        "ce": (93.05, 70.30, 96.39, 99.65),
        "random": (91.90, 66.81, 96.20, 99.49),
        "uniform": (93.00, 70.14, 96.37, 99.64),
    }
    assert {row: tuple(figures.values()) for row, figures in PAPER_FIGURES.items()} == printed


# ── ours ──


def cell(runs, numeral, row, dataset):
    table = tables.build(numeral, read_records(runs)[0])
    return tables.lines(table, row, dataset)


def test_a_cell_says_mean_deviation_seeds_epochs_and_what_the_differences_are_worth(runs):
    # 93.40 93.50 93.60 and 92.90 93.00 93.10: pooled s = 0.10, ν = 4, 2.776 of its t have 5 % beyond them
    # from 93.43: error .1 √(4/3) = .1155, t = .606
    assert cell(runs, "IV", "WS+CE", "cifar10") == [
        "93.50 ± 0.10 (n = 3, 300 epochs)",
        "paper 93.43: +0.07 [−0.25, +0.39], within noise (t, p = 0.58)",
    ]
    # from 93.50: error .1 √(2/3) = .0816, t = 6.124
    assert cell(runs, "IV", "Uniform", "cifar10") == [
        "93.00 ± 0.10 (n = 3, 300 epochs)",
        "paper 93.00: +0.00 [−0.32, +0.32], within noise (t, p = 1.00)",
        "WS+CE: −0.50 [−0.73, −0.27], larger than noise (t, p = 0.004)",
    ]


def test_a_single_run_has_no_deviation_and_is_compared_by_that_of_the_other_rows(runs):
    # from the paper: error .1 √2 = .1414, t = 6.72;  from WS+CE: .1155
    assert cell(runs, "IV", "WS", "cifar10") == [
        "93.49 (n = 1, 300 epochs)",
        "paper 92.54: +0.95 [+0.56, +1.34], larger than noise (t, p = 0.003)",
        "WS+CE: −0.01 [−0.33, +0.31], within noise (t, p = 0.94)",
    ]


def test_without_several_seeds_of_any_row_the_test_set_gives_the_noise(tmp_path):
    # .95 points between single runs: error √(.9349·.0651/1e4 + .9254·.0746/1e4) = .360 %, z = 2.64
    finished(tmp_path / "a", "cifar10-ws", 9349)
    said = "paper 92.54: +0.95 [+0.24, +1.66], larger than the test set's noise (z, p = 0.008)"
    assert cell(tmp_path, "IV", "WS", "cifar10")[1] == said
    for seed, correct in enumerate((9340, 9360)):  # another row lends its seeds, another data set would not
        finished(tmp_path / f"mnist {seed}", "mnist", 9900 + seed, seed)
        assert cell(tmp_path, "IV", "WS", "cifar10")[1] == said
        finished(tmp_path / f"{seed}", "cifar10-uniform", correct, seed)
    assert cell(tmp_path, "IV", "WS", "cifar10")[1].endswith("(t, p = 0.13)")  # t = .95/(.1414 √2) = 4.75, ν = 1


def test_runs_of_a_cell_that_were_not_computed_alike_say_so(runs):
    folder = next(path for path in runs_in(runs) if read_record(path).place.match("table-V/cifar10/*/seed=1.json"))
    Run.open(folder).write_json("environment.json", {**ENVIRONMENT, "computed_by": "fused kernels"})
    assert cell(runs, "IV", "WS+CE", "cifar10")[0] == "93.50 ± 0.10 (n = 3, 300 epochs)"  # of the others nobody knows
    finished(runs / "h", "cifar10", 9350, seed=9, precision="bf16")
    Run.open(runs / "h").write_json("environment.json", {**ENVIRONMENT, "computed_by": "plain PyTorch"})
    said = cell(runs, "IV", "WS+CE", "cifar10")[0]
    assert said == "93.50 ± 0.08 (n = 4, 300 epochs, bf16 and fp32, fused kernels and plain PyTorch)"


def test_halves_are_rounded_up_in_means_and_in_differences(tmp_path):
    # 99.69 99.70: mean 99.695, which as a float is less; s = .01/√2;  from 99.68: .015
    for seed, correct in enumerate((9969, 9970)):
        finished(tmp_path / f"{seed}", "mnist", correct, seed)
    mean, from_paper = cell(tmp_path, "V", "WCapsNet", "mnist")
    assert mean == "99.70 ± 0.01 (n = 2, 40 epochs)"
    assert from_paper.startswith("paper 99.68: +0.02 [")


def test_the_shared_row_stands_in_every_table(runs):
    for numeral, row in (("II", "softmax"), ("III", "tilt"), ("IV", "WS+CE"), ("V", "WCapsNet")):
        assert cell(runs, numeral, row, "cifar10")[0] == "93.50 ± 0.10 (n = 3, 300 epochs)"
    assert cell(runs, "III", "squash", "cifar10")[2].startswith("tilt: −1.50 [−1.82, −1.18], larger than noise (t")


def test_what_is_not_measured_is_a_dash_and_svhn_says_why(runs):
    assert cell(runs, "II", "normalized", "cifar10") == ["–", "paper 93.04"]
    assert cell(runs, "II", "softmax", "svhn") == ["not measured: data set not at hand", "paper 96.46"]
    assert cell(runs, "V", "VGG 19", "mnist") == ["–"]
    assert cell(runs, "V", "DeepCaps", "svhn") == ["paper 97.16"]


def test_own_runs_on_svhn_fill_its_column(tmp_path):
    finished(tmp_path / "run", "svhn", 25000)
    assert cell(tmp_path, "IV", "WS+CE", "svhn")[0] == "96.04 (n = 1, 40 epochs)"


def test_a_data_set_that_the_paper_lacks_has_a_column_where_it_has_records(runs):
    records, _ = read_records(runs)
    table = tables.build("V", records)
    assert table.columns == (*PAPER_COLUMNS, "fashion-mnist")
    assert tables.lines(table, "WCapsNet", "fashion-mnist") == ["93.50 (n = 1, 40 epochs)"]
    assert tables.header(table)[-1] == "Fashion-MNIST (not in the paper)"
    assert tables.build("V", []).columns == PAPER_COLUMNS
    assert tables.build("IV", records).columns == PAPER_COLUMNS  # an ablation has nothing to say of it
    finished(runs / "g", "fashion-mnist-ws", 9360)
    table = tables.build("IV", read_records(runs)[0])
    assert table.columns == (*PAPER_COLUMNS, "fashion-mnist")
    assert tables.lines(table, "WS", "fashion-mnist")[1].startswith(
        "WS+CE: +0.10 [−0.58, +0.78], within the test set's noise (z"
    )


def test_what_every_row_changes_stands_beside_what_it_changed_in_the_paper(runs):
    lines = {line.split(" |")[0]: line for line in tables.differences(read_records(runs)[0]).splitlines()}
    uniform = lines["| Uniform against WS+CE"].split(" | ")
    assert uniform[1] == "**−0.50** [−0.73, −0.27]<br>3 and 3 runs, t, p = 0.004, corrected 0.007<br>paper −0.43"
    assert uniform[2] == "–<br>paper −0.25"
    assert lines["| WS against WS+CE"].split(" | ")[1].startswith("−0.01 [−0.33, +0.31]<br>1 and 3 runs, t, p = 0.94")
    assert len(lines) == 2 + 6


def test_of_single_runs_nothing_is_bold_and_nothing_corrected(tmp_path):
    finished(tmp_path / "a", "cifar10", 9350)
    finished(tmp_path / "b", "cifar10-uniform", 9000)
    finished(tmp_path / "c", "cifar10-ce", 9340)
    found = tables.differences(read_records(tmp_path)[0])
    assert "−3.50 [−4.26, −2.74]<br>1 and 1 runs, z, p < 0.001<br>paper −0.43" in found
    assert "**" not in found
    assert "corrected" not in found


def test_random_is_compared_by_its_own_spread_and_lends_it_to_nobody(runs):
    # its weights at evaluation are a draw: seeds of 92.00 and 93.00, s = .71 points
    finished(runs / "r0", "cifar10-random", 9200)
    assert cell(runs, "IV", "Random", "cifar10")[1].endswith("the test set's noise (z, p = 0.80)")
    finished(runs / "r1", "cifar10-random", 9300, 1)
    # from WS+CE, whose seeds have s = .10: Welch's error √(.7071²/2 + .10²/3) = .503, t = 1.987, ν = 1.03
    assert cell(runs, "IV", "Random", "cifar10")[2].endswith("within noise (Welch, p = 0.29)")
    assert cell(runs, "IV", "Uniform", "cifar10")[2] == "WS+CE: −0.50 [−0.73, −0.27], larger than noise (t, p = 0.004)"


def test_a_row_whose_seeds_lie_wide_is_compared_by_its_own_spread_and_lends_it_to_nobody(runs):
    before = cell(runs, "IV", "Uniform", "cifar10")
    finished(runs / "n0", "cifar10-normalized", 9030)
    assert cell(runs, "II", "normalized", "cifar10")[2].endswith("larger than noise (t, p < 0.001)"), "as others vary"
    finished(runs / "n1", "cifar10-normalized", 9260, 1)
    # from softmax: 91.45 − 93.50 = −2.05, Welch's error √(1.626²/2 + .10²/3) = 1.15, ν = 1.005
    assert cell(runs, "II", "normalized", "cifar10")[2].endswith("within noise (Welch, p = 0.32)")
    # from the paper's 93.04, a run of such a row too: −1.59, error 1.626 √(1/2 + 1) = 1.99, ν = 1: p = 1 − 2 atan(t)/π
    assert cell(runs, "II", "normalized", "cifar10")[1].endswith("within noise (t, p = 0.57)")
    assert cell(runs, "IV", "Uniform", "cifar10") == before


# ── the command ──


def test_the_command_prints_all_tables_or_one(runs, capsys):
    assert call("tables", "--records", runs) == 0
    said = capsys.readouterr()
    for numeral in ("II", "III", "IV", "V"):
        assert f"Table {numeral}:" in said.out
    assert "93.50 ± 0.10" in said.out
    assert "Student's t-test" in said.out
    assert said.err == ""
    assert call("tables", "iv", "--records", runs) == 0
    said = capsys.readouterr().out
    assert "Table IV" in said
    assert "Table II:" not in said


def test_the_command_without_records_takes_those_of_the_package(capsys):
    assert call("tables") == 0
    assert "Table V" in capsys.readouterr().out


def test_json_holds_every_figure(runs, capsys):
    assert call("tables", "IV", "--json", "--records", runs) == 0
    content = json.loads(capsys.readouterr().out)
    found = content["tables"]["IV"]["rows"]["Uniform"]["cifar10"]
    assert found["paper"] == 93.0
    assert found["ours"]["accuracies"] == pytest.approx([93.0, 92.9, 93.1])
    assert (found["ours"]["n"], found["ours"]["epochs"], found["ours"]["seeds"]) == (3, 300, [0, 1, 2])
    assert found["from_reference"]["points"] == pytest.approx(-0.5)
    assert found["from_reference"]["margin"] == pytest.approx(2.776 * 0.1 * (2 / 3) ** 0.5, rel=1e-3)
    assert found["from_reference"]["larger_than_noise"] is True
    assert content["tables"]["IV"]["rows"]["CE"]["svhn"] == {"paper": 96.39, "ours": None}
    assert call("tables", "IV", "--json") == 0
    ours = json.loads(capsys.readouterr().out)["tables"]["IV"]["rows"]["CE"]["svhn"]
    assert ours == {"paper": 96.39, "ours": None, "why": "not measured: data set not at hand"}


def test_markdown_has_a_row_for_each_and_the_same_number_of_cells_in_all(runs, capsys):
    assert call("tables", "--markdown", "--records", runs) == 0
    blocks = capsys.readouterr().out.split("**Table")[1:]
    assert [sum(line.startswith("| ") for line in block.splitlines()) for block in blocks] == [4, 4, 7, 9]
    for block in blocks:
        assert len({line.count("|") for line in block.splitlines() if line.startswith("| ")}) == 1


def test_runs_that_stand_in_no_table_are_named(runs, capsys):
    finished(runs / "short", "mnist", 9960, epochs=4)
    assert call("tables", "II", "--records", runs) == 0
    said = capsys.readouterr()
    assert "1 run belongs to no table:" in said.err
    assert "training.epochs is 4, not 40" in said.err
    for number in range(12):
        finished(runs / f"short {number}", "mnist", 9960, seed=number, epochs=4)
    assert call("tables", "II", "--records", runs) == 0
    said = capsys.readouterr().err
    assert "13 runs belong to no table:" in said
    assert said.endswith("  and 3 more\n")


def test_somebody_elses_runs_do_not_explain_our_gaps(runs, capsys):
    assert call("tables", "II", "--records", runs) == 0
    assert "not at hand" not in capsys.readouterr().out
    assert call("tables", "II", "--json", "--records", runs) == 0
    assert "why" not in json.loads(capsys.readouterr().out)["tables"]["II"]["rows"]["softmax"]["svhn"]
    assert call("tables", "II") == 0
    assert "not at hand" in capsys.readouterr().out


def test_runs_on_pictures_of_ones_own_are_not_compared_field_by_field(runs):
    run = finished(runs / "own", "mnist", 9960)
    experiment = json.loads((run / "experiment.json").read_text())
    experiment["data"]["source"] = "photos"
    (run / "experiment.json").write_text(json.dumps(experiment))
    assert read_records(runs)[1] == [f"{run} is on a data set that the paper does not have."]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--records", "nowhere"), "There is no folder nowhere."),
        (("--markdown", "--json"), "Use either --markdown or --json, not both."),
        (("VI",), "Usage"),
    ],
)
def test_bad_input_is_answered(words, says, capsys):
    assert call("tables", *words) == 2
    assert says in capsys.readouterr().err
