"""A run and its record, on next to nothing. No test asserts a time."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cli_helpers import call, sentence

from wcapsnet import kernels
from wcapsnet.bench import measure, tasks
from wcapsnet.bench import suite as runs
from wcapsnet.bench.contenders import parse
from wcapsnet.bench.measure import in_turns, recorded
from wcapsnet.bench.suite import Request, cases, with_capsules, with_levels
from wcapsnet.engine import Engine
from wcapsnet.experiment import TrainingConfig
from wcapsnet.network import WCapsNet, WCapsNetConfig
from wcapsnet.recipes import RECIPES

QUICK = ("--model", "small", "--repeats", 2, "--window", 0)


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    monkeypatch.setattr(measure, "_others", lambda device: 0.0)


def record_of(*args: object) -> dict:
    answer = call("bench", *args, *QUICK, "--json")
    assert answer.code == 0, answer
    return json.loads(answer.out)


@pytest.mark.slow
def test_a_training_step_of_everybody_who_can_run_here():
    record = record_of("train", "--against", "fused,plain,loop,densenet,plain:bf16", "--batch", "2,3")
    assert [(row["contender"], row["batch"]) for row in record["results"]] == [
        (name, batch) for batch in (2, 3) for name in ("plain", "loop", "densenet", "plain:bf16")
    ]
    for row in record["results"]:
        assert len(row["windows_ms"]) == 2
        assert row["images_per_s"] == pytest.approx(row["batch"] / row["ms"] * 1000, rel=0.1)
        assert row["first_s"] > 0
        assert row["mean_loss"] > 0
        assert row["macs_per_image"] > 0
    assert list(record["cannot"]) == ["fused"]
    assert record["environment"]["torch"] == torch.__version__
    assert "commit" in record["environment"]
    assert record["ceilings"] is None


def test_inference_is_held_against_the_plain_network():
    rows = record_of("infer", "--against", "plain,loop,densenet", "--batch", 1)["results"]
    errors = {row["contender"]: row.get("largest_error_of_logits") for row in rows}
    assert errors["plain"] == 0
    assert errors["loop"] < 1e-5
    assert errors["densenet"] is None


def test_every_level_alone_and_with_its_routing():
    record = record_of("level", "--against", "plain,loop,densenet")
    subjects = list(dict.fromkeys(row["subject"] for row in record["results"]))
    assert subjects == [f"level {at}{what}" for at in (1, 2, 3) for what in (", blocks", "")]
    assert record["cannot"]["densenet"] == "densenet has no capsules."
    blocks, whole = record["results"][0], record["results"][2]
    assert whole["macs_per_image"] > blocks["macs_per_image"]


def test_the_fused_engine_is_a_contender_and_computes_single_levels(monkeypatch):
    asked = []

    class Fused:
        """As the kernels are asked for a level, computed by PyTorch."""

        def blocks(self, network, at, x):
            asked.append("blocks")
            return network.capsules[at](x)

        def level(self, network, at, x):
            asked.append("level")
            c = network.capsules[at](x)
            return network.handed_on(at, network.routers[at](c).weights, c)

    class OnCpu(kernels.FusedEngine):
        def __init__(self, network):
            Engine.__init__(self, network)
            self.fused = Fused()

        forward = Engine.forward

    def choose(network, experiment, device):
        return OnCpu(network) if experiment.training.kernels == "fused" else Engine(network)

    monkeypatch.setattr(kernels, "choose", choose)
    for what in ("infer", "level"):
        record = record_of(what, "--against", "fused", "--batch", 2)
        assert {row["contender"] for row in record["results"]} == {"fused"}
    assert set(asked) == {"blocks", "level"}


def test_the_parts_of_a_step():
    rows = record_of("train", "--parts", "--batch", 2)["results"]
    assert [row["subject"] for row in rows] == [
        "whole step",
        "without augmentation",
        "without augmentation and loading",
        "augmentation and loading alone",
    ]
    assert "macs_per_image" not in rows[-1]


def test_a_step_without_loading_sees_the_same_images_again(experiment, cpu):
    data = tasks.synthetic(experiment, cpu)
    assert len(data) == 60000
    one = tasks.OneBatch(data, 3)
    images, labels = one.take(torch.tensor([7, 8, 9]))
    torch.testing.assert_close(images, data.take(slice(3))[0])
    assert labels.tolist() == data.labels[:3].tolist()


@pytest.mark.parametrize("axis", ["batch", "capsules", "levels"])
def test_scaling_grows_what_it_says(axis, monkeypatch):
    monkeypatch.setitem(runs.SCALINGS, axis, (2, 4))
    rows = record_of("infer", "--against", "plain", "--scaling", axis)["results"]
    assert [row["value"] for row in rows] == [2, 4]
    grown = {"batch": [row["batch"] for row in rows], "capsules": [row["capsules"][0] for row in rows]}
    assert grown.get(axis, [len(row["capsules"]) for row in rows]) == [2, 4]
    if axis != "batch":
        assert rows[1]["macs_per_image"] > rows[0]["macs_per_image"]


def test_the_batches_of_scaling_can_be_chosen(experiment, cpu):
    request = Request("train", experiment, parse("plain", "fp32"), [3, 5], cpu, scaling="batch")
    assert [(case.batch, case.value) for case in cases(request)] == [(3, 3), (5, 5)]


def test_networks_of_other_sizes():
    table = WCapsNetConfig()
    capsules = [[row.capsules for row in with_capsules(table, first).levels] for first in (4, 16, 64)]
    assert capsules == [[4, 2, 1, 1], [16, 8, 4, 2], [64, 32, 16, 8]]
    depths = {count: [row.capsules for row in with_levels(table, count).levels] for count in (2, 3, 4, 6)}
    assert depths == {2: [16, 2], 3: [16, 8, 2], 4: [16, 8, 4, 2], 6: [16, 8, 8, 8, 4, 2]}
    strided = replace(table, levels=(table.levels[0], table.levels[2], table.levels[3]))
    assert [row.stride for row in with_levels(strided, 5).levels] == [2, 2, 1, 1, 1]
    WCapsNet(with_levels(strided, 5))


def test_contenders_take_turns_and_each_round_begins_with_another(cpu):
    seen = []
    times = in_turns({name: lambda name=name: seen.append(name) for name in "abc"}, cpu, 3, 0.0)
    assert "".join(seen[-9:]) == "abcbcacab"
    assert {name: len(facts["windows_ms"]) for name, facts in times.items()} == {"a": 3, "b": 3, "c": 3}


def test_waiting_takes_time_but_no_cpu_time(cpu):
    times = in_turns({"wait": lambda: time.sleep(0.05), "work": lambda: sum(range(10**6))}, cpu, 1, 0.0)
    assert times["wait"]["cpu_ms"] < 25 < 50 <= times["wait"]["ms"]
    assert 0 < times["work"]["cpu_ms"] <= times["work"]["ms"] + 1  # the clocks differ a little


def test_rounds_that_others_disturbed_are_repeated_once(cpu, monkeypatch):
    taken = iter([0, 9e9, 0, 0, 0, 9e9, 0, 0])  # before and after each round: the first and third are disturbed
    monkeypatch.setattr(measure, "_others", lambda device: next(taken))
    times = in_turns({"a": lambda: None}, cpu, 2, 0.0)
    assert times["a"]["disturbed_windows"] == 0
    assert list(taken) == []
    clock = iter(range(100))
    monkeypatch.setattr(measure, "_others", lambda device: 9e9 * next(clock))
    assert in_turns({"a": lambda: None}, cpu, 2, 0.0)["a"]["disturbed_windows"] == 2


def test_a_busy_machine_is_said(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(measure, "_others", lambda device: 9e9 * next(clock))
    answer = call("bench", "infer", "--against", "plain", *QUICK)
    assert "Other processes were busy during 2 of 2 windows." in answer.err


def test_what_others_take_is_known_on_linux_and_taken_for_nothing_elsewhere(cpu, monkeypatch, tmp_path):
    monkeypatch.undo()
    stat = tmp_path / "stat"
    stat.write_text("cpu  100000000 0 100 5 5 0 0 100 0 0\ncpu0 1 2 3\n")
    monkeypatch.setattr(measure, "STAT", stat)
    assert measure._others(cpu) > 0
    assert measure._others(torch.device("cuda")) == 0
    monkeypatch.setattr(measure, "STAT", tmp_path / "none")
    assert measure._others(cpu) == 0


def test_nothing_is_recorded_as_a_graph_on_a_cpu(cpu):
    def function() -> None: ...

    assert recorded(function, cpu) is function


def test_a_table_and_a_record():
    answer = call("bench", "train", "--against", "fused,plain,loop", "--batch", 2, *QUICK, "--out", "record.json")
    assert answer.code == 0, answer
    assert "× loop" in answer.out
    assert "fused left out: The fused kernels cannot be used" in answer.err
    record = json.loads(Path("record.json").read_text())
    assert record["benchmark"] == "train"
    assert [row["contender"] for row in record["results"]] == ["plain", "loop"]


def test_what_does_not_fit_into_memory_is_left_out_and_said(monkeypatch):
    plain = tasks.training

    def training(contender, experiment, batch, data):
        if batch == 3:
            raise torch.OutOfMemoryError
        return plain(contender, experiment, batch, data)

    monkeypatch.setattr(tasks, "training", training)
    record = record_of("train", "--against", "plain", "--batch", "2,3")
    assert [row["batch"] for row in record["results"]] == [2]
    assert "plain, batch 3" in record["cannot"]


def test_a_loss_that_is_not_a_number_is_said(monkeypatch):
    broken = replace(RECIPES["small"](), training=TrainingConfig(batch_size=4, lr=1e30))
    monkeypatch.setitem(RECIPES, "small", lambda: broken)
    answer = call("bench", "train", "--against", "plain", *QUICK)
    assert "plain, batch 4: its loss is not finite." in answer.err


CASES = {
    "unknown contender": (("train", "--against", "plan"), "did you mean 'plain'"),
    "no contender": (("train", "--against", ","), "--against needs at least one"),
    "precision of a contender": (("train", "--against", "loop:fp16"), "not 'fp16'"),
    "batch 0": (("train", "--batch", "0"), "--batch must be"),
    "batch in words": (("train", "--batch", "many"), "--batch must be"),
    "half a list": (("train", "--batch", "64,"), "--batch must be"),
    "batch of odd digits": (("train", "--batch", "²"), "--batch must be"),
    "the only one cannot run": (("train", "--against", "fused"), "fused kernels cannot be used"),
    "eager on a CPU": (("train", "--against", "eager"), "eager is the same as plain"),
    "levels of a DenseNet": (("level", "--against", "densenet"), "densenet has no capsules"),
    "unknown model": (("train", "--model", "smal"), "There is no recipe 'smal'"),
    "precision": (("train", "--precision", "fp16"), "--precision must be auto, fp32 or bf16"),
    "device": (("train", "--device", "cuda:77"), "'cuda:77' is not available"),
    "parts of inference": (("infer", "--parts"), "use it with bench train"),
    "parts and scaling": (("train", "--parts", "--scaling", "batch"), "--scaling or --parts"),
    "a file to train": (("train", "record.json"), "takes no files"),
    "no folder for the record": (("train", "--out", "nowhere/record.json"), "There is no folder"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_one_sentence(case):
    command, says = CASES[case]
    others = [(name, value) for name, value in (("--model", "small"), ("--device", "cpu")) if name not in command]
    assert says in sentence(call("bench", *command, *(word for option in others for word in option)))
    assert list(Path().iterdir()) == []
