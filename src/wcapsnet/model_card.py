"""The model card of a saved network: architecture, accuracy, use, limits. Facts missing from its file are left out.
Takes a `Classifier`, which is above this module."""

from __future__ import annotations

import json
import re
from typing import Any

from .data import DATASETS
from .data.huggingface import PREFIX
from .experiment import Experiment, stored_experiment
from .formatting import listed, percent
from .recipes.repeat import rebuild

DATA_LICENCES = {
    "mnist": "MNIST (Y. LeCun, C. Cortes, C. J. C. Burges): CC BY-SA 3.0",
    "sample": "MNIST (Y. LeCun, C. Cortes, C. J. C. Burges): CC BY-SA 3.0",
    "fashion-mnist": "Fashion-MNIST (Zalando SE): MIT",
    "cifar10": "CIFAR-10 (A. Krizhevsky, 2009): pictures from the web, published without a licence of their own",
    "cifar100": "CIFAR-100 (A. Krizhevsky, 2009): pictures from the web, published without a licence of their own",
    "svhn": "SVHN (Y. Netzer et al., 2011): for non-commercial use",
}
HUB_DATASETS = {"mnist": "mnist", "sample": "mnist", "fashion-mnist": "fashion_mnist", "svhn": "svhn"}
HUB_DATASETS |= {"cifar10": "cifar10", "cifar100": "cifar100"}  # their names on the Hub
MOST_CLASSES = 100  # listed by name


def card(classifier: Any, name: str, license: str | None = None) -> str:
    """README.md for a folder written by `save_pretrained`"""
    facts = classifier.facts
    experiment = stored_experiment(facts["experiment"]) if "experiment" in facts else None
    title = title_of(experiment) if experiment else None
    limits = [
        f"- It always predicts one of its {len(classifier.classes)} classes, whatever the picture shows.",
        *([f"- It was trained and tested on {title} only{_after(experiment)}."] if title else []),
        "- Its probabilities are not calibrated.",
    ]
    use = [
        "```python",
        "from wcapsnet import Classifier",
        "",
        'model = Classifier.from_pretrained("FOLDER")  # this folder, or OWNER/NAME on the Hub',
        'model.predict("picture.png")',
        "```",
        "",
        *preprocessing(classifier.config, facts, classifier.classes[:MOST_CLASSES]),
    ]
    sections = {"Use": use, "Limits": limits}
    if experiment:
        sections["Training"] = ["```", rebuild(experiment), "```"]
    weights = f"Weights: {license}." if license else ""
    data = f"Data: {licence_of(experiment)}." if experiment else ""
    if weights or data:
        sections["Licence"] = [f"{weights} {data}".strip()]
    front = _front_matter(name, experiment, facts, license)
    return "\n".join([*front, page(name, _summary(classifier, experiment), sections)])


def page(title: str, opening: list[str], sections: dict[str, list[str]]) -> str:
    """Markdown"""
    lines = [f"# {title}", "", *opening]
    for name, content in sections.items():
        lines += ["", f"## {name}", "", *content]
    return "\n".join([*lines, ""])


def fact_table(rows: dict[str, str]) -> list[str]:
    return ["| | |", "| --- | --- |", *(f"| {name} | {text} |" for name, text in rows.items())]


def accuracy(counts: dict[str, int], bold: str = "") -> str:
    right, images = counts["correct"], counts["images"]
    return f"{bold}{percent(right / images)}%{bold}: {right:,} of {images:,} images"


def _front_matter(name: str, experiment: Experiment | None, facts: dict[str, Any], license: str | None) -> list[str]:
    """YAML, which JSON is part of"""
    fields: dict[str, Any] = {"library_name": "wcapsnet", "pipeline_tag": "image-classification"}
    fields["tags"] = ["image-classification", "capsule-networks", "wcapsnet"]
    if license:
        fields["license"] = license
    dataset = _on_the_hub(experiment.data.source) if experiment else None
    if dataset:
        fields["datasets"] = [dataset]
    if experiment and "test" in facts:
        test = facts["test"]
        measured = {
            "task": {"type": "image-classification"},
            "dataset": {"name": title_of(experiment), "type": dataset or "imagefolder", "split": "test"},
            "metrics": [{"type": "accuracy", "value": round(test["correct"] / test["images"], 6)}],
        }
        fields |= {"metrics": ["accuracy"], "model-index": [{"name": name, "results": [measured]}]}
    return ["---", *(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in fields.items()), "---", ""]


def _on_the_hub(source: str) -> str | None:
    found = re.match(rf"{PREFIX}([\w.-]+/[\w.-]+)", source)
    return found[1] if found else HUB_DATASETS.get(source)


def _summary(classifier: Any, experiment: Experiment | None) -> list[str]:
    config, facts = classifier.config, classifier.facts
    parameters = sum(p.numel() for p in classifier.network.parameters())
    rows = {
        "model": f"{type(classifier.network).__name__}, {parameters:,} parameters",
        "input": f"{colors(config)} images of {config.height}×{config.width} pixels",
        "output": f"one of {len(classifier.classes)} classes",
    }
    if experiment:
        rows |= {"dataset": title_of(experiment), "augmentation": augmentation(experiment)}
    for part in ("test", "validation"):
        if part in facts:
            rows[f"{part} accuracy"] = accuracy(facts[part])
    if experiment and experiment.start:
        rows["started from"] = f"{experiment.start.source} (`{experiment.start.checksum}`)"
    if experiment and "epoch" in facts:
        rows["weights"] = f"epoch {facts['epoch']} of {experiment.training.epochs}, seed {experiment.training.seed}"
    rows["checksum"] = f"`{facts['checksum']}` (SHA-256 of weights and metadata, verified on loading)"
    return fact_table(rows)


def _after(experiment: Experiment | None) -> str:
    return f", starting from the weights of {experiment.start.source}" if experiment and experiment.start else ""


def title_of(experiment: Experiment) -> str:
    source = experiment.data.source
    return DATASETS[source].title if source in DATASETS else f"the pictures of {source}"


def licence_of(experiment: Experiment) -> str:
    return DATA_LICENCES.get(experiment.data.source, "the licence of its pictures applies")


def augmentation(experiment: Experiment) -> str:
    words = {"mirror": "mirrored", "shift": f"shifted by up to {experiment.data.shift} pixels"}
    ways = [words.get(name, f"{name} {amount:g}") for name, amount in experiment.data.augmentations().items()]
    return listed(ways) if ways else "none"


def colors(model: Any) -> str:
    return {1: "gray", 3: "colour"}.get(model.channels, f"{model.channels}-channel")


def preprocessing(model: Any, facts: dict[str, Any], classes: tuple[str, ...]) -> list[str]:
    """How a picture is prepared for the network, and the class names"""
    mean, std = (", ".join(f"{value:.6g}" for value in facts[name]) for name in ("mean", "std"))
    return [
        f"Pictures may have any size. Each is scaled to cover {model.height}×{model.width} pixels, cropped to its "
        f"centre, converted to {colors(model)}, divided by 255 and normalised with mean ({mean}) and standard "
        f"deviation ({std}).",
        "",
        f"Classes: {', '.join(classes)}.",
    ]
