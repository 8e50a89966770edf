"""An ablation: its rows compared with the reference row and, if the experiments match, with the paper."""

from __future__ import annotations

from typing import NamedTuple

from ..recipes.ablations import NUMERALS
from ..recipes.published import PAPER_TABLES
from ..sweeps import Sweep
from ..training.run_folder import Run
from .records import NETWORK, row_of
from .significance import Difference, Sample, compare, spreads


class Row(NamedTuple):
    name: str
    epochs: int  # of the schedule
    failed: int  # runs without a result; reporting only the mean would hide them
    paper: float | None  # in %; only for the paper's experiment at full length
    sample: Sample | None  # test accuracies of the finished runs
    from_paper: Difference | None
    from_reference: Difference | None


def numeral_of(table: str) -> str:
    return next(numeral for numeral, name in NUMERALS.items() if name == table)


def rows(sweep: Sweep, table: str) -> list[Row]:
    """`table`: weighting, nonlinearity or routing; every run of `sweep` has a setting `row`."""
    published = PAPER_TABLES[numeral_of(table)]
    runs: dict[str, list[Run]] = {}
    for planned, run in sweep.table:
        runs.setdefault(planned.settings["row"], []).append(run)
    samples = {name: _sample([run for run in of if run.finished]) for name, of in runs.items()}
    reference = samples.get(published.reference)
    spread = spreads({name: sample.accuracies for name, sample in samples.items() if sample}, ("Random",))
    found = []
    for name, of in runs.items():
        sample, (dataset, row) = samples[name], row_of(of[0].experiment) or ("", "")
        own, of_reference = spread.get(name), spread.get(published.reference)
        fair = row == (NETWORK if name == published.reference else name.lower())
        paper = published.rows[name].get(dataset) if fair else None
        found.append(
            Row(
                name,
                of[0].experiment.training.epochs,
                sum(run.failure is not None for run in of),
                paper,
                sample,
                compare(sample, Sample((paper / 100,), sample.images), own) if sample and paper else None,
                compare(sample, reference, own, of_reference)
                if sample and reference and name != published.reference
                else None,
            )
        )
    return found


def _sample(runs: list[Run]) -> Sample | None:
    facts = [run.results() for run in runs]
    return Sample(tuple(f["accuracy"] for f in facts), facts[0]["images"]) if facts else None
