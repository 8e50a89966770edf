"""Generate what the documents say about our runs, from `results/`, `benchmarks/records/` and the shipped weights: the
tables in the README and docs/results.md, the comparison of networks with its figures, docs/runs.md with its figures,
the list of networks in docs/guide.md, and the records in the package.

`python tools/update_docs.py [RUN …]` first adds the records of finished runs, or of all runs of a sweep, to results/.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from records import keep, records_json
from wcapsnet.atomic import write_text
from wcapsnet.bench import compare
from wcapsnet.classifier import load_tensors
from wcapsnet.cli.exit import in_a_sentence
from wcapsnet.data import DATASETS
from wcapsnet.errors import InputError
from wcapsnet.formatting import mean_and_deviation, percent, plural
from wcapsnet.recipes import PAPER, PLUS_ROWS
from wcapsnet.recipes.published import BEST_CAPSULES, PAPER_TABLES
from wcapsnet.reports import figures, tables
from wcapsnet.reports.export import accuracy_figure
from wcapsnet.reports.records import NETWORK, Record, in_order, open_run, read_record, runs_in
from wcapsnet.reports.significance import Sample
from wcapsnet.reports.significance import compare as compare_samples
from wcapsnet.reports.svg import Drawing, arranged, titled
from wcapsnet.training.console import clock
from wcapsnet.training.run_folder import read_json

BEGIN, END = "<!-- {}: made by tools/{}.py -->", "<!-- end of {} -->"
WEIGHTS = Path("src/wcapsnet/shipped/weights")
PACKAGED = Path("src/wcapsnet/reports/records.json")
COMPARED = PACKAGED.with_name(compare.PACKAGED)
SHORT = "cifar10"  # the dataset of the short comparison in the README
PAGES = (Path("README.md"), Path("docs/results.md"), Path("docs/runs.md"), Path("docs/guide.md"))
LEVEL = 3  # whose weights are shown: as in the paper, the level that specialises
LOOKED = {  # the figure's panels, and the output of `wcapsnet explain --json` for these networks
    "softmax, shipped": "2026-11-18_shipped_two-cpu-cores/wcapsnet-mnist.json",
    **{
        f"normalised, seed {seed}": f"2026-11-16_normalized_two-cpu-cores/mnist-normalized-seed-{seed}.json"
        for seed in range(3)
    },
}
PLACES = ("table-II", "table-III", "table-IV", "table-V", "plus")


def committed(results: Path) -> list[Record]:
    """The records of the tables; refused if one is not in its place."""
    records: list[Record] = []
    for path in [path for place in PLACES if (results / place).is_dir() for path in runs_in(results / place)]:
        record = read_record(path)
        if path != results / record.place:  # also if that holds the same: a run counts once
            raise InputError(f"{path} is the record of a run that belongs to {results / record.place}.")
        records.append(record)
    return in_order(records)


def pages(root: Path) -> dict[Path, str]:
    """Every generated file and its content, by its path below `root`."""
    for page in PAGES:
        if not (root / page).is_file():
            raise InputError(f"{root} is not a checkout of wcapsnet: it has no {page}.")
    records = committed(root / "results")
    readme, results, runs, guide = PAGES
    short_table = headline(records)
    facts = measured(root / "benchmarks" / "records")
    compared = {dataset: compare.build(dataset, None, records, facts) for dataset in facts}
    wanted = BEGIN.format("compare", "update_docs") in (root / readme).read_text(encoding="utf-8")
    short = {"compare": compared[SHORT].markdown(short=True)} if wanted and SHORT in compared else {}
    paper = tables.markdown([tables.build(n, records) for n in PAPER_TABLES])
    made = {
        PACKAGED: records_json(records),
        COMPARED: _one_line_each(facts),
        readme: filled(root / readme, {"results": short_table, **short}),
        results: filled(
            root / results,
            {"summary": short_table, "tables": paper, "plus": plus(records), "compare": _compared(compared.values())},
        ),
        runs: filled(root / runs, {"runs": _runs(records) + _curves(records)}),
        guide: filled(root / guide, {"networks": _networks(root)}),
    }
    for dataset in _main(records):
        made[Path("docs") / _figure(dataset)] = _figure_of(root / "results", dataset, records)
    for dataset, one in compared.items():
        if (drawing := one.figure()) and any(row.accuracies for row in one.rows):
            made[Path("docs") / _compare_figure(dataset)] = drawing.file()
    inside = root / "results" / "looking-inside"
    if inside.is_dir():
        title = f"MNIST, level {LEVEL}: mean routing weights of every class"
        made[Path("docs/images/weights-mnist.svg")] = weight_maps(title, _looked(inside)).file()
    return made


def measured(folder: Path) -> dict[str, Any]:
    """Costs and speeds of the networks by dataset, from the records of benchmarks/compare.py: the latest of each, but
    speeds on a GPU before those on a CPU"""
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*_compare_*.json")):
        for dataset, facts in read_json(path)["results"].items():
            known = found.setdefault(dataset, {"costs": {}})
            known["costs"] |= facts["costs"]
            new, old = facts.get("speeds"), known.get("speeds")
            if new and not (old and old["environment"]["cuda"] and not new["environment"]["cuda"]):
                known["speeds"] = new
    return {dataset: found[dataset] for dataset in DATASETS if dataset in found}


def _one_line_each(facts: dict[str, Any]) -> str:
    """JSON with one line for each innermost object"""
    text = json.dumps(facts, indent=1, ensure_ascii=False)
    return re.sub(r"\{[^{}]*\}", lambda found: " ".join(found[0].split()), text) + "\n"


def linked(text: str, page: Path) -> str:
    """Decisions, such as D7, as links to their entries"""
    place = "decisions.md" if page.parent.name == "docs" else "docs/decisions.md"
    return re.sub(r"\bD([1-9]\d?)\b", rf"[D\1]({place}#d\1)", text)


def _compared(comparisons: Iterable[compare.Comparison]) -> str:
    text, notes, silent = "", [], []
    for one in comparisons:
        text += f"**{one.title}**\n\n{one.markdown()}\n"
        if any(row.accuracies for row in one.rows):
            text += f"![{one.title}: accuracy over parameters and over minutes]({_compare_figure(one.dataset)})\n\n"
        if not one.measured:
            silent.append(one)
        notes += [note for note in one.notes() if note != compare.without_speeds([one])]
    if silent:
        notes.append(compare.without_speeds(silent))
    return text + "\n".join(f"- {note}" for note in dict.fromkeys(notes)) + "\n"


def _compare_figure(dataset: str) -> str:
    return f"images/compare-{dataset}.svg"


def _looked(inside: Path) -> dict[str, Panel]:
    found = {}
    for name, path in LOOKED.items():
        said = read_json(inside / path)
        found[name] = Panel(said["classes"], said["levels"][LEVEL - 1]["mean"])
    return found


def write(root: Path) -> list[Path]:
    """Update all generated files; returns those that were stale."""
    stale = {path: text for path, text in pages(root).items() if _text(root / path) != text}
    for path, text in stale.items():
        write_text(root / path, text)
    return list(stale)


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def filled(path: Path, blocks: dict[str, str], by: str = "update_docs") -> str:
    """The page with each block between its marks replaced."""
    text = path.read_text(encoding="utf-8")
    for name, block in blocks.items():
        first, last = BEGIN.format(name, by), END.format(name)
        before, begin, rest = text.partition(first)
        _, end, after = rest.partition(last)
        if not begin or not end:
            raise InputError(f"{path} has no block for the generated {name}: {first} … {last}.")
        text = f"{before}{begin}\n\n{linked(block, path)}\n{end}{after}"
    return text


def _networks(root: Path) -> str:
    lines = [["network", "dataset", "correct test images", "epochs", "seed", "file"]]
    for file in sorted((root / WEIGHTS).glob("*.safetensors")):
        _, facts = load_tensors(file)
        experiment, test = facts["experiment"], facts["test"]
        source, training = experiment["data"]["source"], experiment["training"]
        title = DATASETS[source].title if source in DATASETS else source
        right = f"{test['correct']:,} of {test['images']:,} ({percent(test['correct'] / test['images'])}%)"
        size = f"{facts['stored']}, {file.stat().st_size / 1e6:.1f} MB"
        card = f"[`{file.stem}`](model-cards/{file.stem}.md)"
        lines.append([card, title, right, str(training["epochs"]), str(training["seed"]), size])
    return tables.markdown_table(lines)


def _runs(records: Sequence[Record]) -> str:
    if not records:
        return "No full-length run is recorded yet.\n"
    lines = [["dataset", "row", "seed", "epochs", "best", "validation", "test", "time", "parallel", "trained", "by"]]
    for r in records:
        resumed = f", resumed after epoch {' and '.join(map(str, r.resumed))}" if r.resumed else ""
        figures = [percent(r.validation_accuracy), percent(r.accuracy), clock(r.seconds)]
        numbers = [*map(str, (r.seed, r.epochs, r.best_epoch)), *figures, str(r.at_a_time)]
        computed = [f"{r.started[:10]}{resumed}", ", ".join(filter(None, (r.precision, r.computed_by, r.hardware)))]
        lines.append([DATASETS[r.dataset].title, r.row, *numbers, *computed])
    total = f"{plural(len(records), 'run')}, {clock(sum(r.seconds for r in records))} of training in total.\n"
    return f"{tables.markdown_table(lines)}\n{total}"


def _main(records: Sequence[Record]) -> list[str]:
    """Datasets on which the paper's network was trained"""
    return list(dict.fromkeys(record.dataset for record in records if record.row == NETWORK))


