"""Which runs may stand in a table, where their records lie, and that all that is made of them is up to date."""

import itertools
import json
import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from report_helpers import figures, finished

import records
import update_docs as pages
from records import keep, records_json
from update_docs import main
from wcapsnet.errors import InputError
from wcapsnet.experiment import Start
from wcapsnet.recipes import ABLATIONS, PAPER, PLUS_ROWS, TABLE_V, recipe
from wcapsnet.reports.records import (
    NETWORK,
    open_run,
    paper_figure,
    read_record,
    read_records,
    row_of,
    shipped_records,
)
from wcapsnet.reports.subject import subject_of_shipped
from wcapsnet.reports.tables import CHANGES, build, remarks
from wcapsnet.training.run_folder import Run

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path):
    """What is made from the records, made from none."""
    for path in (*pages.PAGES, pages.PACKAGED, pages.COMPARED):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    pages.write(tmp_path)
    assert "No full-length run is recorded yet." in (tmp_path / "docs/results.md").read_text()
    return tmp_path


# ── rows ──


def test_every_recipe_of_the_paper_is_its_own_row_with_any_seed_and_however_it_is_computed():
    for name in PAPER:
        assert row_of(recipe(name)) == (name, NETWORK)
    for name in ABLATIONS:
        dataset, row = name.rsplit("-", 1)
        experiment = recipe(name)
        training = replace(experiment.training, seed=7, precision="bf16", kernels="plain", cuda_graph=False)
        assert row_of(replace(experiment, name="else", training=training)) == (dataset, row)


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "mnist"])
def test_the_report_of_a_shipped_network_compares_it_with_its_row_of_the_paper(name):
    figure = paper_figure(subject_of_shipped(f"wcapsnet-{name}").experiment)
    assert figure.differences == ()


def test_other_settings_are_no_row():
    base = recipe("cifar10")
    assert row_of(recipe("quick")) is None
    assert row_of(replace(base, training=base.training.with_epochs(30))) is None
    assert row_of(replace(base, training=replace(base.training, patience=50))) is None
    assert row_of(replace(base, data=replace(base.data, mirror=False))) is None


# ── keeping ──


def test_a_run_is_kept_in_the_place_of_its_table(tmp_path):
    places = {
        "cifar10": "table-V/cifar10/wcapsnet/seed=3.json",
        "cifar100-normalized": "table-II/cifar100/normalized/seed=3.json",
        "fashion-mnist-squash": "table-III/fashion-mnist/squash/seed=3.json",
        "mnist-uniform": "table-IV/mnist/uniform/seed=3.json",
    }
    for name, place in places.items():
        run = finished(tmp_path / "runs" / name, name, 9000, seed=3)
        kept = keep(run, tmp_path / "results")
        assert kept == tmp_path / "results" / place
        assert list(json.loads(kept.read_text())) == ["experiment", "environment", "test", "metrics"]
        assert read_record(kept) == read_record(run)
        assert open_run(kept).experiment == Run.open(run).experiment
        assert open_run(kept).results() == Run.open(run).results()


def test_a_record_has_no_paths_and_six_digits(tmp_path):
    run = finished(tmp_path / "run", "mnist", 9960)
    (run / "state.safetensors").touch()
    resumed = Run.open(run)
    resumed.hold()
    resumed.start({"command": ["wcapsnet", "train", "--resume", "/home/me/x"], "data_dir": "/home/me"}, 3)
    resumed.release()
    kept = keep(run, tmp_path / "results")
    environment = open_run(kept).facts("environment")
    assert environment["command"] == ["wcapsnet", "train", "x", "x", "-q"]
    assert environment["data_dir"] is None
    assert environment["hardware"] == "NVIDIA H200"
    assert read_record(kept).resumed == (3,)
    assert environment["resumed"] == [{"after_epoch": 3, "command": ["wcapsnet", "train"], "data_dir": None}]
    epochs = open_run(kept).metrics()
    assert len(epochs) == 40
    assert epochs[0] == {**Run.open(run).metrics()[0], "total": 0.333333, "validation_accuracy": 0.333333}


