"""Section IV-C: the best capsule and the image it decodes to."""

import pytest
import torch
from torch import nn

from twins import DecoderTwin, assert_same_gradients, assert_same_state, best_capsule_twin, close
from wcapsnet.network import BestCapsule
from wcapsnet.network.decoder import Decoder, best_capsule
from wcapsnet.network.per_capsule import BatchNorm


def test_the_best_capsule_worked_by_hand():
    # two capsules, 2 rows × 3 columns; the largest weight is that of capsule 1 at row 0, column 2
    b = torch.zeros(1, 2, 2, 3)
    b[0, 1, 0, 2] = 1
    c = torch.arange(24.0).view(1, 2, 2, 2, 3)  # c[n, k, i, j] = 12 n + 6 k + 3 i + j
    best = best_capsule(b, c, torch.eye(2))
    assert best.vector.tolist() == [[14, 20]]
    assert best.place.tolist() == [[1, 0, 2]]
    assert best.position.tolist() == [[1, -1]]  # x to the right, y down


@pytest.mark.parametrize(
    ("i", "j", "x", "y"),
    [(0, 0, -1, -1), (0, 4, 1, -1), (2, 0, -1, 1), (2, 4, 1, 1), (1, 2, 0, 0), (1, 1, -0.5, 0)],
)
def test_corners_and_centre_of_the_map_lie_at_one_and_zero(i, j, x, y):
    b = torch.zeros(1, 1, 3, 5)
    b[0, 0, i, j] = 1
    assert best_capsule(b, torch.zeros(1, 1, 2, 3, 5), torch.eye(2)).position.tolist() == [[x, y]]


def test_the_only_place_of_a_map_is_its_centre():
    best = best_capsule(torch.ones(1, 2, 1, 1), torch.zeros(1, 2, 3, 1, 1), torch.eye(3))
    assert best.position.tolist() == [[0, 0]]


def test_of_equal_weights_the_vector_that_adds_most_to_the_predicted_class_is_taken():
    # Four vectors at one position each; their mean (1, 0.75) predicts class 0, to which the third adds most.
    c = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [3.0, 0.0], [1.0, 3.0]]).view(1, 4, 2, 1, 1)
    assert best_capsule(torch.full((1, 4, 1, 1), 0.25), c, torch.eye(2)).place.tolist() == [[2, 0, 0]]
    # A weight within a hundredth of the largest counts as equal, a smaller one does not.
    b = torch.tensor([0.3, 0.1, 0.298, 0.302]).view(1, 4, 1, 1)
    assert best_capsule(b, c, torch.eye(2)).place.tolist() == [[3, 0, 0]]  # Σ b c = (1.396, 0.906): class 0
    assert best_capsule(b, c, torch.tensor([[1.0, -1.0], [-0.1, 0.0]])).place.tolist() == [[0, 0, 0]]  # 0.3 > 0.211


@pytest.mark.parametrize("b", [torch.full((6, 3, 4, 5), 1 / 60), torch.rand(6, 3, 4, 5).clamp_max(0.9)])
def test_the_choice_moves_with_blocks_and_positions(b):
    c, w = torch.randn(6, 3, 8, 4, 5), torch.randn(8, 4)
    blocks, rows, columns = torch.randperm(3), torch.randperm(4), torch.randperm(5)
    best = best_capsule(b, c, w)
    moved = best_capsule(
        b[:, blocks][:, :, rows][:, :, :, columns], c[:, blocks][:, :, :, rows][:, :, :, :, columns], w
    )
    n, i, j = moved.place.unbind(1)
    assert torch.equal(torch.stack([blocks[n], rows[i], columns[j]], dim=1), best.place)
    assert torch.equal(moved.vector, best.vector)


def test_the_best_capsule_is_found_sample_by_sample():
    b, c, w = torch.rand(5, 2, 3, 3), torch.randn(5, 2, 4, 3, 3), torch.randn(4, 3)
    together = best_capsule(b, c, w)
    for m in range(5):
        for all_, one in zip(together, best_capsule(b[m : m + 1], c[m : m + 1], w), strict=True):
            assert torch.equal(all_[m : m + 1], one)


