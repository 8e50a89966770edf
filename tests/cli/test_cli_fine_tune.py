"""`wcapsnet train FOLDER --from …`: on other classes, sizes and colours, repeated and refused."""

from dataclasses import replace
from pathlib import Path

import pytest
from cli_helpers import call, experiment, picture, same_weights, sentence

from wcapsnet import sweep, train
from wcapsnet.api import experiments, sweeping
from wcapsnet.hub import load
from wcapsnet.training.take_over import take_over

QUICK = ("--epochs", 1, "--quiet")


@pytest.fixture
def birds(tmp_path):
    """Three classes of gray pictures"""
    for label, shade in (("crow", 40), ("gull", 220), ("dove", 130)):
        (tmp_path / "birds" / label).mkdir(parents=True)
        for i in range(8):
            picture((shade,) * 3, i).convert("L").save(tmp_path / "birds" / label / f"{i}.png")
    return tmp_path / "birds"


def test_a_run_is_fine_tuned_on_other_classes_sizes_and_colours(run, birds, tmp_path):
    answer = call("train", birds, "--from", run, "--size", 12, "--epochs", 1, "--out", tmp_path / "tuned")
    assert answer.code == 0, answer
    (line,) = [line for line in answer.out.splitlines() if "tensors taken from" in line]
    assert "fruit run" in line
    assert "projection" in line
    now, before = experiment(tmp_path / "tuned"), experiment(run)
    assert now["model"]["levels"] == before["model"]["levels"]
    assert (now["model"]["classes"], now["model"]["channels"], now["model"]["height"]) == (3, 1, 12)
    assert now["start"]["source"] == str(run)
    assert load(tmp_path / "tuned").classes == ("crow", "dove", "gull")


def test_pictures_get_the_size_of_the_network_unless_another_is_given(run, pictures):
    assert experiments.experiment_for(pictures, start_from=run)[0].model.height == 8
    other = experiments.experiment_for(pictures, start_from=run, size="8x12")[0].model
    assert (other.height, other.width) == (8, 12)


def test_a_run_is_repeated_after_its_source_is_gone(run, pictures, tmp_path):
    def trained(target, name, **options):
        return train(target, out=tmp_path / name, report=False, quiet=True, **options).run

    weights = tmp_path / "weights.safetensors"
    weights.write_bytes((run / "best.safetensors").read_bytes())
    one = trained(pictures, "one", start_from=weights, epochs=1)
    weights.unlink()
    two, scratch = trained(one.path, "two"), trained(one.path, "three", start_from="none")
    assert same_weights(one.file("last.safetensors"), two.file("last.safetensors"))
    assert scratch.experiment.start is None
    assert not same_weights(one.file("last.safetensors"), scratch.file("last.safetensors"))


def test_every_run_of_a_sweep_starts_from_the_weights(run, pictures, tmp_path):
    answer = call("sweep", pictures, "--from", run, "--seeds", 2, "--out", tmp_path / "sweep", *QUICK)
    assert answer.code == 0, answer
    assert len(list((tmp_path / "sweep").glob("*/start.safetensors"))) == 2


def test_another_model_than_that_of_the_weights_takes_what_fits_or_is_refused(run, pictures, tmp_path):
    arguments = ("train", pictures, "--from", run, "--out", tmp_path / "other", *QUICK)
    assert "no layer in common" in sentence(call(*arguments, "--model", "vgg-19", "--size", 32))


@pytest.mark.parametrize("name", ["nothing/here", "wcapsnet-cifar1000"])
def test_an_unknown_network_is_refused(name, pictures, tmp_path):
    assert name in sentence(call("train", pictures, "--from", name, "--out", tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_takes_no_other_start(run):
    assert "--from" in sentence(call("train", "--resume", run, "--from", "wcapsnet-mnist"))


def test_a_default_start_applies_to_colour_pictures_on_a_cpu_and_can_be_declined(run, pictures, birds, monkeypatch):
    monkeypatch.setattr(experiments, "DEFAULT_START", str(run))
    assert experiments.experiment_for(pictures)[0].start.source == str(run)
    assert experiments.experiment_for(pictures, start_from="none")[0].start is None
    assert experiments.experiment_for(pictures, model="wcapsnet-quick")[0].start is None
    assert experiments.experiment_for(birds)[0].start is None


def test_an_ablation_has_no_default_start(run, pictures, monkeypatch):
    """The weights were trained with one row's routing, which they would favour."""
    monkeypatch.setattr(experiments, "DEFAULT_START", str(run))
    monkeypatch.setattr(sweeping, "train_all", lambda *_, **__: {})

    def starts(**options):
        return {one.experiment.start and one.experiment.start.source for one in sweep(pictures, **options).runs}

    assert starts() == {str(run)}
    assert starts(table="routing") == {None}
    assert starts(table="routing", start_from=run) == {str(run)}
    (lr,) = {one.experiment.training.lr for one in sweep(pictures, table="routing").runs}
    assert lr == experiments.experiment_for(pictures, start_from="none")[0].training.lr


def test_the_guide_shows_what_is_taken_from_the_default_start():
    source = load(experiments.DEFAULT_START)
    network = replace(source.config, classes=12).build()
    taken = take_over(network, [f"class {r}" for r in range(12)], source)
    guide = Path(__file__).parents[2] / "docs" / "guide.md"
    assert f"\n{taken.sentence(experiments.DEFAULT_START)}\n" in guide.read_text()
