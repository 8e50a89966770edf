"""The record of a benchmark as a table."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.table import Column, Table

from ..console import out, warn
from .console import say


def tables(record: dict[str, Any]) -> None:
    environment, settings, limits = record["environment"], record["settings"], record["ceilings"]
    say(
        f"[bold]{record['benchmark']}[/] of {escape(settings['model'])} on {escape(environment['hardware'])}"
        + (f", {environment['threads']} threads" if environment["cuda"] is None else "")
        + f", PyTorch {environment['torch']}: medians of {settings['repeats']} windows of at least "
        f"{settings['window_s']:g} s, in turns"
    )
    if limits:
        say(
            f"Measured ceilings: bf16 matrix product {limits['matmul_tflop_per_s']:.0f} TFLOP/s, copy "
            f"{limits['copy_tb_per_s']:.2f} TB/s; shares are relative to these"
        )
    out.print(_table(record["results"], limits is not None))
    warnings(record)


def warnings(record: dict[str, Any]) -> None:
    """Contenders missing from the table, and results that should not be trusted."""
    said = [f"{label} left out: {why}" for label, why in record["cannot"].items()]
    rows = record["results"]
    said += [f"{r['contender']}, batch {r['batch']}: its loss is not finite." for r in rows if _broken(r)]
    disturbed, windows = sum(r["disturbed_windows"] for r in rows), sum(len(r["windows_ms"]) for r in rows)
    if disturbed:
        said.append(f"Other processes were busy during {disturbed} of {windows} windows.")
    for sentence in said:
        warn(sentence)


def _broken(row: dict[str, Any]) -> bool:
    return "mean_loss" in row and row["mean_loss"] is None


def _table(rows: list[dict[str, Any]], gpu: bool) -> Table:
    subjects = len({row["subject"] for row in rows}) > 1
    scaled = any("value" in row for row in rows)
    firsts = any(row["first_s"] is not None for row in rows)
    columns: dict[str, Any] = {"contender": lambda row: escape(row["contender"]), "precision": lambda r: r["precision"]}
    if subjects:
        columns["what"] = lambda row: row["subject"]
    columns["batch"] = lambda row: str(row["batch"])
    if scaled:
        columns["capsules"] = lambda row: "-".join(map(str, row["capsules"]))
    columns["ms"] = lambda row: _figure(row["ms"])
    columns["fastest … slowest"] = lambda row: f"{_figure(min(row['windows_ms']))} … {_figure(max(row['windows_ms']))}"
    if not gpu:
        columns["CPU ms"] = lambda row: _figure(row["cpu_ms"])
    columns["images/s"] = lambda row: f"{row['images_per_s']:,.0f}"
    columns["× loop"] = lambda row: _against_loop(row, rows)
    if firsts:
        columns["first, s"] = lambda row: f"{row['first_s']:.1f}" if row["first_s"] is not None else ""
    if gpu:
        columns["MiB"] = lambda row: f"{row['peak_mib']:,.0f}" if row["peak_mib"] is not None else ""
        columns["of matmul"] = lambda row: f"{row['of_matmul']:.1%}" if "of_matmul" in row else ""
        columns["of copy"] = lambda row: f"{row['of_copy']:.1%}" if "of_copy" in row else ""
    text = ("contender", "precision", "what")
    table = Table(*(Column(name, justify="left" if name in text else "right") for name in columns))
    place = None
    for row in rows:
        here = (row["batch"], row.get("value"), row["subject"])
        if place not in (None, here):
            table.add_section()
        place = here
        table.add_row(*(cell(row) for cell in columns.values()))
    return table


def _against_loop(row: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Speed-up over the loop in the same comparison."""
    same = ("batch", "subject", "value")
    loops = [r for r in rows if r["contender"] == "loop" and all(r.get(key) == row.get(key) for key in same)]
    return f"{loops[0]['ms'] / row['ms']:.1f}" if loops else ""


def _figure(ms: float) -> str:
    return f"{ms:.0f}" if ms >= 1000 else f"{ms:.3g}"
