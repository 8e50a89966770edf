"""Fine-tuning: what a network takes over from a trained one, and what a run remembers of it."""

from dataclasses import replace

import pytest
import torch
from training_helpers import CPU, CtrlC, begin, go_on, interrupted, same_tensors, toy_dataset, toy_experiment, trained

from twins.tiny import tiny
from wcapsnet.classifier import Classifier, weights_checksum
from wcapsnet.errors import InputError
from wcapsnet.experiment import Start
from wcapsnet.sweeps.on_ray import receive, to_send
from wcapsnet.training.console import Progress
from wcapsnet.training.run_folder import Run
from wcapsnet.training.take_over import take_over
from wcapsnet.training.trainer import Trainer

NAMES = ("top", "middle", "bottom")


def source(seed=0, **changes):
    """A trained network: nothing in it has its initial value."""
    torch.manual_seed(seed)
    network = tiny(**changes).build()
    with torch.no_grad():
        for tensor in network.state_dict().values():
            tensor.add_(torch.rand_like(tensor))
    names = NAMES if network.config.classes == 3 else tuple(map(str, range(network.config.classes)))
    return Classifier(network, names, [0.5] * network.config.channels, [0.2] * network.config.channels)


def fresh(**changes):
    torch.manual_seed(7)
    return tiny(**changes).build()


def equal(network, other, name):
    return torch.equal(network.state_dict()[name], other.network.state_dict()[name])


def test_the_same_network_takes_over_everything_with_the_statistics_of_its_batch_norms():
    network, other = fresh(), source()
    taken = take_over(network, NAMES, other)
    assert taken.tensors == taken.of == len(network.state_dict())
    assert taken.new == taken.adapted == ()
    assert all(equal(network, other, name) for name in network.state_dict())


def test_other_classes_get_a_new_projection_and_nothing_else_is_new():
    network, other = fresh(classes=5), source()
    before = network.projection.clone()
    taken = take_over(network, tuple("abcde"), other)
    assert taken.new == ("projection (5 classes)",)
    assert torch.equal(network.projection, before)
    assert equal(network, other, "capsules.0.trans.norm.running_var")


def test_as_many_classes_with_other_names_get_a_new_projection_too():
    assert take_over(fresh(), ("cat", "dog", "owl"), source()).new == ("projection (3 classes)",)
    assert take_over(fresh(), NAMES[::-1], source()).new == ("projection (3 classes)",)


def test_a_layer_is_taken_over_whole_or_not_at_all():
    network, other = fresh(height=40, width=40), source()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    taken = take_over(network, NAMES, other)
    assert "decoder.linear" in taken.new
    partly = "routers.0.critic.layers.1"  # its singular vector v has the same shape, its kernel has not
    assert before[f"{partly}.v"].shape == other.network.state_dict()[f"{partly}.v"].shape
    assert partly in taken.new
    assert torch.equal(network.state_dict()[f"{partly}.v"], before[f"{partly}.v"])


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1)])
def test_gray_and_colour_networks_agree_on_gray_pictures(before, after):
    network, other = fresh(channels=after), source(channels=before)
    taken = take_over(network, NAMES, other)
    gray = torch.rand(4, 1, 8, 8)
    network.eval(), other.eval()
    answers = [net(gray.expand(-1, ch, -1, -1)).logits for net, ch in ((network, after), (other.network, before))]
    torch.testing.assert_close(*answers)
    assert len(taken.adapted) == 1
    assert "decoder.conv2" in taken.new


def test_the_sentence_counts_the_tensors_and_names_what_is_new():
    taken = take_over(fresh(classes=5), tuple("abcde"), source())
    sentence = taken.sentence("wcapsnet-cifar100")
    assert f"{taken.of - 1} of {taken.of} tensors taken from wcapsnet-cifar100" in sentence
    assert "new: projection (5 classes)" in sentence


def test_a_network_with_nothing_in_common_is_refused():
    class Other(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.config, self.linear = tiny(), torch.nn.Linear(2, 2)

    with pytest.raises(InputError, match="no layer in common"):
        take_over(Other(), NAMES, source())


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "trained.safetensors"
    source(channels=1).save(path)
    return path


def starting(path, **training):
    return replace(toy_experiment(**training), start=Start(str(path), weights_checksum(path)))


def begin_from(folder, experiment, weights, progress=None):
    run = Run.at(folder, experiment)
    run.starts_from = weights
    trainer = Trainer(run, toy_dataset(), CPU, progress or Progress())
    run.begin({})
    return trainer


def test_a_run_starts_with_the_weights_and_keeps_a_copy(tmp_path, weights):
    trainer = begin_from(tmp_path / "run", starting(weights), weights)
    assert torch.equal(trainer.network.projection, source(channels=1).network.projection)
    assert (tmp_path / "run" / "start.safetensors").read_bytes() == weights.read_bytes()
    assert Run.open(tmp_path / "run").experiment.start == starting(weights).start


def test_an_average_of_weights_starts_with_them_too(tmp_path, weights):
    trainer = begin_from(tmp_path / "run", starting(weights, averaging=0.9), weights)
    assert torch.equal(trainer.average.network.projection, source(channels=1).network.projection)


def test_a_stopped_run_resumes_without_its_source_and_ends_the_same(tmp_path, weights):
    whole = begin_from(tmp_path / "whole", starting(weights), weights)
    whole.fit()
    broken = begin_from(tmp_path / "broken", starting(weights), weights, CtrlC(1, 1))
    assert interrupted(broken)
    weights.unlink()
    (tmp_path / "broken" / "start.safetensors").unlink()
    go_on(tmp_path / "broken").fit()
    assert same_tensors(tmp_path / "whole" / "last.safetensors", tmp_path / "broken" / "last.safetensors")


def test_a_run_without_a_checkpoint_starts_again_from_its_copy(tmp_path, weights):
    begin_from(tmp_path / "run", starting(weights), weights)
    weights.unlink()
    again = go_on(tmp_path / "run")
    assert torch.equal(again.network.projection, source(channels=1).network.projection)


def test_weights_with_another_checksum_are_refused(tmp_path, weights):
    experiment = starting(weights)
    source(seed=1, channels=1).save(weights)
    with pytest.raises(InputError, match="checksum"):
        begin_from(tmp_path / "run", experiment, weights)
    assert not (tmp_path / "run").exists()


def test_a_run_from_scratch_keeps_no_copy(tmp_path):
    assert not trained(tmp_path / "run", toy_experiment(epochs=1)).file("start.safetensors").exists()
    assert begin(tmp_path / "other", toy_experiment()).taken_over is None


def test_a_worker_of_a_cluster_gets_the_weights_to_start_from(tmp_path, weights):
    run = Run.at(tmp_path / "run", starting(weights, epochs=1))
    run.starts_from = weights
    far = Run(tmp_path / "far", run.experiment)
    receive(far.path, to_send(run))
    weights.unlink()
    trainer = Trainer(far, toy_dataset(), CPU, Progress())
    assert torch.equal(trainer.network.projection, source(channels=1).network.projection)
    trainer.fit()
    assert "start.safetensors" not in to_send(far)  # a resumed run does not need them
