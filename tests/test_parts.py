"""The registry: parts by kind and name, and the files outside the package that register them."""

import functools
import hashlib
from pathlib import Path

import pytest
import torch

import wcapsnet
from twins import tiny
from wcapsnet.api.training import train
from wcapsnet.data import DATASETS, DatasetInfo
from wcapsnet.errors import InputError
from wcapsnet.experiment import Experiment
from wcapsnet.network import RoutingConfig, WCapsNet
from wcapsnet.parts import Kind, suggestion, weighting
from wcapsnet.plugins import Plugin, load_plugin, plugins, require, unused
from wcapsnet.recipes import recipe
from wcapsnet.settings import to_dict, with_setting

OWN_WEIGHTING = """
from wcapsnet.parts import weighting

@weighting("{name}")
def one_hot_weights(a):
    flat = a.flatten(1)
    return (flat == flat.amax(1, keepdim=True)).float().view_as(a)
"""


@pytest.fixture
def kind():
    """A kind of its own, with two parts; gone after the test."""
    kind = Kind("filter", "data.filter")
    kind("blur")(blur)
    kind("sharpen")(sharpen)
    yield kind
    Kind.every.remove(kind)


def blur(x):
    return x / 2


def sharpen(x):
    return 2 * x


def plugin(folder: Path, name: str, file: str = "routing.py") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file
    path.write_text(OWN_WEIGHTING.format(name=name))
    return path


# ── registering ──


def test_a_registered_part_is_returned_and_found_by_its_name(kind):
    assert kind("own")(tiny) is tiny
    assert kind["blur"] is blur
    assert list(kind) == ["blur", "sharpen", "own"]
    assert len(kind) == 3
    assert kind.name_of(sharpen) == "sharpen"
    assert "blur" in kind
    assert not any(name in kind for name in (None, 3, ["blur"], {}))


def test_a_name_that_is_taken_is_refused_and_the_part_before_stays(kind):
    with pytest.raises(InputError, match=r"already a filter 'blur' \(blur in .*test_parts\); choose another name"):
        kind("blur")(sharpen)
    assert kind["blur"] is blur


def test_a_partial_counts_as_its_function(kind):
    for _ in range(2):  # a module that is loaded again registers its parts again
        kind("soft")(functools.partial(blur, 2))
    with pytest.raises(InputError, match=r"already a filter 'soft' \(blur in .*test_parts\)"):
        kind("soft")(sharpen)


def test_a_part_that_is_defined_again_replaces_itself(kind):
    """As in a notebook, whose cell is run a second time."""

    def define():
        def own(x):
            return x

        return own

    first, second = define(), define()
    kind("own")(first)
    kind("own")(second)
    assert kind["own"] is second


def test_a_dataset_may_be_registered_again_by_its_own_cell(kind):
    def define(count):
        return DatasetInfo("Leaves", ("oak", "birch"), 1, 16, 16, count, 10, lambda folder: None)

    kind("leaves")(define(40))
    kind("leaves")(define(50))
    assert kind["leaves"].train_images == 50
    with pytest.raises(InputError, match="already a filter"):
        kind("leaves")(DATASETS["mnist"])


def test_an_unknown_name_suggests_the_nearest_or_lists_all(kind):
    with pytest.raises(InputError, match=r"There is no filter 'blurr'; did you mean 'blur'\?"):
        kind["blurr"]
    with pytest.raises(InputError, match=r"There is no filter 'qqq'; choose one of blur, sharpen\."):
        kind["qqq"]
    assert suggestion("BLUR", kind) == "; did you mean 'blur'?"


# ── plugins ──


@pytest.mark.usefixtures("clean")
def test_a_plugin_registers_parts_that_settings_can_name(tmp_path):
    load_plugin(plugin(tmp_path, "one-hot"))
    experiment = with_setting(Experiment("own", model=tiny()), "model.routing.weighting=one-hot")
    b = WCapsNet(experiment.model).eval()(torch.randn(2, 2, 8, 8)).routings[0].weights
    assert b.amax(1).tolist() == [1, 1]
    assert set(b.flatten().tolist()) == {0, 1}


@pytest.mark.usefixtures("clean")
def test_a_plugin_that_is_loaded_twice_runs_once(tmp_path):
    path = plugin(tmp_path, "one-hot")
    load_plugin(path)
    first = weighting["one-hot"]
    wcapsnet.load_plugin(str(tmp_path / "." / "routing.py"))
    assert weighting["one-hot"] is first


