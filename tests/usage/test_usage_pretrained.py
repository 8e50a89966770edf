"""`save_pretrained` and `from_pretrained`: a folder that can be shared, read without the network."""

import json
import pickle
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import wcapsnet
from twins.tiny import tiny
from wcapsnet import Classifier, InputError
from wcapsnet.data import DataConfig
from wcapsnet.data.types import Augmentations
from wcapsnet.experiment import Experiment, Start, published


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Classifier(tiny(channels=1).build(), ("a", "b: c", 'd"e'), (0.5,), (0.25,)).eval()


@pytest.fixture
def saved(model, tmp_path):
    return model.save_pretrained(tmp_path / "digits")


def front_matter(folder):
    _, head, _ = (folder / "README.md").read_text().split("---\n", 2)
    # every value is JSON, hence valid YAML
    return {key: json.loads(value) for key, value in (line.split(": ", 1) for line in head.strip().splitlines())}


def test_a_saved_network_answers_the_same_after_loading(model, saved):
    image = torch.rand(1, 8, 8)
    for loaded in (Classifier.from_pretrained(saved), wcapsnet.load(saved), wcapsnet.load(str(saved))):
        assert loaded.classes == model.classes
        assert loaded.predict(image).probability == model.predict(image).probability


def test_the_folder_holds_weights_description_and_card_and_no_pickle(saved):
    assert sorted(path.name for path in saved.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    config = json.loads((saved / "config.json").read_text())
    assert config["id2label"] == {"0": "a", "1": "b: c", "2": 'd"e'}
    assert config["model"]["channels"] == 1
    with safe_open(saved / "model.safetensors", "pt") as file:
        assert json.loads(file.metadata()["wcapsnet"])["checksum"] == config["checksum"]


def test_the_card_of_a_fine_tuned_network_says_what_came_before_and_how_images_were_changed(model, tmp_path):
    data = DataConfig("/home/me/birds", 8, 8, 1, mirror=True, augment=Augmentations(erase=0.3))
    experiment = Experiment("birds", data, model.config, start=Start("wcapsnet-cifar10", "0" * 64))
    model.save(tmp_path / "weights.safetensors", experiment=published(experiment))
    folder = Classifier.load(tmp_path / "weights.safetensors").save_pretrained(tmp_path / "saved")
    card = (folder / "README.md").read_text()
    assert "on the pictures of birds only, starting from the weights of wcapsnet-cifar10." in card
    assert "| augmentation | mirrored and erase 0.3 |" in card
    assert "--from wcapsnet-cifar10" in card


def test_the_card_of_a_shipped_network_has_its_dataset_and_accuracy(tmp_path):
    loaded = wcapsnet.load("wcapsnet-mnist")
    folder = loaded.save_pretrained(tmp_path / "mnist", license="apache-2.0")
    head = front_matter(folder)
    assert head["license"] == "apache-2.0"
    assert head["datasets"] == ["mnist"]
    (result,) = head["model-index"][0]["results"]
    assert result["metrics"][0]["value"] == loaded.facts["test"]["correct"] / loaded.facts["test"]["images"]
    again = wcapsnet.load(folder)
    assert again.facts["experiment"] == loaded.facts["experiment"]


@pytest.mark.parametrize(
    ("source", "shared"),
    [
        ("hf:owner/birds?label=kind", "hf:owner/birds?label=kind"),
        ("hf:/home/me/birds.parquet?label=kind", "hf:birds.parquet?label=kind"),
        ("/home/me/photos", "photos"),
    ],
)
def test_a_file_to_share_names_its_data_without_the_path_of_local_ones(model, tmp_path, source, shared):
    experiment = published(Experiment("birds", DataConfig(source, 8, 8, 1), model.config))
    assert experiment["data"]["source"] == shared
    model.save(tmp_path / "weights.safetensors", experiment=experiment)
    folder = Classifier.load(tmp_path / "weights.safetensors").save_pretrained(tmp_path / "saved")
    assert f"the pictures of {shared}" in (folder / "README.md").read_text()
    assert front_matter(folder).get("datasets") == (["owner/birds"] if "owner" in source else None)


def test_the_hub_library_accepts_the_card(saved):
    hub = pytest.importorskip("huggingface_hub")
    data = hub.ModelCard.load(saved / "README.md").data
    assert data.library_name == "wcapsnet"
    assert data.pipeline_tag == "image-classification"


def test_weights_that_are_a_pickle_are_refused_and_not_executed(saved, tmp_path):
    class Bomb:
        def __reduce__(self):
            return Path.touch, (tmp_path / "executed",)

    (saved / "model.safetensors").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(InputError):
        Classifier.from_pretrained(saved)
    assert not (tmp_path / "executed").exists()


def test_a_config_of_other_weights_is_refused(model, saved, tmp_path):
    with torch.no_grad():
        model.network.projection.add_(1)
    other = model.save_pretrained(tmp_path / "other")
    shutil.copy(other / "config.json", saved / "config.json")
    with pytest.raises(InputError, match="does not belong"):
        wcapsnet.load(saved)
    (saved / "config.json").write_text("{")
    with pytest.raises(InputError, match="JSON"):
        Classifier.from_pretrained(saved)
    (saved / "config.json").unlink()
    assert wcapsnet.load(saved).classes == model.classes


@pytest.mark.parametrize("place", ["empty", "file"])
def test_places_without_a_network_are_refused(model, tmp_path, place):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError):
        Classifier.from_pretrained(tmp_path / place)
    with pytest.raises(InputError, match="is a file"):
        model.save_pretrained(tmp_path / "file")


