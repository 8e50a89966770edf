"""Plots of throughput against problem size, drawn from records."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..reports.charts import Line, line_chart
from ..reports.export import FORMATS, write_figure
from ..reports.svg import Drawing, arranged, legend, titled
from ..training.run_folder import read_json

AXES = {"batch": "batch size", "capsules": "capsules in level 1", "levels": "levels"}
TITLES = {"train": "training step", "infer": "inference"}
WORK = "proportional to 1/multiply-adds"
Panel = tuple[str, str]  # title, axis
Rows = list[dict[str, Any]]  # of one contender, in the order of the axis


def plot(records: list[Path], out: Path) -> None:
    """One panel for each benchmark and axis, one line for each contender, both axes logarithmic."""
    if out.suffix not in FORMATS:
        raise InputError(f"--out must end with {', '.join(FORMATS)}, not {out.name!r}.")
    panels = _panels(records)
    colors = {
        name: color for color, name in enumerate(dict.fromkeys(name for lines in panels.values() for name in lines))
    }
    drawn = arranged([_draw(panel, lines, colors) for panel, lines in panels.items()], len(panels))
    keys = [(name, f"line c{color % 8}") for name, color in colors.items()]
    if any(axis != "batch" for _, axis in panels):
        keys.append((WORK, "mark"))
    facts = [read_json(path)["environment"] for path in records]
    places = dict.fromkeys(f"{f['hardware']}, PyTorch {f['torch']}, {str(f['commit'])[:12]}" for f in facts)
    write_figure(titled("Throughput", legend(keys, drawn.width), drawn, note=" · ".join(places)), out)


def _panels(records: Iterable[Path]) -> dict[Panel, dict[str, Rows]]:
    panels: dict[Panel, dict[str, Rows]] = {}
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


def _draw(panel: Panel, contenders: dict[str, Rows], colors: dict[str, int]) -> Drawing:
    title, axis = panel
    lines = [
        _line(name, rows, [row["images_per_s"] for row in rows], colors[name]) for name, rows in contenders.items()
    ]
    if axis != "batch":
        best = max(contenders.values(), key=lambda rows: rows[0]["images_per_s"])
        work = [best[0]["macs_per_image"] / row["macs_per_image"] * best[0]["images_per_s"] for row in best]
        lines.insert(0, _line(WORK, best, work, None))
    chart = line_chart(title, lines, width=400, height=330, x_name=AXES[axis], y_name="images/s", logarithmic=True)
    return titled(title, chart)


def _line(name: str, rows: Rows, speeds: list[float], color: int | None) -> Line:
    return Line(name, [row["value"] for row in rows], speeds, [f"{speed:,.0f}" for speed in speeds], color)
