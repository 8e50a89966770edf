"""Configurations to and from plain values, and any field of them by name."""

import contextlib
import json
from dataclasses import dataclass, fields, is_dataclass, make_dataclass
from enum import Enum
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wcapsnet.errors import InputError
from wcapsnet.experiment import Experiment
from wcapsnet.network import Level
from wcapsnet.objective import Objective
from wcapsnet.parts import suggestion
from wcapsnet.recipes import RECIPES, recipe
from wcapsnet.settings import Amounts, from_dict, to_dict, with_setting

BASE = recipe("cifar10")


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_survives_json(name):
    experiment = recipe(name)
    assert from_dict(Experiment, json.loads(json.dumps(to_dict(experiment)))) == experiment


def test_fields_that_are_not_given_keep_their_defaults():
    read = from_dict(Experiment, {"name": "x", "training": {"epochs": 7}})
    assert read.training.epochs == 7
    assert (read.training.batch_size, read.model.dense_layers) == (64, 6)


# ── one field ──


@pytest.mark.parametrize(
    ("assignment", "read", "expected"),
    [
        ("model.levels.0.capsules=8", lambda e: e.model.levels[0].capsules, 8),
        ("model.levels.3.dimension=24", lambda e: e.model.levels[3].dimension, 24),
        ("model.routing.noise_share=0", lambda e: e.model.routing.noise_share, 0.0),
        ("model.routing.stop_gradient=true", lambda e: e.model.routing.stop_gradient, True),
        ("model.extra_class=False", lambda e: e.model.extra_class, False),
        ("model.nonlinearity=squash", lambda e: e.model.nonlinearity, "squash"),
        ('model.nonlinearity="squash"', lambda e: e.model.nonlinearity, "squash"),
        ("model.decoder_channels=8,16", lambda e: e.model.decoder_channels, (8, 16)),
        ("model.decoder_channels=[8, 16]", lambda e: e.model.decoder_channels, (8, 16)),
        ("model.decoder_channels.1=16", lambda e: e.model.decoder_channels, (32, 16)),
        ("training.milestones=10,20", lambda e: e.training.milestones, (10, 20)),
        ("training.milestones=[]", lambda e: e.training.milestones, ()),
        ("training.milestones=[5]", lambda e: e.training.milestones, (5,)),
        ("training.lr=1", lambda e: e.training.lr, 1.0),
        ("training.lr=1e-3", lambda e: e.training.lr, 0.001),
        (" training.lr = 0.5 ", lambda e: e.training.lr, 0.5),
        ("training.patience=12", lambda e: e.training.patience, 12),
        ("training.patience=none", lambda e: e.training.patience, None),
        ("data.height=NULL", lambda e: e.data.height, None),
        ("data.source=100", lambda e: e.data.source, "100"),
        ("data.source=a=b", lambda e: e.data.source, "a=b"),
        ("data.validation=0.1", lambda e: e.data.validation, 0.1),
        ("objective.wasserstein=0.5", lambda e: e.objective["wasserstein"], 0.5),
        ("data.augment.mirror=0.3", lambda e: e.data.augment["mirror"], 0.3),
        ("name=my run", lambda e: e.name, "my run"),
        (
            'model.levels=[{"capsules": 2, "growth": 2, "dimension": 4, "stride": 2}]',
            lambda e: e.model.levels,
            (Level(2, 2, 4, 2),),
        ),
    ],
)
def test_a_field_is_set_by_its_name(assignment, read, expected):
    value = read(with_setting(BASE, assignment))
    assert value == expected
    assert type(value) is type(expected)


def leaves(value, path=""):
    if isinstance(value, Amounts):
        yield path, dict(value)
    elif is_dataclass(value):
        for f in fields(value):
            yield from leaves(getattr(value, f.name), f"{path}.{f.name}" if path else f.name)
    elif isinstance(value, tuple) and value and is_dataclass(value[0]):
        for i, v in enumerate(value):
            yield from leaves(v, f"{path}.{i}")
    else:
        yield path, value


@pytest.mark.parametrize(("name", "value"), list(leaves(BASE)))
def test_every_field_can_be_set_and_setting_it_to_its_value_changes_nothing(name, value):
    assert with_setting(BASE, f"{name}={json.dumps(value)}") == BASE


def test_none_leaves_a_loss_term_out():
    experiment = with_setting(BASE, "objective.wasserstein=none")
    assert set(experiment.objective) == set(BASE.objective) - {"wasserstein"}
    assert from_dict(Experiment, to_dict(experiment)) == experiment
    with pytest.raises(InputError, match="wassertein"):
        with_setting(BASE, "objective.wassertein=none")


def test_equal_objectives_hash_alike():
    one, other = Objective(cross_entropy=1, wasserstein=2), Objective(wasserstein=2, cross_entropy=1)
    assert one == other
    assert hash(one) == hash(other)


