"""Tables II to V, the paper's results next to ours."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..data import DATASETS
from ..formatting import listed, mean_and_deviation, percent
from ..models import parameter_count
from ..recipes.ablations import NUMERALS
from ..recipes.published import PAPER_COLUMNS, PAPER_TABLES, SYSTEMS, PaperTable
from ..sweeps import Sweep
from ..training.run_folder import Run
from .records import BESIDE, NETWORK, Record, comparable, row_of
from .significance import LEVEL, Difference, Sample, Spread, compare, holm, spreads

DASH = "–"
REFERENCE = "reference"
UNAVAILABLE = {"svhn": "not measured: the dataset was not available"}
CHANGED = "2026-11-16T21:48"  # when D7 and D36 came into force; runs started before are older
CHANGES = "D7 (Wasserstein loss averaged over levels, not summed) and D36 (which vector is decoded)"
LEGEND = (
    "Test accuracy in %: mean ± standard deviation (number of seeds); a dash means that no full-length run is "
    "recorded. The paper reports single runs.",
    f"Differences are in points, with their 95 % interval. p < {LEVEL} (two-sided) counts as larger than the noise.",
    "Unless another test is named, p is from Student's t-test with one variance, pooled over the seeds of all rows of "
    "a dataset and also used for single runs.",
    "Welch's t-test is used for Random, whose weights are drawn, and for rows whose seeds vary more than those of the "
    "others (F-test, corrected for the number of rows).",
    "z: the spread over seeds is unknown, so the binomial standard error of the test set takes its place. Even "
    "a large difference is then only a reason to run more seeds.",
)
CORRECTED = (
    "The reference is the paper's network: softmax, tilt, WS+CE. Corrected: p after Holm's correction for all "
    f"comparisons with the reference (z excluded); differences are bold if it is below {LEVEL}."
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
    def paper(self) -> PaperTable:
        return PAPER_TABLES[self.numeral]

    @property
    def title(self) -> str:
        return f"Table {self.numeral}: {self.paper.title}"

    @property
    def parameters(self) -> dict[str, str]:
        """As the paper prints them; for rows that the paper lacks, counted on the first dataset with a record"""
        printed = self.paper.parameters
        if not printed:
            return {}
        systems = {one.title: one for one in SYSTEMS.values() if one.title in self.rows and not one.row}
        measured = {row: next(name for name, cell in self.rows[row].items() if cell.records) for row in systems}
        sizes = {row: parameter_count(system.config(measured[row])) for row, system in systems.items()}
        return {**printed, **{row: f"{size / 1e6:.2f}M" for row, size in sizes.items()}}

    def measured(self, dataset: str) -> bool:
        return any(cells[dataset].records for cells in self.rows.values())


def build(numeral: str, records: Sequence[Record], project: bool = True) -> Table:
    """The paper's rows and columns, with this project's records or the user's own; another dataset gets a column in
    Table V, and in an ablation that has a record of it."""
    records, paper = comparable(records), PAPER_TABLES[numeral]
    named = {row: NETWORK if row == paper.reference else row.lower() for row in paper.rows}
    if numeral == "V":
        recorded = {r.row for r in records} & BESIDE
        named = {one.row or one.title: name for name, one in SYSTEMS.items() if one.row or name in recorded}
        named = {row: named[row] for row in (*paper.rows, *named)}  # in the paper's order
    of = {row: [r for r in records if r.row == name] for row, name in named.items()}
    found = {r.dataset for row, runs in of.items() for r in runs if numeral == "V" or row != paper.reference}
    columns = (*PAPER_COLUMNS, *(name for name in DATASETS if name in found and name not in PAPER_COLUMNS))
    spread = {}  # over seeds, from all rows of all tables; other networks have a spread of their own
    for dataset in columns:
        accuracies: dict[str, list[float]] = {}
        for record in (r for r in records if r.dataset == dataset and r.row not in BESIDE):
            accuracies.setdefault(record.row, []).append(record.accuracy)
        spread[dataset] = spreads(accuracies, ("random",))

    def cell(row: str, dataset: str) -> Cell:
        figure = paper.rows.get(row, {}).get(dataset)
        own = tuple(r for r in of[row] if r.dataset == dataset)
        if named[row] in BESIDE:
            return Cell(figure, own)
        reference = [r for r in of[paper.reference] if r.dataset == dataset and row != paper.reference]
        known = spread[dataset]
        compared = _compared(_sample(own), figure, _sample(reference), known.get(named[row]), known.get(NETWORK))
        return Cell(figure, own, *compared)

    return Table(numeral, columns, {row: {name: cell(row, name) for name in columns} for row in named}, project)


def _compared(
    sample: Sample | None,
    paper: float | None,
    reference: Sample | None,
    own: Spread | None,
    of_reference: Spread | None,
) -> tuple[Difference | None, Difference | None]:
    """How far a row is from the paper's figure, in %, and from the reference row; None if one of the two is missing."""
    if sample is None:
        return None, None
    return (
        None if paper is None else compare(sample, Sample((paper / 100,), sample.images), own),
        None if reference is None else compare(sample, reference, own, of_reference),
    )


