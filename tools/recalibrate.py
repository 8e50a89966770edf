"""Batch-norm statistics estimated again on training images: what that changes, on validation images.

    python tools/recalibrate.py wcapsnet-cifar10 --data-dir data > wcapsnet-cifar10.json                the critics'
    python tools/recalibrate.py wcapsnet-small-cifar100 --all-norms --data-dir data > recomputed.json   all of them

In training, dropout widens the values that a critic's batch norm sees, and evaluation still divides by that σ.
`recalibrated` estimates it again on training images. The network predicts the validation images before and after: with
all critics recalibrated, then with only the last level's. Test images are never used.

With averaged weights (training.averaging), the statistics are averages too. --all-norms computes those of all batch
norms again with the averaged weights, on 400 training batches, augmented as in training.
"""

from __future__ import annotations

import argparse
import copy
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wcapsnet import load, shipped
from wcapsnet.cli.exit import in_a_sentence
from wcapsnet.data import Split
from wcapsnet.data.augment import Mixed, augment
from wcapsnet.data.device_data import DeviceSplit, epoch_order
from wcapsnet.device import choose_device
from wcapsnet.experiment import Experiment
from wcapsnet.explanations import Rerouted, recalibrated
from wcapsnet.explanations.reroute import Outcome
from wcapsnet.explanations.survey import evenly
from wcapsnet.network import WCapsNet
from wcapsnet.sweeps.run import dataset_of
from wcapsnet.training.evaluate import evaluate, good_batch

TRAINING_IMAGES = 5000  # σ is then known to 1 %
BATCHES = 400


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


@torch.no_grad()
def recomputed(network: WCapsNet, train: DeviceSplit, experiment: Experiment, batches: int) -> WCapsNet:
    """A copy whose batch norms have the mean statistics of augmented training batches"""
    network = copy.deepcopy(network).train()
    norms: list[Any] = [module for module in network.modules() if hasattr(module, "running_mean")]
    order = epoch_order(len(train), experiment.training.batch_size, experiment.training.seed, 0)[:batches]
    for step, index in enumerate(order):
        for norm in norms:
            norm.momentum = 1 / (step + 1)
        batch = augment(train.take(index)[0], experiment.data.augmentations())
        network(batch.images if isinstance(batch, Mixed) else batch)
    return network.eval()


def measure_all(
    network: WCapsNet, train: DeviceSplit, validation: DeviceSplit, experiment: Experiment
) -> dict[str, Any]:
    torch.manual_seed(0)
    before = evaluate(network, validation)
    after = evaluate(recomputed(network, train, experiment, BATCHES), validation)
    changed = outcome(before.labels, before.predicted, after.predicted)
    facts = {"accuracy": before.accuracy, "loss": before.loss}
    return facts | {"recomputed": {"accuracy": after.accuracy, "loss": after.loss, **changed._asdict()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=shipped.names(), help="a shipped network")
    parser.add_argument("--data-dir", type=Path, help="dataset directory (default: $WCAPSNET_DATA or ./data)")
    parser.add_argument("--all-norms", action="store_true", help="all batch norms, on augmented training images")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    options = parser.parse_args()
    device = choose_device(options.device)
    classifier = load(options.name, device=str(device))
    experiment = shipped.experiment_of(classifier, options.name)
    dataset = dataset_of(experiment, options.data_dir, False, True)
    shipped.check_data(classifier, dataset, options.name, "train", "validation")
    if options.all_norms:
        train, validation = (
            DeviceSplit(s, *classifier.normalization, device) for s in (dataset.train, dataset.validation)
        )
        facts = {"run": options.name, "split": "validation", "images": len(validation), "batches": BATCHES}
        print(json.dumps(facts | measure_all(classifier.network, train, validation, experiment)))
        return
    places = evenly(len(dataset.train.labels), TRAINING_IMAGES)
    some = Split(dataset.train.images[places], dataset.train.labels[places])
    train, validation = (DeviceSplit(one, *classifier.normalization, device) for one in (some, dataset.validation))
    size = good_batch(classifier.network, device)
    with torch.no_grad():
        batches = [train.take(slice(start, start + size))[0] for start in range(0, len(train), size)]
    facts = {"run": options.name, "split": "validation", "images": len(validation), "training_images": len(train)}
    print(json.dumps(facts | measure(classifier.network, validation, batches)))


if __name__ == "__main__":
    with in_a_sentence():
        main()
