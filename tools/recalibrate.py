"""Effect of re-estimating the critics' batch-norm statistics without dropout, on validation images.

    python tools/recalibrate.py wcapsnet-cifar10 --data-dir data > wcapsnet-cifar10.json

In training, dropout widens the values that a critic's batch norm sees, and evaluation still divides by that σ.
`recalibrated` estimates it again on training images. The network predicts the validation images before and after: with
all critics recalibrated, then with only the last level's. Test images are never used.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wcapsnet import load, shipped
from wcapsnet.cli.exit import in_a_sentence
from wcapsnet.data import Split
from wcapsnet.data.device_data import DeviceSplit
from wcapsnet.device import choose_device
from wcapsnet.explanations import Rerouted, recalibrated
from wcapsnet.explanations.reroute import Outcome
from wcapsnet.explanations.survey import evenly
from wcapsnet.network import WCapsNet
from wcapsnet.sweeps.run import dataset_of
from wcapsnet.training.evaluate import evaluate, good_batch

TRAINING_IMAGES = 5000  # σ is then known to 1 %


def outcome(labels: Tensor, before: Tensor, after: Tensor) -> Outcome:
    was, now = before == labels, after == labels
    return Outcome(*(int(fact.sum()) for fact in (before != after, now & ~was, was & ~now)))


def measure(network: WCapsNet, validation: DeviceSplit, batches: list[Tensor]) -> dict[str, Any]:
    labels, before = validation.labels.cpu(), evaluate(network, validation).predicted
    found = {}
    for name, levels in {"all_levels": None, "last_level": {len(network.routers) - 1}}.items():
        after = evaluate(recalibrated(network, batches, levels), validation).predicted
        found[name] = [outcome(labels, before, after)]
    facts = Rerouted(len(validation), int((before == labels).sum()), found).summary()
    changed = {name: one["all_levels"] for name, one in facts["rerouted"].items()}
    return {"accuracy": facts["accuracy"], "recalibrated": changed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=shipped.names(), help="a shipped network")
    parser.add_argument("--data-dir", type=Path, help="dataset directory (default: $WCAPSNET_DATA or ./data)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    options = parser.parse_args()
    device = choose_device(options.device)
    classifier = load(options.name, device=str(device))
    dataset = dataset_of(shipped.experiment_of(classifier, options.name), options.data_dir, False, True)
    shipped.check_data(classifier, dataset, options.name, "train", "validation")
    places = evenly(len(dataset.train.labels), TRAINING_IMAGES)
    some = Split(dataset.train.images[places], dataset.train.labels[places])
    train, validation = (DeviceSplit(one, *classifier.normalization, device) for one in (some, dataset.validation))
    with torch.no_grad():
        batches = [images for images, _ in train.batches(good_batch(classifier.network, device))]
    facts = {"run": options.name, "split": "validation", "images": len(validation), "training_images": len(train)}
    print(json.dumps(facts | measure(classifier.network, validation, batches)))


if __name__ == "__main__":
    with in_a_sentence():
        main()