def _sample(records: Sequence[Record]) -> Sample | None:
    return Sample(tuple(record.accuracy for record in records), records[0].images) if records else None


def ablation(sweep: Sweep, table: str) -> tuple[str, list[list[str]]]:
    """Title and grid of the runs of a sweep: means over seeds, the paper's figures if this is its experiment, and
    the differences from both. `table`: weighting, nonlinearity or routing; every run has a setting `row`."""
    numeral = next(numeral for numeral, name in NUMERALS.items() if name == table)
    paper = PAPER_TABLES[numeral]
    runs: dict[str, list[Run]] = {}
    for planned, run in sweep.table:
        runs.setdefault(planned.settings["row"], []).append(run)
    samples: dict[str, Sample] = {}
    for name, of in runs.items():
        if tested := [run.results() for run in of if run.finished]:
            samples[name] = Sample(tuple(one["accuracy"] for one in tested), tested[0]["images"])
    spread = spreads({name: sample.accuracies for name, sample in samples.items()}, ("Random",))
    figures = {}  # the paper's, for its own experiments
    for name, of in runs.items():
        dataset, row = row_of(of[0].experiment) or ("", "")
        if row == (NETWORK if name == paper.reference else name.lower()):
            figures[name] = paper.rows[name].get(dataset)
    fair = any(figures.values())
    columns = ["row", "seeds", "epochs", "test", *(["paper", "from the paper"] if fair else [])]
    lines = [[*columns, f"from {paper.reference}"]]
    for name, of in runs.items():
        sample, figure = samples.get(name), figures.get(name)
        reference = samples.get(paper.reference) if name != paper.reference else None
        compared = _compared(sample, figure, reference, spread.get(name), spread.get(paper.reference))
        from_paper, from_reference = (verdict(d) if d else "" for d in compared)
        failed = sum(run.failure is not None for run in of)  # reporting only the mean would hide them
        seeds = f"{len(sample.accuracies) if sample else 0}{f', {failed} failed' if failed else ''}"
        mean = f"{mean_and_deviation(sample.accuracies)} %" if sample else ""
        beside = ["" if figure is None else f"{figure:.2f} %", from_paper] if fair else []
        lines.append([name, seeds, str(of[0].experiment.training.epochs), mean, *beside, from_reference])
    return f"Table {numeral}: {paper.title}", lines