def test_a_record_is_read_and_kept_like_its_run_folder_and_has_no_weights(tmp_path):
    run = finished(tmp_path / "run", "mnist", 9960)
    epochs = Run.open(run).metrics()
    epochs[7]["balance"] = 0.5  # a term that was added when the run was resumed
    Run.open(run).write_metrics(epochs)
    kept = keep(run, tmp_path / "results")
    assert [name for epoch in open_run(kept).metrics() for name in epoch].count("balance") == 1
    assert read_records(kept) == read_records(tmp_path / "results") == read_records(run)
    before = kept.read_bytes()
    assert keep(kept, tmp_path / "results") == kept
    assert kept.read_bytes() == before
    with pytest.raises(InputError, match=r"best\.safetensors"):
        open_run(kept).weights()


def test_a_damaged_record_is_a_sentence(tmp_path):
    kept = keep(finished(tmp_path / "run", "mnist", 9960), tmp_path / "results")
    content = json.loads(kept.read_text())
    for change, says in (
        ({"experiment": {"training": 3}}, r"seed=0.json: The field 'name' is missing\.$"),
        ({"environment": []}, r"seed=0.json is damaged: its environment is \[\]\.$"),
        ({"environment": {}}, r"seed=0.json is damaged: its field 'hardware' is None\.$"),
        ({"metrics": {"epoch": [1, 2], "lr": [0.1]}}, r"seed=0.json is damaged: its metrics are not columns"),
        ({"test": {}}, r"seed=0.json is damaged: it has no images;"),
    ):
        kept.write_text(json.dumps({**content, **change}))
        with pytest.raises(InputError, match=says):
            read_record(kept)
    kept.write_text(json.dumps(content)[:-9])
    assert "is not valid JSON" in read_records(tmp_path / "results")[1][0]


def test_a_record_holds_the_names_of_an_image_folder_and_a_start_but_not_their_paths(tmp_path):
    experiment = recipe("vgg-19-cifar10")
    data = replace(experiment.data, source="/home/me/photos", height=32, width=32, channels=3)
    start = Start("/home/me/nets/mine.safetensors", "0" * 64)
    run = Run.create(tmp_path / "run", replace(experiment, data=data, start=start), {})
    run.write_metrics([])
    records.write_run(tmp_path / "record.json", run)
    kept = open_run(tmp_path / "record.json").experiment
    assert kept == replace(
        run.experiment, data=replace(data, source="photos"), start=Start("mine.safetensors", "0" * 64)
    )


def test_a_record_can_be_written_of_a_stopped_run_with_its_metrics(tmp_path, monkeypatch, capsys):
    """Also of a run that belongs in no table; an existing record is not replaced."""
    finished(tmp_path / "runs/whole", "vgg-19-cifar10", 9000, seed=1, epochs=3, milestones=())
    finished(tmp_path / "runs/stopped", "vgg-19-cifar10", 9000).joinpath("test.json").unlink()
    folder = tmp_path / "records"
    monkeypatch.setattr(sys, "argv", ["records", str(folder), str(tmp_path / "runs")])
    records.main()
    whole, stopped = (open_run(folder / f"vgg-19-cifar10/seed={seed}.json") for seed in (1, 0))
    assert whole.finished
    assert len(whole.metrics()) == 3
    assert not stopped.finished
    assert len(stopped.metrics()) == 160
    with pytest.raises(SystemExit):
        records.main()
    assert "exists; choose another folder" in capsys.readouterr().err


def test_keeping_a_run_again_changes_nothing_and_another_run_with_its_seed_is_refused(tmp_path):
    run = finished(tmp_path / "run", "mnist", 9960)
    first = keep(run, tmp_path / "results")
    before = first.read_bytes()
    assert keep(run, tmp_path / "results") == first
    assert first.read_bytes() == before
    with pytest.raises(InputError, match="holds another run with the seed 0"):
        keep(finished(tmp_path / "other", "mnist", 9961), tmp_path / "results")
    assert first.read_bytes() == before


def change(name, **fields):
    """Spoil a file of a run: other values for some of its fields, or nothing else if there are none."""

    def spoil(run):
        facts = json.loads((run / name).read_text()) if fields else {}
        for field, value in fields.items():
            facts[field] = {**facts[field], **value} if isinstance(value, dict) else value
        (run / name).write_text(json.dumps(facts))

    return spoil


