"""tools/plus_search.py: every candidate can be trained by the kernels, and the table ranks by validation accuracy."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest

import campaign
import plus_search
from wcapsnet.data import DATASETS
from wcapsnet.data.formats import Arrays, RawData
from wcapsnet.kernels import FusedEngine
from wcapsnet.models import parameter_count
from wcapsnet.network import WCapsNet
from wcapsnet.recipes import recipe
from wcapsnet.settings import differing
from wcapsnet.training.run_folder import Run, read_json

NAMES = plus_search.CANDIDATES


@pytest.mark.parametrize("name", NAMES)
def test_a_candidate_has_at_most_a_million_parameters_and_is_computed_by_the_kernels(name):
    experiment = NAMES[name]()
    assert (experiment.name, experiment.training.epochs) == (name, plus_search.EPOCHS)
    assert parameter_count(experiment.model) <= 1_000_000
    engine = FusedEngine(WCapsNet(experiment.model), experiment.objective, experiment.data.augmentations())
    expected = ["fused kernels"]
    joint = experiment.model.routing.fitness == "joint"
    expected += ["routing in PyTorch (no kernel for JointCritic)"] if joint else []
    expected += ["loss term class_information in PyTorch"] if "class_information" in experiment.objective else []
    expected += ["augmentation cutmix in PyTorch"] if experiment.data.augment else []
    assert engine.description == "; ".join(expected)


def test_candidates_differ_and_the_first_is_the_recipe_in_a_shorter_time():
    experiments = [make() for make in NAMES.values()]
    changes = [tuple(field for field, *_ in differing(experiments[0], one) if field != "name") for one in experiments]
    assert changes[0] == ()
    assert all(changes[1:])
    shorter = {field for field, *_ in differing(recipe("cifar10-plus"), experiments[0])}
    assert shorter == {"name", "training.epochs", "training.warmup"}


def pictures(count):
    labels = np.arange(count) % 10
    return Arrays(np.random.default_rng(count).integers(0, 256, (count, 3, 32, 32), np.uint8), labels)


SMALL = [
    *("training.epochs=2", "training.warmup=0", "training.batch_size=10", "training.epoch_steps=1"),
    *("data.validation=100", "model.dense_layers=1", "model.critic_channels=4", "model.init_channels=8"),
]


@pytest.mark.slow
def test_the_search_trains_resumes_and_prints_validation_accuracies(tmp_path, monkeypatch, capsys):
    raw = RawData(pictures(200), pictures(40), tuple("0123456789"))
    info = replace(DATASETS["cifar10"], read=lambda root: raw, train_images=200, test_images=40)
    monkeypatch.setitem(DATASETS, "cifar10", info)
    chosen = [f"{plus_search.PREFIX}-{name}:0" for name in ("uniform", "joint")]
    monkeypatch.setitem(campaign.GROUPS, "plus-search", tuple(chosen))
    settings = [word for setting in SMALL for word in ("--set", setting)]
    command = ["campaign", "plus-search", "--out", str(tmp_path), *settings]
    for _ in range(2):  # the second time, all are finished
        monkeypatch.setattr(sys, "argv", command)
        campaign.main()
        assert "test" not in capsys.readouterr().out.replace(str(tmp_path), "")
    monkeypatch.setattr(plus_search, "RECORDS", tmp_path / "records")
    monkeypatch.setattr(sys, "argv", ["plus_search", str(tmp_path), "--routing", "--images", "20", "--keep"])
    plus_search.main()
    rows = [line for line in capsys.readouterr().out.splitlines() if "2/2" in line]
    runs = [Run.open(path) for path in tmp_path.iterdir() if Run.is_run(path)]
    assert len(rows) == len(runs) == 2
    for run in runs:
        name = run.experiment.name.removeprefix(f"{plus_search.PREFIX}-")
        kept = read_json(tmp_path / "records" / name / "seed=0.json")
        assert len(kept["metrics"]["validation_accuracy"]) == 2
        assert ("mean" in kept["validation"]) == (name == "joint")
        assert "test" not in json.dumps(kept["validation"] | {"fields": [*kept, *kept["metrics"]]})


def test_the_table_puts_the_best_validation_accuracy_first_and_runs_without_one_last():
    rows = [
        {"run": "a", "validation": 80.0},
        {"run": "b", "validation": float("nan")},
        {"run": "c", "validation": 90.0},
    ]
    lines = plus_search.table(rows).splitlines()[2:]
    assert [line.split(" | ")[0][2:] for line in lines] == ["c", "a", "b"]
