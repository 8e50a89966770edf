"""Which blocks act for which class, and how well each level knows it."""

from __future__ import annotations

from .. import formatting as text
from ..explanations import LevelSpecialization, Specialization, specialization
from ..explanations.probes import share_interval
from ..explanations.shares import against_share
from ..explanations.specialization import SCALE
from ..network.routing import heaviest
from .colors import share_map
from .facts import Facts
from .html import Html, figure, folded, h, picture, table
from .section import MANY, MOST_TABLED, section, unable
from .shades import hex_of
from .significance import interval
from .survey_cache import aside
from .svg import Bar, Cell, bar_chart, grid, share_scale


def specialisation(facts: Facts) -> Html:
    title = "Which capsules act for which class"
    lead = (
        "Each level has several capsule blocks, and a critic gives each a weight for every image. The mean weights for "
        "each class are shown here: where a row differs from the others, the level treats that class differently."
    )
    if facts.seen is None:
        return section("routing", title, lead, unable(facts.missing["seen"]))
    found = specialization(facts.seen.survey)
    levels = [h("div", _level(facts, level), class_="level") for level in found.levels]
    return section("routing", title, lead, _trend(found), levels, _tied(facts), _positions(facts, found))


def _trend(found: Specialization) -> Html | None:
    several = [level for level in found.levels if level.capsules > 1]
    if not several:
        return None
    bars = [
        Bar(
            f"level {level.level + 1}",
            level.information_chosen,
            f"{level.information_chosen:.3f} (chance {level.information_chosen_by_chance:.3f})",
            mark=level.information_chosen_by_chance,
        )
        for level in several
    ]
    high = max(0.1, *(max(bar.value, bar.mark or 0) for bar in bars))
    chart = bar_chart("Information of the winning capsule about the class, by level", bars, high=high, width=440)
    steps = [f"{text.signed(step.change)} ± {step.margin:.3f}" for step in found.steps]
    between = (
        f"Differences between neighbouring levels, less chance, with half their {text.percentage(0.95, 0)} confidence "
        f"interval: {', '.join(steps)}. "
        if steps
        else ""
    )
    units = text.listed([f"{level.unit:.3f} (level {level.level + 1})" for level in several])
    caption = (
        f"{found.trend} {between}"
        "The bars show the mutual information between the class and the winning capsule, drawn evenly where several "
        f"win, with chance included. All information values on this page use this scale. {SCALE} (1 is {units} nats). "
        "Vertical lines are chance, the mean for shuffled classes."
    )
    return figure("Do deeper levels specialise more?", chart, caption)


def _level(facts: Facts, level: LevelSpecialization) -> list[Html | None]:
    n, names = level.capsules, facts.classes
    rows = [r for r in range(len(names)) if level.counts[r] > 0]
    ordered = len(rows) > MANY
    if ordered:  # classes with the same favourite side by side
        favourites = heaviest(level.mean)
        rows.sort(key=lambda r: (favourites[r].nonzero().flatten().tolist(), -float(level.mean[r].max())))
    positions = ((against_share(level.mean[rows], n) * 20).round() / 20).tolist()  # few colours: few paths
    wide = min(90.0, max(36.0, 320 / n))
    tall = 24.0 if len(rows) <= MANY else 13.0 if len(rows) <= 60 else 9.0 if len(rows) <= MOST_TABLED else 3.0
    cells = [
        [
            Cell(at, f"{float(level.mean[r, k]):.3f}".lstrip("0") if not ordered else "", hex_of(at))
            for k, at in enumerate(positions[i])
        ]
        for i, r in enumerate(rows)
    ]
    said = [[text.weight(float(level.mean[r, k]), float(level.margin[r, k])) for k in range(n)] for r in rows]
    drawing = grid(
        f"Mean weights of level {level.level + 1}: {len(rows)} classes by {n} capsules",
        [names[r] for r in rows],
        [str(k) for k in range(n)],
        cells,
        say="{row}, capsule {column}: mean weight {value}",
        said=said,
        row_title="class",
        column_title="capsule",
        cell=(wide, tall),
    )
    margins = level.margin[rows].flatten()
    margins = margins[~margins.isnan()]
    sure = text.percentage(0.95, 0)
    widest = f" {sure} confidence intervals are at most ± {float(margins.max()):.3f}." if len(margins) else ""
    caption = (
        f"Mean weight of each capsule for the images of each class. The colour compares it with the equal share, "
        f"{1 / n:.3g}: gray is equal, darker is more, paler is less.{widest}"
        + (" Classes are sorted by the capsule they favour." if ordered else "")
    )
    numbers = None
    if len(rows) <= MOST_TABLED:
        shown = table(
            ["class", "images", *(f"capsule {k}" for k in range(n))],
            [[names[r], f"{int(level.counts[r]):,}", *texts] for r, texts in zip(rows, said, strict=True)],
            f"Level {level.level + 1}: mean weight and half its 95 % confidence interval",
            sortable=True,
        )
        numbers = folded("Mean weights as a table", shown)
    title = f"Level {level.level + 1}: {text.plural(n, 'capsule')}"
    if n == 1:
        return [h("h3", title), unable("A level with one capsule has nothing to select.")]
    least = f"--least:{min(640, 80 + 30 * n)}px"
    size = "large" if n > 8 else None
    drawn = [h("div", drawing, class_="wide", style=least), share_scale(n)]
    left = h("figure", drawn, h("figcaption", caption), numbers, class_=size)
    findings = [h("p", finding, class_="warn") for finding in level.findings]
    return [
        h("h3", title),
        *findings,
        h("div", left, h("div", _level_facts(level), _wins(level)), class_="beside"),
    ]


