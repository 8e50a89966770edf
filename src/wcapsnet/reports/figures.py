"""The figures of the page for papers and slides, as PDF, PNG and SVG. The only module here that needs matplotlib."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..atomic import replacing
from ..errors import InputError
from ..explanations import LevelSpecialization, specialization
from ..explanations.probes import share_interval
from ..explanations.shares import against_share, outlined, scale_ends
from .colors import share_over
from .confusion import class_accuracies
from .curves import TERMS, Metrics
from .facts import Facts
from .pictures import Example, Shown
from .section import MANY
from .shades import RAMP
from .svg import beginning, shortened

FORMATS = ("pdf", "png", "svg")
COLORS = ("#0b5fa5", "#c2410c", "#17805c", "#8a5a00", "#8b3fa0", "#0e7c86", "#b3245a", "#5b6472")


def check() -> None:
    """Raise an error if matplotlib is missing, before anything is computed"""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise InputError("Figures need matplotlib; install it with: pip install 'wcapsnet[plots]'.") from error


def write_figures(figures: Iterator[tuple[str, Any]], folder: Path) -> list[Path]:
    """Write each figure in every format; returns the written files"""
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with matplotlib.rc_context({"svg.hashsalt": "wcapsnet", "font.size": 9, "pdf.fonttype": 42}):
        for name, figure in figures:
            for kind in FORMATS:
                path = folder / f"{name}.{kind}"
                metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
                with replacing(path) as partial:
                    figure.savefig(partial, format=kind, dpi=200, metadata=metadata)
                written.append(path)
    return written


def run_figures(facts: Facts) -> Iterator[tuple[str, Any]]:
    if facts.subject.metrics:
        yield from curve_figures({facts.subject.name: facts.subject.metrics})
    figures = facts.figures
    if figures and "confusion" in figures:
        yield "confusion", _confusion(figures["confusion"], facts.classes)
        yield "classes", _classes(facts, figures)
    if facts.seen:
        for level in specialization(facts.seen.survey).levels:
            yield f"routing-level-{level.level + 1}", _level(level, facts.classes)
        if facts.seen.probes:
            yield "probes", _probes(facts)
    if facts.pictures:
        if facts.pictures.mistakes:
            yield "mistakes", _mistakes(facts)
        yield "examples", _examples(facts)
        yield "reconstructions", _reconstructions(facts)


def comparison_figures(runs: Mapping[str, Facts]) -> Iterator[tuple[str, Any]]:
    curves = {name: facts.subject.metrics for name, facts in runs.items() if facts.subject.metrics}
    if curves:
        yield from curve_figures(curves)


def curve_figures(runs: Mapping[str, Metrics]) -> Iterator[tuple[str, Any]]:
    """Accuracy, then all loss terms"""
    figure, axes = _figure(5.2, 3.2)
    for number, (name, metrics) in enumerate(runs.items()):
        for field, part, style in (("validation_accuracy", "validation", "-"), ("train_accuracy", "training", "--")):
            _curve(axes, metrics, field, f"{name}, {part}", COLORS[number % len(COLORS)], style, 100)
    axes.set(xlabel="epoch", ylabel="accuracy in %")
    axes.legend(frameon=False, fontsize=7)
    yield "accuracy", figure
    terms = [term for term in TERMS if any(term[0] in metrics[-1] for metrics in runs.values())]
    if not terms:
        return
    columns = min(3, len(terms))
    figure, panels = _panels(
        3 * columns, 2.4 * math.ceil(len(terms) / columns), math.ceil(len(terms) / columns), columns
    )
    for panel in panels[len(terms) :]:
        panel.remove()
    for axes, (field, other, title, _) in zip(panels, terms, strict=False):
        for number, (name, metrics) in enumerate(runs.items()):
            color = COLORS[number % len(COLORS)]
            _curve(axes, metrics, field, name, color, "-", 1)
            if other:
                _curve(axes, metrics, other, f"{name}, validation", color, "--", 1)
        axes.set_title(title, loc="left", fontsize=9)
        axes.set_xlabel("epoch", fontsize=8)
    yield "losses", figure


def _curve(axes: Any, metrics: Metrics, field: str, label: str, color: str, style: str, factor: float) -> None:
    points = [(m["epoch"], factor * m[field]) for m in metrics if isinstance(m.get(field), (int, float))]
    if points:
        marker = "." if len(points) <= 12 else ""  # a single epoch makes no line
        axes.plot(
            *zip(*points, strict=True), style, marker=marker, color=color, label=_plain([label])[0], linewidth=1.4
        )
        axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)


def _figure(width: float, height: float) -> tuple[Any, Any]:
    figure, (axes,) = _panels(width, height, 1, 1)
    return figure, axes


def _panels(width: float, height: float, rows: int, columns: int) -> tuple[Any, list[Any]]:
    """Row by row"""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=7, length=2)
        axes.grid(True, color="#e8e8e8", linewidth=0.6)
        axes.set_axisbelow(True)
    return figure, panels


def _confusion(matrix: Sequence[Sequence[int]], classes: Sequence[str]) -> Any:
    import numpy as np

    counts = np.array(matrix, dtype=float)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    size = min(12.0, max(3.6, 0.34 * len(classes)))
    figure, axes = _figure(size + 0.8, size)
    drawn = axes.imshow(np.sqrt(shares), cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(drawn, ax=axes, shrink=0.7, format=lambda value, _: f"{100 * value**2:.0f} %")
    letters = 8 if len(classes) <= 12 else 6 if len(classes) <= 40 else 3
    axes.set_xticks(range(len(classes)), _plain(classes), rotation=90, fontsize=letters)
    axes.set_yticks(range(len(classes)), _plain(classes), fontsize=letters)
    if len(classes) <= MANY:
        for i, row in enumerate(matrix):
            for j, count in enumerate(row):
                if count:
                    shade = "white" if shares[i, j] > 0.35 else "black"
                    axes.text(j, i, f"{count}", ha="center", va="center", fontsize=6, color=shade)
    axes.grid(False)
    axes.set(xlabel="predicted class", ylabel="true class")
    return figure


def _plain(names: Sequence[str]) -> list[str]:
    """Escape $, which matplotlib reads as mathematics"""
    return [name.replace("$", r"\$") for name in names]


def _classes(facts: Facts, figures: dict[str, Any]) -> Any:
    found = [(name, *one) for name, one in zip(facts.classes, class_accuracies(figures), strict=True) if one[1]]
    figure, axes = _figure(5.2, max(2.2, 0.2 * len(found) + 0.8))
    places = range(len(found))
    shares = [share for _, share, _ in found]
    intervals = [share_interval(share, images) for _, share, images in found]
    spread = _sides(shares, intervals)
    axes.barh(places, [100 * share for share in shares], xerr=spread, color=COLORS[0], height=0.7, capsize=2)
    axes.set_yticks(places, _plain([name for name, *_ in found]), fontsize=8 if len(found) <= 30 else 5)
    axes.invert_yaxis()
    axes.set_xlim(100 * beginning(intervals), 100)
    axes.set_xlabel("accuracy in %")
    return figure


def _sides(shares: Sequence[float], intervals: Sequence[tuple[float, float]]) -> list[list[float]]:
    """The extent of the intervals below and above, in %"""
    pairs = list(zip(shares, intervals, strict=True))
    return [[100 * (share - low) for share, (low, _) in pairs], [100 * (high - share) for share, (_, high) in pairs]]


def _level(level: LevelSpecialization, classes: Sequence[str]) -> Any:
    """The paper's figure: one dot per class at its mean weight, with its confidence interval; one group per capsule.
    With many classes, a map."""
    rows = [r for r in range(len(classes)) if level.counts[r] > 0]
    n = level.capsules
    if len(rows) > MANY:
        rows.sort(key=lambda r: (int(level.mean[r].argmax()), -float(level.mean[r].max())))
        figure, axes = _figure(0.4 * n + 2.6, max(3.0, 0.09 * len(rows)))
        axes.imshow(against_share(level.mean[rows], n).numpy(), cmap=_shades(), vmin=-1, vmax=1, aspect="auto")
        _share_scale(figure, axes, n)
        axes.set_yticks(range(len(rows)), _plain([classes[r] for r in rows]), fontsize=4)
        axes.set_xticks(range(n))
        axes.grid(False)
    else:
        import matplotlib

        figure, axes = _figure(max(4.2, 0.45 * n + 2.4), 3.2)
        colors = matplotlib.colormaps["tab20" if len(rows) > 10 else "tab10"]
        for place, r in enumerate(rows):
            shift = 0.6 * (place / max(1, len(rows) - 1) - 0.5)
            spread = level.margin[r].nan_to_num(0).tolist()
            axes.errorbar(
                [k + shift for k in range(n)],
                level.mean[r].tolist(),
                yerr=spread,
                fmt="o",
                markersize=3.5,
                elinewidth=1,
                color=colors(place),
                label=_plain([classes[r]])[0],
            )
        axes.axhline(1 / n, color="#999999", linewidth=0.8, linestyle=":")
        axes.set_xticks(range(n))
        axes.legend(frameon=False, fontsize=6, loc="center left", bbox_to_anchor=(1, 0.5))
        axes.set_ylabel("mean weight")
    axes.set_xlabel("capsule")
    told = f"information {level.information_chosen:.3f} (chance {level.information_chosen_by_chance:.3f})"
    axes.set_title(f"level {level.level + 1}: {told}", loc="left", fontsize=8)
    return figure


def _shades() -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("shares", [[part / 255 for part in rgb] for rgb in RAMP])


def _share_scale(figure: Any, axes: Any, n: int) -> None:
    """The colour bar of a map of weights, where 1/N is the equal share"""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    bar = figure.colorbar(ScalarMappable(Normalize(-1, 1), _shades()), ax=axes, shrink=0.6, aspect=30)
    bar.set_ticks([-1, 0, 1], labels=scale_ends(n), fontsize=6)


def _probes(facts: Facts) -> Any:
    assert facts.seen
    found = [(f"level {probe.level + 1}", probe.accuracy) for probe in facts.seen.probes]
    found.append(("network", facts.seen.survey.accuracy))
    intervals = [share_interval(share, len(facts.seen.survey)) for _, share in found]
    figure, axes = _figure(4.2, 2.8)
    axes.bar(
        range(len(found)),
        [100 * share for _, share in found],
        yerr=_sides([share for _, share in found], intervals),
        color=COLORS[5],
        capsize=3,
    )
    axes.axhline(100 * facts.seen.probes[0].by_chance, color="#999999", linestyle=":", linewidth=1)
    axes.set_xticks(range(len(found)), [name for name, _ in found])
    axes.set_ylabel(f"{facts.seen.part} accuracy in %")
    return figure


def _show(axes: Any, pixels: Any, title: str) -> None:
    """(ch, h, w)"""
    array = pixels.permute(1, 2, 0).numpy()
    white = 255 if array.dtype == "uint8" else 1
    axes.imshow(array[:, :, 0] if array.shape[2] == 1 else array, cmap="gray", vmin=0, vmax=white)
    axes.set_axis_off()
    axes.set_title(_plain([title])[0], fontsize=6)


def _answer(facts: Facts, one: Shown) -> str:
    """The true class, and below it the prediction"""
    return f"{shortened(facts.classes[one.label], 100)}\n→ {shortened(facts.classes[one.predicted], 90)}"


def _mistakes(facts: Facts) -> Any:
    assert facts.pictures
    shown = facts.pictures.mistakes
    figure, panels = _panels(7.2, 1.2 * math.ceil(len(shown) / 8), math.ceil(len(shown) / 8), 8)
    for axes in panels:
        axes.set_axis_off()
    for axes, one in zip(panels, shown, strict=False):
        _show(axes, one.pixels, _answer(facts, one))
    return figure


def _examples(facts: Facts) -> Any:
    """One row per image: input, reconstruction, and the weights of each capsule of the last level"""
    assert facts.pictures
    shown = facts.pictures.examples
    capsules = min(4, shown[0].explained.weights[-1].shape[0])
    figure, panels = _panels(1.1 * (2 + capsules) + 0.9, 1.2 * len(shown), len(shown), 2 + capsules)
    for row, one in enumerate(shown):
        cells = panels[row * (2 + capsules) :]
        _show(cells[0], one.shown.pixels, _answer(facts, one.shown))
        _show(cells[1], one.reconstruction, "reconstruction")
        heat, weights = one.explained.heat(), one.explained.weights[-1]
        for k in range(capsules):
            drawn = share_over(one.shown.pixels.float() / 255, heat[k], weights.numel())
            _show(cells[2 + k], drawn, f"capsule {k}")
            _mark(cells[2 + k], one, k)
    _share_scale(figure, panels, shown[0].explained.weights[-1].numel())
    figure.supxlabel("outlined: vectors that share the largest weight; dot: the decoded vector", fontsize=6)
    return figure


def _mark(axes: Any, one: Example, capsule: int) -> None:
    """Outline the vectors of a capsule with the largest weight; a dot marks the decoded one."""
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import withStroke

    shadow = [withStroke(linewidth=1, foreground="#10141a")]
    stride = one.explained.stride
    for n, i, j in outlined(one.explained.tied):
        if n == capsule:
            corner = (j * stride - 0.5, i * stride - 0.5)
            axes.add_patch(
                Rectangle(corner, stride, stride, fill=False, edgecolor="white", linewidth=0.5, path_effects=shadow)
            )
    n, i, j = one.explained.place
    if n == capsule:
        middle = ((j + 0.5) * stride - 0.5, (i + 0.5) * stride - 0.5)
        axes.plot(*middle, "o", markersize=2.5, color="white", markeredgecolor="black", markeredgewidth=0.6)


def _reconstructions(facts: Facts) -> Any:
    assert facts.pictures
    shown = facts.pictures.reconstructions
    rows = math.ceil(len(shown) / 10)
    columns = min(10, len(shown))
    figure, panels = _panels(0.75 * columns + 0.2, 1.7 * rows, 2 * rows, columns)
    for axes in panels:
        axes.set_axis_off()
    for number, one in enumerate(shown):
        row, column = divmod(number, columns)
        _show(panels[2 * row * columns + column], one.shown.pixels, shortened(facts.classes[one.shown.label], 90))
        _show(panels[(2 * row + 1) * columns + column], one.reconstruction, "")
    return figure