def test_setting_a_field_changes_that_field_alone():
    changed = dict(leaves(with_setting(BASE, "model.levels.1.growth=5")))
    assert {name for name, value in leaves(BASE) if changed[name] != value} == {"model.levels.1.growth"}


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("model.dense_layer=4", "There is no field 'model.dense_layer'; did you mean 'model.dense_layers'?"),
        ("modle.dense_layers=4", "There is no field 'modle'; did you mean 'model'?"),
        ("model.levels.0.capsule=4", "did you mean 'model.levels.0.capsules'"),
        ("model.routing.droput=0", "did you mean 'model.routing.dropout'"),
        ("training.learning_rate=1", "There is no field 'training.learning_rate'"),
        ("zzz=1", "choose one of name, data, model, objective, training"),
        ("model.levels.4.capsules=8", "model.levels has the entries 0 to 3, so there is no 'model.levels.4'"),
        ("model.levels.-1.capsules=8", "entries 0 to 3"),
        ("model.levels.first.capsules=8", "entries 0 to 3"),
        ("model.levels.².capsules=8", "entries 0 to 3"),
        ("model.dense_layers.0=8", "model.dense_layers is a single value"),
        ("model.dense_layers", "FIELD=VALUE"),
        ("=4", "FIELD=VALUE"),
        ("", "FIELD=VALUE"),
        ("training.epochs=ten", "training.epochs must be a whole number, not 'ten'"),
        ("training.epochs=1.5", "training.epochs must be a whole number, not 1.5"),
        ("training.epochs=true", "training.epochs must be a whole number, not True"),
        ("training.epochs=none", "training.epochs must be a whole number, not None"),
        ("training.epochs=", "training.epochs must be a whole number"),
        (f"training.epochs={5000 * '9'}", "999, but a number must fit into 64 bits"),
        (f"training.lr={5000 * '9'}", "999, but a number must fit into 64 bits"),
        ("training.lr=fast", "training.lr must be a number, not 'fast'"),
        ("training.lr=true", "training.lr must be a number"),
        ("training.patience=soon", "training.patience must be a whole number"),
        ("model.extra_class=1", "model.extra_class must be true or false, not 1"),
        ("model.extra_class=yes", "model.extra_class must be true or false"),
        ("model.nonlinearity=[1]", "model.nonlinearity must be a word"),
        ("training.milestones=early", "training.milestones must be a list"),
        ("training.milestones=a,b", "training.milestones must be a list"),
        ('training.milestones=["a"]', "training.milestones.0 must be a whole number"),
        ("model.decoder_channels=1,2,3", "model.decoder_channels must have 2 entries, not 3"),
        ("model.levels=3", "model.levels must be a list"),
        ("model.levels=1,2", "model.levels.0 must be a table of fields"),
        ("model=3", "model must be a table of fields, not 3"),
        ('model.levels=[{"capsules": 2}]', "model.levels.0"),
        ('model.levels=[{"capsules": 2, "grwth": 3}]', "did you mean 'model.levels.0.growth'"),
        ("training.lr=-1", "training.lr is -1.0"),
        ("training.lr=NaN", "training.lr is nan"),
        ("training.minutes=NaN", "training.minutes is nan, but it must be above zero"),
        ("objective.wasserstein=NaN", "objective.wasserstein"),
        ("objective.wasserstein=Infinity", "objective.wasserstein is inf, but it must be a finite number"),
        ("objective.waserstein=1", "did you mean 'wasserstein'"),
        ("objective=3", "objective must be a table"),
        ("data.shift=-1", "data.shift is -1, but it must be a number of pixels"),
    ],
)
def test_a_wrong_setting_is_refused_with_one_sentence_that_names_the_field(assignment, says):
    with pytest.raises(InputError) as error:
        with_setting(BASE, assignment)
    sentence = str(error.value)
    assert says in sentence
    assert sentence.endswith((".", "?"))
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("assignment", "field"),
    [
        ("model.levels.0.capsules=0", "model.levels.0.capsules"),
        ("model.nonlinearity=relu", "model.nonlinearity"),
        ("model.routing.noise_std=Infinity", "model.routing.noise_std"),
        ("model.routing.dropout=1", "model.routing.dropout"),
        ("model.levels=[]", "model.levels"),
    ],
)
def test_a_network_that_cannot_be_built_is_refused_with_the_field(assignment, field):
    with pytest.raises(InputError, match=field):
        with_setting(BASE, assignment)


@pytest.mark.slow
@given(st.text(max_size=30))
def test_any_text_as_a_setting_is_understood_or_refused_but_never_a_crash(text):
    for assignment in (text, f"training.{text}", f"model.levels.{text}", f"training.lr={text}", f"model.levels={text}"):
        with contextlib.suppress(InputError):
            with_setting(BASE, assignment)


def test_nothing_near_lists_what_there_is():
    assert suggestion("qqq", ["alpha", "beta"]) == "; choose one of alpha, beta."
    assert suggestion("alpa", ["alpha", "beta"]) == "; did you mean 'alpha'?"
    assert suggestion("ALPA", ["Alpha", "beta"]) == "; did you mean 'Alpha'?"


class Colour(Enum):
    red = "red"


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (int | float, 1),
        (int | str | None, None),
        (Literal["a"], "a"),
        (dict, {}),
        (dict[str, int], {}),
        (Colour, "red"),
    ],
)
def test_a_field_whose_type_cannot_be_stored_is_refused_by_name(hint, value):
    config = make_dataclass("Config", [("filters", hint)])
    with pytest.raises(InputError, match=r"model\.filters .*int, float, bool, str"):
        from_dict(config, {"filters": value}, "model")


def test_a_table_is_wanted_where_a_dataclass_is():
    @dataclass(frozen=True)
    class Empty:
        pass

    with pytest.raises(InputError, match="Empty must be a table of fields"):
        from_dict(Empty, 3)