def _figure(dataset: str) -> str:
    return f"images/curves-{dataset}.svg"


def _curves(records: Sequence[Record]) -> str:
    text = ""
    for dataset in _main(records):
        own = [r for r in records if (r.dataset, r.row) == (dataset, NETWORK)]
        text += f"\n![Training curves on {DATASETS[dataset].title}]({_figure(dataset)})\n\n"
        seeds = "one seed" if len(own) == 1 else f"{len(own)} seeds"
        times = " to ".join(dict.fromkeys(clock(of(r.seconds for r in own)) for of in (min, max)))
        shared = f", up to {most} runs at a time" if (most := max(r.at_a_time for r in own)) > 1 else ""
        text += f"The paper's network on {DATASETS[dataset].title}: {seeds}, {times} per run{shared}.\n"
    return text


def _figure_of(results: Path, dataset: str, records: Sequence[Record]) -> str:
    runs = {
        f"seed {record.seed}": open_run(results / record.place).metrics()
        for record in records
        if (record.dataset, record.row) == (dataset, NETWORK)
    }
    return accuracy_figure(f"{DATASETS[dataset].title}: accuracy by epoch", runs).file()


def headline(records: Sequence[Record]) -> str:
    """Does learned routing do better than equal weights? Table IV in short."""
    rows = {row: cells for row, cells in tables.build("IV", records).rows.items() if row in ("WS+CE", "Uniform")}
    routed, equal = rows["WS+CE"], rows["Uniform"]
    columns = [name for name in routed if routed[name].records or equal[name].records]
    if not columns:
        return "No full-length run is recorded yet.\n"

    def paper(cell: tables.Cell) -> str:
        return tables.DASH if cell.paper is None else f"{cell.paper:.2f} (1)"

    def difference(cell: tables.Cell) -> str:
        return tables.shown(cell.from_reference)[0] or tables.DASH

    lines = [["test accuracy in % (seeds)", *(DATASETS[name].title for name in columns)]]
    for title, show, cells in (
        ("learned routing, this project", tables.ours, routed),
        ("learned routing, the paper", paper, routed),
        ("equal weights, this project", tables.ours, equal),
        ("equal weights, the paper", paper, equal),
        ("equal − learned, this project, 95 % interval", difference, equal),
    ):
        lines.append([title, *(show(cells[name]) for name in columns)])
    named = {"learned routing": routed, "equal weights": equal}
    return "\n".join([tables.markdown_table(lines), *(f"{note}\n" for note in tables.trained_before(named, columns))])