def remarks(tables: Sequence[Table]) -> list[str]:
    """How long the runs are, what is missing, which were computed differently, and which are old."""
    rows: dict[str, dict[str, Cell]] = {}
    for table in tables:
        for row, cells in table.rows.items():
            rows.setdefault(REFERENCE if row == table.paper.reference else row, {}).update(cells)
    places = [(row, name, cell.records) for row, cells in rows.items() for name, cell in cells.items() if cell.records]
    columns = list(dict.fromkeys(name for table in tables for name in table.columns))
    missing = [
        name for name in columns if name in UNAVAILABLE and all(t.project and not t.measured(name) for t in tables)
    ]
    lengths: dict[int, list[str]] = {}
    for name in columns:
        for epochs in {
            records[0].epochs for _, dataset, records in places if dataset == name and records[0].row not in BESIDE
        }:
            lengths.setdefault(epochs, []).append(DATASETS[name].title)
    epochs_on = "; ".join(f"{epochs} epochs on {listed(on)}" for epochs, on in lengths.items())
    others = any(records[0].row in BESIDE for _, _, records in places)
    full = [f"Full length: {epochs_on}{'; for other systems, the epochs of their recipes' if others else ''}."]
    return [
        *(full if lengths else []),
        *(f"{DATASETS[name].title} was {UNAVAILABLE[name]}." for name in missing),
        *(
            f"The runs of {row} on {DATASETS[name].title} were computed in different ways: {kinds}."
            for row, name, records in places
            if (kinds := _mixture(records))
        ),
        *trained_before(rows, columns),
    ]


def _mixture(records: Sequence[Record]) -> str:
    """The precisions and implementations that computed the runs of a cell, if there are several."""
    kinds = [{r.precision for r in records}, {r.computed_by for r in records if r.computed_by}]
    return ", ".join(" and ".join(sorted(kind)) for kind in kinds if len(kind) > 1)


def trained_before(rows: Mapping[str, Mapping[str, Cell]], datasets: Iterable[str]) -> list[str]:
    """Datasets with runs from before D7 and D36; with the rows, if other rows are newer."""
    old = []
    for dataset in datasets:
        measured = {row: cells[dataset].records for row, cells in rows.items() if dataset in cells}
        measured = {row: records for row, records in measured.items() if records and records[0].row not in BESIDE}
        before = [row for row, records in measured.items() if any(r.summed or r.started < CHANGED for r in records)]
        if before:
            old.append(DATASETS[dataset].title + (f" ({listed(before)})" if len(before) < len(measured) else ""))
    return [f"The runs on {listed(old)} predate two changes: {CHANGES}."] if old else []


def verdict(d: Difference) -> str:
    noise = "the test set's noise" if d.test == "z" else "noise"
    said = f"larger than {noise}" if d.larger_than_noise else f"within {noise}"
    return f"{_points(d.difference)} {_interval(d)}, {said} ({d.test}, {_p(d)})"


def _interval(d: Difference) -> str:
    return f"[{_points(max(d.difference - d.margin, -1))}, {_points(min(d.difference + d.margin, 1))}]"


def _points(difference: float) -> str:
    return percent(difference, sign="+").replace("-", "−")


def _p(d: Difference) -> str:
    p = _probability(d.p)
    return f"p {p}" if p.startswith("<") else f"p = {p}"


def _probability(p: float) -> str:
    """Two decimals, or three if needed to tell p from 0.05."""
    return f"{p:.2f}" if p >= 0.1 else f"{p:.3f}" if p >= 0.001 else "< 0.001"


def ours(cell: Cell) -> str:
    """Mean ± standard deviation (number of seeds)"""
    accuracies = [record.accuracy for record in cell.records]
    return f"{mean_and_deviation(accuracies)} ({len(accuracies)})" if accuracies else DASH


def grid(table: Table) -> list[list[str]]:
    """The table with its header: for each dataset our accuracy, if there is one, and the paper's."""
    sizes = table.parameters
    lines = [
        ["network", "parameters"] if sizes else ["variant"],
        *([row, *([sizes[row]] if sizes else [])] for row in table.rows),
    ]
    for dataset in table.columns:
        title, cells = DATASETS[dataset].title, [cells[dataset] for cells in table.rows.values()]
        columns = [[title, *map(ours, cells)]] if (measured := table.measured(dataset)) else []
        if dataset in PAPER_COLUMNS:
            figures = (DASH if cell.paper is None else f"{cell.paper:.2f}" for cell in cells)
            columns.append(["paper" if measured else f"{title}, paper", *figures])
        for column in columns:
            for line, text in zip(lines, column, strict=True):
                line.append(text)
    return lines


