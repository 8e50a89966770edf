"""What competes computes what it says."""

import pytest
import torch

from twins import close, quiet
from wcapsnet.baselines import DenseNet
from wcapsnet.bench.contenders import FORMULATIONS, Contender, parse
from wcapsnet.bench.loop import looped
from wcapsnet.network import Level, WCapsNet
from wcapsnet.objective import PAPER, objective


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("max_pooling", [False, True])
@pytest.mark.parametrize("levels", [(Level(3, 2, 4, 2), Level(2, 2, 3, 1)), (Level(2, 2, 4, 3), Level(1, 2, 3, 2))])
def test_the_loop_answers_and_learns_as_the_plain_network(training, max_pooling, levels):
    torch.manual_seed(0)
    plain = WCapsNet(quiet(levels=levels, max_pooling=max_pooling)).double().train(training)
    loop = WCapsNet(plain.config).double()
    loop.load_state_dict(plain.state_dict())
    loop = looped(loop.train(training))
    images, labels = torch.randn(3, 2, 8, 8, dtype=torch.float64), torch.tensor([0, 2, 1])
    for network in (plain, loop):
        output = network(images)
        objective(output, images, labels, PAPER).total.backward()
        network.answer = output
    close(loop.answer.logits, plain.answer.logits.detach())
    close(loop.answer.reconstruction, plain.answer.reconstruction.detach())
    renamed = {name.replace(".blocks.", "."): tensor for name, tensor in loop.state_dict().items()}
    assert renamed.keys() == plain.state_dict().keys()
    for name, tensor in plain.state_dict().items():
        close(renamed[name], tensor)
    gradients = {name.replace(".blocks.", "."): p.grad for name, p in loop.named_parameters()}
    for name, parameter in plain.named_parameters():
        close(gradients[name], parameter.grad)


def test_the_loop_decays_the_same_parameters():
    plain, loop = WCapsNet(quiet()), looped(WCapsNet(quiet()))
    assert [p.shape for p in loop.decayed_parameters()] == [p.shape for p in plain.decayed_parameters()]


def test_densenet_bc_100_has_the_parameters_of_its_paper():
    network = DenseNet()
    parameters = sum(p.numel() for p in network.parameters())
    assert round(parameters / 1e6, 2) == 0.77
    assert len(network.blocks[0]) == 16
    assert network.linear.in_features == 342
    assert network(torch.zeros(2, 3, 32, 32)).logits.shape == (2, 10)
    assert len(network.decayed_parameters()) == len(list(network.parameters()))


def test_contenders_are_named_once_with_or_without_a_precision():
    assert [c.label for c in parse(None, "fp32")] == list(FORMULATIONS)
    assert parse("plain, loop:bf16 ,plain", "fp32") == [
        Contender("plain", "fp32", "plain"),
        Contender("loop", "bf16", "loop:bf16"),
    ]
