"""One image: weights, contributions, heat maps, blocks switched off."""

import json

import pytest
import torch
from explain_toys import LAST, quadrants, toy

from twins import close, quiet
from wcapsnet import Level, RoutingConfig, WCapsNet
from wcapsnet.explanations import explain_image, explain_images, over_image, without_each_block

VARIANTS = {
    "softmax": RoutingConfig(),
    "normalized": RoutingConfig(weighting="normalized"),
    "random": RoutingConfig(fitness="random", weighting="normalized"),
    "uniform": RoutingConfig(fitness="constant"),
}
SHAPES = {
    "one level": {"levels": (Level(3, 2, 4, 2),), "height": 9, "width": 13},
    "one capsule a level": {"levels": (Level(1, 2, 4, 2), Level(1, 2, 3, 1))},
    "a hundred classes": {"classes": 100, "channels": 3, "height": 12},
    "four levels": {"levels": (Level(3, 2, 4, 2), Level(2, 2, 4, 1), Level(2, 2, 3, 2), Level(4, 2, 3, 1))},
    "no extra class": {"classes": 2, "extra_class": False, "channels": 1},
    "a stem": {"stem": (4, 6), "max_pooling": True, "height": 12},
}


def network_of(routing=None, **changes):
    torch.manual_seed(1)
    network = WCapsNet(quiet(routing, **changes))
    torch.nn.init.normal_(network.projection, std=3.0)
    for _ in range(3):  # statistics that are not those of a new network
        network(torch.randn(8, network.config.channels, network.config.height, network.config.width))
    return network.eval()


def images_for(network, m=3):
    torch.manual_seed(2)
    return torch.randn(m, network.config.channels, network.config.height, network.config.width)


both_ways = [
    *(pytest.param({"fitness": v.fitness, "weighting": v.weighting}, {}, id=name) for name, v in VARIANTS.items()),
    *(pytest.param(None, changes, id=name) for name, changes in SHAPES.items()),
    pytest.param({"per_position": True, "sharpness": (6.0,)}, {}, id="weights per position"),
]


def test_what_each_vector_adds_to_each_logit_worked_by_hand():
    # quadrants (1 0 / 0 2), level 1 routes on 2.5 of them: q = (2.5 0 / 0 5)
    # p_0 = (1·2.5 + 4·5)/20 = 1.125,  p_1 = (4·2.5 + 1·5)/20 = .75
    one = explain_image(toy(), quadrants(1, 0, 0, 2))
    close(one.logits, torch.tensor([1.125, 0.75]), 1e-6)
    close(one.contributions[0], torch.tensor([[[0.125, 0.0], [0.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]]]), 1e-6)
    close(one.contributions[1], torch.tensor([[[0.0, 0.0], [0.0, 0.0]], [[0.5, 0.0], [0.0, 0.25]]]), 1e-6)
    assert one.predicted == 0
    close(one.weights[0], torch.tensor([0.25, 0.75]), 1e-6)
    close(one.weights[1], LAST / 20, 1e-6)
    close(one.fitness[0].exp(), torch.tensor([1.0, 3.0]), 1e-6)
    close(one.block_weights(1), torch.tensor([0.5, 0.5]), 1e-6)


@pytest.mark.parametrize(
    ("image", "name", "place", "vector"),
    [((1, 0, 0, 2), "cat", (0, 1, 1), (5.0, 0.0)), ((2, 0, 0, 1), "dog", (1, 0, 0), (0.0, 5.0))],
)
def test_the_decoded_vector_worked_by_hand(image, name, place, vector):
    # 4/20 is the largest weight: capsule 0 at the bottom right, which adds to class 0, and capsule 1 at the top left,
    # which adds to class 1. The predicted class decides.
    one = explain_image(toy(), quadrants(*image))
    assert one.place == place
    assert one.tied.nonzero().tolist() == [[0, 1, 1], [1, 0, 0]]
    assert one.winners == ((1,), (0, 1))  # both blocks of the last level weigh ½
    close(one.vector, torch.tensor(vector), 1e-6)
    n, i, j = place
    said = f"decoded: block {n}, row {i}, column {j}; one of 2 equally weighted vectors, the one that adds most to"
    assert one.decoded(["cat", "dog"]) == f"{said} '{name}'"
    facts = explain_image(toy(), quadrants(*image), without=False).summary(["cat", "dog"])
    assert facts["levels"][0]["probability_without"] is None
    assert facts["tied"] == {"count": 2, "places": [[0, 1, 1], [1, 0, 0]]}
    assert (facts["best_capsule"]["capsule"], facts["best_capsule"]["row"], facts["best_capsule"]["column"]) == place
    assert facts["best_capsule"]["chosen"] == one.decoded(["cat", "dog"])


def test_switching_each_block_off_worked_by_hand():
    # level 1 without capsule 0 routes on 3x, without capsule 1 on x: the logits (1.125, .75) times 3/2.5 and 1/2.5
    # level 2 without capsule 0: b_1 doubles, p = (0, 1.5); without capsule 1: p = (2.25, 0)
    one = explain_image(toy(), quadrants(1, 0, 0, 2))
    close(one.without_logits[0], torch.tensor([[1.35, 0.9], [0.45, 0.3]]), 1e-6)
    close(one.without[0], torch.tensor([[1.35, 0.9], [0.45, 0.3]]).softmax(1), 1e-6)
    close(one.without[1], torch.tensor([[0.0, 1.5], [2.25, 0.0]]).softmax(1), 1e-6)


