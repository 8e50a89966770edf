"""The page of one run: what the template shows, section by section."""

from __future__ import annotations

import json
import math
import shlex
from functools import cache
from typing import Any, NamedTuple

from markupsafe import Markup

from .. import __version__, formatting
from ..explanations import LevelSpecialization, Specialization
from ..explanations.shares import ties_in_words
from ..explanations.specialization import SCALE
from ..explanations.survey import evenly
from ..formatting import percentage, plural
from ..recipes.repeat import rebuild
from ..settings import flat, to_dict
from ..training.environment import runs_at_a_time
from ..training.evaluate import beside_figures
from . import figures
from .colors import share_map
from .facts import Facts, class_accuracies, confusions
from .figures import EXTREMES, MANY, Metrics
from .pictures import Example, Picture, picture
from .records import paper_figure
from .significance import Sample, compare, interval
from .survey_cache import Seen, aside
from .svg import asset
from .tables import verdict

MOST_TABLED = 200  # classes beyond which a matrix is not repeated as a table
SECTIONS = {
    "overview": "Overview",
    "training": "Training",
    "answers": "Right and wrong",
    "routing": "Routing",
    "probes": "Probes",
    "examples": "Examples",
    "reconstructions": "Reconstructions",
    "configuration": "Configuration",
}
ROUTED = ("routing", "probes", "examples")  # sections about WCapsNet's routing


@cache
def _templates() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(loader=PackageLoader(__package__), autoescape=True, undefined=StrictUndefined)
    made.filters |= {name: getattr(formatting, name) for name in ("percentage", "plural")}
    made.filters |= {"thousands": "{:,}".format}
    made.globals |= {"version": __version__, "asset": lambda name: Markup(asset(name))}
    made.globals |= {"figures": figures, "picture_of": picture}
    return made


def render(template: str, **content: Any) -> str:
    return _templates().get_template(template).render(content)


def run_page(facts: Facts) -> str:
    subject, known = facts.subject, facts.subject.environment
    training, results = subject.experiment.training, facts.figures
    started = formatting.date(str(known["started"])) if known.get("started") else None
    left_out: tuple[str, ...] = ROUTED if "routing" in facts.missing else ()
    if left_out and facts.pictures and not facts.pictures.reconstructions:
        left_out = (*ROUTED, "reconstructions")
    return render(
        "run.html.j2",
        title=subject.name,
        sections={key: title for key, title in SECTIONS.items() if key not in left_out},
        facts=facts,
        subject=subject,
        seen=facts.seen,
        model=subject.experiment.model,
        kind=type(subject.experiment.model).__name__.removesuffix("Config"),
        classes=facts.classes,
        many=MANY,
        scale=SCALE,
        started=started,
        cards=_cards(facts),
        findings=_findings(facts),
        curves=curves({subject.name: subject.metrics}),
        epochs=_epochs(subject.metrics),
        answers=_answers(facts, results) if results and "confusion" in results else None,
        calibration=_calibration(facts),
        routing=_routing(facts, facts.specialization) if facts.specialization else None,
        probes=_probes(facts.seen) if facts.seen and facts.seen.probes else None,
        examples=[_example(facts, one) for one in (facts.pictures.examples if facts.pictures else ())],
        known={
            "hardware": known.get("hardware"),
            "wcapsnet": known.get("wcapsnet"),
            "PyTorch": known.get("torch"),
            "Python": known.get("python"),
            "precision": training.precision,
            "seed": training.seed,
            "started": started,
        },
        commands=_commands(facts),
        configuration=[(name, _plain(value)) for name, value in flat(to_dict(subject.experiment)).items()],
        environment=[(name, _plain(value)) for name, value in known.items()],
    )


class Card(NamedTuple):
    title: str
    big: str
    more: str = ""
    style: str = ""


def _cards(facts: Facts) -> list[Card]:
    cards, results, part = [], facts.figures, facts.subject.part
    if results:
        accuracy, images = results["accuracy"], results["images"]
        more = f"{plural(images - results['errors'], 'image')} of {images:,} correct; "
        more += f"95\u202f% interval {interval(accuracy, images)}"
        more += beside_figures(results, percentage)
        cards.append(Card(f"{part} accuracy", percentage(accuracy), more, "first"))
        cards += _paper_card(facts, accuracy, images)
        if "cross_entropy" in results:
            # Without "none of these", which is never the prediction
            classes = facts.subject.experiment.model.classes
            more = f"equal probabilities for all {classes:,} classes would give {math.log(classes):.2f}"
            cards.append(Card(f"{part} cross entropy", f"{results['cross_entropy']:.4f}", more))
    cards += _training_cards(facts)
    even = (len(cards) + bool(results)) % 2 == 0  # the first card is two wide; this one fills the row
    counts = ", ".join(f"{name} {n:,}" for name, n in facts.parameters.items())
    return [*cards, Card("parameters", f"{sum(facts.parameters.values()):,}", counts, "span" if even else "")]