def test_the_gradient_reaches_the_best_vector_and_no_other():
    b, c = torch.rand(2, 2, 3, 3, requires_grad=True), torch.randn(2, 2, 4, 3, 3, requires_grad=True)
    w = torch.randn(4, 3, requires_grad=True)
    best = best_capsule(b, c, w)
    best.vector.sum().backward()
    assert b.grad is None
    assert w.grad is None
    touched = c.grad.sum(2).nonzero()  # over k
    assert touched[:, 1:].tolist() == best.place.tolist()


@pytest.mark.parametrize("size", [(3, 4), (1, 3), (1, 1)])
def test_the_best_capsule_agrees_with_looking_at_each(size):
    b = torch.rand(4, 3, *size, dtype=torch.float64).clamp_max(0.6)
    c, w = torch.randn(4, 3, 2, *size, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    for got, expected in zip(best_capsule(b, c, w), best_capsule_twin(b, c, w), strict=True):
        close(got, expected, 1e-6, 1e-7)


@pytest.mark.parametrize("size", [(8, 8), (9, 11), (28, 28), (32, 20), (10, 8)])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_the_reconstruction_has_the_shape_of_the_image(channels, size):
    decoder = Decoder(3, channels, *size, (4, 5))
    best = BestCapsule(torch.randn(2, 3), torch.randn(2, 2), torch.zeros(2, 3))
    assert decoder(best).shape == (2, channels, *size)


def test_the_fully_connected_layer_makes_a_patch_a_quarter_of_the_image_wide_and_high():
    decoder = Decoder(8, 3, 32, 32, (32, 64))
    assert (decoder.linear.in_features, decoder.linear.out_features) == (8 + 2, 32 * 8 * 8)
    assert decoder.conv1.weight.shape == (32, 64, 3, 3)
    assert decoder.conv2.weight.shape == (64, 3, 3, 3)


def test_what_is_decoded_depends_on_the_position():
    decoder, vector = Decoder(3, 1, 8, 8, (4, 5)).eval(), torch.randn(1, 3)
    here, there = (decoder(BestCapsule(vector, torch.tensor([[x, 0.0]]), torch.zeros(1, 3))) for x in (-1.0, 1.0))
    assert not torch.equal(here, there)


def test_batch_norm_and_relu_come_before_each_convolution():
    decoder = Decoder(3, 1, 8, 8, (4, 5)).eval()
    nn.init.constant_(decoder.norm2.weight, 0)
    nn.init.constant_(decoder.norm2.bias, -1)  # the ReLU leaves nothing: only the last bias is left
    best = BestCapsule(torch.randn(1, 3), torch.zeros(1, 2), torch.zeros(1, 3))
    close(decoder(best), decoder.conv2.bias.view(1, 1, 1, 1).expand(1, 1, 8, 8))


@pytest.mark.parametrize("size", [(8, 8), (9, 6)])
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_the_decoder_agrees_with_its_twin(training, size):
    decoder = Decoder(3, 2, *size, (4, 5)).double().train(training)
    for norm in decoder.modules():
        if isinstance(norm, BatchNorm):
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.normal_(norm.running_mean)
    twin = DecoderTwin(3, 2, *size, (4, 5)).double().same_as(decoder)
    vector = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    position = torch.randn(3, 2, dtype=torch.float64)
    image = decoder(BestCapsule(vector, position, torch.zeros(3, 3)))
    expected = twin(vector, position)
    probe = torch.randn_like(image)
    close(image, expected)
    (gradient,) = torch.autograd.grad((image * probe).sum(), vector, retain_graph=True)
    (expected_gradient,) = torch.autograd.grad((expected * probe).sum(), vector, retain_graph=True)
    close(gradient, expected_gradient)
    (image * probe).sum().backward()
    (expected * probe).sum().backward()
    assert_same_gradients(decoder, twin)
    assert_same_state(decoder, twin)
