"""The run folder explains itself, and nothing in it is ever half written or written over."""

import csv
import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from training_helpers import CPU, assert_same_run, begin, go_on, to_the_end, toy_dataset, toy_experiment, trained

from wcapsnet import __version__
from wcapsnet.atomic import replacing, write_text
from wcapsnet.classifier import Classifier, save_tensors
from wcapsnet.data import Split
from wcapsnet.data.device_data import DeviceSplit
from wcapsnet.errors import InputError
from wcapsnet.network.routing import winners
from wcapsnet.training import run_folder
from wcapsnet.training.environment import describe_environment
from wcapsnet.training.evaluate import evaluate
from wcapsnet.training.run_folder import (
    Run,
    free_path,
    make_free,
    read_experiment,
    read_json,
    write_json,
)

FILES = {
    "data.json",
    "experiment.json",
    "environment.json",
    "metrics.jsonl",
    "best.safetensors",
    "last.safetensors",
    "state.safetensors",
    "test.json",
    "predictions.csv",
    "confusion.csv",
    "tensorboard",
}


def table(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


@pytest.fixture
def best(unbroken):
    return Classifier.load(unbroken.file("best.safetensors"))


def evaluated(classifier, split):
    return evaluate(classifier.network, DeviceSplit(split, *classifier.normalization, CPU))


# ── what is in it ──


def test_a_finished_run_holds_exactly_the_documented_files(unbroken):
    assert {file.name for file in unbroken.path.iterdir()} - {".lock"} == FILES
    listed = {line.split()[0].rstrip("/") for line in run_folder.__doc__.splitlines() if line.startswith("    ")}
    assert listed == FILES | {"start.safetensors"}  # only of a run with --from


def test_experiment_json_gives_the_experiment_back(unbroken):
    content = unbroken.facts("experiment")
    assert content["version"] == __version__
    assert read_experiment(unbroken.file("experiment.json")) == toy_experiment()


def test_environment_says_what_ran_where(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["wcapsnet", "train", "mnist", "--seed", "1"])
    facts = describe_environment(CPU, tmp_path / "x" / ".." / "data")
    assert facts["command"] == ["wcapsnet", "train", "mnist", "--seed", "1"]
    assert (facts["wcapsnet"], facts["torch"], facts["device"]) == (__version__, torch.__version__, "cpu")
    assert facts["data_dir"] == str((tmp_path / "data").resolve())
    json.dumps(facts)


def test_environment_names_the_commit_and_a_script_that_trains(tmp_path, monkeypatch):
    monkeypatch.setenv("WCAPSNET_COMMIT", "abc123")
    monkeypatch.setattr("sys.argv", [str(tmp_path / "mine" / "all.py"), "mnist:0"])
    facts = describe_environment(CPU, None)
    assert facts["commit"] == "abc123"
    assert facts["command"] == ["python", "mine/all.py", "mnist:0"]


def test_metrics_have_a_line_an_epoch_with_every_term_and_all_are_finite(unbroken):
    lines = unbroken.file("metrics.jsonl").read_text().splitlines()
    records = [json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON")) for line in lines]
    assert [record["epoch"] for record in records] == [1, 2, 3]
    for record in records:
        assert set(record) == {
            *("epoch", "lr", "total", "cross_entropy", "wasserstein", "reconstruction", "l2", "train_accuracy"),
            *("validation_loss", "validation_accuracy", "best", "images_per_s", "seconds"),
        }
        assert all(math.isfinite(value) for value in record.values())
        whole = record["cross_entropy"] + 0.2 * record["wasserstein"] + 0.1 * record["reconstruction"]
        assert record["total"] == pytest.approx(whole, rel=1e-5)
        assert 0 <= record["train_accuracy"] <= 1
        assert record["images_per_s"] > 0
    assert [record["lr"] for record in records] == pytest.approx([0.05, 0.05, 0.005])
    seconds = [record["seconds"] for record in records]
    assert seconds == sorted(seconds)


def test_l2_in_the_metrics_is_of_the_weights_of_that_epoch(unbroken):
    network = Classifier.load(unbroken.file("last.safetensors")).network
    expected = sum(0.5 * p.detach().double().square().sum().item() for p in network.decayed_parameters())
    assert unbroken.metrics()[-1]["l2"] == pytest.approx(expected, rel=1e-6)


def test_validation_figures_in_the_metrics_are_those_of_the_weights(unbroken):
    last = Classifier.load(unbroken.file("last.safetensors"))
    result = evaluated(last, toy_dataset().validation)
    record = unbroken.metrics()[-1]
    assert record["validation_accuracy"] == result.accuracy
    assert record["validation_loss"] == pytest.approx(result.loss, rel=1e-6)


def test_test_json_holds_the_figures_of_the_best_weights(unbroken, best):
    facts = unbroken.facts("test")
    data = toy_dataset()
    test = evaluated(best, data.test)
    validation = evaluated(best, data.validation)
    assert facts["images"] == 17
    assert facts["accuracy"] == test.accuracy
    assert facts["errors"] == round(17 * (1 - test.accuracy))
    assert facts["cross_entropy"] == pytest.approx(test.loss)
    assert facts["validation_accuracy"] == validation.accuracy
    best_record = next(m for m in unbroken.metrics() if m["epoch"] == facts["best_epoch"])
    assert best_record["validation_accuracy"] == validation.accuracy
    assert best_record["validation_accuracy"] == max(m["validation_accuracy"] for m in unbroken.metrics())
    assert facts["epochs"] == 3


def test_predictions_are_one_row_a_test_image_and_agree_with_the_accuracy(unbroken, best):
    header, *rows = table(unbroken.file("predictions.csv"))
    assert header == ["picture", "label", "predicted", "probability", "capsule_1", "capsule_2"]
    facts = unbroken.facts("test")
    data = toy_dataset()
    assert [int(row[0]) for row in rows] == list(range(17))
    assert [row[1] for row in rows] == [data.classes[r] for r in data.test.labels]
    assert sum(row[1] == row[2] for row in rows) / len(rows) == facts["accuracy"]
    assert all(1 / 3 <= float(row[3]) <= 1 for row in rows)
    images, _ = DeviceSplit(data.test, *best.normalization, CPU).take(slice(None))
    with torch.no_grad():
        output = best(images)
    for m, row in enumerate(rows):  # all that win, separated by spaces
        expected = winners([routing.weights[m] for routing in output.routings])
        assert [tuple(map(int, cell.split())) for cell in row[4:]] == list(expected)
    assert [row[2] for row in rows] == [data.classes[r] for r in best.probabilities(output).argmax(1)]


def test_the_confusion_matrix_counts_every_test_image_once_and_agrees_with_the_predictions(unbroken):
    header, *rows = table(unbroken.file("confusion.csv"))
    names = toy_dataset().classes
    assert tuple(header[1:]) == names
    assert tuple(row[0] for row in rows) == names
    counts = [[int(cell) for cell in row[1:]] for row in rows]
    _, *predictions = table(unbroken.file("predictions.csv"))
    for r, true in enumerate(names):
        for s, predicted in enumerate(names):
            assert counts[r][s] == sum(row[1:3] == [true, predicted] for row in predictions)
    facts = unbroken.facts("test")
    assert facts["confusion"] == counts
    assert sum(map(sum, counts)) == 17
    for r, name in enumerate(names):
        per_class = facts["per_class"][name]
        assert per_class["images"] == sum(counts[r])
        assert per_class["accuracy"] == pytest.approx(counts[r][r] / sum(counts[r]))


def test_mean_weights_of_every_class_sum_to_one_in_every_level(unbroken):
    levels = unbroken.facts("test")["mean_weights"]
    assert [len(level[0]) for level in levels] == [3, 2]
    for level in levels:
        assert len(level) == 3
        for row in level:
            assert sum(row) == pytest.approx(1, abs=1e-5)
            assert all(w >= 0 for w in row)


def test_pictures_are_listed_by_their_files_and_names_with_commas_and_quotes_survive(tmp_path):
    names, files = ('a, "b"', "ü\nö", "c"), tuple(f"class, {i}/picture {i}.png" for i in range(17))
    dataset = replace(toy_dataset(), classes=names, test_files=files)
    run = trained(tmp_path / "run", toy_experiment(epochs=1, milestones=()), dataset)
    rows = table(run.file("predictions.csv"))[1:]
    assert tuple(row[0] for row in rows) == files
    assert {row[1] for row in rows} == set(names)
    assert tuple(table(run.file("confusion.csv"))[0][1:]) == names


# ── evaluation ──


def test_evaluation_against_a_literal_loop(best):
    test = toy_dataset().test
    result = evaluated(best, test)
    (mean,), (std,) = best.normalization
    loss, sums = 0.0, [torch.zeros(3, 3), torch.zeros(3, 2)]
    for m in range(17):
        with torch.no_grad():
            output = best.network((test.images[m : m + 1].float() / 255 - mean) / std)
        probabilities = output.logits[0, :3].softmax(0)
        label = int(test.labels[m])
        loss -= float(output.logits[0].log_softmax(0)[label])
        assert int(result.predicted[m]) == int(probabilities.argmax())
        assert float(result.probability[m]) == pytest.approx(float(probabilities.max()), rel=1e-5)
        sums[0][label] += output.routings[0].weights[0]
        sums[1][label] += output.routings[1].weights[0].sum((1, 2))
    assert result.loss == pytest.approx(loss / 17, rel=1e-5)
    for level, total in zip(result.mean_weights, sums, strict=True):
        torch.testing.assert_close(level, total / test.labels.bincount()[:, None], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", [True, False])
def test_evaluation_leaves_the_network_as_it_was(best, mode):
    best.network.train(mode)
    before = {name: tensor.clone() for name, tensor in best.network.state_dict().items()}
    random = torch.get_rng_state()
    evaluated(best, toy_dataset().test)
    assert best.network.training is mode
    assert all(torch.equal(tensor, before[name]) for name, tensor in best.network.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)


def test_a_class_without_images_has_no_accuracy_instead_of_zero(best):
    test = toy_dataset().test
    some = Split(test.images[test.labels != 1], test.labels[test.labels != 1])
    summary = evaluated(best, some).summary(best.classes)
    assert summary["per_class"]["middle"] == {"accuracy": None, "images": 0}


# ── never written over ──


def test_a_folder_that_holds_a_run_is_refused_and_left_alone(unbroken):
    before = {file.name: file.stat().st_mtime_ns for file in unbroken.path.iterdir()}
    with pytest.raises(InputError, match=r"already holds a run.*--out.*--resume"):
        Run.create(unbroken.path, toy_experiment(seed=5), {})
    assert {file.name: file.stat().st_mtime_ns for file in unbroken.path.iterdir()} == before


def test_a_folder_with_other_files_and_a_file_are_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(InputError, match="already exists"):
            Run.create(path, toy_experiment(), {})
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 1


def test_an_empty_folder_may_become_a_run(tmp_path):
    assert Run.is_run(Run.create(tmp_path, toy_experiment(), {}).path)


def test_a_run_that_stopped_before_its_first_epoch_ended_may_start_again_with_other_settings(tmp_path):
    path = tmp_path / "run"
    crashed = Run.create(path, toy_experiment(), {})
    crashed.record_data(toy_dataset())
    first, second = (Run.at(path, toy_experiment(seed=seed)) for seed in (5, 6))
    first.start({"who": "first"}, 0)
    assert Run.open(path).experiment.training.seed == 5
    assert not first.file("data.json").exists()
    with pytest.raises(InputError, match="Another process is training"):
        second.start({}, 0)
    with pytest.raises(InputError, match="Another process is training"):
        Run.at(path, toy_experiment())
    first.write_metrics([{"validation_accuracy": 0.5}])
    first.release()
    for refused in (lambda: second.start({}, 0), lambda: Run.at(path, toy_experiment())):
        with pytest.raises(InputError, match="--out"):
            refused()
    assert "first" in first.file("environment.json").read_text()


@pytest.mark.parametrize("written", [0, 1, 2])
def test_a_run_that_was_killed_while_it_started_may_start_again(tmp_path, written):
    path = tmp_path / "run"
    killed = Run.create(path, toy_experiment(), {})
    for name in ("environment.json", "experiment.json")[written:]:
        killed.file(name).unlink()
    killed.file(".environment.json.123.partial").write_text("{")
    again = Run.create(path, toy_experiment(seed=5), {})
    assert Run.open(path).experiment.training.seed == 5
    assert {file.name for file in again.path.iterdir()} == {".lock", "environment.json", "experiment.json"}


@pytest.mark.parametrize("name", ["state", "last"])
def test_a_run_that_was_killed_in_its_first_save_ends_as_the_unbroken_one(tmp_path, monkeypatch, name):
    class Killed(BaseException):
        pass

    def killed(path, *args):
        if path.name == f"{name}.safetensors":
            raise Killed
        save_tensors(path, *args)

    experiment = toy_experiment(epochs=1, milestones=())
    with monkeypatch.context() as patch:
        patch.setattr("wcapsnet.training.trainer.save_tensors", killed)
        patch.setattr("wcapsnet.classifier.save_tensors", killed)
        with pytest.raises(Killed):
            begin(tmp_path / "killed", experiment).fit()
    assert_same_run(to_the_end(go_on(tmp_path / "killed")), trained(tmp_path / "whole", experiment))


def test_default_names_take_the_next_free_number(tmp_path):
    assert free_path(tmp_path / "mnist") == tmp_path / "mnist"
    (tmp_path / "mnist").mkdir()
    assert free_path(tmp_path / "mnist") == tmp_path / "mnist-2"
    (tmp_path / "mnist-2").write_text("")
    (tmp_path / "mnist-4").mkdir()
    assert free_path(tmp_path / "mnist") == tmp_path / "mnist-3"
    (tmp_path / "mnist-3").symlink_to("nowhere")
    assert make_free(tmp_path / "mnist") == tmp_path / "mnist-5"
    assert (tmp_path / "mnist-5").is_dir()
    (tmp_path / "runs").symlink_to("unmounted")
    with pytest.raises(FileExistsError):
        make_free(tmp_path / "runs" / "mnist")


# ── read with care ──


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"is not a run folder: it has no experiment\.json"):
        Run.open(tmp_path)


def test_a_run_says_that_it_has_no_weights_yet_or_has_lost_them(tmp_path):
    run = Run.create(tmp_path / "run", toy_experiment(), {})
    with pytest.raises(InputError, match="has no weights yet"):
        run.weights()
    run.write_metrics([{"validation_accuracy": 0.5}])
    with pytest.raises(InputError, match=r"has lost its weights: there is no best\.safetensors"):
        run.weights()


def test_metrics_beyond_the_state_are_dropped_when_resuming(tmp_path):
    trainer = begin(tmp_path / "run", toy_experiment(epochs=2))
    trainer.fit()
    records = trainer.run.metrics()
    trainer.run.write_metrics([*records, {**records[-1], "epoch": 3}])
    resumed = go_on(tmp_path / "run")
    resumed.experiment = toy_experiment(epochs=3)
    resumed.settings = resumed.experiment.training
    resumed.fit()
    assert [m["epoch"] for m in resumed.run.metrics()] == [1, 2, 3]


# ── atomic ──


def test_a_file_is_replaced_whole(tmp_path):
    write_text(tmp_path / "new" / "file.txt", "größer")
    assert (tmp_path / "new" / "file.txt").read_bytes() == "größer".encode()
    write_text(tmp_path / "new" / "file.txt", "b")
    assert (tmp_path / "new" / "file.txt").read_text() == "b"
    assert len(list((tmp_path / "new").iterdir())) == 1


def test_a_path_that_is_not_utf_8_survives_json(tmp_path):
    path = os.fsdecode(b"caf\xe9")
    write_json(tmp_path / "environment.json", {"command": [path, "\u00e9"]})
    assert read_json(tmp_path / "environment.json") == {"command": [path, "\u00e9"]}


@pytest.mark.parametrize("content", ["old", None])
def test_a_symbolic_link_stays_one_and_its_target_is_written(tmp_path, content):
    (tmp_path / "real").mkdir()
    target, link = tmp_path / "real" / "file.txt", tmp_path / "link.txt"
    if content is not None:
        target.write_text(content)
        target.chmod(0o600)
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert content is None or target.stat().st_mode & 0o777 == 0o600  # private files stay private
    assert [p.name for p in (tmp_path / "real").iterdir()] == ["file.txt"]


@pytest.mark.parametrize("kind", ["pipe", "link to a pipe", "folder"])
def test_only_a_regular_file_is_replaced(tmp_path, kind):
    place = tmp_path / "place"
    if kind == "folder":
        place.mkdir()
    else:
        os.mkfifo(tmp_path / "pipe")
        place = tmp_path / "pipe" if kind == "pipe" else place
        if kind != "pipe":
            place.symlink_to(tmp_path / "pipe")
    before = place.lstat()
    with pytest.raises(InputError, match=place.name):
        write_text(place, "page")
    assert place.lstat().st_ino == before.st_ino
    assert place.lstat().st_mode == before.st_mode
    assert not list(tmp_path.rglob("*.partial"))


def test_a_link_to_itself_is_an_oserror_and_stays(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(OSError, match="symbolic links"):
        write_text(tmp_path / "loop", "page")
    assert (tmp_path / "loop").is_symlink()


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, OSError])
def test_an_error_while_writing_or_renaming_leaves_the_old_file_and_no_partial_one(tmp_path, monkeypatch, error):
    write_text(tmp_path / "file.txt", "old")

    def fail(*args):
        assert (tmp_path / "file.txt").read_text() == "old"
        raise error

    def write():
        with replacing(tmp_path / "file.txt") as partial:
            partial.write_text("half of the n")
            if error is not OSError:
                fail()

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(error):
        write()
    assert (tmp_path / "file.txt").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (OSError(28, "No space left on device"), "file.txt"),  # by a write, which names no file
        (PermissionError(13, "Permission denied", "other.txt"), "other.txt"),
    ],
)
def test_what_could_not_be_written_is_called_by_its_own_name(tmp_path, error, named):
    def write():
        with replacing(tmp_path / "file.txt") as partial:
            if error.filename is None:
                partial.write_text("half")
            raise error

    with pytest.raises(OSError, match=error.strerror) as raised:
        write()
    assert Path(raised.value.filename).name == named
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_none_is_not_told_of_a_partial_file(tmp_path):
    if os.geteuid() == 0:
        tmp_path = Path("/proc")  # root may write anywhere else
    else:
        tmp_path.chmod(0o500)
    with pytest.raises(OSError, match=r".") as raised:
        write_text(tmp_path / "x.html", "page")
    assert raised.value.filename == str(tmp_path / "x.html")