def _paper_card(facts: Facts, accuracy: float, images: int) -> list[Card]:
    paper = paper_figure(facts.subject.experiment)
    if paper is None or not facts.subject.finished:
        return []
    if paper.differences:
        more = f"for a different experiment: {'; '.join(paper.differences[:2])}"
        more += f" and {len(paper.differences) - 2} more" if len(paper.differences) > 2 else ""
    else:
        difference = compare(Sample((accuracy,), images), Sample((paper.accuracy,), images))
        more = f"difference: {verdict(difference)}"
    title = "the paper reports" if paper.source == "the paper" else f"published ({paper.source})"
    return [Card(title, percentage(paper.accuracy), more)]


def _training_cards(facts: Facts) -> list[Card]:
    metrics, results, training = facts.subject.metrics, facts.subject.results or {}, facts.subject.experiment.training
    if not metrics:
        return []
    best = max(metrics, key=lambda m: (m["validation_accuracy"], -m.get("validation_loss", 0)))
    validation = percentage(results.get("validation_accuracy", best["validation_accuracy"]))
    epoch = results.get("best_epoch", best["epoch"])
    cards = [
        Card("validation accuracy", validation, f"with the weights of epoch {epoch}, chosen by this measure"),
        Card("epochs", f"{len(metrics)} of {training.epochs}", f"seed {training.seed}"),
    ]
    if "seconds" in metrics[-1]:
        speed = [f"{metrics[-1]['images_per_s']:,.0f} images/s"] if "images_per_s" in metrics[-1] else []
        speed += ["several runs at a time"] if runs_at_a_time(facts.subject.environment) > 1 else []
        cards.append(Card("training time", formatting.duration(metrics[-1]["seconds"]), ", ".join(speed)))
    return cards


def _findings(facts: Facts) -> list[str]:
    said, results = [], facts.figures
    if results and "confusion" in results:
        worst = confusions(results["confusion"])[:2]
        if len({n for n, *_ in worst}) == len(worst) > 0:  # else there is no most frequent one
            n, total, i, j = worst[0]
            said.append(f"Most often, {facts.classes[i]} is mistaken for {facts.classes[j]} ({n} of {total:,}).")
    if facts.specialization:
        said += [facts.specialization.trend, *facts.specialization.findings]
    if "routing" in facts.missing:
        said.append(facts.missing["routing"])
    return said


def _calibration(facts: Facts) -> dict[str, Any] | None:
    found = facts.calibration
    if found is None or not found.bins:
        return None
    right = sum(n * accuracy for n, _, accuracy in found.bins)
    sure = sum(n * probability for n, probability, _ in found.bins)
    return {
        "said": "overconfident" if sure > right else "underconfident",
        "rows": [[percentage(p, 1), f"{n:,}", percentage(a, 1), interval(a, n)] for n, p, a in found.bins],
    }


def curves(runs: dict[str, Metrics]) -> dict[str, Any] | None:
    """None if no run has any"""
    if not any(runs.values()):
        return None
    return {
        "accuracy": {
            "broad": figures.accuracy(runs, 1000, 320),
            "narrow": figures.accuracy(runs, 350, 240),  # letters keep their size on a phone
        },
        "losses": figures.losses(runs),
        "drops": figures.drops(runs),
        "low": figures.lowest_accuracy(runs),
    }


def _epochs(metrics: Metrics) -> dict[str, Any]:
    fields = [name for name in metrics[-1] if name not in ("epoch", "best")] if metrics else []

    def written(name: str, value: Any) -> str:
        if not isinstance(value, (int, float)):
            return ""
        return percentage(value) if name.endswith("accuracy") else formatting.loss(value)

    rows = [[str(record["epoch"]), *(written(name, record.get(name)) for name in fields)] for record in metrics]
    return {"head": ["epoch", *(name.replace("_", " ") for name in fields)], "rows": rows}


