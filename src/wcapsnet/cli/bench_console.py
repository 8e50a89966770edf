"""The record of a benchmark as a table."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any

from rich.markup import escape
from rich.table import Column, Table

from ..console import out, warn
from .console import say

TITLES = {"train": "Training step", "infer": "Inference", "level": "Single levels"}


def tables(record: dict[str, Any]) -> None:
    environment, settings, limits = record["environment"], record["settings"], record["ceilings"]
    say(
        f"[bold]{TITLES[record['benchmark']]}[/] of {escape(settings['model'])} on {escape(environment['hardware'])}"
        + (f", {environment['threads']} threads" if environment["cuda"] is None else "")
        + f", PyTorch {environment['torch']}: medians of {settings['repeats']} windows of at least "
        f"{settings['window_s']:g} s, interleaved"
    )
    if limits:
        say(
            f"Measured ceilings: bf16 matrix product {limits['matmul_tflop_per_s']:.0f} TFLOP/s, copy "
            f"{limits['copy_tb_per_s']:.2f} TB/s; shares are relative to these"
        )
    out.print(_table(record["results"], limits is not None))
    warnings(record)


def warnings(record: dict[str, Any]) -> None:
    """Implementations missing from the table, and results that should not be trusted."""
    for label, why in record["cannot"].items():
        warn(f"{label} left out: {why}")
    rows = record["results"]
    for row in rows:
        if row.get("mean_loss", 0.0) is None:
            warn(f"{row['contender']}, batch {row['batch']}: its loss is not finite.")
    disturbed, windows = sum(r["disturbed_windows"] for r in rows), sum(len(r["windows_ms"]) for r in rows)
    if disturbed:
        warn(f"Other processes were busy during {disturbed} of {windows} windows.")


def _table(rows: list[dict[str, Any]], gpu: bool) -> Table:
    columns: list[tuple[str, bool, Callable[[dict[str, Any]], str]]] = [  # name, whether it is needed, cell
        ("implementation", True, lambda row: escape(row["contender"])),
        ("precision", True, lambda row: row["precision"]),
        ("what", len({row["subject"] for row in rows}) > 1, lambda row: row["subject"]),
        ("batch", True, lambda row: str(row["batch"])),
        ("capsules", any("value" in row for row in rows), lambda row: "-".join(map(str, row["capsules"]))),
        ("ms", True, lambda row: _figure(row["ms"])),
        ("fastest … slowest", True, lambda row: " … ".join(_figure(f(row["windows_ms"])) for f in (min, max))),
        ("CPU ms", not gpu, lambda row: _figure(row["cpu_ms"])),
        ("images/s", True, lambda row: format(row["images_per_s"], ",.0f" if row["images_per_s"] >= 100 else ".3g")),
        ("× loop", any(row["contender"] == "loop" for row in rows), lambda row: _against_loop(row, rows)),
        ("first, s", any(row["first_s"] is not None for row in rows), lambda row: _optional(row, "first_s", ".1f")),
        ("MiB", gpu, lambda row: _optional(row, "peak_mib", ",.0f")),
        ("of matmul", gpu, lambda row: _optional(row, "of_matmul", ".1%")),
        ("of copy", gpu, lambda row: _optional(row, "of_copy", ".1%")),
    ]
    shown = {name: cell for name, needed, cell in columns if needed}
    text = ("implementation", "precision", "what")
    table = Table(*(Column(name, justify="left" if name in text else "right") for name in shown))
    groups = [list(group) for _, group in groupby(rows, _comparison)]
    for group in groups:
        for row in group:
            table.add_row(*(cell(row) for cell in shown.values()))
        if len(groups) < len(rows):
            table.add_section()
    return table


def _comparison(row: dict[str, Any]) -> tuple[Any, ...]:
    """What rows that are measured against each other have in common"""
    return row["batch"], row.get("value"), row["subject"]


def _against_loop(row: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Speed-up over the loop in the same comparison."""
    loops = [r for r in rows if r["contender"] == "loop" and _comparison(r) == _comparison(row)]
    return f"{loops[0]['ms'] / row['ms']:.1f}" if loops else ""


def _optional(row: dict[str, Any], key: str, form: str) -> str:
    return "" if row.get(key) is None else format(row[key], form)


def _figure(ms: float) -> str:
    return f"{ms:.0f}" if ms >= 1000 else f"{ms:.3g}"
