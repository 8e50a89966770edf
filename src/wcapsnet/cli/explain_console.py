"""What `wcapsnet explain` prints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.columns import Columns
from rich.markup import escape
from rich.panel import Panel
from rich.table import Column, Table

from ..console import out
from ..explanations.capsule import CapsuleExplanation, Neighbours, Traversal
from ..explanations.faithfulness import Faithfulness, mean_and_margin
from ..explanations.image import ImageExplanation
from ..explanations.lipschitz import HIGH, LOW, Critics
from ..explanations.probes import Probe, share_interval
from ..explanations.reroute import Rerouted
from ..explanations.shares import against_share, scale_ends, ties_in_words
from ..explanations.specialization import LevelSpecialization, Specialization
from ..explanations.survey import Survey
from ..formatting import mean_and_deviation, percent

SHADES = " ░▒▓█"
WIDEST = 16  # classes, capsules and map columns that fit a table


def image(one: ImageExplanation, classes: Sequence[str], target: int, source: str) -> None:
    order = one.probabilities.argsort(descending=True).tolist()
    first, *others = (f"{percent(float(one.probabilities[r]), 1)}%" for r in order[:4])
    then = ", ".join(f"{escape(classes[r])} {share}" for r, share in zip(order[1:4], others, strict=True))
    first = f"[bold]{escape(classes[order[0]])}[/] {first}"
    out.print(f"{escape(source)}: {first}, then {then}", soft_wrap=True)
    _levels(one, classes, target)
    _heat(one)
    _contributions(one, classes, target)
    elements = "  ".join(f"{value:.2f}" for value in one.vector.tolist())
    decoded = escape(one.decoded(classes))
    out.print(f"{decoded[0].upper()}{decoded[1:]} (counted from 0). Its elements: {elements}", soft_wrap=True)


def _levels(one: ImageExplanation, classes: Sequence[str], target: int) -> None:
    now, logit = float(one.probabilities[target]), float(one.logits[target])
    table = Table("capsule", "fitness", "weight", "", "probability\nwithout", "logit\nwithout")
    for level, a in enumerate(one.fitness):
        weights, largest = one.block_weights(level), float(one.block_weights(level).max())
        for n, (fitness, weight) in enumerate(zip(a.flatten(1).mean(1) if a.dim() > 1 else a, weights, strict=True)):
            probability, without = float(one.without[level][n, target]), float(one.without_logits[level][n, target])
            only = math.isnan(without)
            mark = " ◀" if n in one.winners[level] else ""
            table.add_row(
                f"{level + 1}.{n}{mark}",
                f"{fitness:.3f}",
                f"{weight:.3f}",
                "█" * round(8 * float(weight) / largest),
                "" if only else f"{percent(probability)}% ({100 * (probability - now):+.2f})",
                "" if only else f"{without:.3f} ({without - logit:+.3f})",
                end_section=n == len(weights) - 1,
            )
    out.print(table)
    out.print(
        "Capsule 2.1 is capsule 1 of level 2; capsules count from 0. "
        f"Without: {escape(classes[target])} ({percent(now)}%, logit {logit:.3f}) when a capsule is switched off and "
        "the others share its weight.\n"
        "In the last level, fitness is the mean over positions and weight the sum. ◀ wins: its weight is within 1 % of "
        "the largest, so several can win.",
        soft_wrap=True,
    )


def _heat(one: ImageExplanation) -> None:
    """Shades compare each weight with the equal share: blank at half of it or less, solid at twice or more."""
    b = one.weights[-1]
    if b.shape[2] > 2 * WIDEST:
        return
    levels = ((against_share(b, b.numel()) + 1) / 2 * (len(SHADES) - 1)).round().int().tolist()
    n, i, j = one.place
    rows = [[[SHADES[at] * 2 for at in row] for row in block] for block in levels]
    rows[n][i][j] = "◆" + rows[n][i][j][1:]
    panels = [
        Panel("\n".join("".join(row) for row in block), title=f"capsule {n}", expand=False)
        for n, block in enumerate(rows)
    ]
    low, share, high = scale_ends(b.numel())
    steps = f"blank {low}, {SHADES[len(SHADES) // 2]} {share}, {SHADES[-1]} {high}"
    out.print(f"Weights of the last level: {steps}. {ties_in_words(one.tied, '◆', outlines=False)}", soft_wrap=True)
    out.print(Columns(panels))


def _contributions(one: ImageExplanation, classes: Sequence[str], target: int, count: int = 8) -> None:
    parts = one.contributions[target]
    largest = parts.flatten().abs().argsort(descending=True)[:count].tolist()
    _, rows, columns = parts.shape
    table = Table("capsule", "row", "column", "weight", "adds")
    for flat in largest:
        n, i, j = flat // (rows * columns), flat // columns % rows, flat % columns
        table.add_row(str(n), str(i), str(j), f"{one.weights[-1][n, i, j]:.4f}", f"{parts[n, i, j]:+.4f}")
    out.print(
        f"The logit of {escape(classes[target])} is {one.logits[target]:.4f}, the sum of {parts.numel()} "
        "contributions. The largest:",
        soft_wrap=True,
    )
    out.print(table)


def neighbours(near: Neighbours, seen: Survey, classes: Sequence[str], files: Sequence[str] = ()) -> None:
    """`files`: the file of each image of the survey; images of a dataset are numbered"""
    table = Table("training image", "class", "distance")
    for one in near.summary(seen, classes, files):
        table.add_row(_named(one), escape(one["class"]), f"{one['distance']:.3f}")
    out.print("The nearest training images, by their decoded vectors:")
    out.print(table)


def dataset(
    found: Specialization, probes: Sequence[Probe], seen: Survey, classes: Sequence[str], images: str = "images"
) -> None:
    """`images`: how to call the images of the survey, such as test images"""
    out.print(f"{len(seen):,} {images}, accuracy {percent(seen.accuracy)}%")
    tied = seen.tied.double()
    out.print(
        f"Vectors of the last level that share the largest weight, to within 1 %: {float(tied.median()):,.0f} in the "
        f"median image, from {int(tied.min()):,} to {int(tied.max()):,}",
        soft_wrap=not out.is_terminal,
    )
    _levels_in_short(found, probes, len(seen))
    for sentence in (found.trend, *(f"[yellow]{escape(finding)}[/]" for finding in found.findings)):
        out.print(sentence, soft_wrap=not out.is_terminal)  # one line if piped
    _levels_further(found)
    for level in found.levels:
        if level.capsules > 1:
            _mean_weights(level, classes)


def _levels_in_short(found: Specialization, probes: Sequence[Probe], images: int) -> None:
    """Capsules in use, what they say about the class, and how well the level knows it"""
    explained = {
        "in use": "effective number of capsules that win; 1: always the same one",
        "winners": "of an image: weight within 1 % of the largest",
        "winner says": "about the class: 0 nothing, 1 the most one capsule can; (chance)",
    }
    if probes:
        chance = f"chance {percent(probes[0].by_chance, 1)}%"
        explained["probe reads"] = f"class accuracy of a linear probe (95 % interval); {chance}"
    rows = [
        [
            str(level.level + 1),
            str(level.capsules),
            f"{level.effective_chosen:.2f}",
            f"{level.leaders:.2f}",
            f"{level.information_chosen:.3f} ({level.information_chosen_by_chance:.3f})",
            *([_probe(probes[level.level], images)] if probes else []),
        ]
        for level in found.levels
    ]
    _explained(["level", "capsules"], explained, rows)


def _levels_further(found: Specialization) -> None:
    explained = {
        "by weight": "capsules in use, by their mean weights instead of their wins",
        "weights say": "about the class: as a winner, a capsule drawn by weight; (chance)",
        "winners say": "all of an image together, same scale, may exceed 1; (chance)",
    }
    steps = {step.after: f"{step.change:+.3f} ± {step.margin:.3f}".replace("-", "−") for step in found.steps}
    if steps:
        explained["winner gains"] = "on the level before, less chance; ± half a 95 % interval"
    rows = [
        [
            str(level.level + 1),
            f"{level.effective:.2f}",
            f"{level.information:.3f} ({level.information_by_chance:.3f})",
            f"{level.information_set:.3f} ({level.information_set_by_chance:.3f})",
            *([steps.get(level.level, "")] if steps else []),
        ]
        for level in found.levels
    ]
    out.print("\nMore on each level")
    _explained(["level"], explained, rows)


def _explained(plain: list[str], explained: dict[str, str], rows: list[list[str]]) -> None:
    """A table of numbers, with the meaning of its columns below; `plain` columns need no explanation"""
    table = Table(*(Column(name, no_wrap=True) for name in (*plain, *explained)))
    for row in rows:
        table.add_row(*row)
    lines = Table.grid(Column(no_wrap=True), Column(), padding=(0, 2))
    for name, meaning in explained.items():
        lines.add_row(f"[bold]{name}[/]", meaning)
    out.print(table)
    out.print(lines)


def _probe(probe: Probe, images: int) -> str:
    low, high = share_interval(probe.accuracy, images)
    return f"{percent(probe.accuracy, 1)}% ({percent(low, 1)} to {percent(high, 1)})"


def _mean_weights(level: LevelSpecialization, classes: Sequence[str]) -> None:
    """As much as fits: every class with intervals, without them, or for each capsule the classes that give it most"""
    margins = level.margin[~level.margin.isnan()]
    each = " ± half a 95 % confidence interval" if len(margins) else ", single images"
    tables = [(_preferred(level, classes, count), each) for count in (5, 4, 3, 2, 1)]
    if len(classes) <= WIDEST and level.capsules <= WIDEST // 2:
        widest = f", 95 % confidence intervals up to ±{float(margins.max()):.3f}" if len(margins) else each
        tables = [(_by_class(level, classes), each), (_by_class(level, classes, margins=False), widest), *tables]
    free = out.options.update_width(10_000)
    table, noise = next((one for one in tables if out.measure(one[0], options=free).maximum <= out.width), tables[-1])
    out.print(f"\nLevel {level.level + 1}: mean weights (equal: {1 / level.capsules:.3f}){noise}")
    out.print(table)


def _by_class(level: LevelSpecialization, classes: Sequence[str], margins: bool = True) -> Table:
    """One row per class, one column per capsule"""
    table = Table(_name("class"), *(Column(f"{n}", no_wrap=True) for n in range(level.capsules)))
    for name, mean, margin in zip(classes, level.mean.tolist(), level.margin.tolist(), strict=True):
        if math.isnan(mean[0]):
            table.add_row(escape(name), "no images")
            continue
        shown = margin if margins else [math.nan] * level.capsules
        cells = [_with_margin(*pair, bold=pair[0] == max(mean)) for pair in zip(mean, shown, strict=True)]
        table.add_row(escape(name), *cells)
    return table


def _preferred(level: LevelSpecialization, classes: Sequence[str], count: int) -> Table:
    """One row per capsule, with this many of the classes that give it most weight"""
    table = Table("capsule", "mean", *(_name(name) for name in ["most from", *["then"] * count][:count]))
    for n in range(level.capsules):
        mean, margin = level.mean[:, n], level.margin[:, n]
        most = mean.nan_to_num(-1).argsort(descending=True)[:count].tolist()
        cells = [f"{escape(classes[r])} {_with_margin(float(mean[r]), float(margin[r]))}" for r in most]
        table.add_row(str(n), f"{level.usage[n]:.3f}", *cells)
    return table


def _name(title: str) -> Column:
    """Class names at their full length"""
    return Column(title, overflow="fold", max_width=30)


def _with_margin(mean: float, margin: float, bold: bool = False) -> str:
    text = f"{mean:.3f}" if math.isnan(margin) else f"{mean:.3f}±{margin:.3f}".replace("±0.", "±.")
    return f"[bold]{text}[/]" if bold else text


def _named(image: dict[str, Any]) -> str:
    return escape(str(image.get("file", image["image"])))


def capsule(one: CapsuleExplanation, seen: Survey, classes: Sequence[str], files: Sequence[str] = ()) -> None:
    own = ", ".join(f"{escape(classes[r])} ({one.mean[r]:.3f})" for r in one.classes) or "none in particular"
    decoded = f" One of its vectors is decoded in {one.decoded:,}." if one.level == len(seen.weights) - 1 else ""
    out.print(
        f"Capsule {one.capsule} of level {one.level + 1} wins {one.wins:,} of {len(seen):,} images: its weight is "
        f"within 1 % of the largest.{decoded} Its classes: {own}.",
        soft_wrap=True,
    )
    out.print(favourites_title(one))
    table = Table("image", "class", "taken for", "weight")
    for image in one.summary(seen, classes, files)["favourites"]:
        predicted = classes[int(seen.predicted[image["image"]])]
        table.add_row(_named(image), escape(image["class"]), escape(predicted), f"{image['weight']:.3f}")
    out.print(table)


def favourites_title(one: CapsuleExplanation) -> str:
    if one.equal > len(one.images):
        return f"{len(one.images):,} of the {one.equal:,} images that give it most weight, equal to within 1 %:"
    return "The images that give it most weight:"


def traversal(walk: Traversal, images: int) -> None:
    """`images`: the number of images in which the range was measured"""
    if images < 2:
        out.print("What its vector encodes cannot be measured: one image has no range.")
        return
    out.print(
        f"What its vector encodes: each element over its range in {images:,} images, and how much that changes the "
        "reconstruction",
        soft_wrap=True,
    )
    table = Table("element", "from", "to", "mean change of a pixel")
    for k in walk.change.argsort(descending=True).tolist():
        table.add_row(str(k), f"{walk.values[k, 0]:.2f}", f"{walk.values[k, -1]:.2f}", f"{walk.change[k]:.4f}")
    out.print(table)


def rerouted(found: Rerouted, images: str, mean_of: str) -> None:
    """`images`, `mean_of`: how to call the predicted images and those whose weights were averaged"""
    own = found.correct / found.images
    out.print(f"{found.images:,} {images}, accuracy {percent(own)}% with their own weights; with others:")
    levels = len(next(iter(found.by.values()))) - 1
    table = Table("weights", "accuracy", "points", "changed answers")
    alone = Table("weights", *(f"level {level + 1}" for level in range(levels)))
    for kind, outcomes in found.by.items():
        differences = [found.difference(outcome) for outcome in outcomes]
        points = [f"{percent(d, sign='+')} ± {percent(margin)}".replace("-", "−") for d, margin in differences]
        changed = f"{percent(outcomes[0].changed / found.images, 1)}%"
        table.add_row(kind, f"{percent(own + differences[0][0])}%", points[0], changed)
        alone.add_row(kind, *points[1:])
    out.print(table)
    if levels > 1:
        out.print("In one level alone, points:")
        out.print(alone)
    if found.draws:
        out.print(
            f"Over the {len(found.draws)} draws: accuracy {mean_and_deviation(found.draws)} % (standard deviation)"
        )
        kinds = "Equal: no routing. Draw: random weights, the same for all images."
    else:
        kinds = f"Mean: over {mean_of}, so all are routed alike. Other: from a random other image. Equal: no routing."
        if "dropout" in found.by:
            kinds += " Dropout: their own, from critics with dropout on as in training."
    out.print(
        f"{kinds} Points: the change in accuracy, with half its 95 % confidence interval.",
        soft_wrap=True,
    )


def critics(found: Critics, images: str) -> None:
    """`images`: how to call the images they were measured on"""
    out.print(f"The critics on {found.images:,} {images}:")
    steep = Table("level", "γ", "σ", "γ/σ", "Π‖A‖", "bound", "mean\nslope", "largest\nslope", "largest,\nlogit")
    shares = (f"below\n{LOW}", f"above\n{HIGH}", "always\nthe same")
    rest = Table("level", *shares, "σ kept", "σ with\ndropout", "σ without")
    for one in found.levels:
        norms = math.prod(one.operator_norms)
        figures = (one.gamma, one.running.std, one.gain, norms, one.bound, one.slope_mean, one.slope_max)
        steep.add_row(str(one.level), *(f"{figure:.2f}" for figure in (*figures, one.logit_slope_max)))
        often = (one.low, one.high, one.always_low + one.always_high)
        stds = (one.running.std, one.dropping.std, one.plain.std)
        rest.add_row(str(one.level), *(f"{percent(share, 1)}%" for share in often), *(f"{std:.3f}" for std in stds))
    out.print(steep)
    out.print(
        "Bound: ¼ · γ/σ · Π‖A‖, with γ and σ of the batch norm and the norms of the convolutions on their maps. "
        "Slope: the norm of the gradient of the fitness, or of the logit before the sigmoid, with respect to the "
        "judged capsule.",
        soft_wrap=True,
    )
    out.print(rest)
    out.print(
        f"Always the same: blocks (last level: vectors) whose fitness is below {LOW}, or above {HIGH}, for every "
        "image. σ before the batch norm: as stored in training; on these images with the critic's dropout and "
        "without.",
        soft_wrap=True,
    )


def faithfulness(found: dict[str, Faithfulness], baseline: str) -> None:
    images = len(next(iter(found.values())).deletion)
    several = f"{images} images" if images > 1 else "one image"
    out.print(f"Areas under deletion and insertion curves, {several}; regions are replaced by {baseline}")
    table = Table("ranked by", "deletion\n(lower is better)", "insertion\n(higher is better)")
    for name, one in found.items():
        areas = [mean_and_margin(area) for area in (one.deletion_area, one.insertion_area)]
        table.add_row(name, *(f"{m:.3f}" if math.isnan(e) else f"{m:.3f} ± {e:.3f}" for m, e in areas))
    out.print(table)
    if "grad-cam" not in found:
        out.print("Install captum (pip install 'wcapsnet\\[explain]') to add integrated gradients and Grad-CAM.")
