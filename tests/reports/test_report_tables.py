"""`wcapsnet tables`: the paper's figures next to ours."""

import json
import re

import pytest
from cli_helpers import call
from report_helpers import ENVIRONMENT, finished

from update_docs import headline
from wcapsnet.data import DATASETS
from wcapsnet.network import WCapsNet
from wcapsnet.recipes import PAPER
from wcapsnet.recipes.ablations import NUMERALS, PAPER_FIGURES, TABLES
from wcapsnet.recipes.published import PAPER_COLUMNS, PAPER_TABLES
from wcapsnet.reports import tables
from wcapsnet.reports.records import read_record, read_records, runs_in
from wcapsnet.training.run_folder import Run


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


def read(runs, *numerals):
    return [tables.build(numeral, read_records(runs)[0]) for numeral in numerals or PAPER_TABLES]


def shown(runs, numeral, row):
    """A row of a table by the titles of its columns; the paper's as "CIFAR-10, paper"."""
    header, *rows = tables.grid(read(runs, numeral)[0])
    names = [name if name != "paper" else f"{header[column - 1]}, paper" for column, name in enumerate(header)]
    (found,) = [dict(zip(names, cells, strict=True)) for cells in rows if cells[0] == row]
    return found


def compared(runs, dataset, row, *numerals):
    """A row of the table of differences: from the paper, p, from the reference, p, corrected, in the paper"""
    (found,) = [line[2:] for line in tables.differences(read(runs, *numerals)) if line[:2] == [dataset, row]]
    return found


def test_a_cell_is_mean_deviation_and_seeds_and_the_papers_figure_stands_beside_it(runs):
    for numeral, row in (("II", "softmax"), ("III", "tilt"), ("IV", "WS+CE"), ("V", "WCapsNet")):
        found = shown(runs, numeral, row)
        assert (found["CIFAR-10"], found["CIFAR-10, paper"]) == ("93.50 ± 0.10 (3)", "93.43")
    assert shown(runs, "IV", "WS")["CIFAR-10"] == "93.49 (1)"
    assert shown(runs, "IV", "CE")["CIFAR-10"] == tables.DASH
    assert shown(runs, "V", "VGG 19")["MNIST, paper"] == tables.DASH
    assert "SVHN" not in shown(runs, "IV", "CE"), "not measured: the paper's figures alone"
    assert shown(runs, "IV", "CE")["SVHN, paper"] == "96.39"
    finished(runs / "svhn", "svhn", 25000)
    assert shown(runs, "IV", "WS+CE")["SVHN"] == "96.04 (1)"


def test_differences_have_an_interval_a_test_and_a_correction(runs):
    # 93.40 93.50 93.60 and 92.90 93.00 93.10: pooled s = 0.10, ν = 4, 2.776 of its t have 5 % beyond them
    # from 93.43: error .1 √(4/3) = .1155, t = .606
    assert compared(runs, "CIFAR-10", "reference") == ["+0.07 [−0.25, +0.39]", "0.58", "", "", "", ""]
    # from 93.50: error .1 √(2/3) = .0816, t = 6.124; the second smallest p of three
    found = compared(runs, "CIFAR-10", "Uniform")
    assert found == ["+0.00 [−0.32, +0.32]", "1.00", "**−0.50** [−0.73, −0.27]", "0.004", "0.007", "−0.43"]
    # a single run is compared by the spread of the others. Paper: error .1 √2 = .1414, t = 6.72;  WS+CE: .1155
    found = compared(runs, "CIFAR-10", "WS")
    assert found == ["+0.95 [+0.56, +1.34]", "0.003", "−0.01 [−0.33, +0.31]", "0.94", "0.94", "−0.89"]
    assert compared(runs, "CIFAR-10", "squash", "III")[2].startswith("**−1.50** [−1.82, −1.18]")
    assert [line[:2] for line in tables.differences(read(runs, "V"))[1:]] == [
        [d, "reference"] for d in ("CIFAR-10", "MNIST")
    ]
    assert tables.differences(read(runs / "f")) == [], "nothing to compare"


def test_without_several_seeds_of_any_row_the_test_set_gives_the_noise(tmp_path):
    # .95 points between single runs: error √(.9349·.0651/1e4 + .9254·.0746/1e4) = .360 %, z = 2.64
    finished(tmp_path / "a", "cifar10-ws", 9349)
    by_test_set = ["+0.95 [+0.24, +1.66]", "0.008 (z)"]
    assert compared(tmp_path, "CIFAR-10", "WS")[:2] == by_test_set
    for seed, correct in enumerate((9340, 9360)):  # another row lends its seeds, another dataset would not
        finished(tmp_path / f"mnist {seed}", "mnist", 9900 + seed, seed)
        assert compared(tmp_path, "CIFAR-10", "WS")[:2] == by_test_set
        finished(tmp_path / f"{seed}", "cifar10-uniform", correct, seed)
    assert compared(tmp_path, "CIFAR-10", "WS")[1] == "0.13"  # t = .95/(.1414 √2) = 4.75, ν = 1


