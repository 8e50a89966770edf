"""Model cards: one page for each shipped network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wcapsnet.experiment import Experiment, stored_experiment
from wcapsnet.formatting import mean_and_deviation, percent
from wcapsnet.model_card import accuracy, augmentation, colors, fact_table, licence_of, page, preprocessing, title_of
from wcapsnet.network import WCapsNet
from wcapsnet.recipes.ablations import PAPER_FIGURES
from wcapsnet.recipes.published import PAPER_TABLES
from wcapsnet.recipes.repeat import rebuild
from wcapsnet.reports.records import NETWORK, row_of
from wcapsnet.training.console import clock
from wcapsnet.training.environment import runs_at_a_time

if TYPE_CHECKING:
    from .ship import Measured

LIGHT_ON_DARK = {
    **dict.fromkeys(("mnist", "sample"), "It expects light digits on a dark background; invert dark digits on paper."),
    "fashion-mnist": "It expects objects lighter than a dark background; invert photographs on white.",
}


def card(m: Measured) -> str:
    experiment = stored_experiment(m.facts["experiment"])
    use = [
        "```python",
        "import wcapsnet",
        "",
        f'model = wcapsnet.load("{m.name}")',
        'model.predict("picture.png")',
        "```",
        "",
        "```",
        f"wcapsnet predict {m.name} picture.png",
        f"wcapsnet evaluate {m.name} --data-dir DIR",
        f"wcapsnet explore {m.name}",
        "```",
        "",
        *preprocessing(experiment.model, m.facts, m.classes),
    ]
    sections = {
        "Use": use,
        "Numbers": _numbers(m),
        "Limits": _limits(m, experiment),
        "Training": ["```", rebuild(experiment), "```", "", *_provenance(m)],
        "Licence": [f"Weights: Apache-2.0, like the package. Data: {licence_of(experiment)}."],
    }
    return page(m.name, [*_summary(m, experiment), "", f"![Training curve of {m.name}]({m.name}.svg)"], sections)


def _summary(m: Measured, experiment: Experiment) -> list[str]:
    counts = WCapsNet(experiment.model).parameter_counts()
    levels = "-".join(str(level.capsules) for level in experiment.model.levels)
    height, width = experiment.model.height, experiment.model.width
    rows = {
        "model": f"WCapsNet, {levels} capsules, {sum(counts.values()):,} parameters including critics and decoder",
        "input": f"{colors(experiment.model)} images of {height}×{width} pixels",
        "output": f"one of {len(m.classes)} classes",
        "dataset": f"{title_of(experiment)}: {m.images['train']:,} training and {m.images['validation']:,} validation "
        "images",
        "augmentation": augmentation(experiment),
        "test accuracy": f"{accuracy(m.facts['test'], bold='**')}, fp32",
        "validation accuracy": accuracy(m.facts["validation"]),
        **_paper(experiment),
        "weights": f"epoch {m.facts['epoch']} of {experiment.training.epochs}, seed {experiment.training.seed}",
        "file": f"`{m.name}.safetensors`, {m.bytes / 1e6:.2f} MB, {m.facts['stored']}",
        "checksum": f"`{m.facts['checksum']}` (SHA-256 of weights and metadata, verified on loading)",
    }
    return fact_table(rows)


def _paper(experiment: Experiment) -> dict[str, str]:
    """The paper's accuracy, if this is its experiment at full length"""
    dataset, row = row_of(experiment) or ("", "")
    figures = PAPER_TABLES["IV"].rows["WS+CE"] if row == NETWORK else PAPER_FIGURES.get(row, {})
    return {"test accuracy in the paper": f"{figures[dataset]:.2f}%"} if dataset in figures else {}


def _numbers(m: Measured) -> list[str]:
    text = [
        "All candidate runs. The one with the best validation accuracy was chosen, without regard to test accuracy.",
        "",
        "| seed | validation | test | |",
        "| --- | --- | --- | --- |",
    ]
    for run in m.candidates:
        facts, mark = run.results(), "shipped" if run is m.run else ""
        figures = f"{percent(facts['validation_accuracy'])}% | {percent(facts['accuracy'])}%"
        text.append(f"| {run.experiment.training.seed} | {figures} | {mark} |")
    accuracies = [run.results()["accuracy"] for run in m.candidates]
    if len(accuracies) > 1:
        spread = f"{mean_and_deviation(accuracies)} %"
        text += ["", f"Test accuracy over these seeds: {spread} (mean and standard deviation)."]
    counted = m.run.results()["images"] - m.run.results()["errors"]
    if counted != m.facts["test"]["correct"]:
        text += ["", f"On the machine that trained it, the network classified {counted:,} test images correctly."]
    half = (
        f"Weights in half precision would change the prediction for {m.half.flips:,} of the validation and test images "
        f"({m.half.correct:,} test images correct), so the file stores single precision."
        if m.half.flips
        else "Weights in half precision change no prediction on validation and test images."
    )
    r = m.rounding
    text += [
        "",
        f"{half} On the test images, single and double precision differ by up to {r.error:.1g} in a logit and in "
        f"{r.flips} predictions; the smallest margin between the two largest logits is {r.margin:.1g}.",
        "",
        *_by_class(m),
    ]
    return text


def _by_class(m: Measured) -> list[str]:
    confusion = m.test.confusion
    total, right = confusion.sum(1), confusion.diag()
    seen = [r for r in range(len(m.classes)) if total[r]]
    order = sorted(seen, key=lambda r: (float(right[r] / total[r]), r))
    shown = seen if len(seen) <= 12 else [*order[:5], *order[-5:]]
    text = [] if len(seen) <= 12 else ["The five hardest and the five easiest classes:", ""]
    text += ["| class | test images | accuracy | most often mistaken for |", "| --- | --- | --- | --- |"]
    for r in shown:
        others = confusion[r].clone()
        others[r] = 0
        taken = f"{m.classes[int(others.argmax())]} ({int(others.max())})" if others.max() > 0 else ""
        text.append(f"| {m.classes[r]} | {int(total[r])} | {percent(int(right[r]) / int(total[r]), 1)}% | {taken} |")
    return text


def _limits(m: Measured, experiment: Experiment) -> list[str]:
    believed, right = float(m.test.probability.double().mean()), m.test.accuracy
    return [
        f"- It always predicts one of its {len(m.classes)} classes, whatever the picture shows.",
        f"- It was trained and tested on {title_of(experiment)} only. Other pictures of the same objects look "
        "different; its accuracy on them was not measured.",
        f"- Its probabilities are not calibrated: on the test images, its mean confidence is {percent(believed, 1)}% "
        f"and its accuracy {percent(right, 1)}%.",
        *([f"- {dark}"] if (dark := LIGHT_ON_DARK.get(experiment.data.source)) else []),
        "- It is intended for research and teaching.",
    ]


def _provenance(m: Measured) -> list[str]:
    environment = m.facts["environment"]
    known = [environment.get("hardware"), environment.get("torch") and f"PyTorch {environment['torch']}"]
    where = ", ".join(part for part in known if part)
    seconds = clock(m.run.results()["seconds"])
    shared = ", several runs at a time" if runs_at_a_time(environment) > 1 else ""
    return [
        f"This took {seconds}{f' on {where}' if where else ''}{shared}. On a GPU, the order of summation varies "
        "between runs, so the same command gives a similar network, not an identical one.",
        "",
        f"`python tools/ship.py {m.name} RUN` writes the weights and this page from the run folder.",
    ]