@pytest.mark.parametrize(("routing", "changes"), both_ways)
def test_an_explanation_says_what_the_network_says_and_contributions_add_up_to_it(routing, changes):
    network = network_of(routing, **changes)
    images = images_for(network)
    with torch.no_grad():
        output = network(images)
    for m, one in enumerate(explain_images(network, images)):
        close(one.logits, output.logits[m], 1e-5, 1e-6)
        close(one.probabilities, output.logits[m, : network.config.classes].softmax(0), 1e-5, 1e-6)
        close(one.reconstruction, output.reconstruction[m], 1e-5, 1e-6)
        close(one.vector, output.best.vector[m], 1e-5, 1e-6)
        assert one.contributions.shape == (network.config.outputs, *one.weights[-1].shape)
        rounding = 32 * torch.finfo(torch.float32).eps * one.contributions.abs().sum((1, 2, 3))
        assert ((one.contributions.sum((1, 2, 3)) - one.logits).abs() <= rounding).all()
        for a, b, routing_ in zip(one.fitness, one.weights, output.routings, strict=True):
            close(a, routing_.fitness[m], 1e-6)
            close(b, routing_.weights[m], 1e-6)


def logits_keeping(network, images, keep):
    return network(images, routes=network.keeping(keep)).logits


@pytest.mark.parametrize(("routing", "changes"), both_ways)
def test_switching_off_the_quick_way_is_switching_off_by_the_whole_network(routing, changes):
    network = network_of(routing, **changes)
    images = images_for(network)
    with torch.no_grad():
        quick = without_each_block(network, images)
        for index, level in enumerate(network.config.levels):
            assert quick[index].shape == (len(images), level.capsules, network.config.outputs)
            if level.capsules == 1:
                assert quick[index].isnan().all()
                continue
            for off in range(level.capsules):
                keep = [None] * len(network.config.levels)
                keep[index] = torch.arange(level.capsules) != off
                output = network(images, routes=network.keeping(keep))
                assert (output.routings[index].weights[:, off] == 0).all()
                close(output.routings[index].weights.flatten(1).sum(1), torch.ones(len(images)), 1e-5, 1e-6)
                close(quick[index][:, off], output.logits, 1e-4, 1e-4)


def test_blocks_are_switched_off_one_after_another():
    network = network_of(levels=(Level(3, 2, 4, 2), Level(2, 2, 4, 1), Level(3, 2, 3, 1)))
    image = images_for(network)[0]
    keep = [torch.tensor([True, False, True]), torch.tensor([False, True]), None]
    one = explain_image(network, image, keep=keep)
    with torch.no_grad():
        close(one.logits, logits_keeping(network, image[None], keep)[0], 0)
        assert one.weights[0][1] == 0
        close(one.without_logits[0][1], one.logits, 1e-4, 1e-5)  # it was off already
        keep[0] = torch.tensor([False, False, True])
        close(one.without_logits[0][0], logits_keeping(network, image[None], keep)[0], 1e-4, 1e-5)
    assert one.without_logits[1][1].isnan().all()  # none would be left
    assert one.without_logits[1][0].isfinite().all()
    rounding = 32 * torch.finfo(torch.float32).eps * one.contributions.abs().sum((1, 2, 3))
    assert ((one.contributions.sum((1, 2, 3)) - one.logits).abs() <= rounding).all()


def test_one_hot_weights_stay_finite_without_the_block_that_has_them_all():
    network = network_of(levels=(Level(3, 2, 4, 2), Level(3, 2, 3, 1)))
    for router in network.routers:
        router.weighting = lambda a: (a == a.flatten(1).amax(1).view(-1, *[1] * (a.dim() - 1))).float()
    image = images_for(network)[0]
    off = torch.tensor([True, False, True])
    for keep in (None, [off, off]):
        one = explain_image(network, image, keep=keep)
        for level in range(2):
            for n in range(3):
                masks = [off if keep else torch.ones(3, dtype=torch.bool) for _ in range(2)]
                masks[level] = masks[level] & (torch.arange(3) != n)
                close(one.without_logits[level][n], logits_keeping(network, image[None], masks)[0], 1e-4, 1e-5)
        assert all(logits.isfinite().all() for logits in one.without_logits)


@pytest.mark.parametrize("stem", [(), (4, 6)])
def test_heat_maps_are_as_large_as_the_image_and_keep_what_is_even(stem):
    network = network_of(height=10, width=14, stem=stem)
    one = explain_image(network, images_for(network)[0])
    assert one.heat().shape == (2, 10, 14)
    assert one.contribution_heat().shape == (2, 10, 14)
    close(over_image(torch.full((2, 5, 7), 0.3), (10, 14), 2), torch.full((2, 10, 14), 0.3), 1e-6)
    # (0 1) over four columns: pixel centres at ¼ and ¾ of a cell
    close(over_image(torch.tensor([[[0.0, 1.0]]]), (1, 4), 2), torch.tensor([[[0.0, 0.25, 0.75, 1.0]]]), 1e-6)
    # a position that reaches over the border is cut there, and does not move the others
    close(over_image(torch.tensor([[[0.0, 1.0]]]), (1, 3), 2), torch.tensor([[[0.0, 0.25, 0.75]]]), 1e-6)


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
def test_a_summary_is_plain_values(changes):
    network = network_of(**changes)
    names = [f"class {r}" for r in range(network.config.classes)]
    one = explain_image(network, images_for(network)[0])
    facts = json.loads(json.dumps(one.summary(names), allow_nan=False))
    assert facts["class"] == names[one.predicted]
    assert len(facts["levels"]) == len(network.config.levels)
    assert sum(facts["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    total = torch.tensor(facts["contributions"]).sum()
    assert float(total) == pytest.approx(facts["logits"][facts["class"]], rel=1e-4, abs=1e-4)
    assert ("none of these" in facts["logits"]) == network.config.extra_class
