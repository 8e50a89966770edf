"""`predict` and `evaluate` of an ONNX file need only the packages listed in docs/deploy.md."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from export_helpers import images_for
from PIL import Image

from wcapsnet import InputError
from wcapsnet.data.formats import Arrays
from wcapsnet.exports.check import reference
from wcapsnet.exports.evaluation import evaluate_onnx, measured
from wcapsnet.exports.runtime import OnnxNetwork

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
LISTED = re.search(r"^pip install (numpy .*)$", (ROOT / "docs" / "deploy.md").read_text(), re.MULTILINE)[1].split()
NEEDED = re.search(r"^dependencies = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE | re.DOTALL)[1]
MISSING = [name for name in re.findall(r'"(\w+)', NEEDED) if name not in LISTED]
WITHOUT = f"""
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {[*MISSING, "onnx", "onnxscript"]}:
            raise ModuleNotFoundError("No module named " + name, name=name)

sys.meta_path.insert(0, Missing())
sys.argv[0] = "wcapsnet"
from wcapsnet.__main__ import main
main()
"""


def run(*words, **options):
    environment = {**os.environ, "PYTHONPATH": str(SRC), "COLUMNS": "200"}
    command = [sys.executable, "-c", WITHOUT, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, **options)


@pytest.fixture
def pictures(exported, tmp_path):
    """A folder for two classes of the network, and one for a class it does not know; pictures of its size"""
    classifier, _ = exported
    for at, image in enumerate(images_for(classifier, 6)):
        folder = tmp_path / "pictures" / (*classifier.classes[:2], "something else")[at % 3]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.transpose(1, 2, 0)).save(folder / f"{at}.png")
    return tmp_path / "pictures"


@pytest.mark.slow
def test_predict_answers_without_torch_as_with_it(exported, pictures):
    classifier, path = exported
    done = run("predict", path, pictures, "--json")
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert len(answers) == 6
    for answer in answers:
        expected = classifier.predict(answer["source"])
        assert answer["class"] == expected.label
        assert answer["probability"] == pytest.approx(expected.probability, abs=1e-5)
        assert tuple(map(tuple, answer["winners"])) == expected.winners


@pytest.mark.slow
def test_evaluate_counts_without_torch_as_with_it(exported, pictures, tmp_path):
    classifier, path = exported
    done = run("evaluate", path, pictures, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    labels = [at for at in (0, 1) for _ in range(2)]
    files = [file for name in classifier.classes[:2] for file in sorted((pictures / name).iterdir())]
    expected = [classifier.classes.index(one.label) for one in classifier.predict(files)]
    assert found["images"] == 4
    assert found["unknown"] == ["something else"]
    assert found["errors"] == sum(a != b for a, b in zip(labels, expected, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("command", [("--version",), ("--help",), ("predict", "--help")])
def test_what_needs_no_network_needs_no_torch(command):
    done = run(*command)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_command_that_needs_another_package_says_so(exported, tmp_path):
    download = ("evaluate", exported[1], "mnist", "--download", "--data-dir", tmp_path)
    for command, package in ((("train", "demo"), "PyTorch"), (download, "pooch")):
        done = run(*command, cwd=tmp_path)
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        assert f"needs {package}" in done.stderr


def test_the_loss_counts_the_extra_class_as_training_does(exported, tmp_path):
    classifier, path = exported
    pixels = images_for(classifier, 3)
    logits = torch.from_numpy(reference(classifier, pixels)["logits"])
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1, 2]))
    found = measured(OnnxNetwork(path), Arrays(pixels, np.array([0, 1, 2])))
    assert found.loss == pytest.approx(float(expected), abs=1e-5)
    assert [w.shape for w in found.mean_weights] == [(3, 3), (3, 2)]


def test_images_of_another_size_and_unknown_datasets_are_refused(exported):
    with pytest.raises(InputError):
        evaluate_onnx(exported[1], "sample")  # 28×28 images, for a network of 8×8
    with pytest.raises(InputError):
        evaluate_onnx(exported[1])  # it names no dataset