class FakeHub:
    """The three calls that are made, on a folder instead of a server"""

    def __init__(self, root):
        self.root, self.HfApi = root, lambda token=None: self

    def create_repo(self, repo_id, *, private=None, exist_ok=False):
        return f"https://huggingface.co/{repo_id}"

    def upload_folder(self, *, repo_id, folder_path, commit_message):
        shutil.copytree(folder_path, self.root / repo_id)

    def snapshot_download(self, repo_id, *, allow_patterns, revision, token, cache_dir, local_files_only):
        if not (self.root / repo_id).exists():
            raise FileNotFoundError(f"No repository {repo_id}\nmore")
        return str(self.root / repo_id)


def test_a_network_goes_to_the_hub_and_comes_back(model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", FakeHub(tmp_path / "hub"))
    assert model.push_to_hub("me/digits") == "https://huggingface.co/me/digits"
    assert "# digits" in (tmp_path / "hub/me/digits/README.md").read_text()
    assert Classifier.from_pretrained("me/digits").classes == model.classes
    with pytest.raises(InputError, match="No repository me/other"):
        Classifier.from_pretrained("me/other")
    with pytest.raises(InputError, match="OWNER/NAME"):
        model.push_to_hub("digits")


def test_without_the_extra_a_repository_is_refused_with_the_command_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match=r"wcapsnet\[hub\]"):
        Classifier.from_pretrained("me/digits")


@pytest.mark.slow
def test_a_saved_folder_can_be_exported(model, saved, tmp_path):
    pytest.importorskip("onnxscript")
    done = wcapsnet.export(saved, out=tmp_path / "digits.onnx")
    assert done.comparison.same == done.comparison.images
    image = torch.rand(1, 8, 8)
    found = wcapsnet.predict(done.path, image)
    assert found.probability == pytest.approx(model.predict(image).probability, abs=1e-4)


def test_an_exported_file_is_refused_where_weights_or_another_device_are_needed(tmp_path):
    file = tmp_path / "digits.onnx"
    file.write_bytes(b"")
    with pytest.raises(InputError, match="exported"):
        wcapsnet.load(file)
    with pytest.raises(InputError, match="CPU"):
        wcapsnet.evaluate(file, device="cuda")
    with pytest.raises(InputError, match="bf16"):
        wcapsnet.evaluate(file, precision="bf16")