def _level_facts(level: LevelSpecialization) -> Html:
    n = level.capsules
    by_winner = f"{level.information_chosen:.3f} (chance {level.information_chosen_by_chance:.3f})"
    said = {
        "information of the winning capsule": by_winner,
        "information of all winners together": (
            f"{level.information_set:.3f} (chance {level.information_set_by_chance:.3f})"
        ),
        "information of a capsule drawn by weight": (
            f"{level.information:.3f} (chance {level.information_by_chance:.3f})"
        ),
        "capsules in use, by weight": f"{level.effective:.2f} of {n}",
        "capsules in use, by wins": f"{level.effective_chosen:.2f} of {n}",
        "effective capsules per image": f"{level.effective_per_image:.2f} of {n}",
        "winners per image": f"{level.leaders:.2f} of {n}",
    }
    note = (
        f"Information about the class: 1 is {level.unit:.3f} nats, the most one of {n} capsules can say. All winners "
        "together can exceed 1."
    )
    return h(
        "div",
        h("ul", [h("li", h("span", name), h("span", value)) for name, value in said.items()], class_="facts"),
        h("p", note, class_="soft"),
    )


def _tied(facts: Facts) -> Html | None:
    """How many vectors of the last level share the largest weight"""
    if facts.seen is None:
        return None
    tied = facts.seen.survey.tied
    several = float((tied > 1).double().mean())
    said = (
        f"The last level weighs single vectors. In {text.percentage(several, 1)} of the images several vectors share "
        f"the largest weight, to within 1{text.NARROW}%: {int(tied.median()):,} in the median image, from "
        f"{int(tied.min()):,} to {int(tied.max()):,}. The decoder reconstructs the image from the one that adds "
        "most to the predicted class. A block's weight is the sum over its vectors, and wins are counted by that sum."
    )
    return h("p", said, class_="note")


def _wins(level: LevelSpecialization) -> Html:
    shares = level.chosen_overall.tolist()
    bars = [Bar(f"capsule {k}", share, text.percentage(share, 1), color=2) for k, share in enumerate(shares)]
    chart = bar_chart(
        f"Level {level.level + 1}: share of images that each capsule wins",
        bars,
        high=max(max(shares), 0.01),
        thick=14 if len(bars) <= 8 else 8,
        width=380,
    )
    said = f"Wins: the share of images in which the weight of a capsule is within 1{text.NARROW}% of the largest."
    if level.shared:
        said += f" In {text.percentage(level.shared, 1)} of the images several win."
    return h("figure", chart, h("figcaption", said))


def _positions(facts: Facts, found: Specialization) -> Html:
    maps = found.map_mean
    shown = [r for r in range(len(facts.classes)) if not bool(maps[r].isnan().any())]
    some = ""
    if len(shown) > MANY:
        shown = [shown[k * len(shown) // MANY] for k in range(MANY)]
        some = f" {MANY} of {len(facts.classes)} classes are shown."
    vectors = maps[0].numel()
    items = []
    for r in shown:
        drawn = [
            picture(
                share_map(maps[r, k], vectors),
                f"{facts.classes[r]}, capsule {k}: mean weight at every position",
                scale=64,
            )
            for k in range(min(maps.shape[1], 4))
        ]
        items.append(h("li", h("div", drawn, class_="pair"), h("div", facts.classes[r])))
    four = ", the first four" if maps.shape[1] > 4 else ""
    caption = (
        f"Where the last level looks: the mean weight of its capsules (side by side{four}) at every position of its "
        f"{maps.shape[2]}×{maps.shape[3]} map.{some}"
    )
    content = [h("ul", items, class_="thumbs maps"), share_scale(vectors)]
    return figure("The last level, over positions", content, caption)


def probes(facts: Facts) -> Html:
    title = "How well each level knows the class"
    lead = "A linear classifier predicts the class from each level's output"
    if facts.seen is None or not facts.seen.probes:
        return section("probes", title, f"{lead}.", unable(facts.missing.get("probes", facts.missing.get("seen", ""))))
    found, taught, measured = facts.seen.probes, facts.seen.taught, len(facts.seen.survey)
    lead += (
        f"; it is trained on {taught:,} {text.images_of(aside(facts.seen.part), taught)} and tested on "
        f"{measured:,} {text.images_of(facts.seen.part, measured)}."
    )
    shares = [(f"level {probe.level + 1}", probe.accuracy, 5) for probe in found]
    shares.append(("the network", facts.seen.survey.accuracy, 0))
    bars = [
        Bar(name, share, text.percentage(share, 1), color=color, interval=share_interval(share, measured))
        for name, share, color in shares
    ]
    chance = found[0].by_chance
    chart = bar_chart(
        "Accuracy of a linear probe on each level", bars, rule=(chance, f"chance {text.percentage(chance, 1)}")
    )
    rows = [
        [
            f"level {p.level + 1}",
            f"{p.features:,}",
            text.percentage(p.accuracy),
            interval(p.accuracy, measured),
            f"{p.penalty:g}",
        ]
        for p in found
    ]
    numbers = table(["probe", "inputs", "accuracy", "95 % interval", "penalty"], rows, "Linear probes")
    caption = (
        "Accuracy of the probes, with the network's own below; the dashed line is always predicting the most frequent "
        "class."
    )
    return section(
        "probes",
        title,
        lead,
        figure("Accuracy of a linear probe", chart, caption, folded("Probes as a table", numbers)),
    )