def test_a_disk_that_refuses_weights_is_an_oserror_like_any_other(tmp_path, monkeypatch):
    def full(self, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space") as raised:
        save_tensors(tmp_path / "best.safetensors", {"w": torch.zeros(2)}, {})
    assert raised.value.filename == str(tmp_path / "best.safetensors")


def test_every_file_of_a_run_is_written_atomically(tmp_path, monkeypatch):
    replaced, replace = set(), os.replace

    def watching(source, target):
        assert os.path.dirname(source) == os.path.dirname(target)  # a rename, never a copy between disks
        replaced.add(os.path.basename(target))
        replace(source, target)

    monkeypatch.setattr(os, "replace", watching)
    trained(tmp_path / "run", toy_experiment(epochs=1, milestones=()))
    assert replaced == FILES - {"tensorboard"}


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("test", {"confusion": [[{}, 0], [0, 1]]}),
        ("test", {"confusion": [[1, 0]]}),
        ("test", {"confusion": None}),
        ("test", {"per_class": {"a": []}}),
        ("test", {"majority": "most"}),
        ("data", {"images": 7}),
        ("data", {"images": {"validation": "7"}}),
    ],
)
def test_values_of_another_type_are_damage(unbroken, tmp_path, file, change):
    write_json(tmp_path / f"{file}.json", read_json(unbroken.file(f"{file}.json")) | change)
    run = Run(tmp_path, unbroken.experiment)
    with pytest.raises(InputError, match=f"{file}.json is damaged"):
        run.results() if file == "test" else run.recorded_data()
