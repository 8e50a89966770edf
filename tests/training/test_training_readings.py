"""results/readings.py: every other reading of the text really is another one, and none looks at the test images."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from training_helpers import toy_dataset, toy_experiment

from wcapsnet.classifier import load_tensors
from wcapsnet.errors import InputError
from wcapsnet.lock import hold
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
