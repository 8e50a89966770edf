"""Tables II to V, the paper's results next to ours."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..data import DATASETS
from ..formatting import mean_and_deviation, percent
from ..recipes.published import PAPER_COLUMNS, PAPER_TABLES
from .records import NETWORK, Record, comparable
from .significance import LEVEL, Difference, Sample, Spread, compare, holm, spreads

NOT_AT_HAND = {"svhn": "not measured: data set not at hand"}
DASH = "–"
SUMMED = "Trained before D7, with the sum of the Wasserstein loss over levels, four times today's weight"
LEGEND = (
    "A cell gives our test accuracy in %, mean ± standard deviation over n seeds (a dash: no full-length run is "
    "recorded); then its difference in points from the paper's figure, taken as one run; then its difference from"
    " the table's reference row.",
    f"Brackets hold the 95 % interval of a difference. Larger than noise: p < {LEVEL}, two-sided, not corrected "
    "for the number of comparisons.",
    "t: Student's t-test. All rows on the same data share one spread over seeds (pooled variances), including "
    "single runs and the paper's figures, although such a row may vary more than the others.",
    "Welch: Welch's t-test. A row whose seeds spread significantly more than the others' (F-test, corrected for "
    "the number of rows) keeps its own spread, which is also used for the paper's run of that row (t). Random "
    "always keeps its own, because its weights at evaluation are drawn too; with a single seed it has none.",
    "z: no row has several seeds (or they agree to the last image), so the spread over seeds is unknown and the "
    "binomial standard error of the test set takes its place. A difference larger than that calls for more seeds;"
    " it is not yet a finding.",
)


@dataclass(frozen=True)
class Cell:
    paper: float | None  # in %
    records: tuple[Record, ...] = ()
    from_paper: Difference | None = None
    from_reference: Difference | None = None


@dataclass(frozen=True)
class Table:
    numeral: str
    columns: tuple[str, ...]  # datasets
    rows: dict[str, dict[str, Cell]]
    project: bool = True  # from this project's records, which explain missing datasets

    @property
    def title(self) -> str:
        return f"Table {self.numeral}: {PAPER_TABLES[self.numeral].title}"

    @property
    def reference(self) -> str:
        return PAPER_TABLES[self.numeral].reference

    @property
    def parameters(self) -> dict[str, str]:
        return PAPER_TABLES[self.numeral].parameters

    @property
    def notes(self) -> tuple[str, ...]:
        cells = [(dataset, cell) for row in self.rows.values() for dataset, cell in row.items()]
        summed = dict.fromkeys(DATASETS[dataset].title for dataset, cell in cells for r in cell.records if r.summed)
        return (*PAPER_TABLES[self.numeral].notes, *([f"{SUMMED}: {', '.join(summed)}."] if summed else []))


def build(numeral: str, records: Sequence[Record], project: bool = True) -> Table:
    """The paper's rows and columns, with this project's records or the user's own; another dataset gets a column in
    Table V, and in an ablation that has a record of it."""
    records, paper = comparable(records), PAPER_TABLES[numeral]
    of = {
        row: [r for r in records if r.row == (NETWORK if row == paper.reference else row.lower())] for row in paper.rows
    }
    found = {r.dataset for row, own in of.items() for r in own if numeral == "V" or row != paper.reference}
    columns = (*PAPER_COLUMNS, *(name for name in DATASETS if name in found and name not in PAPER_COLUMNS))
    spread = {dataset: spreads(accuracies_of(records, dataset), ("random",)) for dataset in columns}
    rows: dict[str, dict[str, Cell]] = {}
    for row, figures in paper.rows.items():
        rows[row] = {}
        for dataset in columns:
            ours = [record for record in of[row] if record.dataset == dataset]
            reference = [record for record in of[paper.reference] if record.dataset == dataset]
            held_against = [] if row == paper.reference else reference
            rows[row][dataset] = _cell(figures.get(dataset), ours, held_against, spread[dataset])
    return Table(numeral, columns, rows, project)


def accuracies_of(records: Sequence[Record], dataset: str) -> dict[str, list[float]]:
    """The spread over seeds of all rows of all tables"""
    rows: dict[str, list[float]] = {}
    for record in records:
        if record.dataset == dataset:
            rows.setdefault(record.row, []).append(record.accuracy)
    return rows


def _cell(paper: float | None, ours: list[Record], reference: list[Record], spread: dict[str, Spread]) -> Cell:
    if not ours:
        return Cell(paper)
    sample, own = _sample(ours), spread[ours[0].row]
    return Cell(
        paper,
        tuple(ours),
        compare(sample, Sample((paper / 100,), sample.images), own) if paper is not None else None,
        compare(sample, _sample(reference), own, spread[NETWORK]) if reference else None,
    )


def _sample(records: list[Record]) -> Sample:
    return Sample(tuple(record.accuracy for record in records), records[0].images)


def lines(table: Table, row: str, dataset: str) -> list[str]:
    """The text of a cell: our result, and its difference from the paper and from the reference row."""
    cell = table.rows[row][dataset]
    paper = "" if cell.paper is None else f"paper {cell.paper:.2f}"
    if not cell.records:
        measurable = row.lower() == table.reference.lower() or table.numeral != "V"
        ours = (NOT_AT_HAND if table.project else {}).get(dataset, DASH) if measurable else ""
        return [line for line in (ours, paper) if line] or [DASH]
    accuracies = [record.accuracy for record in cell.records]
    runs = f"n = {len(accuracies)}, {cell.records[0].epochs} epochs{_mixture(cell.records)}"
    found = [f"{mean_and_deviation(accuracies)} ({runs})"]
    if cell.from_paper:
        found.append(f"{paper}: {verdict(cell.from_paper)}")
    if cell.from_reference:
        found.append(f"{table.reference}: {verdict(cell.from_reference)}")
    return found


def _mixture(records: Sequence[Record]) -> str:
    """Mention that the runs of a cell were computed in different ways."""
    kinds = [{r.precision for r in records}, {r.computed_by for r in records if r.computed_by}]
    return "".join(f", {' and '.join(sorted(kind))}" for kind in kinds if len(kind) > 1)


def verdict(d: Difference) -> str:
    noise = "the test set's noise" if d.test == "z" else "noise"
    said = f"larger than {noise}" if d.larger_than_noise else f"within {noise}"
    return f"{_points(d.difference)} {_interval(d)}, {said} ({d.test}, p {_probability(d.p)})"


def _interval(d: Difference) -> str:
    return f"[{_points(max(d.difference - d.margin, -1))}, {_points(min(d.difference + d.margin, 1))}]"


def _points(difference: float) -> str:
    return percent(difference, sign="+").replace("-", "−")


def _probability(p: float) -> str:
    """Two decimals, or three if needed to tell p from 0.05."""
    return f"= {p:.2f}" if p >= 0.1 else f"= {p:.3f}" if p >= 0.001 else "< 0.001"


def header(table: Table) -> list[str]:
    columns = [
        DATASETS[d].title if d in PAPER_COLUMNS else f"{DATASETS[d].title} (not in the paper)" for d in table.columns
    ]
    return ["network", "parameters", *columns] if table.parameters else ["variant", *columns]


def body(table: Table) -> list[list[list[str]]]:
    """The cells of every row, each as a list of lines."""
    sizes = table.parameters
    return [
        [[row], *([[sizes[row]]] if sizes else []), *(lines(table, row, dataset) for dataset in table.columns)]
        for row in table.rows
    ]


def markdown(tables: Sequence[Table]) -> str:
    text: list[str] = []
    for table in tables:
        names = header(table)
        text += [f"**{table.title}**", "", f"| {' | '.join(names)} |", f"| {' | '.join(['---'] * len(names))} |"]
        text += [f"| {' | '.join('<br>'.join(cell) for cell in row)} |" for row in body(table)]
        text += ["", *(f"{note}\n" for note in table.notes)]
    return "\n".join([*text, *(f"- {line}" for line in LEGEND)]) + "\n"


def headline(records: Sequence[Record]) -> str:
    """Does learned routing do better than equal weights? Table IV in short, for the README."""
    rows = build("IV", records).rows
    routed, equal = rows["WS+CE"], rows["Uniform"]
    columns = [dataset for dataset in PAPER_COLUMNS if routed[dataset].records]
    if not columns:
        return "No full-length run is recorded yet.\n"

    def ours(cell: Cell) -> str:
        seeds = [record.accuracy for record in cell.records]
        return f"{mean_and_deviation(seeds)} ({len(seeds)})" if seeds else DASH

    def difference(cell: Cell) -> str:
        d = cell.from_reference
        return f"{_points(d.difference)} {_interval(d)}" if d else DASH

    text = [
        ["test accuracy in % (seeds)", *(DATASETS[dataset].title for dataset in columns)],
        ["---"] * (1 + len(columns)),
        ["learned routing, this project", *(ours(routed[dataset]) for dataset in columns)],
        ["learned routing, the paper", *(f"{routed[dataset].paper:.2f} (1)" for dataset in columns)],
        ["equal weights, this project", *(ours(equal[dataset]) for dataset in columns)],
        ["equal weights, the paper", *(f"{equal[dataset].paper:.2f} (1)" for dataset in columns)],
        ["equal − learned, this project, 95 % interval", *(difference(equal[dataset]) for dataset in columns)],
    ]
    before = any(r.summed for dataset in columns for r in (*routed[dataset].records, *equal[dataset].records))
    note = "These runs were trained before decisions [D7 and D36](docs/decisions.md) and are being rerun.\n"
    return "\n".join([*(f"| {' | '.join(row)} |" for row in text), "", *([note] if before else [])])


def differences(records: Sequence[Record]) -> str:
    """The effect of every row of Tables II to IV, ours and the paper's, in points; bold if larger than the noise after
    correction for the number of differences"""
    made = [build(numeral, records) for numeral in ("II", "III", "IV")]
    places = [(t, row, dataset) for t in made for row in t.rows for dataset in PAPER_COLUMNS]
    found = {(row, dataset): d for t, row, dataset in places if (d := t.rows[row][dataset].from_reference)}
    tested = {place: d.p for place, d in found.items() if d.test != "z"}  # a z-test is no finding
    worth = dict(zip(tested, holm(list(tested.values())), strict=True))
    names = [DATASETS[dataset].title for dataset in PAPER_COLUMNS]
    text = [f"| | {' | '.join(names)} |", f"| --- |{' --- |' * len(names)}"]
    for table in made:
        for row in table.rows:
            if row != table.reference:
                cells = (_difference(table, row, dataset, worth.get((row, dataset))) for dataset in PAPER_COLUMNS)
                text.append(f"| {row} against {table.reference} | {' | '.join(cells)} |")
    return "\n".join([*text, ""])


def _difference(table: Table, row: str, dataset: str, worth: float | None) -> str:
    ours, reference = table.rows[row][dataset], table.rows[table.reference][dataset]
    said = DASH
    if d := ours.from_reference:
        figure, test = with_correction(d, worth)
        said = f"{figure}<br>{len(ours.records)} and {len(reference.records)} runs, {test}"
    if ours.paper is not None and reference.paper is not None:
        said += f"<br>paper {_points((ours.paper - reference.paper) / 100)}"
    return said


def with_correction(d: Difference, worth: float | None) -> tuple[str, str]:
    """A difference, bold if larger than the noise after correction for the others; and its test.

    `worth`: p corrected for the others."""
    mark = "**" if worth is not None and worth < LEVEL else ""
    corrected = f", corrected {_probability(worth).removeprefix('= ')}" if worth is not None else ""
    return f"{mark}{_points(d.difference)}{mark} {_interval(d)}", f"{d.test}, p {_probability(d.p)}{corrected}"


def as_json(tables: Sequence[Table]) -> dict[str, Any]:
    return {
        "level": LEVEL,
        "tables": {
            table.numeral: {
                "title": table.title,
                "reference": table.reference,
                "rows": {
                    row: {dataset: _cell_json(cell, dataset, table.project) for dataset, cell in cells.items()}
                    for row, cells in table.rows.items()
                },
            }
            for table in tables
        },
    }


def _cell_json(cell: Cell, dataset: str, project: bool) -> dict[str, Any]:
    facts: dict[str, Any] = {"paper": cell.paper, "ours": None}
    if not cell.records:
        return facts | ({"why": NOT_AT_HAND[dataset]} if project and dataset in NOT_AT_HAND else {})
    accuracies = [100 * record.accuracy for record in cell.records]
    facts["ours"] = {
        "mean": statistics.mean(accuracies),
        "std": statistics.stdev(accuracies) if len(accuracies) > 1 else None,
        "n": len(accuracies),
        "epochs": cell.records[0].epochs,
        "precision": sorted({record.precision for record in cell.records}),
        "computed_by": sorted({record.computed_by for record in cell.records if record.computed_by}),
        "seeds": [record.seed for record in cell.records],
        "accuracies": accuracies,
    }
    for name, d in (("from_paper", cell.from_paper), ("from_reference", cell.from_reference)):
        facts[name] = d and {
            "points": 100 * d.difference,
            "margin": 100 * d.margin,
            "test": d.test,
            "p": d.p,
            "larger_than_noise": d.larger_than_noise,
        }
    return facts