def cut_short(run):
    (run / "metrics.jsonl").write_text("".join((run / "metrics.jsonl").read_text().splitlines(keepends=True)[:-1]))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda run: (run / "test.json").unlink(), "is not finished: 40 of 40 epochs"),
        (cut_short, "ended after 39 of 40 epochs"),
        (change("test.json", **figures(1990, 2000)), "was tested on 2000 images"),
        (change("test.json"), "run/test.json is damaged"),
        (change("experiment.json"), "run/experiment.json: The field 'name' is missing."),
        (change("environment.json", hardware=None), "its field 'hardware' is None."),
        *(
            (change("environment.json", resumed=resumed), "its field 'resumed' is")
            for resumed in (None, "abc", [{}], ["x"], [{"after_epoch": "x"}])
        ),
        *(
            (change("test.json", **{name: value}), f"test.json is damaged: {name} is {value!r}")
            for name, value in [
                ("errors", None),
                ("errors", -5),
                ("errors", 40.0),
                ("epochs", "40"),
                ("seconds", math.nan),
                ("accuracy", True),
            ]
        ),
        (change("test.json", errors=39), "contradict one another"),
        (change("test.json", accuracy=0.9961), "contradict one another"),
        (change("test.json", confusion=[[9961, 0], [39, 0]]), "contradict one another"),
        (change("test.json", images=0, errors=0), "contradict one another"),
        (change("test.json", confusion=[[9961], [39]]), "confusion matrix"),
        (change("test.json", confusion=3), "confusion matrix"),
        (change("experiment.json", training={"epochs": 39}), "wcapsnet on mnist, but training.epochs is 39, not 40."),
        (change("experiment.json", training={"lr": 0.05}), "wcapsnet on mnist, but training.lr is 0.05, not 0.1."),
    ],
)
def test_what_may_not_stand_in_a_table_is_refused_in_a_sentence(tmp_path, spoil, says):
    run = finished(tmp_path / "run", "mnist", 9960)
    spoil(run)
    with pytest.raises(InputError, match=r"\.$") as error:
        keep(run, tmp_path / "results")
    assert says in str(error.value)
    assert not (tmp_path / "results").exists()


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(InputError, match="There are no runs in"):
        read_records(tmp_path)


def test_a_folder_of_runs_gives_those_that_may_and_says_of_the_others_why_not(tmp_path):
    finished(tmp_path / "a" / "seed=0", "mnist", 9960)
    finished(tmp_path / "a" / "seed=1", "mnist", 9970, seed=1)
    finished(tmp_path / "b", "mnist", 9950)
    finished(tmp_path / "c", "mnist-ws", 9950, epochs=41)
    records, left_out = read_records(tmp_path)
    assert [(r.row, r.seed, r.correct) for r in records] == [(NETWORK, 0, 9960), (NETWORK, 1, 9970)]
    assert len(left_out) == 2
    assert left_out[0].startswith(f"{tmp_path / 'b'} has the same row and seed as {tmp_path / 'a/seed=0'}")
    assert "training.epochs is 41, not 40" in left_out[1]


# ── before D7 ──


def of_earlier(run, lambda_ws):
    """As the files were when L̃_WS was a sum over levels."""
    asked = json.loads((run / "experiment.json").read_text())
    asked["objective"] = {"lambda_ws": lambda_ws, "lambda_r": 0.1}
    del asked["model"]["architecture"]
    (run / "experiment.json").write_text(json.dumps(asked))
    return run


def test_a_run_of_a_sum_over_levels_is_read_as_what_it_was(tmp_path):
    run = of_earlier(finished(tmp_path / "a", "mnist", 9960), 0.2)
    assert dict(Run.open(run).experiment.objective) == {"cross_entropy": 1, "wasserstein": 0.8, "reconstruction": 0.1}
    assert (read_record(run).row, read_record(run).summed) == (NETWORK, True)
    same = of_earlier(finished(tmp_path / "b", "mnist", 9960), 0.05)  # a quarter of the sum over four levels: the mean
    assert Run.open(same).experiment == recipe("mnist")
    assert not read_record(same).summed
    without = of_earlier(finished(tmp_path / "c", "mnist-ce", 9960), 0)
    assert (read_record(without).row, read_record(without).summed) == ("ce", False)


def test_sums_and_means_over_levels_are_never_seeds_or_rows_of_one_table(tmp_path):
    sums = [of_earlier(finished(tmp_path / f"sum{seed}", "mnist", 9960, seed=seed), 0.2) for seed in range(2)]
    finished(tmp_path / "ce", "mnist-ce", 9940)
    squash = finished(tmp_path / "squash", "mnist-squash", 9950)
    records, left_out = read_records(tmp_path)
    assert [(r.row, r.summed) for r in records] == [(NETWORK, True), (NETWORK, True), ("ce", False)]
    assert len(left_out) == 1
    assert left_out[0].startswith(f"{squash} was trained with the mean")
    assert CHANGES in remarks([build("IV", records)])[-1]
    finished(tmp_path / "mean", "mnist", 9970)
    records, left_out = read_records(tmp_path)
    assert [(r.row, r.correct) for r in records] == [(NETWORK, 9970), ("squash", 9950), ("ce", 9940)]
    assert [line.partition(" was trained with the sum")[0] for line in left_out] == [str(run) for run in sums]
    assert not any(CHANGES in line for line in remarks([build("IV", records)]))


