"""What cannot fit into memory is refused before it is built, and nothing else is."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from wcapsnet import InputError, create, host_memory, memory
from wcapsnet.bench.work import kept_for_gradient
from wcapsnet.memory import CPU, available, built, check_training
from wcapsnet.models import model_config
from wcapsnet.network import Level, WCapsNetConfig


@pytest.fixture
def little(monkeypatch):
    """A machine with 8 GiB."""
    monkeypatch.setattr(memory, "available", lambda device: 8 * 2**30)


@pytest.mark.parametrize("name", ["wcapsnet", "wcapsnet-quick", "wcapsnet-small"])
@pytest.mark.parametrize("size", [(12, 12), (32, 20)])
@pytest.mark.parametrize("changes", [{}, {"levels": (Level(3, 5, 7, 1), Level(2, 3, 4, 3))}, {"dense_layers": 1}])
def test_activations_are_at_least_half_and_at_most_all_of_what_is_kept(name, size, changes):
    config = replace(model_config(name, 10, 3, *size), **changes)
    measured = kept_for_gradient(config.build())
    kept, working = config.activations()
    assert 0.5 * measured < 4 * kept * memory.MARGIN < 1.1 * measured
    assert 0 < working < kept


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"levels": (Level(100_000, 8, 8, 2), Level(2, 8, 8, 1))}, "model.levels.0.capsules is 100000"),
        ({"levels": (Level(4, 8, 8, 2), Level(2, 10**17, 8, 1))}, f"model.levels.1.growth is {10**17}"),
        ({"dense_layers": 2**62}, f"model.dense_layers is {2**62}"),
        ({"height": 2**40}, f"model.height is {2**40}"),
        ({"init_channels": 10**9}, "model.init_channels is 1000000000"),
    ],
)
def test_a_batch_that_cannot_fit_is_refused_by_the_field_out_of_proportion(little, changes, field):
    with pytest.raises(InputError, match=field) as error:
        check_training(replace(model_config("wcapsnet-quick", 10, 1, 28, 28), **changes), CPU, 64, 16)
    assert "8 GiB" in str(error.value)


@pytest.mark.parametrize(
    ("batch", "evaluated", "words"), [(10**6, 1, r"training\.batch_size gives batches of 1000000"), (1, 10**7, "GiB")]
)
def test_a_batch_counts_in_training_and_in_evaluation(little, batch, evaluated, words):
    with pytest.raises(InputError, match=words):
        check_training(WCapsNetConfig(), CPU, batch, evaluated)
    check_training(WCapsNetConfig(), CPU, 64, 16)


@pytest.mark.parametrize(
    ("name", "fields", "field"),
    [
        ("wcapsnet", {"classes": 10**9}, "model.classes"),
        pytest.param("wcapsnet", {"critic_channels": 10**6}, "model.critic_channels", marks=pytest.mark.slow),
        ("wcapsnet", {"decoder_channels": (2**62, 3)}, "model.decoder_channels.0"),
        ("wcapsnet", {"levels": [{"capsules": 10**15, "growth": 8, "dimension": 8, "stride": 1}]}, "levels.0.capsules"),
        ("densenet-bc-100", {"growth": 10**6}, "model.growth"),
        ("densenet-bc-100", {"growth": 2**62}, "model.growth"),
    ],
)
def test_parameters_that_cannot_fit_are_refused_by_the_field_out_of_proportion(little, name, fields, field):
    with pytest.raises(InputError, match=field):
        create(name, **fields)


@dataclass(frozen=True)
class Endless:
    """An architecture without defaults, of more layers than anybody can count"""

    layers: int

    def build(self):
        return nn.Sequential(*(nn.Linear(1, 1, bias=False) for _ in range(self.layers)))


def test_a_network_of_too_many_layers_is_refused_before_they_are_built(monkeypatch):
    monkeypatch.setattr(memory, "MAX_TENSORS", 1000)
    with pytest.raises(InputError, match=r"model\.layers is 1000000000"):
        built(Endless(10**9))
    assert len(built(Endless(900))) == 900


@pytest.mark.parametrize("large", [pytest.param(0, marks=pytest.mark.slow), memory.LARGE])
def test_counting_first_does_not_change_the_weights(monkeypatch, large):
    monkeypatch.setattr(memory, "LARGE", large)
    config = model_config("wcapsnet-quick", 10, 1, 28, 28)
    torch.manual_seed(1)
    expected = config.build().state_dict()
    torch.manual_seed(1)
    network = built(config)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in network.state_dict().items())


def test_a_network_that_cannot_be_counted_first_is_built_and_counted_all_the_same(monkeypatch):
    class Choosy(Endless):
        def build(self):
            torch.ones(1).item()  # not possible with shapes alone
            return super().build()

    monkeypatch.setattr(memory, "LARGE", 0)
    assert len(built(Choosy(2))) == 2
    monkeypatch.setattr(memory, "available", lambda device: 39)
    with pytest.raises(InputError, match=r"model\.layers is 10"):
        built(Choosy(10))


def test_other_errors_of_a_network_keep_their_trace():
    @dataclass(frozen=True)
    class Broken:
        def build(self):
            raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        built(Broken())
    built(Endless(1))  # nothing is counted any more
    nn.Linear(2, 2)


def test_memory_is_between_something_and_all_there_is():
    assert 2**20 < available(CPU) < 2**60


@pytest.mark.parametrize(("limit", "used", "prefix"), [group[1:] for group in host_memory.CGROUPS])
def test_a_container_has_its_limit_less_what_it_uses_except_for_cached_files(
    monkeypatch, tmp_path, limit, used, prefix
):
    content = {limit: 2**20, used: 2**19, "memory.stat": f"anon 7\n{prefix}active_file 20\n{prefix}inactive_file 30"}
    for file, text in content.items():
        (tmp_path / file).write_text(f"{text}\n")
    unlimited = tmp_path / "unlimited"
    unlimited.mkdir()
    (unlimited / limit).write_text("max\n")
    folders = (tmp_path, unlimited, tmp_path / "missing")
    monkeypatch.setattr(host_memory, "CGROUPS", [(str(folder), limit, used, prefix) for folder in folders])
    assert available(CPU) == 2**20 - 2**19 + 50
    (tmp_path / used).write_text(f"{2**21}\n")  # above its limit for a moment
    assert available(CPU) == 0