def plus(records: Sequence[Record]) -> str:
    """wcapsnet-plus, equal weights and DenseNet with its recipe, and the best capsule networks published"""
    own = {row: [r for r in records if r.row == row] for row in PLUS_ROWS}
    columns = [name for name in PAPER if any(r.dataset == name for runs in own.values() for r in runs)]
    if not columns:
        return "No full-length run is recorded yet.\n"

    def sample(row: str, dataset: str) -> Sample | None:
        runs = [r for r in own[row] if r.dataset == dataset]
        return Sample(tuple(r.accuracy for r in runs), runs[0].images) if runs else None

    def cell(row: str, dataset: str) -> str:
        found = sample(row, dataset)
        return f"{mean_and_deviation(found.accuracies)} ({len(found.accuracies)})" if found else tables.DASH

    def difference(row: str, dataset: str) -> str:
        one, other = sample("wcapsnet-plus", dataset), sample(row, dataset)
        if not (one and other):
            return tables.DASH
        points, p = tables.shown(compare_samples(one, other))
        return f"{points}: p {p if p.startswith('<') else f'= {p}'}"

    lines = [["test accuracy in % (seeds)", *(DATASETS[name].title for name in columns)]]
    lines += [[title, *(cell(row, name) for name in columns)] for row, (_, title) in PLUS_ROWS.items()]
    best = {name: "{:.2f} ({})".format(*figure) for name, figure in BEST_CAPSULES.items()}
    lines.append(["best capsule network published", *(best.get(name, tables.DASH) for name in columns)])
    for row, (_, title) in list(PLUS_ROWS.items())[1:]:
        lines.append([f"WCapsNet-plus − {title}", *(difference(row, name) for name in columns)])
    return f"{tables.markdown_table(lines)}\nPublished accuracies are second-hand; some were selected on test images.\n"