# ── what is made of them ──


def test_everything_that_is_made_from_the_committed_records_agrees_with_them():
    for path, text in pages.pages(ROOT).items():
        assert (ROOT / path).read_text(encoding="utf-8") == text, f"{path} is stale: run python tools/update_docs.py"


def test_the_records_in_the_package_are_the_committed_ones():
    assert shipped_records() == pages.committed(ROOT / "results")


def test_a_record_that_is_added_or_changed_makes_readme_page_and_package_stale(checkout, tmp_path):
    assert pages.write(checkout) == []
    place = keep(finished(tmp_path / "run", "mnist", 9210, seed=40), checkout / "results")
    figure, made = Path("docs/images/curves-mnist.svg"), {*pages.PAGES[:3], pages.PACKAGED}
    assert set(pages.write(checkout)) == {*made, figure}
    assert "| 92.10 (1) |" in (checkout / "README.md").read_text()
    assert "| 92.10 (1) | 99.68 |" in (checkout / "docs/results.md").read_text()
    assert "| MNIST | wcapsnet | 40 | 40 |" in (checkout / "docs/runs.md").read_text()
    assert pages.write(checkout) == []
    content = json.loads(place.read_text())
    content["test"] |= figures(9211, 10000)
    place.write_text(json.dumps(content))
    assert set(pages.write(checkout)) == made
    content["metrics"]["validation_accuracy"][5] = 0.5
    place.write_text(json.dumps(content))
    assert pages.write(checkout) == [figure]


def test_what_was_seen_inside_of_networks_makes_its_figure_stale_and_must_be_there(checkout):
    inside, figure = checkout / "results/looking-inside", Path("docs/images/weights-mnist.svg")
    assert not (checkout / figure).exists()
    shutil.copytree(ROOT / "results/looking-inside", inside)
    assert pages.write(checkout) == [figure]
    assert (checkout / figure).read_text() == (ROOT / figure).read_text()
    record = inside / pages.LOOKED["normalised, seed 1"]
    said = json.loads(record.read_text())
    said["levels"][pages.LEVEL - 1]["mean"][0][0] = 0.25
    record.write_text(json.dumps(said))
    assert pages.write(checkout) == [figure]
    record.unlink()
    with pytest.raises(InputError, match="mnist-normalized-seed-1"):
        pages.pages(checkout)


@pytest.mark.parametrize("other", ["table-V/mnist/wcapsnet/seed=42.json", "table-II/mnist/wcapsnet/seed=41.json"])
def test_a_committed_record_in_a_wrong_or_second_place_is_noticed(checkout, tmp_path, other):
    place = keep(finished(tmp_path / "run", "mnist", 9960, seed=41), checkout / "results")
    (checkout / "results" / other).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(place, checkout / "results" / other)
    with pytest.raises(InputError, match=rf"{other} .* belongs to .*table-V/mnist/wcapsnet/seed=41\.json\.$"):
        pages.pages(checkout)


def test_one_command_keeps_a_whole_sweep_and_writes_the_pages(checkout, tmp_path, capsys):
    for seed in (50, 51):
        finished(tmp_path / "sweep" / f"seed={seed}", "mnist", 9900 + seed, seed=seed)
    finished(tmp_path / "sweep" / "short", "mnist", 9960, epochs=3)
    assert main([str(tmp_path / "sweep")], checkout) == 1
    said = capsys.readouterr()
    assert said.out.count("→ results/table-V/mnist/wcapsnet/seed=5") == 2
    assert "wrote README.md" in said.out
    assert said.err.startswith("error: ")
    assert "training.epochs is 3, not 40" in said.err
    assert len(said.err.splitlines()) == 1
    assert {50, 51} <= {record.seed for record in pages.committed(checkout / "results")}