@pytest.mark.usefixtures("clean")
def test_plugins_of_one_file_name_in_two_folders_are_two(tmp_path):
    load_plugin(plugin(tmp_path / "a", "one"))
    load_plugin(plugin(tmp_path / "b", "two"))
    assert {"one", "two"} <= set(weighting)
    with pytest.raises(InputError, match="already a weighting 'one'"):
        load_plugin(plugin(tmp_path / "c", "one"))


@pytest.mark.usefixtures("clean")
def test_a_plugin_whose_parts_the_experiment_does_not_use_is_named(tmp_path):
    load_plugin(plugin(tmp_path, "one-hot"))
    experiment = to_dict(recipe("demo"))
    assert list(unused(experiment)) == [
        f"The plugin {tmp_path / 'routing.py'} is loaded, but the experiment uses none of its parts: "
        "weighting 'one-hot' (model.routing.weighting)."
    ]
    experiment["model"]["routing"]["weighting"] = "one-hot"
    assert not list(unused(experiment))


def test_a_plugin_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no plugin file .*missing\.py"):
        load_plugin(tmp_path / "missing.py")
    with pytest.raises(InputError, match="no plugin file"):
        load_plugin(tmp_path)
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(InputError, match="not a Python file"):
        load_plugin(tmp_path / "notes.txt")


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(
    ("text", "said"),
    [("1 / 0", "ZeroDivisionError"), ("def", "SyntaxError"), ("import nowhere_at_all", "nowhere_at_all")],
)
def test_a_plugin_that_is_broken_is_refused_with_its_error_and_can_be_mended(tmp_path, text, said):
    path = tmp_path / "routing.py"
    path.write_text(text)
    for _ in range(2):  # the second attempt does not take it for loaded
        with pytest.raises(InputError, match=rf"routing\.py cannot be loaded: .*{said}"):
            load_plugin(path)
    load_plugin(plugin(tmp_path, "a-mended-one"))  # of another length, or a cache of bytecode would serve
    assert "a-mended-one" in weighting


@pytest.mark.usefixtures("clean")
def test_plugins_are_the_files_outside_the_package_with_their_hash(tmp_path):
    before = plugins()
    path = plugin(tmp_path, "one-hot")
    load_plugin(path)
    (added,) = set(plugins()) - set(before)
    assert added == Plugin(str(path.resolve()), hashlib.sha256(path.read_bytes()).hexdigest())
    assert not any("src/wcapsnet" in one.path for one in plugins())


@pytest.mark.usefixtures("clean")
def test_parts_without_a_file_are_no_plugins():
    before = plugins()
    weighting("partial")(functools.partial(torch.softmax, dim=1))
    weighting("builtin")(torch.relu)
    assert plugins() == before


# ── what a run needs ──


@pytest.mark.usefixtures("clean")
def test_a_plugin_is_known_by_its_content_and_a_change_of_it_is_told(tmp_path):
    path = plugin(tmp_path, "one-hot")
    load_plugin(path)
    content = hashlib.sha256(path.read_bytes()).hexdigest()
    changed = Plugin("/elsewhere/routing.py", "0" * 64)
    same, moved = Plugin(str(path.resolve()), content), Plugin("/elsewhere/moved.py", content)
    assert require([same, moved], "runs/own") == []
    assert require([changed], "runs/own") == [changed]


def test_a_missing_plugin_is_named_with_what_needs_it_and_what_to_do():
    with pytest.raises(InputError) as error:
        require([Plugin("/somewhere/routing_of_mine.py", "0" * 64)], "runs/own")
    assert str(error.value).startswith("runs/own needs the plugin /somewhere/routing_of_mine.py")
    assert "--plugin /somewhere/routing_of_mine.py" in str(error.value)


def test_a_routing_config_names_an_unknown_weighting():
    with pytest.raises(InputError, match=r"model\.routing\.weighting is 'sofmax'"):
        tiny(RoutingConfig(weighting="sofmax"))


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda a: a.softmax(1), r"sum to 20 for a fitness of shape \(2, 3, 4, 5\); divide"),  # at every position
        (lambda a: a.flatten(1).softmax(1), r"\(2, 3, 4, 5\) into \(2, 60\)"),
        (lambda a: a * torch.nan, "sum to nan"),
    ],
)
def test_a_weighting_that_breaks_its_contract_is_refused_before_training(function, said, tmp_path):
    weighting("own")(function)
    with pytest.raises(InputError, match=said):
        wcapsnet.create("wcapsnet-quick", routing=RoutingConfig(weighting="own"))
    with pytest.raises(InputError, match=said):
        train("demo", settings=["model.routing.weighting=own"], out=tmp_path / "run", quiet=True)