class Panel(NamedTuple):
    classes: Sequence[str]
    mean: Sequence[Sequence[float | None]]  # for every class and capsule; None for a class without images


def weight_maps(title: str, panels: Mapping[str, Panel]) -> Drawing:
    """Mean routing weights of one level, networks side by side"""
    drawn = []
    for name, (classes, means) in panels.items():
        mean = torch.tensor([[float("nan") if b is None else b for b in row] for row in means])
        margin = torch.full_like(mean, float("nan"))
        drawn.append(titled(name, figures.weight_matrix(name, classes, mean, margin, (19, 19))))
    capsules = len(next(iter(panels.values())).mean[0])
    return titled(title, arranged(drawn, len(drawn)), figures.share_scale(capsules))


def main(arguments: list[str], root: Path) -> int:
    refused = 0
    with in_a_sentence():
        pages(root)  # keep nothing if the pages cannot be written
        for run in [run for argument in arguments for run in runs_in(Path(argument))]:
            try:
                print(f"{run} → {keep(run, root / 'results').relative_to(root)}")
            except InputError as error:
                print(f"error: {error}", file=sys.stderr)
                refused += 1
        for path in write(root):
            print(f"wrote {path}")
    return 1 if refused else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python tools/update_docs.py", description=__doc__)
    parser.add_argument("runs", nargs="*", metavar="RUN", help="a finished run, or a folder of them")
    sys.exit(main(parser.parse_args().runs, Path()))
