"""Sweeps on a Ray cluster."""

from __future__ import annotations

import io
import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cli_helpers import fruit, same_weights
from rich.console import Console

import wcapsnet
from wcapsnet.cli.options import with_address
from wcapsnet.errors import InputError
from wcapsnet.recipes import recipe
from wcapsnet.settings import with_setting
from wcapsnet.sweeps import on_ray
from wcapsnet.training.console import LiveBoard
from wcapsnet.training.run_folder import Run

STORE = 80 * 2**20


def test_ray_may_stand_alone():
    assert with_address(["demo", "--ray"]) == ["demo", "--ray", "auto"]
    assert with_address(["--ray", "demo", "--seeds", "2"]) == ["--ray", "auto", "demo", "--seeds", "2"]
    assert with_address(["--ray", "--seeds", "2"]) == ["--ray", "auto", "--seeds", "2"]
    assert with_address(["demo", "--ray", "10.0.0.1:6379"]) == ["demo", "--ray", "10.0.0.1:6379"]
    assert with_address(["--ray", "local", "demo"]) == ["--ray", "local", "demo"]


def test_files_of_a_worker_stay_inside_the_run_folder(tmp_path):
    on_ray.receive(tmp_path / "run", {"test.json": b"{}", "tensorboard/events": b"1", "metrics.jsonl": b""})
    assert (tmp_path / "run" / "tensorboard" / "events").read_bytes() == b"1"
    for name in ("../elsewhere", "/etc/elsewhere", "a/../../elsewhere", "..\\elsewhere"):
        with pytest.raises(InputError):
            on_ray.receive(tmp_path / "run", {name: b"x"})
    assert not list(tmp_path.rglob("elsewhere"))
    assert not Path("/etc/elsewhere").exists()


class RayError(Exception):
    pass


class RayTaskError(RayError):
    cause = None


class LostRay:
    """As much of Ray as a sweep needs. The worker of the run `a` is always lost, the program of `b` fails."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self):
        self.jobs = []

    def remote(self, work):
        return self

    def options(self, **options):
        return SimpleNamespace(remote=self.submit)

    def submit(self, job):
        self.jobs.append(job.experiment["name"])
        return self.news(self.jobs[-1])

    def news(self, name):
        if name == "a":
            raise RayError
        yield on_ray.News(environment={"torch": "2"})
        raise RayTaskError("out of luck")

    @staticmethod
    def wait(streams, num_returns, timeout):
        return streams[:1], streams[1:]

    @staticmethod
    def get(news):
        return news


def test_lost_and_failed_runs_end_once_and_free_their_folders(tmp_path, monkeypatch):
    ray = LostRay()
    monkeypatch.setattr(on_ray, "ray_library", lambda: ray)
    runs = [Run(tmp_path / name, with_setting(recipe("demo"), f"name={name}")) for name in "ab"]
    board = LiveBoard(Console(file=io.StringIO(), force_terminal=True), runs)
    data = SimpleNamespace(fingerprint=lambda *parts: {})
    ended = {}
    for run, failure in on_ray.train_on_ray(
        runs, lambda run: data, torch.device("cpu"), 1, board, data_dir=None, download=False
    ):
        assert run.path.name not in ended
        ended[run.path.name] = failure
        run.hold()  # nobody else does
        run.release()
    assert ended == {"a": f"its worker was lost {on_ray.ATTEMPTS} times in a row (RayError)", "b": "out of luck"}
    assert ray.jobs.count("a") == on_ray.ATTEMPTS
    assert board.count == 2


def test_without_ray_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(InputError, match=r"wcapsnet\[ray\]"):
        wcapsnet.sweep("demo", ray="auto")


@pytest.fixture
def two_workers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A cluster on this machine: a head that trains nothing, and two nodes with one core each."""
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("PYTHONPATH", str(Path(wcapsnet.__file__).parents[1]))  # workers use this copy
    from ray._private import ray_constants
    from ray.cluster_utils import Cluster

    # stay on the loopback interface; otherwise this process looks for the cluster at the machine's own address
    monkeypatch.setattr(ray_constants, "ENABLE_RAY_CLUSTER", False)
    small = {"object_store_memory": STORE, "node_ip_address": "127.0.0.1"}
    cluster = Cluster()
    try:
        cluster.add_node(num_cpus=0, include_dashboard=False, **small)
        workers = [cluster.add_node(num_cpus=1, **small) for _ in range(2)]
        cluster.wait_for_nodes()
        yield cluster, workers
    finally:
        cluster.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Ray
def test_a_killed_workers_run_continues_on_the_other_and_ends_with_the_same_weights(two_workers, tmp_path, monkeypatch):
    cluster, workers = two_workers
    folder = fruit(tmp_path / "photos", 24)
    monkeypatch.setattr(on_ray, "EVERY", 0.0)
    options = {"seeds": 3, "model": "wcapsnet-quick", "epochs": 20, "batch_size": 8, "size": 16}
    options |= {"quiet": True, "device": "cpu"}
    out = tmp_path / "ray"
    killed: list[Path] = []

    def kill() -> None:
        """As soon as both workers have sent a checkpoint."""
        while len(found := list(out.glob("*/state.safetensors"))) < 2:
            time.sleep(0.05)
        killed.extend(found)
        cluster.remove_node(workers[0], allow_graceful=False)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    sweep = wcapsnet.sweep(folder, out=out, ray=cluster.address, **options)
    thread.join(60)
    assert killed
    assert not sweep.failures
    table = json.loads((out / "sweep.json").read_text())
    assert [run["state"] for run in table["runs"]] == ["finished"] * 3
    resumed = [json.loads((run.path / "environment.json").read_text()).get("resumed") for run in sweep.runs]
    assert sum(again is not None for again in resumed) >= 1
    assert any(again and again[0]["after_epoch"] >= 1 for again in resumed)

    here = wcapsnet.sweep(folder, out=tmp_path / "here", **options)
    for one, other in zip(sweep.runs, here.runs, strict=True):
        assert same_weights(one.path / "state.safetensors", other.path / "state.safetensors")
        assert one.results()["accuracy"] == other.results()["accuracy"]
        assert one.facts("environment")["command"] == other.facts("environment")["command"]
        assert {file.name for file in one.path.iterdir()} == {file.name for file in other.path.iterdir()}

    again = wcapsnet.sweep(folder, out=out, ray=cluster.address, **options)  # nothing is left to do
    assert not again.failures
