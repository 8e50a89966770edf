"""What cannot be built is refused in one sentence that names the field."""

import math
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twins import tiny
from wcapsnet.errors import InputError
from wcapsnet.network import Level, RoutingConfig, WCapsNetConfig


def refused(field, **changes):
    with pytest.raises(InputError) as error:
        tiny(**changes)
    message = str(error.value)
    assert message.startswith(f"model.{field} "), message
    assert message.endswith(".")
    assert "\n" not in message
    assert ". " not in message  # one sentence
    return message


not_whole = st.one_of(
    st.floats(), st.booleans(), st.none(), st.text(max_size=3), st.just([1]), st.just("8"), st.just(10.0)
)
not_a_number = st.one_of(st.none(), st.booleans(), st.text(max_size=3), st.just([0.1]), st.just(math.nan))


def below(least):
    return st.one_of(st.integers(-1000, least - 1), not_whole)


COUNTS = {
    "classes": 2,
    "channels": 1,
    "height": 8,
    "width": 8,
    "init_channels": 1,
    "dense_layers": 1,
    "critic_channels": 1,
}


@pytest.mark.parametrize("field", COUNTS)
@given(data=st.data())
def test_a_count_is_a_whole_number_of_at_least_the_least(field, data):
    message = refused(field, **{field: data.draw(below(COUNTS[field]))})
    assert f"at least {COUNTS[field]}" in message


@pytest.mark.parametrize("field", COUNTS)
def test_the_least_count_itself_is_accepted(field):
    assert getattr(tiny(**{field: COUNTS[field]}), field) == COUNTS[field]


@pytest.mark.parametrize("field", ["capsules", "growth", "dimension", "stride"])
@given(data=st.data())
def test_a_row_of_the_levels_is_named_with_its_place(field, data):
    bad = replace(Level(2, 2, 3, 1), **{field: data.draw(below(1))})
    refused(f"levels.1.{field}", levels=(Level(2, 2, 3, 2), bad))


@given(st.integers(1, 40), st.integers(8, 12), st.integers(8, 12))
def test_a_stride_is_at_most_the_smaller_side_of_the_map_it_strides_over(stride, height, width):
    levels, side = (Level(1, 1, 1, 2), Level(1, 1, 1, stride)), (min(height, width) + 1) // 2
    if stride > side:
        assert f"at most {side}" in refused("levels.1.stride", levels=levels, height=height, width=width)
    else:
        assert tiny(levels=levels, height=height, width=width).levels == levels


@pytest.mark.parametrize("levels", [(), None, 3, "four", (3,), (None,), ((2, 2, 3, 1),)])
def test_levels_are_at_least_one_row(levels):
    with pytest.raises(InputError, match=r"^model\.levels.* is .*\.$"):
        tiny(levels=levels)


PROBABILITIES = ["critic_dropout", "projection_dropout"]
not_a_probability = st.one_of(
    st.floats(max_value=0, exclude_max=True), st.floats(min_value=1), st.integers(1, 9), not_a_number
)


@pytest.mark.parametrize("field", PROBABILITIES)
@given(value=not_a_probability)
def test_a_dropout_is_a_probability_below_one(field, value):
    refused(field, **{field: value})


@given(not_a_probability)
def test_the_dropout_of_the_weights_is_a_probability_below_one(value):
    refused("routing.dropout", routing=RoutingConfig(dropout=value))


@given(
    st.one_of(
        st.floats(max_value=0, exclude_max=True),
        st.floats(min_value=1, exclude_min=True),
        st.integers(2, 9),
        not_a_number,
    )
)
def test_the_share_of_noise_lies_between_zero_and_one(value):
    refused("routing.noise_share", routing=RoutingConfig(noise_share=value))


@given(st.one_of(st.floats(max_value=0, exclude_max=True), not_a_number, st.just(math.inf)))
def test_the_standard_deviation_of_noise_is_a_number_of_zero_or_more(value):
    refused("routing.noise_std", routing=RoutingConfig(noise_std=value))


@pytest.mark.parametrize("value", [0, 0.0, 0.5])
def test_rates_may_be_zero(value):
    config = tiny(RoutingConfig(noise_share=value, noise_std=value, dropout=value), critic_dropout=value)
    assert config.routing.dropout == value


names = st.one_of(st.text(max_size=5), st.none(), st.integers(), st.just("Tilt"), st.just(["tilt"]))


@given(names)
def test_an_unknown_nonlinearity_is_refused_with_the_known_ones(value):
    assert "squash, tilt" in refused("nonlinearity", nonlinearity=value)


@given(names)
def test_an_unknown_weighting_is_refused_with_the_known_ones(value):
    assert "softmax, normalized" in refused("routing.weighting", routing=RoutingConfig(weighting=value))


@given(names)
def test_an_unknown_fitness_is_refused_with_the_known_ones(value):
    message = refused("routing.fitness", routing=RoutingConfig(fitness=value))
    assert "critic, joint, random, constant" in message


@given(st.one_of(st.none(), st.integers(), st.text(max_size=3)))
def test_a_switch_is_true_or_false(value):
    refused("extra_class", extra_class=value)
    refused("max_pooling", max_pooling=value)
    refused("routing.stop_gradient", routing=RoutingConfig(stop_gradient=value))


@pytest.mark.parametrize("value", [None, 4, [4], (0,), (4, 2.5), ("4",), (4, 8, 16, 32, 64)])
def test_a_stem_has_channels_and_leaves_a_map(value):
    with pytest.raises(InputError, match=r"^model\.stem[.01]* is .*\.$"):
        tiny(stem=value)


@pytest.mark.parametrize("value", [(), (4,), (4, 5, 6), (0, 5), (4, 0), (4, -1), (4, 2.5), ("4", 5), None, 4])
def test_the_decoder_has_two_widths(value):
    with pytest.raises(InputError, match=r"^model\.decoder_channels[.01]* is .*\.$"):
        tiny(decoder_channels=value)


@pytest.mark.parametrize("value", [None, "softmax", {}])
def test_the_routing_is_a_routing_configuration(value):
    with pytest.raises(InputError, match=r"^model\.routing is .*\.$"):
        WCapsNetConfig(routing=value)


def test_a_configuration_error_is_a_value_error():
    assert issubclass(InputError, ValueError)


def test_a_configuration_cannot_be_changed_only_replaced():
    config = WCapsNetConfig()
    with pytest.raises(FrozenInstanceError):
        config.classes = 5
    assert replace(config, classes=5).classes == 5
    with pytest.raises(InputError):
        replace(config, classes=1)


@given(
    st.integers(8, 64),
    st.integers(8, 64),
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
)
def test_maps_are_the_sides_divided_by_the_strides_and_rounded_up(height, width, strides):
    if min(height, width) < 19:  # then a third stride of 3 would find less than three rows
        strides = strides[:2]
    maps = tiny(height=height, width=width, levels=tuple(Level(1, 1, 1, s) for s in strides)).maps()
    for stride, (rows, columns) in zip(strides, maps, strict=True):
        assert (rows - 1) * stride < height <= rows * stride
        assert (columns - 1) * stride < width <= columns * stride
        height, width = rows, columns


@pytest.mark.parametrize(("classes", "extra", "outputs"), [(10, True, 11), (10, False, 10), (2, True, 3)])
def test_outputs_are_the_classes_and_none_of_these(classes, extra, outputs):
    assert tiny(classes=classes, extra_class=extra).outputs == outputs