def differences(tables: Sequence[Table]) -> list[list[str]]:
    """How far every row is from the paper's figure and from the reference row, with a header; empty without runs."""
    found: dict[tuple[str, str], tuple[Cell, str]] = {}  # the cell, and what the row changes in the paper
    for table in tables:
        for row, cells in table.rows.items():
            for dataset, cell in cells.items():
                if cell.from_paper or cell.from_reference:
                    place = dataset, REFERENCE if row == table.paper.reference else row
                    found.setdefault(place, (cell, _papers(cell, table.rows[table.paper.reference][dataset])))
    tested = {place: d.p for place, (cell, _) in found.items() if (d := cell.from_reference) and d.test != "z"}
    corrected = dict(zip(tested, holm(list(tested.values())), strict=True))
    lines = []
    for (dataset, row), (cell, change) in sorted(found.items(), key=lambda one: _place(*one[0])):
        worth = corrected.get((dataset, row))
        compared = *shown(cell.from_paper), *shown(cell.from_reference, worth)
        lines.append([DATASETS[dataset].title, row, *compared, "" if worth is None else _probability(worth), change])
    header = ["dataset", "row", "ours − paper", "p", "row − reference", "p", "corrected", "the same, paper"]
    return [header, *lines] if lines else []


def _papers(cell: Cell, reference: Cell) -> str:
    if cell is reference or cell.paper is None or reference.paper is None:
        return ""
    return _points((cell.paper - reference.paper) / 100)


def _place(dataset: str, row: str) -> tuple[int, bool]:
    return [*PAPER_COLUMNS, *DATASETS].index(dataset), row != REFERENCE


def shown(d: Difference | None, corrected: float | None = None) -> tuple[str, str]:
    """The two cells of a difference: the points, bold if larger than the noise after correction, and p with its test"""
    if d is None:
        return "", ""
    return with_correction(d, corrected)[0], _probability(d.p) + (f" ({d.test})" if d.test != "t" else "")


def markdown(tables: Sequence[Table]) -> str:
    text: list[str] = []
    for table in tables:
        text += [f"**{table.title}**", "", markdown_table(grid(table)), *(f"{note}\n" for note in table.paper.notes)]
    if compared := differences(tables):
        text += ["**Differences**", "", markdown_table(compared)]
    return "\n".join([*text, *(f"- {line}" for line in explained(tables))]) + "\n"


def explained(tables: Sequence[Table]) -> list[str]:
    """Remarks on the tables and what their columns mean"""
    return [*remarks(tables), *([CORRECTED] if differences(tables) else []), *LEGEND]


def markdown_table(lines: Sequence[Sequence[str]]) -> str:
    header, *rows = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([header, f"|{' --- |' * len(lines[0])}", *rows, ""])


def with_correction(d: Difference, worth: float | None) -> tuple[str, str]:
    """A difference, bold if larger than the noise after correction for the others; and its test.

    `worth`: p corrected for the others."""
    mark = "**" if worth is not None and worth < LEVEL else ""
    corrected = f", corrected {_probability(worth)}" if worth is not None else ""
    return f"{mark}{_points(d.difference)}{mark} {_interval(d)}", f"{d.test}, {_p(d)}{corrected}"


def as_json(tables: Sequence[Table]) -> dict[str, Any]:
    return {
        "level": LEVEL,
        "tables": {
            table.numeral: {
                "title": table.title,
                "reference": table.paper.reference,
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
        return facts | ({"why": UNAVAILABLE[dataset]} if project and dataset in UNAVAILABLE else {})
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
