"""What every registered model promises, WCapsNet included."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from small import SMALL, batch, loss, shaken, small

import wcapsnet
from wcapsnet import InputError
from wcapsnet.classifier import Classifier
from wcapsnet.data import DataConfig, Dataset, Split
from wcapsnet.experiment import Experiment, TrainingConfig
from wcapsnet.models import list_models
from wcapsnet.objective import PAPER, Objective
from wcapsnet.training.console import Progress
from wcapsnet.training.run_folder import Run
from wcapsnet.training.take_over import take_over
from wcapsnet.training.trainer import Trainer

SHAPES = [(1, (17, 17)), (3, (32, 32)), (2, (28, 21))]
NAMES = sorted(SMALL)


def test_every_registered_model_is_tested():
    assert set(list_models()) == set(SMALL)


@pytest.mark.parametrize(("channels", "size"), SHAPES)
@pytest.mark.parametrize("name", NAMES)
def test_forward_and_backward_at_any_size_and_with_any_channels(name, channels, size):
    network = small(name, classes=4, channels=channels, size=size)
    images, labels = batch(network)
    output = network(images)
    assert output.logits.shape == (6, getattr(network.config, "outputs", 4))
    if getattr(output, "reconstruction", None) is not None:
        assert output.reconstruction.shape == images.shape
    total = loss(network, images, labels).total
    total.backward()
    assert total.isfinite()
    assert all(p.grad is None or p.grad.isfinite().all() for p in network.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_receives_a_gradient(name):
    network = shaken(small(name))
    for seed in range(3):  # WCapsNet's noise and dropout may spare a parameter in one of them
        loss(network, *batch(network, 12, seed)).total.backward()
    idle = [name for name, p in network.named_parameters() if p.grad is None or not p.grad.any()]
    assert not idle


@pytest.mark.parametrize("name", NAMES)
def test_evaluation_is_deterministic_and_independent_of_the_rest_of_the_batch(name):
    network = shaken(small(name, channels=3))
    images, _ = batch(network)
    network(images)  # moves the running means
    network.eval()
    with torch.no_grad():
        once, again, alone = network(images), network(images), network(images[2:3])
    assert torch.equal(once.logits, again.logits)
    torch.testing.assert_close(once.logits[2:3], alone.logits, rtol=1e-4, atol=1e-5)
    if getattr(once, "reconstruction", None) is not None:
        torch.testing.assert_close(once.reconstruction[2:3], alone.reconstruction, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_classifier_answers_as_before_and_predicts_a_picture(name, tmp_path):
    network = shaken(small(name, channels=3))
    images, _ = batch(network)
    network(images)
    classifier = Classifier(network.eval(), ("a", "b", "c"), (0.1, 0.2, 0.3), (0.5, 0.5, 0.5))
    classifier.save(tmp_path / "it.safetensors")
    loaded = Classifier.load(tmp_path / "it.safetensors")
    assert loaded.config == network.config
    with torch.no_grad():
        assert torch.equal(loaded(images).logits, classifier(images).logits)
    prediction = loaded.predict(np.full((30, 40, 3), 90, np.uint8))
    assert sum(probability for _, probability in prediction.top) == pytest.approx(1, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("load", ["wcapsnet.load(path)", "wcapsnet.Classifier.load(pathlib.Path(path))"])
def test_a_fresh_interpreter_loads_a_network_that_is_not_a_wcapsnet(load, tmp_path):
    path = tmp_path / "it.safetensors"
    Classifier(small("densenet-bc-250"), ("a", "b", "c"), (0.5,), (0.5,)).save(path)
    program = f"import pathlib, wcapsnet; path = {str(path)!r}; {load}"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.slow
def test_a_fresh_interpreter_reads_an_experiment_that_is_not_a_wcapsnets():
    fields = {"name": "it", "model": {"architecture": "densenet"}, "objective": {"margin": 1.0}}
    program = f"from wcapsnet.experiment import stored_experiment; stored_experiment({fields})"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("name", NAMES)
def test_bf16_stays_finite_and_keeps_the_weights_in_float32(name):
    network = shaken(small(name))
    images, labels = batch(network)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        total = loss(network, images, labels).total
    total.backward()
    assert total.isfinite()
    assert all(p.grad.isfinite().all() and p.grad.dtype == torch.float32 for p in network.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_black_images_give_finite_gradients(name):
    network = small(name)
    images, labels = batch(network)
    total = loss(network, images * 0, labels).total
    total.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in network.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_a_trained_network_is_adapted_to_colour_and_to_other_classes(name):
    source = Classifier(shaken(small(name)), ("a", "b", "c"), (0.0,), (1.0,)).eval()
    images, _ = batch(source.network, 2)
    in_colour, more_classes = small(name, channels=3).eval(), small(name, classes=5)
    taken = take_over(in_colour, source.classes, source)
    with torch.no_grad():
        torch.testing.assert_close(in_colour(images.expand(-1, 3, -1, -1)).logits, source.network(images).logits)
    assert len(taken.adapted) == 1
    assert len(take_over(more_classes, tuple("abcde"), source).new) <= 3


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_tiny_batch_is_overfitted(name):
    network = small(name)
    images, labels = batch(network)
    optimizer = torch.optim.Adam(network.parameters(), 5e-3)
    for _ in range(40):
        optimizer.zero_grad()
        loss(network, images, labels).total.backward()
        optimizer.step()
    for _ in range(20):  # running means follow the final weights
        network(images)
    with torch.no_grad():
        probabilities = network.eval()(images).logits[:, :3].softmax(1)
    assert (probabilities.argmax(1) == labels).all()
    assert probabilities.gather(1, labels[:, None]).mean() > 0.6


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_training_loop_stops_resumes_and_tests(name, tmp_path):
    network = small(name)
    images, labels = batch(network, 24)
    split = Split((255 * images.clamp(0, 1)).byte(), labels)
    data, config = Dataset("toy", ("a", "b", "c"), split, split, split), network.config
    training = {"epochs": 2, "batch_size": 8, "milestones": (), **getattr(config, "training", {})}
    experiment = Experiment(
        "toy", DataConfig(), config, Objective(getattr(config, "terms", PAPER)), TrainingConfig(**training)
    )
    run = Run.create(tmp_path / "run", experiment, {})
    trainer = Trainer(run, data, torch.device("cpu"), Progress())
    steps = trainer.steps()
    next(steps)
    trainer.pause()
    steps.close()
    resumed = Trainer(Run.open(tmp_path / "run"), data, torch.device("cpu"), Progress())
    assert resumed.state.step == 1
    resumed.fit()
    assert len(resumed.finish().predicted) == 24
    assert [record["epoch"] for record in run.metrics()] == [1, 2]


@pytest.mark.parametrize(
    ("name", "fields", "says"),
    [
        ("capsnet", {"size": 16}, "height is 16"),
        ("capsnet", {"crop": 40}, "crop is 40"),
        ("capsnet", {"crop": 3}, "crop is 3"),
        ("capsnet", {"iterations": 0}, "iterations is 0"),
        ("deepcaps", {"resize": -1}, "resize is -1"),
        ("deepcaps", {"dimensions": (4, 8, 0, 8)}, "dimensions is .* contain whole numbers of at least 1"),
        ("efficient-capsnet", {"primary_dimension": 3}, "ends in 128"),
        ("sr-capsnet", {"depth": 0}, "depth is 0"),
        ("attention-routing", {"blocks": (1, 0)}, "blocks is"),
        ("resnet-1001", {"depth": 1000}, "depth is 1000"),
        ("vgg-19", {"layers": (1, 1)}, "5 and 2 entries"),
        ("vgg-19", {"widths": (), "layers": ()}, "0 and 0 entries"),
        ("attention-routing", {"size": 12}, "at least 14"),
        ("densenet-bc-100", {"depth": 12}, "depth is 12"),
        ("densenet-bc-100", {"growth": 0}, "growth is 0"),
        ("densenet-bc-100", {"size": 4}, "height is 4"),
        ("vgg-19", {"classes": 1}, "classes is 1"),
        ("deepcaps", {"channels": 0}, "channels is 0"),
    ],
)
def test_impossible_shapes_are_refused_by_name(name, fields, says):
    with pytest.raises(InputError, match=says):
        wcapsnet.create(name, **fields)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_model_trains_on_a_folder_of_pictures_at_full_size(name, tmp_path):
    for r, label in enumerate(("dark", "light")):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for m in range(8):
            pixels = np.random.default_rng(m).integers(0, 100, (20, 20, 3), dtype=np.uint8) + 150 * r
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "photos" / label / f"{m}.png")
    steps = 6 if name == "resnet-1001" else 1  # with fewer, its running variances are far off in 1000 layers
    shortest = [f"training.epoch_steps={steps}", "training.warmup=0"]
    given = {"epochs": 1, "batch_size": 2, "size": 20, "settings": shortest, "out": tmp_path / "run"}
    trained = wcapsnet.train(tmp_path / "photos", model=name, quiet=True, report=False, **given)
    assert trained.results["images"] > 0
    assert wcapsnet.load(tmp_path / "run").predict(tmp_path / "photos" / "dark" / "0.png").label in ("dark", "light")