def test_single_runs_are_never_bold_or_corrected(tmp_path):
    for name, correct in (("cifar10", 9350), ("cifar10-uniform", 9000), ("cifar10-ce", 9340)):
        finished(tmp_path / name, name, correct)
    assert compared(tmp_path, "CIFAR-10", "Uniform")[2:] == ["−3.50 [−4.26, −2.74]", "< 0.001 (z)", "", "−0.43"]


def test_halves_are_rounded_up_in_means_and_in_differences(tmp_path):
    # 99.69 99.70: mean 99.695, which as a float is less; s = .01/√2;  from 99.68: .015
    for seed, correct in enumerate((9969, 9970)):
        finished(tmp_path / f"{seed}", "mnist", correct, seed)
    assert shown(tmp_path, "V", "WCapsNet")["MNIST"] == "99.70 ± 0.01 (2)"
    assert compared(tmp_path, "MNIST", "reference")[0].startswith("+0.02 [")


def test_a_dataset_that_the_paper_lacks_has_a_column_where_it_has_records(runs):
    assert shown(runs, "V", "WCapsNet")["Fashion-MNIST"] == "93.50 (1)"
    assert "Fashion-MNIST, paper" not in shown(runs, "V", "WCapsNet")
    assert "Fashion-MNIST" not in shown(runs, "IV", "WS+CE"), "no ablation of it"
    finished(runs / "g", "fashion-mnist-ws", 9360)
    assert shown(runs, "IV", "WS")["Fashion-MNIST"] == "93.60 (1)"
    assert compared(runs, "Fashion-MNIST", "WS")[2:4] == ["+0.10 [−0.58, +0.78]", "0.77 (z)"]


def test_random_is_compared_by_its_own_spread_and_lends_it_to_nobody(runs):
    # its weights at evaluation are a draw: seeds of 92.00 and 93.00, s = .71 points
    finished(runs / "r0", "cifar10-random", 9200)
    assert compared(runs, "CIFAR-10", "Random")[1] == "0.80 (z)"
    finished(runs / "r1", "cifar10-random", 9300, 1)
    # from WS+CE, whose seeds have s = .10: Welch's error √(.7071²/2 + .10²/3) = .503, t = 1.987, ν = 1.03
    assert compared(runs, "CIFAR-10", "Random")[3] == "0.29 (Welch)"
    assert compared(runs, "CIFAR-10", "Uniform")[3] == "0.004"


def test_a_row_whose_seeds_vary_more_is_compared_by_its_own_spread_and_lends_it_to_nobody(runs):
    before = compared(runs, "CIFAR-10", "Uniform")[:4]
    finished(runs / "n0", "cifar10-normalized", 9030)
    assert compared(runs, "CIFAR-10", "normalized")[3] == "< 0.001", "by the others' spread"
    finished(runs / "n1", "cifar10-normalized", 9260, 1)
    # from softmax: 91.45 − 93.50 = −2.05, Welch's error √(1.626²/2 + .10²/3) = 1.15, ν = 1.005
    # from the paper's 93.04, a run of such a row too: −1.59, error 1.626 √(1/2 + 1) = 1.99, ν = 1: p = 1 − 2 atan(t)/π
    assert compared(runs, "CIFAR-10", "normalized")[1:4:2] == ["0.57", "0.32 (Welch)"]
    assert compared(runs, "CIFAR-10", "Uniform")[:4] == before


def test_runs_that_were_not_computed_alike_are_named(runs):
    folder = next(path for path in runs_in(runs) if read_record(path).place.match("table-V/cifar10/*/seed=1.json"))
    Run.open(folder).write_json("environment.json", {**ENVIRONMENT, "computed_by": "fused kernels"})
    assert not [line for line in tables.remarks(read(runs)) if "fused" in line], "the other records do not say"
    finished(runs / "h", "cifar10", 9350, seed=9, precision="bf16")
    Run.open(runs / "h").write_json("environment.json", {**ENVIRONMENT, "computed_by": "plain PyTorch"})
    (said,) = [line for line in tables.remarks(read(runs)) if "fused" in line]
    assert all(word in said for word in ("reference on CIFAR-10", "bf16 and fp32", "fused kernels and plain PyTorch"))


