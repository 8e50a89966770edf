"""`wcapsnet tables`"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ..console import few, warn
from ..errors import InputError
from ..recipes import PLUS_ROWS
from ..recipes.ablations import NUMERALS
from ..recipes.published import PAPER_TABLES, SYSTEMS
from ..reports import tables as paper_tables
from ..reports.records import read_records, shipped_records
from . import console
from .app import PROJECT, app, examples
from .options import AsJson


def _numeral(name: str) -> str:
    named = {table: numeral for numeral, table in NUMERALS.items()}
    numeral = named.get(name.lower(), name.upper())
    if numeral not in (*PAPER_TABLES, "ALL"):
        raise typer.BadParameter(
            f"{name!r} is not one of {', '.join(PAPER_TABLES)}, all (or {', '.join(NUMERALS.values())})."
        )
    return "all" if numeral == "ALL" else numeral


@app.command(
    rich_help_panel=PROJECT,
    epilog=examples(
        "wcapsnet tables                               Tables II to V, with this project's results",
        "wcapsnet tables IV --records runs/            with your own full-length runs",
        "wcapsnet tables --markdown > tables.md",
    ),
)
def tables(
    table: Annotated[
        str, typer.Argument(metavar="[II|III|IV|V|all]", help="The table, by number or by name.", parser=_numeral)
    ] = "all",
    records: Annotated[
        Path | None, typer.Option(help="A folder of runs or records (default: those in the package).")
    ] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the paper's Tables II to V next to ours, with the significance of the differences."""
    if as_markdown and as_json:
        raise InputError("Use either --markdown or --json, not both.")
    found, left_out = read_records(records) if records else (shipped_records(), [])
    project = records is None
    if not project:
        beside = [one for one in found if one.row in PLUS_ROWS and one.row not in SYSTEMS]
        left_out += [f"{one.row} on {one.dataset}, seed {one.seed}, is in none of Tables II to V." for one in beside]
    built = [paper_tables.build(numeral, found, project) for numeral in PAPER_TABLES if table in (numeral, "all")]
    if as_json:
        typer.echo(json.dumps(paper_tables.as_json(built), ensure_ascii=False))
    elif as_markdown:
        typer.echo(paper_tables.markdown(built), nl=False)
    else:
        console.paper_tables(built)
    if left_out:
        warn("1 run belongs to no table:" if len(left_out) == 1 else f"{len(left_out)} runs belong to no table:")
        few(left_out)