def _answers(facts: Facts, results: dict[str, Any]) -> dict[str, Any]:
    names, counts = facts.classes, results["confusion"]
    bars, low = figures.class_bars(results, names)
    by_class = []
    for r, (name, (share, images)) in enumerate(zip(names, class_accuracies(counts), strict=True)):
        n, j = max(((n, -j) for j, n in enumerate(counts[r]) if j != r), default=(0, 0))
        shown = [percentage(share), interval(share, images)] if images else ["", ""]
        by_class.append([name, f"{images:,}", *shown, f"{names[-j]} ({n})" if n else ""])
    return {
        "counts": [[name, *(f"{n:,}" if n else "·" for n in row)] for name, row in zip(names, counts, strict=True)]
        if len(names) <= MOST_TABLED
        else None,
        "confusions": [
            [names[i], names[j], f"{n:,}", percentage(n / total, 1)] for n, total, i, j in confusions(counts)[:10]
        ],
        "bars": bars,
        "low": low,
        "some": EXTREMES if sum(map(any, counts)) > EXTREMES else None,
        "classes": by_class,
    }


def _routing(facts: Facts, found: Specialization) -> dict[str, Any]:
    assert facts.seen
    tied, maps = facts.seen.survey.tied, found.map_mean
    shown = [r for r in range(len(facts.classes)) if not bool(maps[r].isnan().any())]
    shown = [shown[k] for k in evenly(len(shown), MANY)]

    def blocks(r: int) -> list[Picture]:
        name, vectors = facts.classes[r], maps[r].numel()
        first = enumerate(maps[r, :4])
        return [picture(share_map(b, vectors), f"{name}, block {k}: mean weights", 64) for k, b in first]

    return {
        "steps": [f"{formatting.signed(step.change)} ± {step.margin:.3f}" for step in found.steps],
        "levels": [_level(facts, level) for level in found.levels],
        "tied": {"share": float((tied > 1).double().mean()), "median": int(tied.median()), "most": int(tied.max())},
        "positions": [(facts.classes[r], blocks(r)) for r in shown],
        "shape": maps.shape[1:],
        "vectors": maps[0].numel(),
        "per_position": facts.subject.experiment.model.routing.per_position,
    }


def _level(facts: Facts, level: LevelSpecialization) -> dict[str, Any]:
    rows = figures.classes_of(level)
    margins = level.margin[rows].flatten()
    margins = margins[~margins.isnan()]
    weights = [map(formatting.weight, level.mean[r].tolist(), level.margin[r].tolist()) for r in rows]
    return {
        "level": level,
        "widest": float(margins.max()) if len(margins) else None,
        "sorted": len(rows) > MANY,
        "capsules": [f"block {k}" for k in range(level.capsules)],
        "rows": [[facts.classes[r], f"{int(level.counts[r]):,}", *b] for r, b in zip(rows, weights, strict=True)]
        if len(rows) <= MOST_TABLED
        else None,
    }


def _probes(seen: Seen) -> dict[str, Any]:
    tested = len(seen.survey)
    return {
        "teacher": formatting.images_of(aside(seen.part), seen.taught),
        "part": formatting.images_of(seen.part, tested),
        "tested": tested,
        "rows": [
            [
                f"level {p.level + 1}",
                f"{p.features:,}",
                percentage(p.accuracy),
                interval(p.accuracy, tested),
                f"{p.penalty:g}",
            ]
            for p in seen.probes
        ],
    }


def _example(facts: Facts, example: Example) -> dict[str, Any]:
    one, rows = example.explained, []
    for level in range(len(one.weights)):
        weights = one.block_weights(level).tolist()
        off = one.without[level][:, one.predicted].tolist()
        rows += [
            [f"level {level + 1}, block {k}", f"{w:.3f}", "" if math.isnan(p) else percentage(p, 1)]
            for k, (w, p) in enumerate(zip(weights, off, strict=True))
        ]
    decoded = one.decoded(facts.classes)
    return {
        "shown": example.shown,
        "explained": one,
        "drawn": figures.evidence(facts, example),
        "ties": ties_in_words(one.tied),
        "decoded": f"{decoded[0].upper()}{decoded[1:]}.",
        "probability": float(one.probabilities[one.predicted]),
        "rows": rows,
    }


def _commands(facts: Facts) -> dict[str, str]:
    subject, command = facts.subject, facts.subject.environment.get("command")
    train = subject.command("train") if subject.folder else rebuild(subject.experiment)
    return {
        **({"Command of this run": shlex.join(map(str, command))} if isinstance(command, list) else {}),
        "Repeat the experiment": train,
        "Make this page again": subject.command("report"),
    }


def _plain(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return shlex.join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
