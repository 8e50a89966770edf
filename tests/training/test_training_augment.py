"""Augmentations against literal loops and by their properties, and the order of an epoch."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wcapsnet.data import DataConfig, Split
from wcapsnet.data.augment import Mixed, augment, mirror, shift
from wcapsnet.data.device_data import DeviceSplit, epoch_order, normalize
from wcapsnet.data.types import Augmentations
from wcapsnet.errors import InputError
from wcapsnet.parts import augmentation


def pictures(m=5, ch=2, h=4, w=6, dtype=torch.float32):
    return torch.randint(1, 100, (m, ch, h, w), generator=torch.Generator().manual_seed(0)).to(dtype)


def mirror_twin(images, mirrored):
    result = images.clone()
    m, _, _, w = images.shape
    for sample in range(m):
        if mirrored[sample]:
            for x in range(w):
                result[sample, :, :, x] = images[sample, :, :, w - 1 - x]
    return result


def shift_twin(images, down, right):
    result = torch.zeros_like(images)
    m, _, h, w = images.shape
    for sample in range(m):
        for y in range(h):
            for x in range(w):
                i, j = y - int(down[sample]), x - int(right[sample])
                if 0 <= i < h and 0 <= j < w:
                    result[sample, :, y, x] = images[sample, :, i, j]
    return result


DTYPES = [torch.uint8, torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_mirror_equals_the_loop(dtype):
    images, mirrored = pictures(dtype=dtype), torch.tensor([True, False, True, True, False])
    result = mirror(images, mirrored)
    assert result.dtype == dtype
    assert torch.equal(result, mirror_twin(images, mirrored))
    assert not torch.equal(result[0], images[0])
    assert torch.equal(result[1], images[1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_shift_equals_the_loop(dtype):
    images = pictures(m=25, dtype=dtype)
    down, right = torch.meshgrid(torch.arange(-2, 3), torch.arange(-2, 3), indexing="ij")
    down, right = down.flatten(), right.flatten()
    result = shift(images, down, right, 2)
    assert result.dtype == dtype
    assert result.shape == images.shape
    assert result.is_contiguous()
    assert torch.equal(result, shift_twin(images, down, right))


@given(st.integers(1, 7), st.integers(1, 7), st.integers(1, 9), st.data())
def test_shift_equals_the_loop_for_any_size_even_beyond_the_picture(h, w, limit, data):
    images = pictures(m=3, ch=1, h=h, w=w)
    moves = st.lists(st.integers(-limit, limit), min_size=3, max_size=3)
    down, right = torch.tensor(data.draw(moves)), torch.tensor(data.draw(moves))
    assert torch.equal(shift(images, down, right, limit), shift_twin(images, down, right))


def test_a_shift_by_one_down_and_right_worked_by_hand():
    image = torch.tensor([[[[1, 2], [3, 4]]]])
    assert shift(image, torch.tensor([1]), torch.tensor([0]), 1).tolist() == [[[[0, 0], [1, 2]]]]
    assert shift(image, torch.tensor([0]), torch.tensor([1]), 1).tolist() == [[[[0, 1], [0, 3]]]]


def test_a_shift_by_nothing_and_mirroring_twice_change_nothing():
    images, nothing = pictures(), torch.zeros(5, dtype=torch.int64)
    assert torch.equal(shift(images, nothing, nothing, 3), images)
    everything = torch.ones(5, dtype=torch.bool)
    assert torch.equal(mirror(mirror(images, everything), everything), images)


def test_without_augmentation_not_even_random_numbers_are_drawn():
    images, before = pictures(), torch.get_rng_state()
    assert augment(images, {}) is images
    assert torch.equal(torch.get_rng_state(), before)


def test_all_offsets_and_both_sides_are_reached_and_equally_often():
    torch.manual_seed(0)
    # one bright pixel off the centre tells shift and mirroring apart
    images = torch.zeros(5000, 1, 9, 9)
    images[:, 0, 4, 3] = 1
    result = augment(images, {"mirror": 0.5, "shift": 2})
    assert (result.sum((1, 2, 3)) == 1).all()
    rows, columns = result.flatten(1).argmax(1) // 9, result.flatten(1).argmax(1) % 9
    assert torch.equal(rows.unique(), torch.arange(2, 7))
    assert rows.bincount(minlength=9)[2:7].min() > 850  # a fifth each is 1000
    assert torch.equal(columns.unique(), torch.arange(1, 8))  # 3 and its mirror 5, each ±2
    assert columns.bincount(minlength=9)[1:8].tolist() == pytest.approx([500, 500, 1000, 1000, 1000, 500, 500], rel=0.2)
    # rows and columns are drawn apart
    assert len({(int(y), int(x)) for y, x in zip(rows, columns, strict=True)}) == 35


def test_every_image_has_its_own_draw_and_the_labels_side_is_not_touched():
    torch.manual_seed(0)
    images = pictures(m=1, h=8, w=8).expand(64, -1, -1, -1).clone()
    kept = images.clone()
    result = augment(images, {"mirror": 0.5, "shift": 2})
    assert len({tuple(image.flatten().tolist()) for image in result}) > 20
    assert torch.equal(images, kept)


def test_images_are_mirrored_with_the_probability_asked_for():
    torch.manual_seed(0)
    images = pictures(m=1).expand(4000, -1, -1, -1)
    flipped = (augment(images, {"mirror": 0.2}) != images).flatten(1).any(1).double().mean()
    assert abs(float(flipped) - 0.2) < 0.03
    assert torch.equal(augment(images, {"mirror": 0.0}), images)
    assert torch.equal(augment(images, {"mirror": 1.0}), images.flip(3))


def test_augmentations_come_in_the_order_of_their_names_and_ones_own_by_its_name(monkeypatch):
    monkeypatch.setitem(augmentation, "add", lambda images, amount: images + amount)
    monkeypatch.setitem(augmentation, "times", lambda images, amount: images * amount)
    images = pictures()
    assert torch.equal(augment(images, {"add": 1, "times": 3}), (images + 1) * 3)
    assert torch.equal(augment(images, {"times": 3, "add": 1}), images * 3 + 1)
    data = DataConfig(mirror=True, shift=4, augment=Augmentations(times=3))
    assert data.augmentations() == {"mirror": 0.5, "shift": 4, "times": 3.0}
    assert list(data.augmentations()) == ["mirror", "shift", "times"]
    assert DataConfig().augmentations() == {}


def test_an_unknown_augmentation_is_refused_with_the_nearest_known_one():
    with pytest.raises(InputError, match="did you mean 'mirror'"):
        Augmentations(miror=0.5)


@pytest.mark.parametrize("name", ["mirror", "erase", "mixup", "cutmix"])
def test_probabilities_and_shares_are_at_most_one(name):
    assert Augmentations({name: 1})[name] == 1
    with pytest.raises(InputError, match=f"data.augment.{name} is 1.5, but it must be a number between 0 and 1"):
        Augmentations({name: 1.5})


PARTS = {"mirror": 0.5, "shift": 2, "zoom": 0.3, "rotate": 15, "colour": 0.3, "erase": 0.4, "mixup": 1, "cutmix": 1}


def of(answer):
    return answer.images if isinstance(answer, Mixed) else answer


@pytest.mark.parametrize("name", PARTS)
def test_every_augmentation_keeps_shape_and_type_changes_something_and_nothing_at_strength_zero(name):
    torch.manual_seed(0)
    images = torch.rand(8, 3, 12, 10)
    changed = of(augment(images, {name: PARTS[name]}))
    assert changed.shape == images.shape
    assert changed.dtype == images.dtype
    assert not torch.allclose(changed, images)
    torch.testing.assert_close(of(augment(images, {name: 0})), images)
    if name != "colour":  # which may leave the range
        assert 0 <= changed.min() <= changed.max() <= 1


def test_a_rotation_by_a_right_angle_turns_the_picture(monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda *shape, device=None: torch.ones(shape))  # the largest angle
    images = pictures(h=5, w=5)
    torch.testing.assert_close(augment(images, {"rotate": 90}), images.rot90(1, (2, 3)), atol=1e-4, rtol=0)


def test_a_zoom_by_two_shows_the_middle_at_twice_the_size(monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda *shape, device=None: torch.ones(shape))
    image = torch.zeros(1, 1, 8, 8)
    image[:, :, 2:6, 2:6] = 1
    zoomed = augment(image, {"zoom": 1.0})
    torch.testing.assert_close(zoomed[:, :, 1:7, 1:7], torch.ones(1, 1, 6, 6))


def test_erasing_clears_a_rectangle_of_the_given_share_of_each_side():
    torch.manual_seed(0)
    hidden = augment(torch.ones(400, 2, 20, 10), {"erase": 0.4}) == 0
    assert torch.equal(hidden[:, 0], hidden[:, 1])
    rows, columns = hidden[:, 0].any(2).sum(1), hidden[:, 0].any(1).sum(1)
    assert torch.equal(hidden[:, 0].sum((1, 2)), rows * columns)  # a rectangle
    assert (int(rows.max()), int(columns.max())) == (8, 4)  # whole, unless the border cuts it


def test_colours_keep_gray_gray_and_every_image_has_its_own():
    torch.manual_seed(0)
    gray = torch.rand(1, 1, 6, 6).expand(16, 3, -1, -1)
    changed = augment(gray, {"colour": 0.4})
    torch.testing.assert_close(changed, changed.mean(1, keepdim=True).expand_as(changed))
    assert len({round(float(image.mean()), 5) for image in changed}) == 16


@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_a_mixed_batch_has_the_share_that_it_says_of_each_image_and_its_neighbour(name):
    torch.manual_seed(1)
    images = torch.arange(4.0).view(4, 1, 1, 1).expand(4, 1, 16, 16)
    mixed = augment(images, {name: 1})
    own, neighbour = torch.arange(4.0), torch.arange(4.0).roll(1)
    assert 0 < mixed.share < 1
    torch.testing.assert_close(mixed.images.mean((1, 2, 3)), mixed.share * own + (1 - mixed.share) * neighbour)
    assert float(augment(images, {name: 0}).share) == 1
    with pytest.raises(InputError, match="mixes images twice"):
        augment(images, {"mixup": 1, "cutmix": 1})


# ── the loader ──


def test_bytes_become_normalised_floats():
    images = torch.tensor([[[[0, 255]], [[51, 102]]]], dtype=torch.uint8)
    split = DeviceSplit(Split(images, torch.tensor([1])), (0.5, 0.2), (0.25, 0.1), torch.device("cpu"))
    taken, labels = split.take(torch.tensor([0]))
    torch.testing.assert_close(taken, torch.tensor([[[[-2.0, 2.0]], [[0.0, 2.0]]]]))
    assert labels.tolist() == [1]
    assert split.images.dtype == torch.uint8  # what lies on the device
    assert normalize(images, split.mean, split.std).dtype == torch.float32


@given(st.integers(1, 200), st.integers(1, 80), st.integers(0, 2**63 - 1), st.integers(0, 400))
def test_an_epoch_sees_no_image_twice_and_leaves_out_less_than_a_batch(images, batch_size, seed, epoch):
    order = epoch_order(images, batch_size, seed, epoch)
    assert order.shape[1] == min(batch_size, images)
    assert len(order) == images // order.shape[1] >= 1
    seen = order.flatten()
    assert len(seen.unique()) == len(seen)
    assert 0 <= int(seen.min()) <= int(seen.max()) < images


def test_the_order_depends_on_seed_and_epoch_and_on_nothing_else():
    order = epoch_order(100, 10, 3, 5)
    torch.manual_seed(77)
    torch.rand(3)
    before = torch.get_rng_state()
    assert torch.equal(epoch_order(100, 10, 3, 5), order)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(epoch_order(100, 10, 3, 6), order)
    assert not torch.equal(epoch_order(100, 10, 4, 5), order)


def test_what_is_left_out_of_one_epoch_is_seen_in_another():
    seen = {int(i) for epoch in range(20) for i in epoch_order(25, 10, 0, epoch).flatten()}
    assert seen == set(range(25))


def test_seeds_and_epochs_do_not_share_orders():
    orders = {tuple(epoch_order(30, 30, seed, epoch)[0].tolist()) for seed in range(10) for epoch in range(10)}
    assert len(orders) == 100
