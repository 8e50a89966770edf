"""The first section and the last: key figures, curves, and how to repeat the run."""

from __future__ import annotations

import json
import math
import shlex
from typing import Any

from .. import formatting as text
from ..explanations import specialization
from ..network import WCapsNetConfig
from ..recipes.repeat import rebuild
from ..settings import flat, to_dict
from ..training.run_folder import runs_at_a_time
from .confusion import confusions
from .curves import accuracy_chart, loss_charts, metrics_table
from .facts import Facts
from .html import Html, folded, h, table
from .section import section, unable
from .significance import Sample, compare, interval
from .subject import paper_figure
from .tables import verdict


def headline(facts: Facts) -> Html:
    figures = facts.figures
    cards = []
    if figures:
        part = facts.subject.part
        accuracy, images = figures["accuracy"], figures["images"]
        said = f"{text.plural(images - figures['errors'], 'image')} of {images:,} correct"
        cards.append(
            card(
                f"{part} accuracy",
                text.percentage(accuracy),
                f"{said}; 95{text.NARROW}% interval {interval(accuracy, images)}",
                style="first",
            )
        )
        cards += [one for one in [_paper_card(facts, accuracy, images)] if one]
        if "cross_entropy" in figures:
            cards.append(card(f"{part} cross entropy", f"{figures['cross_entropy']:.4f}", _guessing(facts)))
    cards += _training_cards(facts)
    total = sum(facts.parameters.values())
    even = (len(cards) + bool(figures)) % 2 == 0  # the first card is two wide; this one fills the row
    counts = ", ".join(f"{name} {n:,}" for name, n in facts.parameters.items())
    cards.append(card("parameters", f"{total:,}", counts, "span" if even else None))
    return section(
        "overview",
        "Overview",
        _state(facts),
        h("dl", cards, class_="cards"),
        _unfinished(facts),
        _findings_in_short(facts),
    )


def card(title: str, big: str, more: str = "", style: str | None = None) -> Html:
    return h(
        "div",
        h("dt", title),
        h("dd", h("div", big, class_="big"), h("div", more, class_="more") if more else None),
        class_=style,
    )


def _guessing(facts: Facts) -> str:
    """Among the real classes: "none of these" is never the prediction, so a guess leaves it out."""
    classes = facts.subject.experiment.model.classes
    return f"guessing evenly among the {classes:,} classes gives {math.log(classes):.2f}"


def _paper_card(facts: Facts, accuracy: float, images: int) -> Html | None:
    paper = paper_figure(facts.subject.experiment)
    if paper is None or not facts.subject.finished:
        return None
    if paper.differences:
        more = f"not the same experiment: {'; '.join(paper.differences[:2])}"
        more += f" and {len(paper.differences) - 2} more" if len(paper.differences) > 2 else ""
        return card("the paper has", text.percentage(paper.accuracy), more)
    difference = compare(Sample((accuracy,), images), Sample((paper.accuracy,), images))
    return card("the paper has", text.percentage(paper.accuracy), f"ours is {verdict(difference)}")


def _training_cards(facts: Facts) -> list[Html]:
    metrics, results = facts.subject.metrics, facts.subject.results or {}
    if not metrics:
        return []
    best = max(metrics, key=lambda m: (m["validation_accuracy"], -m.get("validation_loss", 0)))
    epochs = facts.subject.experiment.training.epochs
    validation = results.get("validation_accuracy", best["validation_accuracy"])
    cards = [
        card(
            "best validation accuracy",
            text.percentage(validation),
            f"after epoch {results.get('best_epoch', best['epoch'])}",
        ),
        card("epochs", f"{len(metrics)} of {epochs}", f"seed {facts.subject.experiment.training.seed}"),
    ]
    if "seconds" in metrics[-1]:
        speed = [f"{metrics[-1]['images_per_s']:,.0f} images/s"] if "images_per_s" in metrics[-1] else []
        speed += ["several runs at a time"] if runs_at_a_time(facts.subject.environment) > 1 else []
        cards.append(card("training time", text.duration(metrics[-1]["seconds"]), ", ".join(speed)))
    return cards


