"""What `wcapsnet explain` prints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from rich.columns import Columns
from rich.markup import escape
from rich.panel import Panel
from rich.table import Column, Table

from ..console import out
from ..explanations.capsule import CapsuleExplanation, Traversal
from ..explanations.faithfulness import Faithfulness, mean_and_margin
from ..explanations.image import ImageExplanation
from ..explanations.lipschitz import HIGH, LOW, Critics
from ..explanations.probes import Probe, share_interval
from ..explanations.reroute import Rerouted
from ..explanations.shares import against_share, scale_ends, ties_in_words
from ..explanations.specialization import Information, LevelSpecialization, Specialization
from ..explanations.survey import Survey
from ..formatting import mean_and_deviation, percent, plural, signed
from ..training.evaluate import Evaluation
from .console import accuracy_by_class, bold, print_table, say, table

SHADES = " ░▒▓█"
WIDEST = 16  # classes, capsules and map columns that fit a table


def without_routing(found: Evaluation, classes: tuple[str, ...], part: str, facts: dict[str, Any]) -> None:
    """A dataset seen by a network without routing"""
    say(
        f"{len(found.labels):,} {part}: accuracy [bold]{percent(found.accuracy)}%[/], balanced accuracy "
        f"{percent(found.balanced_accuracy)}%, expected calibration error {percent(found.calibration.error)}%"
    )
    if facts["reconstruction_error"] is not None:
        say(f"Mean squared reconstruction error (normalised pixels): {facts['reconstruction_error']:.4f}")
    accuracy_by_class(found.confusion.tolist(), classes)
    print_table(
        ["probability", "images", "accuracy"],
        ([f"{percent(p, 1)}%", f"{n:,}", f"{percent(a, 1)}%"] for n, p, a in found.calibration.bins),
        "Calibration",
    )
    say(escape(facts["not_explained"]))


def image(one: ImageExplanation, classes: Sequence[str], target: int, source: str) -> None:
    order = one.probabilities.argsort(descending=True).tolist()
    first, *others = (f"{percent(float(one.probabilities[r]), 1)}%" for r in order[:4])
    then = ", ".join(f"{escape(classes[r])} {share}" for r, share in zip(order[1:4], others, strict=True))
    say(f"{escape(source)}: [bold]{escape(classes[order[0]])}[/] {first}, then {then}")
    _levels(one, classes, target)
    _heat(one)
    _contributions(one, classes, target)
    elements = "  ".join(f"{value:.2f}" for value in one.vector.tolist())
    decoded = escape(one.decoded(classes))
    say(f"{decoded[0].upper()}{decoded[1:]}. Rows and columns are numbered from 0. Its elements: {elements}")


def _levels(one: ImageExplanation, classes: Sequence[str], target: int) -> None:
    now, logit = float(one.probabilities[target]), float(one.logits[target])
    shown = table("block", "fitness", "weight", "", "probability\nwithout", "logit\nwithout")
    for level, a in enumerate(one.fitness):
        weights = one.block_weights(level)
        for n, (fitness, weight) in enumerate(zip(a.flatten(1).mean(1) if a.dim() > 1 else a, weights, strict=True)):
            probability, without = float(one.without[level][n, target]), float(one.without_logits[level][n, target])
            only = math.isnan(without)
            shown.add_row(
                f"{level + 1}.{n}{' ◀' if n in one.winners[level] else ''}",
                f"{fitness:.3f}",
                f"{weight:.3f}",
                "█" * round(8 * float(weight / weights.max())),
                "" if only else f"{percent(probability)}% ({100 * (probability - now):+.2f})",
                "" if only else f"{without:.3f} ({without - logit:+.3f})",
                end_section=n == len(weights) - 1,
            )
    out.print(shown)
    say(
        "2.1 is block 1 of level 2; blocks are numbered from 0. "
        f"Without: {escape(classes[target])} (now {percent(now)}%, logit {logit:.3f}) with that block switched off and "
        "its weight shared by the others.\n"
        f"In {'every' if one.fitness[0].dim() > 1 else 'the last'} level, the fitness is the mean over positions, the "
        "weight the sum. ◀ marks winners: all blocks whose weight is within 1 % of the largest."
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
    low, share, high = scale_ends(b.numel())
    steps = f"blank {low}, {SHADES[len(SHADES) // 2]} {share}, {SHADES[-1]} {high}"
    say(f"Weights of the last level: {steps}. {ties_in_words(one.tied, '◆', outlines=False)}")
    maps = ("\n".join("".join(row) for row in block) for block in rows)
    out.print(Columns([Panel(text, title=f"block {n}", expand=False) for n, text in enumerate(maps)]))


def _contributions(one: ImageExplanation, classes: Sequence[str], target: int, count: int = 8) -> None:
    parts = one.contributions[target]
    largest = parts.flatten().abs().argsort(descending=True)[:count]
    places = list(zip(*(at.tolist() for at in torch.unravel_index(largest, parts.shape)), strict=True))
    say(
        f"The logit of {escape(classes[target])} is {one.logits[target]:.4f}, the sum of {parts.numel()} "
        "contributions. The largest are:"
    )
    cells = ((*map(str, at), f"{one.weights[-1][at]:.4f}", f"{parts[at]:+.4f}") for at in places)
    print_table(["block", "row", "column", "weight", "contribution"], cells)


def neighbours(near: list[dict[str, Any]]) -> None:
    """As in `Neighbours.summary`: images of a folder are named, others numbered"""
    say("The training images with the nearest decoded vectors:")
    rows = ((_named(one), one["class"], f"{one['distance']:.3f}") for one in near)
    print_table(["training image", "class", "distance"], rows)


def dataset(
    found: Specialization, probes: Sequence[Probe], seen: Survey, classes: Sequence[str], images: str = "images"
) -> None:
    """`images`: what to call the images of the survey, such as test images"""
    say(f"{len(seen):,} {images}, accuracy {percent(seen.accuracy)}%")
    tied = seen.tied.double()
    say(
        "Vectors of the last level that share the largest weight, to within 1 %: median "
        f"{float(tied.median()):,.0f} per image, range {int(tied.min()):,} to {int(tied.max()):,}"
    )
    _in_short(found, probes, len(seen))
    for sentence in (found.trend, *(f"[yellow]{escape(finding)}[/]" for finding in found.findings)):
        say(sentence)
    _further(found)
    for level in found.levels:
        if level.capsules > 1:
            _mean_weights(level, classes)


def _in_short(found: Specialization, probes: Sequence[Probe], images: int) -> None:
    """Blocks in use, what they say about the class, and how well the level knows it"""
    levels = found.levels
    columns = {
        "level": ("", [str(one.level + 1) for one in levels]),
        "blocks": ("", [str(one.capsules) for one in levels]),
        "in use": ("effective number of winning blocks; 1: always the same", _numbers(levels, "effective_chosen")),
        "winners": ("per image: blocks whose weight is within 1 % of the largest", _numbers(levels, "leaders")),
        "winner tells": (
            "information about the class: 0 none, 1 the most one block can carry; chance in brackets",
            [_with_chance(one.information_chosen) for one in levels],
        ),
    }
    if probes:
        chance = f"chance {percent(probes[0].by_chance, 1)}%"
        meaning = f"accuracy of a linear probe for the class (95 % interval); {chance}"
        columns["probe reads"] = (meaning, [_probe(probes[one.level], images) for one in levels])
    _explained(columns)


def _further(found: Specialization) -> None:
    levels = found.levels
    columns = {
        "level": ("", [str(one.level + 1) for one in levels]),
        "by weight": ("blocks in use, counted by mean weight instead of wins", _numbers(levels, "effective")),
        "weights tell": (
            "information of a block drawn by weight; chance in brackets",
            [_with_chance(one.information) for one in levels],
        ),
        "winners tell": (
            "information of all winners together; may exceed 1; chance in brackets",
            [_with_chance(one.information_set) for one in levels],
        ),
    }
    if found.steps:
        steps = {step.after: f"{signed(step.change)} ± {step.margin:.3f}" for step in found.steps}
        gains = "over the previous level, beyond chance; ± half the 95 % interval"
        columns["winner gains"] = (gains, [steps.get(one.level, "") for one in levels])
    say("\nMore on each level")
    _explained(columns)


def _explained(columns: dict[str, tuple[str, list[str]]]) -> None:
    """Column → its meaning, empty if it needs none, and its cells. The meanings follow below the table."""
    rows = zip(*(cells for _, cells in columns.values()), strict=True)
    print_table([Column(name, no_wrap=True) for name in columns], rows)
    lines = Table.grid(Column(no_wrap=True), Column(), padding=(0, 2))
    for name, (meaning, _) in columns.items():
        if meaning:
            lines.add_row(bold(name), meaning)
    out.print(lines)


def _numbers(levels: Sequence[LevelSpecialization], field: str) -> list[str]:
    return [f"{getattr(level, field):.2f}" for level in levels]


def _with_chance(one: Information) -> str:
    return f"{one.value:.3f} ({one.by_chance:.3f})"


def _probe(probe: Probe, images: int) -> str:
    low, high = share_interval(probe.accuracy, images)
    return f"{percent(probe.accuracy, 1)}% ({percent(low, 1)} to {percent(high, 1)})"


def _mean_weights(level: LevelSpecialization, classes: Sequence[str]) -> None:
    """As much as fits: every class with intervals, without them, or for each block the classes that give it most"""
    margins = level.margin[~level.margin.isnan()]
    each = " ± half the 95 % confidence interval" if len(margins) else ", single images"
    tables = [(_preferred(level, classes, count), each) for count in (5, 3, 1)]
    if len(classes) <= WIDEST and level.capsules <= WIDEST // 2:
        widest = f", 95 % confidence intervals up to ±{float(margins.max()):.3f}" if len(margins) else each
        tables = [(_by_class(level, classes), each), (_by_class(level, classes, margins=False), widest), *tables]
    free = out.options.update_width(10_000)
    shown, noise = next((one for one in tables if out.measure(one[0], options=free).maximum <= out.width), tables[-1])
    say(f"\nLevel {level.level + 1}: mean weights (equal share: {1 / level.capsules:.3f}){noise}")
    out.print(shown)


def _by_class(level: LevelSpecialization, classes: Sequence[str], margins: bool = True) -> Table:
    """One row per class, one column per block"""
    shown = table(_name("class"), *(Column(f"{n}", no_wrap=True) for n in range(level.capsules)))
    for name, mean, margin in zip(classes, level.mean.tolist(), level.margin.tolist(), strict=True):
        if math.isnan(mean[0]):
            shown.add_row(escape(name), "no images")
            continue
        cells = [_with_margin(b, e if margins else math.nan) for b, e in zip(mean, margin, strict=True)]
        shown.add_row(escape(name), *(bold(c) if b == max(mean) else c for b, c in zip(mean, cells, strict=True)))
    return shown


def _preferred(level: LevelSpecialization, classes: Sequence[str], count: int) -> Table:
    """One row per block, with this many of the classes that give it most weight"""
    shown = table("block", "mean", *map(_name, ["most from", *["then"] * (count - 1)]))
    for n in range(level.capsules):
        mean, margin = level.mean[:, n], level.margin[:, n]
        most = mean.nan_to_num(-1).argsort(descending=True)[:count].tolist()
        cells = [f"{escape(classes[r])} {_with_margin(float(mean[r]), float(margin[r]))}" for r in most]
        shown.add_row(str(n), f"{level.usage[n]:.3f}", *cells)
    return shown


def _name(title: str) -> Column:
    """Class names at their full length"""
    return Column(title, overflow="fold", max_width=30)


def _with_margin(mean: float, margin: float) -> str:
    return f"{mean:.3f}" if math.isnan(margin) else f"{mean:.3f}±{margin:.3f}".replace("±0.", "±.")


def _named(image: dict[str, Any]) -> str:
    return str(image.get("file", image["image"]))


def capsule(one: CapsuleExplanation, seen: Survey, classes: Sequence[str], files: Sequence[str] = ()) -> None:
    own = ", ".join(f"{escape(classes[r])} ({one.mean[r]:.3f})" for r in one.classes) or "none"
    last = one.level == len(seen.weights) - 1
    decoded = f" One of its vectors is decoded in {plural(one.decoded, 'image')}." if last else ""
    say(
        f"Block {one.capsule} of level {one.level + 1} wins {one.wins:,} of {len(seen):,} images: its weight is "
        f"within 1 % of the largest.{decoded} Classes that give it more weight than average: {own}."
    )
    some = f"{len(one.images):,} of the {one.equal:,} images that give it the most weight, equal to within 1 %:"
    say(some if one.equal > len(one.images) else "The images that give it the most weight:")
    favourites = one.summary(seen, classes, files)["favourites"]
    predicted = (classes[int(seen.predicted[image["image"]])] for image in favourites)
    print_table(
        ["image", "class", "predicted", "weight"],
        ((_named(f), f["class"], other, f"{f['weight']:.3f}") for f, other in zip(favourites, predicted, strict=True)),
    )


def traversal(walk: Traversal, images: int) -> None:
    """`images`: the number of images in which the range was measured"""
    if images < 2:
        say("What its vectors encode cannot be measured from a single image.")
        return
    say(
        f"What its vectors encode: change of the reconstruction when one element varies over its range in {images:,} "
        "images"
    )
    order = walk.change.argsort(descending=True).tolist()
    cells = ((str(k), f"{walk.values[k, 0]:.2f}", f"{walk.values[k, -1]:.2f}", f"{walk.change[k]:.4f}") for k in order)
    print_table(["element", "from", "to", "mean change per pixel"], cells)


def rerouted(found: Rerouted, images: str, mean_of: str) -> None:
    """`images`, `mean_of`: what to call the predicted images and those whose weights were averaged"""
    own = found.correct / found.images
    say(f"{found.images:,} {images}, accuracy {percent(own)}% with their own weights. With other weights:")
    everywhere, alone = [], []
    for kind, outcomes in found.by.items():
        differences = [found.difference(outcome) for outcome in outcomes]
        points = [
            f"{percent(d, sign='+')} ± {percent(margin, sign='-')}".replace("-", "−") for d, margin in differences
        ]
        changed = f"{percent(outcomes[0].changed / found.images, 1)}%"
        everywhere.append([kind, f"{percent(own + differences[0][0])}%", points[0], changed])
        alone.append([kind, *points[1:]])
    print_table(["weights", "accuracy", "points", "changed predictions"], everywhere)
    if len(alone[0]) > 2:
        say("Points, with the weights of one level replaced at a time:")
        print_table(["weights", *(f"level {level}" for level in range(1, len(alone[0])))], alone)
    if found.draws:
        say(f"Over the {len(found.draws)} draws: accuracy {mean_and_deviation(found.draws)} % (standard deviation)")
        kinds = "Equal: equal weights. Draw: random weights, the same for all images."
    else:
        kinds = f"Mean: mean weights of {mean_of}, the same for all images. Other: weights of another, random image. "
        kinds += "Equal: equal weights."
        if "dropout" in found.by:
            kinds += " Dropout: own weights, from critics with dropout on, as in training."
    say(f"{kinds} Points: the change in accuracy ± half its 95 % confidence interval.")


def critics(found: Critics, images: str) -> None:
    """`images`: what to call the images they were measured on"""
    steep, rest = [], []
    for one in found.levels:
        figures = (one.gamma, one.running.std, one.gain, math.prod(one.operator_norms), one.bound)
        slopes = (one.slope_mean, one.slope_max, one.logit_slope_max)
        steep.append([str(one.level), *(f"{figure:.2f}" for figure in (*figures, *slopes))])
        shares = (one.low, one.high, one.always_low + one.always_high)
        stds = (one.running.std, one.dropping.std, one.plain.std)
        rest.append([str(one.level), *(f"{percent(share, 1)}%" for share in shares), *(f"{std:.3f}" for std in stds)])
    say(f"The critics on {found.images:,} {images}:")
    print_table(["level", "γ", "σ", "γ/σ", "Π‖A‖", "bound", "mean\nslope", "largest\nslope", "largest,\nlogit"], steep)
    say(
        "Bound: ¼ · γ/σ · Π‖A‖, with γ and σ of the batch norm and ‖A‖ the norm of a convolution on its map. "
        "Slope: the norm of the gradient of the fitness, or of the logit before the sigmoid, with respect to the "
        "judged capsule."
    )
    names = (f"below\n{LOW}", f"above\n{HIGH}", "always\nthe same")
    print_table(["level", *names, "σ stored", "σ with\ndropout", "σ without"], rest)
    say(
        f"Always the same: blocks (vectors where these are judged, as in the last level) whose fitness is below {LOW}, "
        f"or above {HIGH}, for every image. σ of the batch norm's input: as stored in training, and on these images "
        "with the critic's dropout on and off."
    )


def faithfulness(found: dict[str, Faithfulness], baseline: str) -> None:
    images = len(next(iter(found.values())).deletion)
    say(f"Areas under the deletion and insertion curves of {plural(images, 'image')}; regions are {baseline}")
    areas = {n: [mean_and_margin(area) for area in (one.deletion_area, one.insertion_area)] for n, one in found.items()}
    print_table(
        ["ranked by", "deletion\n(lower is better)", "insertion\n(higher is better)"],
        ([n, *(f"{m:.3f}" if math.isnan(e) else f"{m:.3f} ± {e:.3f}" for m, e in two)] for n, two in areas.items()),
    )
    if "grad-cam" not in found:
        say("Install captum (pip install 'wcapsnet\\[explain]') to add integrated gradients and Grad-CAM.")