def test_bad_input_is_a_sentence_and_nothing_is_kept(checkout, tmp_path, capsys):
    def said(arguments, root):
        with pytest.raises(SystemExit, match="2"):
            main(arguments, root)
        return capsys.readouterr().err

    assert "There is no folder" in said([str(tmp_path / "nowhere")], checkout)
    (checkout / "README.md").write_text("no marks")
    run = finished(tmp_path / "run", "mnist", 9960, seed=60)
    assert "has no block for the generated results" in said([str(run)], checkout)
    assert not (checkout / "results/table-V/mnist/wcapsnet/seed=60.json").exists()
    assert "is not a checkout of wcapsnet" in said([], tmp_path / "elsewhere")


def test_records_without_any_are_valid_json():
    assert json.loads(records_json([])) == []


# ── other systems ──


def test_a_run_of_another_system_lands_in_table_v_with_one_command(checkout, tmp_path):
    for name in list(TABLE_V)[::4]:
        dataset, row = row_of(recipe(name))
        assert f"{row}-{dataset}" == name
    run = finished(tmp_path / "run", "densenet-bc-100-cifar10", 9549)
    assert main([str(run)], checkout) == 0
    assert (checkout / "results/table-V/cifar10/densenet-bc-100/seed=0.json").is_file()
    page = (checkout / "docs/results.md").read_text()
    assert "| DenseNet-BC-100 (k = 12) | 0.77M | 95.49 (1) |" in page
    assert "| CIFAR-10 | densenet-bc-100 | 0 | 300 |" in (checkout / "docs/runs.md").read_text()


def test_runs_of_wcapsnet_plus_are_compared_with_equal_weights_and_densenet_trained_alike(checkout, tmp_path):
    for dataset, row in itertools.product(("mnist", "cifar10"), PLUS_ROWS):
        assert row_of(recipe(f"{dataset}-{PLUS_ROWS[row][0]}")) == (dataset, row)
    runs = [finished(tmp_path / f"a{seed}", "cifar10-plus", 9550 + 10 * seed, seed) for seed in range(3)]
    runs += [finished(tmp_path / f"b{seed}", "cifar10-plus-uniform", 9520 + 10 * seed, seed) for seed in range(3)]
    runs += [finished(tmp_path / f"c{seed}", "cifar10-plus-densenet", 9290 + 10 * seed, seed) for seed in range(3)]
    assert main(list(map(str, runs)), checkout) == 0
    assert (checkout / "results/plus/cifar10/wcapsnet-plus-uniform/seed=2.json").is_file()
    page = (checkout / "docs/results.md").read_text()
    assert "| WCapsNet-plus | 95.60 ± 0.10 (3) |" in page
    assert "| WCapsNet-plus, equal weights | 95.30 ± 0.10 (3) |" in page
    # Student's t: 0.30 / (0.10 √(2/3)) = 3.67 with 4 degrees of freedom
    assert "| WCapsNet-plus − WCapsNet-plus, equal weights | +0.30 [+0.07, +0.53]: p = 0.021 |" in page
    assert "same recipe | +2.60 [+2.37, +2.83]: p < 0.001 |" in page
    assert "| WCapsNet-plus | 0.94M | 95.60 ± 0.10 (3) | – |" in page  # Table V
    assert paper_figure(recipe("cifar10-plus")) is None


def test_runs_of_other_systems_leave_the_statistics_of_the_paper_s_network_alone(tmp_path):
    for seed, correct in enumerate((9960, 9970, 9965)):
        finished(tmp_path / f"a{seed}", "mnist", correct, seed)
        finished(tmp_path / f"b{seed}", "mnist-uniform", correct + 3, seed)
    before = [build(numeral, read_records(tmp_path)[0]) for numeral in ("IV", "V")]
    for seed, correct in enumerate((9000, 9900)):
        finished(tmp_path / f"c{seed}", "capsnet-mnist", correct, seed)
    routing, systems = (build(numeral, read_records(tmp_path)[0]) for numeral in ("IV", "V"))
    assert routing == before[0]
    assert systems.rows["WCapsNet"] == before[1].rows["WCapsNet"]
    assert [r.correct for r in systems.rows["CapsNets"]["mnist"].records] == [9000, 9900]
    assert list(systems.rows) == list(before[1].rows)


def test_a_shorter_run_of_another_system_is_refused(tmp_path):
    run = finished(tmp_path / "run", "sr-capsnet-cifar10", 9000, epochs=3)
    with pytest.raises(InputError, match=r"nearest is sr-capsnet on cifar10, but training\.epochs is 3, not 350"):
        read_record(run)
