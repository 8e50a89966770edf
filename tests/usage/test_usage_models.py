"""`wcapsnet.create` and `wcapsnet.load`."""

from dataclasses import replace

import pytest
import torch

import wcapsnet
from twins.tiny import tiny
from wcapsnet import Classifier, InputError, Level, RoutingConfig, WCapsNet, WCapsNetConfig
from wcapsnet.experiment import Experiment
from wcapsnet.models import QUICK_LEVELS
from wcapsnet.network import CIFAR10_LEVELS, CIFAR100_LEVELS
from wcapsnet.training.run_folder import Run


@pytest.mark.parametrize(
    ("size", "height", "width"), [(16, 16, 16), ((16, 24), 16, 24), ((24, 16), 24, 16), ([9, 13], 9, 13)]
)
def test_size_is_a_side_or_height_and_width(size, height, width):
    model = wcapsnet.create("wcapsnet-quick", classes=3, channels=1, size=size)
    assert (model.config.height, model.config.width) == (height, width)
    with torch.no_grad():
        assert model.eval()(torch.rand(1, 1, height, width)).reconstruction.shape == (1, 1, height, width)


@pytest.mark.parametrize("classes", [2, 10, 11, 100])
def test_more_than_ten_classes_take_table_ones_cifar_100_column(classes):
    assert wcapsnet.create(classes=classes).config.levels == (CIFAR10_LEVELS if classes <= 10 else CIFAR100_LEVELS)
    quick = wcapsnet.create("wcapsnet-quick", classes=classes).config
    assert quick.levels[:2] == QUICK_LEVELS[:2]
    assert quick.levels[-1].dimension == (8 if classes <= 10 else 24)


def test_any_field_of_the_configuration_can_be_given():
    assert wcapsnet.create().config == WCapsNetConfig()
    model = wcapsnet.create(
        classes=4,
        size=8,
        levels=(Level(2, 2, 4, 2), Level(2, 2, 4, 1)),
        dense_layers=1,
        init_channels=4,
        critic_channels=4,
        routing=RoutingConfig(noise_share=0.0),
        decoder_channels=[4, 6],
        extra_class=False,
    )
    config = model.config
    assert config.levels == (Level(2, 2, 4, 2), Level(2, 2, 4, 1))
    assert config.routing == RoutingConfig(noise_share=0.0)
    assert (config.dense_layers, config.decoder_channels, config.outputs) == (1, (4, 6), 4)
    levels = [{"capsules": 2, "growth": 2, "dimension": 4, "stride": 2}] * 2  # plain tables
    config = wcapsnet.create(size=8, levels=levels, routing={"weighting": "normalized"}).config
    assert config.levels == (Level(2, 2, 4, 2),) * 2
    assert config.routing == RoutingConfig(weighting="normalized")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"dense_layer": 2}, "no field 'model.dense_layer'; did you mean 'model.dense_layers'"),
        ({"routing": {"fitnes": "random"}}, "did you mean 'model.routing.fitness'"),
        ({"dense_layers": "two"}, "model.dense_layers must be a whole number"),
        ({"dense_layers": 0}, "model.dense_layers is 0"),
        ({"classes": 1}, "model.classes is 1"),
        ({"size": 4}, "model.height is 4"),
        ({"channels": 0}, "model.channels is 0"),
        ({"levels": [{"capsules": 2}]}, "model.levels.0"),
        ({"name": "wcapsnet-quik"}, "did you mean 'wcapsnet-quick'"),
        ({"name": "zzz"}, "wcapsnet, wcapsnet-quick"),
        *(({"size": size}, "size must be a side") for size in ("32", (32,), (8, 8, 3), 32.0, None)),
    ],
)
def test_a_wrong_field_is_refused_by_name(fields, says):
    with pytest.raises(InputError) as error:
        wcapsnet.create(**fields)
    assert says in str(error.value)


# ── load ──


@pytest.fixture
def run(tmp_path, classifier):
    config = tiny(channels=3, height=8, width=12)
    run = Run.create(tmp_path / "run", replace(Experiment("x"), model=config), {})
    classifier.save(run.file("best.safetensors"), epoch=1)
    other = Classifier(WCapsNet(config), classifier.classes, *classifier.normalization)
    other.save(run.file("last.safetensors"), epoch=2)
    return run


def test_a_run_folder_gives_its_best_weights(run, classifier):
    for place in (run.path, str(run.path)):
        loaded = wcapsnet.load(place)
        assert isinstance(loaded, wcapsnet.Classifier)
        assert torch.equal(loaded.network.projection, classifier.network.projection)
        assert not loaded.training
    last = wcapsnet.load(run.file("last.safetensors"))
    assert not torch.equal(last.network.projection, classifier.network.projection)


def test_what_is_not_there_is_said(tmp_path):
    with pytest.raises(InputError, match="There is no run folder or weights file at"):
        wcapsnet.load(tmp_path / "none")
    with pytest.raises(InputError, match="is not a run folder"):
        wcapsnet.load(tmp_path)
    Run.create(tmp_path / "young", Experiment("x"), {})
    with pytest.raises(InputError, match="has no weights yet"):
        wcapsnet.load(tmp_path / "young")


def test_the_public_names_are_there():
    assert set(wcapsnet.__all__) <= set(dir(wcapsnet))
    assert all(getattr(wcapsnet, name) is not None for name in wcapsnet.__all__)
    assert all(wcapsnet.list_models().values()), "every model says what it is"


@pytest.mark.parametrize("use", [wcapsnet.evaluate, wcapsnet.explain])
def test_a_part_that_no_dataset_has_is_refused_with_those_it_has(use):
    with pytest.raises(InputError, match=r"'tset'.*train, validation, test"):
        use("wcapsnet-mnist", split="tset")


@pytest.mark.parametrize(
    ("verb", "target"),
    [
        (wcapsnet.train, "quick"),
        (wcapsnet.sweep, "quick"),
        (wcapsnet.evaluate, "wcapsnet-mnist"),
        (wcapsnet.explain, "wcapsnet-mnist"),
    ],
)
def test_a_data_directory_can_be_a_string(verb, target, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="empty"):  # not a TypeError
        verb(target, data_dir=str(tmp_path / "empty"), device="cpu")