def _state(facts: Facts) -> str:
    subject, model = facts.subject, facts.subject.experiment.model
    what = f"A {type(model).__name__.removesuffix('Config')}"
    if isinstance(model, WCapsNetConfig):
        capsules = "-".join(str(level.capsules) for level in model.levels)
        what += f" of {text.plural(len(model.levels), 'level')} with {capsules} capsules"
    what += f" for {text.plural(model.classes, 'class', 'classes')}"
    size = f"images of {model.channels}×{model.height}×{model.width}"
    tested = " The test set was used once, with the best weights on validation." if subject.finished else ""
    return f"{what}, {size}, trained on {subject.data_title}.{tested}"


def _unfinished(facts: Facts) -> Html | None:
    subject = facts.subject
    if subject.finished:
        return None
    done, epochs = len(subject.metrics), subject.experiment.training.epochs
    said = f"This run is not finished: {done} of {text.plural(epochs, 'epoch')} are done. "
    if subject.failure:
        said = f"This run failed: {subject.failure} "
    if facts.seen:
        some = f"{len(facts.seen.survey):,} of its {facts.seen.of:,}" if facts.seen.of else "its"
        said += f"The figures below are for {some} validation images, with the best weights so far. "
    return h(
        "p",
        said,
        "Resume with: ",
        h("code", shlex.join(["wcapsnet", "train", "--resume", subject.source])),
        class_="warn",
    )


def _findings_in_short(facts: Facts) -> Html | None:
    said: list[str] = []
    figures = facts.figures
    if figures and "confusion" in figures:
        worst = confusions(figures["confusion"])[:2]
        if len({n for n, *_ in worst}) == len(worst) > 0:  # else there is no most frequent one
            n, total, i, j = worst[0]
            said.append(f"Most often, {facts.classes[i]} is taken for {facts.classes[j]} ({n} of {total:,}).")
    if facts.seen:
        found = specialization(facts.seen.survey)
        said += [found.trend, *found.findings]
    return h("ul", [h("li", sentence) for sentence in said], class_="said") if said else None


def training(facts: Facts) -> Html:
    metrics = facts.subject.metrics
    lead = "Every term of the loss and the accuracies, epoch by epoch."
    if not metrics:
        why = "There are no curves: no epoch is finished, or metrics.jsonl is missing."
        return section("training", "Training", lead, unable(why))
    named = {facts.subject.name: metrics}
    return section(
        "training",
        "Training",
        lead,
        accuracy_chart(named),
        h("div", loss_charts(named), class_="panels"),
        folded("All numbers as a table", metrics_table(metrics)),
    )


def configuration(facts: Facts) -> Html:
    subject = facts.subject
    lead = "Everything needed to repeat the run."
    content: list[Html | None] = []
    command = subject.environment.get("command")
    if isinstance(command, list):
        content.append(_command("The command", shlex.join(map(str, command))))
    again = shlex.join(["wcapsnet", "train", subject.source]) if subject.folder else rebuild(subject.experiment)
    content.append(_command("Repeat the experiment", again))
    content.append(_command("Make this page again", shlex.join(["wcapsnet", "report", subject.source])))
    asked = [[name, h("span", _plain(value))] for name, value in flat(to_dict(subject.experiment)).items()]
    content.append(
        folded(
            "Configuration: every field of experiment.json",
            table(["field", "value"], asked, "Configuration", numbers_from=9),
        )
    )
    if subject.environment:
        where = [[name, h("span", _plain(value))] for name, value in subject.environment.items()]
        content.append(folded("Environment", table(["what", "value"], where, "Environment", numbers_from=9)))
    return section("configuration", "Configuration and environment", lead, _environment(facts), *content)


def _environment(facts: Facts) -> Html | None:
    known = facts.subject.environment
    said = {
        "hardware": known.get("hardware"),
        "wcapsnet": known.get("wcapsnet"),
        "PyTorch": known.get("torch"),
        "Python": known.get("python"),
        "precision": facts.subject.experiment.training.precision,
        "seed": facts.subject.experiment.training.seed,
        "started": text.date(str(known["started"])) if known.get("started") else None,
    }
    items = [h("li", h("span", name), h("span", str(value))) for name, value in said.items() if value is not None]
    return h("ul", items, class_="facts two")


def _command(title: str, line: str) -> Html:
    copy = h("button", "Copy", type="button", class_="copy", hidden=True, aria_label=f"Copy: {title}")
    return h("div", h("h3", title), h("div", h("pre", line, tabindex=0), copy, class_="command"))


def _plain(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return shlex.join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
