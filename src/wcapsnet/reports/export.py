"""Figures as files: SVG, and PDF and PNG made from it by Typst."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..atomic import replacing, write_text
from ..errors import InputError
from ..formatting import percentage
from . import figures
from .facts import Facts
from .figures import Metrics
from .pictures import Pictures, Shown, picture
from .svg import Drawing, arranged, legend, titled

FORMATS = (".svg", ".pdf", ".png")
PAGE = b"""#set document(date: none, title: sys.inputs.label)
#set page(width: auto, height: auto, margin: 0pt)
#image(bytes(sys.inputs.svg), format: "svg", alt: sys.inputs.label)
"""
NEEDED = "PDF and PNG figures need Typst; install it with: pip install 'wcapsnet[plots]'."


def converter() -> Any:
    """The module typst, or None if it is not installed"""
    try:
        import typst
    except ImportError:
        return None
    return typst


def write_figures(drawings: Iterable[tuple[str, Drawing]], folder: Path) -> list[Path]:
    """Write each drawing as SVG and, if Typst is installed, as PDF and PNG; returns the written files."""
    folder.mkdir(parents=True, exist_ok=True)
    formats = FORMATS if converter() else FORMATS[:1]
    return [write_figure(drawing, folder / f"{name}{kind}") for name, drawing in drawings for kind in formats]


def write_figure(drawing: Drawing, path: Path) -> Path:
    """In the format that the name ends with"""
    svg = drawing.file()
    if path.suffix == ".svg":
        write_text(path, svg)
        return path
    typst = converter()
    if typst is None:
        raise InputError(NEEDED)
    inputs = {"svg": svg, "label": drawing.label}
    with replacing(path) as unfinished:
        unfinished.write_bytes(typst.compile(PAGE, format=path.suffix[1:], ppi=200, sys_inputs=inputs))
    return path


def run_figures(facts: Facts) -> Iterator[tuple[str, Drawing]]:
    if facts.subject.metrics:
        yield from curve_figures({facts.subject.name: facts.subject.metrics})
    results, classes = facts.figures, facts.classes
    if results and "confusion" in results:
        note = "Blue: correct; orange: wrong; stronger colours: more frequent."
        matrix = figures.confusion_matrix(results["confusion"], classes)
        yield "confusion", titled("Confusion matrix", matrix, note=note)
        bars, low = figures.class_bars(results, classes, len(classes))
        note = f"Bars start at {percentage(low, 0)}; thin lines: 95\u202f% confidence intervals."
        yield "classes", titled("Accuracy of each class", bars, note=note)
    if facts.calibration and facts.calibration.bins:
        note = f"Expected calibration error {percentage(facts.calibration.error)}; dashed: perfect calibration."
        yield "calibration", titled("Accuracy over probability", figures.reliability(facts.calibration), note=note)
    if facts.seen and facts.specialization:
        for level in facts.specialization.levels:
            title = f"Level {level.level + 1}: mean routing weights"
            note = f"Information of the winning block about the class: {level.information_chosen}."
            drawn = figures.level_map(level, classes), figures.share_scale(level.capsules)
            yield f"routing-level-{level.level + 1}", titled(title, *drawn, note=note)
        if facts.seen.probes:
            note = f"Accuracy on {facts.seen.part} images; thin lines: 95\u202f% confidence intervals."
            yield "probes", titled("Linear probes on each level", figures.probes(facts.seen), note=note)
    if facts.pictures:
        yield from _galleries(facts, facts.pictures)


def _galleries(facts: Facts, shown: Pictures) -> Iterator[tuple[str, Drawing]]:
    if shown.mistakes:
        items = [(picture(one.pixels, one.name, 92), _answer(facts, one)) for one in shown.mistakes]
        title = "The most confident mistakes: true class → predicted class"
        yield "mistakes", titled(title, figures.gallery(title, items, 8))
    if shown.examples:
        rows = []
        for one in shown.examples:
            strip = figures.evidence(facts, one, capsules=4).strip[:-1]
            (first, _), *others = strip
            items = [
                (first, _answer(facts, one.shown)),
                *((drawn, [about.removeprefix("weights of ")]) for drawn, about in others),
            ]
            rows.append(figures.gallery(one.shown.name, items, len(items), wide=130))
        scale = figures.share_scale(shown.examples[0].explained.weights[-1].numel())
        note = "Outlined: vectors that share the largest weight; dot: the decoded vector."
        yield "examples", titled("Weights of the last level", *rows, scale, note=note)
    if shown.reconstructions:
        pairs = []
        for pixels, rebuilt in shown.reconstructions:
            name = facts.classes[pixels.label]
            pair = [(picture(pixels.pixels, name, 72), [name]), (picture(rebuilt, name, 72), [""])]
            pairs.append(figures.gallery(name, pair, 2, wide=72))
        yield "reconstructions", titled("Images and their reconstructions", arranged(pairs, 5))


def _answer(facts: Facts, one: Shown) -> list[str]:
    return [facts.classes[one.label], f"→ {facts.classes[one.predicted]}", percentage(one.probability, 1)]


def comparison_figures(runs: Mapping[str, Facts]) -> Iterator[tuple[str, Drawing]]:
    curves = {name: facts.subject.metrics for name, facts in runs.items() if facts.subject.metrics}
    if curves:
        yield from curve_figures(curves)


def curve_figures(runs: Mapping[str, Metrics]) -> Iterator[tuple[str, Drawing]]:
    """Accuracy, then all loss terms"""
    yield "accuracy", accuracy_figure("Accuracy", runs)
    panels = [titled(title, chart) for title, _, chart in figures.losses(runs)]
    if panels:
        drawn = arranged(panels, min(3, len(panels)))
        colors = [(name, f"line c{k % 8}") for k, name in enumerate(runs)]
        note = "Cross entropy: validation solid, training dashed." if len(runs) > 1 else ""
        keys = [legend(colors, drawn.width)] if len(runs) > 1 else []
        yield "losses", titled("Loss terms", *keys, drawn, note=note)


def accuracy_figure(title: str, runs: Mapping[str, Metrics]) -> Drawing:
    note = "Dashed vertical lines: the learning rate drops." if figures.drops(runs) else ""
    return titled(title, figures.accuracy(runs), note=note)
