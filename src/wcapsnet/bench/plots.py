"""Plots of throughput against problem size, drawn from records. The only module here that needs matplotlib."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..atomic import replacing
from ..errors import InputError
from ..training.run_folder import read_json

FORMATS = (".svg", ".png", ".pdf")
AXES = {"batch": "batch size", "capsules": "capsules in level 1", "levels": "levels"}
TITLES = {"train": "training step", "infer": "inference"}
COLORS = {
    "fused": "#c8102e",
    "plain": "#1f5fa8",
    "compiled": "#2e8b57",
    "eager": "#8a6fb0",
    "loop": "#777777",
    "densenet": "#c98a1b",
    "densenet-compiled": "#8c5a00",
}
Panel = tuple[str, str]  # title, axis
Line = list[dict[str, Any]]  # rows of one contender, in the order of the axis


def plot(records: list[Path], out: Path) -> None:
    """One panel for each benchmark and axis, one line for each contender, both axes logarithmic."""
    if out.suffix not in FORMATS:
        raise InputError(f"--out must end with {', '.join(FORMATS)}, not {out.name!r}.")
    panels = _panels(records)
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("Figures need matplotlib; install it with: pip install 'wcapsnet[plots]'.") from error
    figure = Figure(figsize=(4.6 * len(panels), 3.8), layout="constrained")
    for axes, (panel, lines) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        _draw(axes, panel, lines)
    facts = [read_json(path)["environment"] for path in records]
    places = dict.fromkeys(f"{f['hardware']}, PyTorch {f['torch']}, {str(f['commit'])[:12]}" for f in facts)
    figure.supxlabel(" · ".join(places), fontsize=7, color="#777777")
    with replacing(out) as partial:
        figure.savefig(partial, format=out.suffix[1:], metadata={"Date": None} if out.suffix == ".svg" else None)


def _panels(records: Iterable[Path]) -> dict[Panel, dict[str, Line]]:
    panels: dict[Panel, dict[str, Line]] = {}
    for path in records:
        record = read_json(path)
        axis = record.get("settings", {}).get("scaling")
        if axis is None:
            raise InputError(f"{path} is not the record of a benchmark with --scaling, so it has no axis to draw.")
        for row in record["results"]:
            timed = row["subject"] if record["benchmark"] == "level" else TITLES[record["benchmark"]]
            panel = (f"{timed} of {record['settings']['model']}", axis)
            panels.setdefault(panel, {}).setdefault(row["contender"], []).append(row)
    for lines in panels.values():
        for line in lines.values():
            line.sort(key=lambda row: row["value"])
    return panels


def _draw(axes: Any, panel: Panel, lines: dict[str, Line]) -> None:
    from matplotlib.ticker import LogLocator

    title, axis = panel
    values = sorted({row["value"] for line in lines.values() for row in line})
    names = []  # labels at the right end of a line: position, text, colour and size
    for label, line in lines.items():
        color = COLORS[label.partition(":")[0]]
        y = [row["images_per_s"] for row in line]
        axes.plot([row["value"] for row in line], y, "o-", color=color, linewidth=1.8, markersize=3.5)
        names.append((y[-1], label, color, 9))
    if axis != "batch":
        best = max(lines.values(), key=lambda line: line[0]["images_per_s"])
        work = [best[0]["macs_per_image"] / row["macs_per_image"] * best[0]["images_per_s"] for row in best]
        axes.plot([row["value"] for row in best], work, ":", color="#bbbbbb", linewidth=1.2, zorder=0)
        names.append((work[-1], "∝ 1/multiply-adds", "#999999", 6))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(values, [str(value) for value in values], fontsize=8)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.minorticks_off()
    axes.set_xlim(values[0] / 1.15, values[-1] * (values[-1] / values[0]) ** 0.22)  # room for the names at the right
    axes.set_xlabel(AXES[axis], fontsize=9)
    axes.set_ylabel("images/s", fontsize=9)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.tick_params(labelsize=8, length=2, color="#aaaaaa")
    axes.grid(True, color="#eeeeee", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.set_title(title, loc="left", fontsize=10)
    _name_lines(axes, values[-1], sorted(names))


def _name_lines(axes: Any, x: float, names: list[tuple[float, str, str, int]]) -> None:
    """At the height where the line ends, without overlapping names."""
    low, high = map(math.log, axes.get_ylim())
    below = -math.inf
    for y, name, color, size in names:
        height = max((math.log(y) - low) / (high - low), below + 0.05)  # as a fraction of the panel
        place = (x, math.exp(low + height * (high - low)))
        axes.annotate(name, place, (6, 0), textcoords="offset points", color=color, va="center", fontsize=size)
        below = height