def test_runs_from_before_the_last_decisions_are_named_by_dataset_and_if_others_are_newer_by_row(runs):
    def old():
        return [line for line in tables.remarks(read(runs, "IV")) if tables.CHANGES in line]

    assert old() == []
    for path in runs_in(runs):
        if read_record(path).dataset == "mnist" or read_record(path).row == "uniform":
            Run.open(path).write_json("environment.json", {**ENVIRONMENT, "started": "2026-11-15T10:00:00+00:00"})
    (said,) = old()
    assert said.startswith("The runs on CIFAR-10 (Uniform) and MNIST predate two changes")
    said = headline(read_records(runs)[0])
    assert "The runs on CIFAR-10 (equal weights) and MNIST predate two changes" in said


# ── the command ──


def test_the_command_prints_all_tables_or_one(runs):
    said = call("tables", "--records", runs)
    for numeral in ("II", "III", "IV", "V"):
        assert f"Table {numeral}:" in said.out
    assert "93.50 ± 0.10" in said.out
    assert (said.code, said.err) == (0, "")
    said = call("tables", "iv", "--records", runs).out
    assert "Table IV" in said
    assert "Table II:" not in said


def test_json_holds_every_figure(runs):
    content = json.loads(call("tables", "IV", "--json", "--records", runs).out)
    found = content["tables"]["IV"]["rows"]["Uniform"]["cifar10"]
    assert found["paper"] == 93.0
    assert found["ours"]["accuracies"] == pytest.approx([93.0, 92.9, 93.1])
    assert (found["ours"]["n"], found["ours"]["epochs"], found["ours"]["seeds"]) == (3, 300, [0, 1, 2])
    assert found["from_reference"]["points"] == pytest.approx(-0.5)
    assert found["from_reference"]["margin"] == pytest.approx(2.776 * 0.1 * (2 / 3) ** 0.5, rel=1e-3)
    assert found["from_reference"]["larger_than_noise"] is True
    assert content["tables"]["IV"]["rows"]["CE"]["svhn"] == {"paper": 96.39, "ours": None}
    ours = json.loads(call("tables", "IV", "--json").out)["tables"]["IV"]["rows"]["CE"]["svhn"]
    assert ours == {"paper": 96.39, "ours": None, "why": tables.UNAVAILABLE["svhn"]}


def test_markdown_has_a_row_for_each_and_the_same_number_of_cells_in_all(runs):
    blocks = re.split(r"\*\*(?:Table|Differences)", call("tables", "--markdown", "--records", runs).out)[1:]
    assert [sum(line.startswith("| ") for line in block.splitlines()) for block in blocks] == [4, 4, 7, 9, 7]
    for block in blocks:
        assert len({line.count("|") for line in block.splitlines() if line.startswith("| ")}) == 1


def test_runs_that_stand_in_no_table_are_named(runs):
    finished(runs / "short", "mnist", 9960, epochs=4)
    said = call("tables", "II", "--records", runs)
    assert said.code == 0
    assert "1 run belongs to no table:" in said.err
    assert "training.epochs is 4, not 40" in said.err
    for number in range(12):
        finished(runs / f"short {number}", "mnist", 9960, seed=number, epochs=4)
    said = call("tables", "II", "--records", runs).err
    assert "13 runs belong to no table:" in said
    assert said.endswith("  and 3 more\n")


def test_a_run_that_is_only_compared_with_wcapsnet_plus_is_said_to_be_in_no_table(tmp_path):
    finished(tmp_path / "runs/a", "cifar10-plus", 9550)
    finished(tmp_path / "runs/b", "cifar10-plus-uniform", 9500, seed=3)
    said = call("tables", "--records", tmp_path / "runs")
    assert "WCapsNet-plus" in said.out
    assert "1 run belongs to no table:" in said.err
    assert "wcapsnet-plus-uniform on cifar10, seed 3, is in none of Tables II to V." in " ".join(said.err.split())


def test_somebody_elses_runs_do_not_explain_our_gaps(runs):
    for words, explained in ((("--records", runs), False), ((), True)):
        assert (tables.UNAVAILABLE["svhn"] in call("tables", "II", *words).out) == explained
        cell = json.loads(call("tables", "II", "--json", *words).out)["tables"]["II"]["rows"]["softmax"]["svhn"]
        assert ("why" in cell) == explained


def test_runs_on_pictures_of_ones_own_are_not_compared_field_by_field(runs):
    run = finished(runs / "own", "mnist", 9960)
    experiment = json.loads((run / "experiment.json").read_text())
    experiment["data"]["source"] = "photos"
    (run / "experiment.json").write_text(json.dumps(experiment))
    assert read_records(runs)[1] == [f"{run} was trained on a dataset that is not in the paper."]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--records", "nowhere"), "There is no folder nowhere."),
        (("--markdown", "--json"), "Use either --markdown or --json, not both."),
        (("VI",), "Usage"),
    ],
)
def test_bad_input_is_answered(words, says):
    answer = call("tables", *words)
    assert answer.code == 2
    assert says in answer.err
