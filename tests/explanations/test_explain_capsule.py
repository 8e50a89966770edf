"""One capsule: its images, its classes, its neighbours, what its elements encode."""

from dataclasses import replace

import pytest
import torch
from explain_toys import Partial, quadrants, split_of, toy

from twins import close, tiny
from wcapsnet import InputError, Level, WCapsNet
from wcapsnet.explanations import (
    decode,
    explain_capsule,
    explain_image,
    nearest,
    specialization,
    survey,
    traverse,
    vector_range,
)


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    network = WCapsNet(tiny(levels=(Level(3, 2, 4, 2), Level(2, 2, 5, 1)), channels=3, width=10))
    for _ in range(3):
        network(torch.randn(8, 3, 8, 10))
    return network.eval()


@pytest.fixture(scope="module")
def seen(network):
    torch.manual_seed(1)
    return survey(network, split_of(torch.rand(40, 3, 8, 10) * 2 - 1, (torch.arange(40) % 3).tolist()))


def test_images_and_classes_of_a_capsule_worked_by_hand():
    # the first level gives capsule 0 ¾ of a bright image and ¼ of a dark one
    network = toy()
    network.routers[0].critic = Partial()
    bright, dark = quadrants(1, 1, 1, 0), quadrants(-1, 0, -1, -1)
    seen = survey(network, split_of(torch.stack([dark, bright, dark, bright, bright, bright]), [0, 1, 0, 1, 1, 1]))
    first = explain_capsule(seen, specialization(seen), level=0, capsule=0, count=4)
    assert first.images.tolist() == [1, 3, 4, 5]
    close(first.weights, torch.full((4,), 0.75), 1e-6)
    assert first.wins == 4
    close(first.mean, torch.tensor([0.25, 0.75]), 1e-6)
    assert first.classes == (1,)
    assert explain_capsule(seen, specialization(seen), level=0, capsule=1).classes == (0,)
    # the last level weighs every image alike: its capsules have no classes
    assert explain_capsule(seen, specialization(seen), level=1, capsule=0).classes == ()


def test_the_images_of_a_capsule_are_those_with_its_largest_weights(seen):
    found = specialization(seen)
    for level, b in enumerate(seen.weights):
        for capsule in range(b.shape[1]):
            one = explain_capsule(seen, found, level, capsule, count=7)
            assert len(one.images) == 7
            close(one.weights, b[one.images, capsule], 0)
            assert (one.weights.diff() <= 0).all()
            assert one.equal == sum(b[:, capsule] >= 0.99 * b[:, capsule].max())
            largest = b[:, capsule].sort().values[-7]
            assert one.weights[-1] >= min(largest, 0.99 * b[:, capsule].max())
        wins = [explain_capsule(seen, found, level, c).wins for c in range(b.shape[1])]
        assert wins == [sum(float(one[c]) >= 0.99 * float(one.max()) for one in b) for c in range(b.shape[1])]


def test_favourites_that_weigh_the_same_are_spread_over_the_images(seen):
    # a block that is fit for the images 10 to 39, sorted by class, with rounding noise; two of them are shown
    weight = torch.where(torch.arange(40) < 10, 0.2, 0.4) + 1e-6 * torch.rand(40)
    saturated = replace(seen, weights=(torch.stack([weight, (1 - weight) / 2, (1 - weight) / 2], 1), seen.weights[1]))
    one = explain_capsule(saturated, specialization(saturated), 0, 0, count=2)
    assert one.equal == 30
    assert sorted(one.images.tolist()) == [10, 25]
    # fewer that tie than are shown: the next heaviest follow
    few = explain_capsule(saturated, specialization(saturated), 0, 0, count=35)
    assert set(few.images[:30].tolist()) == set(range(10, 40))


def test_wins_of_the_last_level_are_by_block_weight_and_not_by_the_decoded_vector():
    # in the toy both blocks weigh ½, and the decoded vector is one of them
    seen = survey(toy(), split_of(torch.stack([quadrants(1, 0, 0, 1)] * 3), [0, 0, 1]))
    blocks = [explain_capsule(seen, specialization(seen), 1, capsule) for capsule in range(2)]
    assert [one.wins for one in blocks] == [3, 3]
    assert sorted(one.decoded for one in blocks) == [0, 3]
    assert explain_capsule(seen, specialization(seen), 0, 1).decoded == 0


def test_the_nearest_image_of_a_survey_is_the_image_itself(network, seen):
    torch.manual_seed(1)
    image = ((torch.rand(40, 3, 8, 10) * 2 * 127.5).round() / 127.5 - 1)[17]
    near = nearest(seen, explain_image(network, image).vector, 3)
    assert near.images[0] == 17
    assert near.distances[0] < 1e-3
    assert (near.distances.diff() >= 0).all()
    expected = (seen.vectors[near.images] - seen.vectors[17]).norm(dim=1)
    close(near.distances, expected, atol=1e-4)


def test_decoding_the_best_vector_gives_the_reconstruction(network):
    one = explain_image(network, torch.randn(3, 8, 10))
    close(decode(network, one.vector[None], one.position[None])[0], one.reconstruction, 1e-5, 1e-6)


def test_a_traversal_changes_one_element_at_a_time(network):
    torch.manual_seed(2)
    vector, position = torch.randn(5), torch.tensor([0.5, -1.0])
    low, high = vector - 1, vector + torch.tensor([3.0, 1.0, 1.0, 1.0, 1.0])
    walk = traverse(network, vector, position, low, high, steps=3)
    assert walk.images.shape == (5, 3, 3, 8, 10)
    close(walk.values[0], torch.stack([vector[0] - 1, vector[0] + 1, vector[0] + 3]), 1e-6)
    middle = decode(network, vector[None], position[None])[0]
    for element in range(1, 5):  # half-way between vector − 1 and vector + 1 lies the vector itself
        close(walk.images[element, 1], middle, atol=1e-5)
    moved = vector.clone()
    moved[0] += 3
    close(walk.images[0, 2], decode(network, moved[None], position[None])[0], atol=1e-5)
    close(walk.change[0], (walk.images[0, 2] - walk.images[0, 0]).abs().mean(), 1e-6)


def test_the_range_of_a_block_is_over_the_images_in_which_it_is_decoded(seen):
    for capsule in seen.places[:, 0].unique().tolist():
        of_block = seen.places[:, 0] == capsule
        seen_range = vector_range(seen, capsule)
        close(seen_range.center, torch.quantile(seen.vectors[of_block], 0.5, dim=0), 1e-6)
        assert (seen_range.low <= seen_range.center).all()
        assert (seen_range.center <= seen_range.high).all()
        assert of_block[seen_range.typical]


def test_a_block_that_is_never_decoded_has_no_range():
    # b = 4/20 at the top left of capsule 1 and at the bottom right of capsule 0; the image is bright at the top left
    seen = survey(toy(), split_of(torch.stack([quadrants(1, 0, 0, 0)]), [0]))
    assert seen.places.tolist() == [[1, 0, 0]]
    with pytest.raises(InputError, match="block 0 of the last level"):
        vector_range(seen, 0)
