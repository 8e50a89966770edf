"""Train and compare other readings of the paper (tools/readings.py): short runs, validation images only.

    python tools/try_readings.py --recipe cifar10 --epochs 20 --only as-decided sum-over-levels
    python tools/try_readings.py --table                            print the results of --out
    python tools/try_readings.py --keep results/readings/NAME.json  add the finished runs of --out to a record
    python tools/try_readings.py --table --out results/readings/NAME.json
    python tools/try_readings.py --equivalence --recipe cifar10 --epochs 10 --seeds 8 --margin 1.0

Test images are never used. Ctrl-C saves every run; the same command resumes. The runs are ordinary run folders: load
them in any command with --plugin tools/readings.py.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console

from readings import AS_DECIDED, AS_DECIDED_PLAIN, READINGS, experiment_of, that_apply_to
from records import environment_of, mean_and_spread, rounded
from wcapsnet.atomic import write_text
from wcapsnet.cli.exit import in_a_sentence
from wcapsnet.data import Dataset, default_data_dir, load_dataset
from wcapsnet.data.device_data import DeviceSplit
from wcapsnet.device import arithmetic, choose_device
from wcapsnet.errors import InputError
from wcapsnet.experiment import Experiment
from wcapsnet.explanations.lipschitz import HIGH, LOW
from wcapsnet.formatting import mean_and_deviation, percent
from wcapsnet.network import WCapsNet
from wcapsnet.network.critic import Critic
from wcapsnet.recipes import recipe
from wcapsnet.reports.records import in_all, open_run, runs_in
from wcapsnet.reports.significance import LEVEL, apart, between, holm, pooled, spreads
from wcapsnet.reports.tables import markdown_table, with_correction
from wcapsnet.settings import differing, flat, to_dict
from wcapsnet.sweeps import run_at
from wcapsnet.training.console import Progress, make_board
from wcapsnet.training.evaluate import evaluating
from wcapsnet.training.parallel import SharedData, train_together
from wcapsnet.training.run_folder import Run, read_json
from wcapsnet.training.trainer import Trainer

LAST = 3  # epochs whose mean is compared; the best epoch is also the luckiest

# ---- training ------------------------------------------------------------------------------------------------------


class Untested(Trainer):
    """Ends with figures on validation images, by the weights of the last epoch; test images are not used."""

    def finish(self, *args: Any, **options: Any) -> Any:
        accuracies = [epoch["validation_accuracy"] for epoch in self.run.metrics()]
        figures = {"best": max(accuracies), "last": statistics.mean(accuracies[-LAST:])}
        self.run.write_json(
            "validation.json", figures | looked_at(self.network, self.validation_data, self.settings.precision)
        )


@torch.no_grad()
def looked_at(network: WCapsNet, split: DeviceSplit, precision: str, size: int = 500) -> dict[str, Any]:
    """Reconstruction error; by level, the share of blocks (last level: vectors) that are judged alike for all images,
    saturated low or high; and γ/σ of the critics."""
    seen = []
    with evaluating(network):
        for start in range(0, len(split), size):
            images, _ = split.take(slice(start, start + size))
            with arithmetic(precision, images.device):
                output = network(images)
            error = (output.reconstruction.float() - images).square().flatten(1).mean(1)
            seen.append((error, *(routing.fitness.float().flatten(1) for routing in output.routings)))
    error, *fitness = (torch.cat(column) for column in zip(*seen, strict=True))
    norms = [router.critic.norm for _, _, router in network.levels() if isinstance(router.critic, Critic)]
    return {
        "validation_reconstruction": float(error.double().mean()),
        "alike": [float(((a < LOW).all(0) | (a > HIGH).all(0)).float().mean()) for a in fitness],
        "gamma_over_sigma": [float(norm.weight / (norm.running_var + norm.eps).sqrt()) for norm in norms],
    }


class UntestedRun(Run):
    def results(self) -> dict[str, Any]:
        return {"accuracy": self.facts("validation")["best"]}


def train(
    out: Path,
    names: Sequence[str],
    base: Experiment,
    seeds: Sequence[int],
    dataset: Dataset,
    device: torch.device,
    **facts: Any,
) -> None:
    """Train what is missing of `names` × `seeds`; `facts` are recorded with each run."""
    if missed := [name for name in names if name not in that_apply_to(base)]:
        raise InputError(
            f"{missed[0]} is about {READINGS[missed[0]].weighting} weights, which {base.name} does not have; "
            "choose another --recipe."
        )
    precision = "bf16" if device.type == "cuda" else "fp32"
    shared = SharedData(lambda config: dataset, device)

    def make(run: Run, progress: Progress) -> Trainer:
        if Run.is_run(run.path):
            run.hold()
        trainer = Untested(run, shared.of(run.experiment.data), device, progress)
        trainer.start(None, len(seeds), **facts)
        return trainer

    for name in names:
        runs: list[Run] = []
        for seed in seeds:
            place, experiment = out / name / f"seed={seed}", experiment_of(name, base, seed, precision)
            run_at(place, experiment)  # refuses another experiment
            run = UntestedRun(place, experiment)
            if not run.file("validation.json").exists() and run.failure is None:
                runs.append(run)
        board = make_board(Console(), runs)
        board.measured = "validation"
        for run, failure in train_together(runs, make, device, len(seeds), board):
            if failure and run.failure is None:  # it did not diverge: the user can fix it
                raise InputError(f"{name}: {failure}")


# ---- records -------------------------------------------------------------------------------------------------------


def records(out: Path) -> list[dict[str, Any]]:
    """One for each run in a folder of runs, or those of a record file."""
    if out.is_file():
        content = read_json(out)
        return [{"environment": content.get("environment", {}), **one} for one in content["runs"]]
    runs = [(name, open_run(path)) for name in READINGS if (out / name).is_dir() for path in runs_in(out / name)]
    if not runs:
        raise InputError(f"There are no runs of readings in {out}.")
    _check_comparable(runs)
    found = [record(name, run) for name, run in runs]
    fused = any(one["reading"] == AS_DECIDED and not _plain(one) for one in found)
    for one in found:
        compared = fused and _plain(one) and one["reading"] != AS_DECIDED_PLAIN
        one["baseline"] = AS_DECIDED_PLAIN if compared else AS_DECIDED  # computed alike
    return found


def _plain(one: dict[str, Any]) -> bool:
    return str(one["computed_by"]).startswith("plain")


def record(name: str, run: Run) -> dict[str, Any]:
    """What a table needs, and the curves: no weights, no paths."""
    metrics, environment = run.metrics(), environment_of(run)
    values = flat(to_dict(run.experiment))
    fields = [setting.partition("=")[0] for setting in READINGS[name].settings]
    figures = run.facts("validation") if run.file("validation.json").exists() else {}
    columns = ("total", *run.experiment.objective, "validation_accuracy")
    return {
        "reading": name,
        "question": READINGS[name].question,
        "seed": run.experiment.training.seed,
        "recipe": run.experiment.name,
        "epochs": run.experiment.training.epochs,
        "precision": run.experiment.training.precision,
        "settings": [f"{field}={values[field]}" for field in fields],
        "computed_by": in_all(environment, "computed_by"),
        "environment": {fact: environment.get(fact) for fact in ("hardware", "torch", "python", "commit")},
        **({"margin": environment["margin"]} if "margin" in environment else {}),
        **({"failure": run.failure} if run.failure else {}),
        "per_epoch": {column: rounded([epoch[column] for epoch in metrics], 5) for column in columns if metrics},
        **rounded(figures, 5),
    }


def _check_comparable(runs: Sequence[tuple[str, Run]]) -> None:
    """Refuse runs that differ by more than their readings and seeds."""
    (first, base), *others = runs
    for name, run in others:
        free = {setting.partition("=")[0] for one in (first, name) for setting in READINGS[one].settings}
        for field, found, expected in differing(run.experiment, base.experiment):
            if field not in free | {"training.seed"}:
                raise InputError(
                    f"{run.path} and {base.path} cannot share a table: {field} is {found} and {expected}, "
                    f"which is not what {name} changes."
                )


def keep(out: Path, file: Path) -> None:
    """Add the finished runs of a folder to a record file."""
    kept = {_key(one): one for one in records(file)} if file.exists() else {}
    for one in records(out):
        over = "last" in one or "failure" in one
        if over and kept.setdefault(_key(one), one) != one:
            raise InputError(f"{file} has another run of {one['reading']}, seed {one['seed']}; choose another file.")
    write_record(file, {**(read_json(file) if file.exists() else {}), "runs": list(kept.values())})


def _key(one: dict[str, Any]) -> tuple[Any, ...]:
    return one["recipe"], one["reading"], one["seed"], one["epochs"]


def write_record(file: Path, content: dict[str, Any]) -> None:
    """JSON with one run a line."""
    head = "".join(
        f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False)},\n" for k, v in content.items() if k != "runs"
    )
    lines = ",\n".join(json.dumps(one, ensure_ascii=False, separators=(",", ":")) for one in content["runs"])
    write_text(file, f'{{\n{head}"runs": [\n{lines}\n]\n}}\n')


# ---- tables --------------------------------------------------------------------------------------------------------


def report(found: Sequence[dict[str, Any]]) -> str:
    """A table for each number of epochs; then fused against plain, where runs were made for that."""
    compared = sorted((one for one in found if "margin" not in one), key=lambda one: one["epochs"])
    tables = [table(list(some)) for _, some in itertools.groupby(compared, lambda one: one["epochs"])]
    return "\n\n".join([*tables, *([equivalence(found)] if len(compared) < len(found) else [])])


def _rows(found: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    rows: dict[str, list[dict[str, Any]]] = {}
    for one in found:
        rows.setdefault(one["reading"], []).append(one)
    return rows


def _finished(rows: dict[str, list[dict[str, Any]]], figure: str = "last") -> dict[str, list[float]]:
    values = {name: [one[figure] for one in some if figure in one] for name, some in rows.items()}
    return {name: some for name, some in values.items() if some}


def table(found: Sequence[dict[str, Any]]) -> str:
    """Validation accuracy, the difference to the baseline, reconstruction error and blocks judged alike."""
    left_out: dict[str, dict[str, None]] = {}  # by reason
    for one in found:
        if "invalid" in one:
            left_out.setdefault(one["invalid"], {})[one["reading"]] = None
    found = [one for one in found if "invalid" not in one]
    rows = _rows(found)
    last, errors = _finished(rows), _finished(rows, "validation_reconstruction")
    differences = _differences(rows, last)
    columns = ["reading", "decision", "computed by", f"accuracy, last {LAST} epochs", "difference", "to", "test"]
    columns += ["reconstruction", "judged alike by level, %"]
    lines = []
    for name, some in rows.items():
        difference = differences.get(name, ("", ""))
        lines.append(
            [
                name,
                some[0]["question"],
                " and ".join(dict.fromkeys(str(one["computed_by"]) for one in some)),
                f"{mean_and_deviation(last[name])} {_counted(some)}" if name in last else _counted(some),
                difference[0],
                some[0]["baseline"] if difference[0] else "",
                difference[1],
                mean_and_spread(errors[name], ".4f") if name in errors else "",
                " / ".join(percent(statistics.mean(level), 0) for level in _levels(some)),
            ]
        )
    said = [*_conditions(found, last), *(f"Left out: {' and '.join(names)}, {why}." for why, names in left_out.items())]
    return "\n".join([*said, "", markdown_table([columns, *lines]).rstrip()])


def _counted(some: Sequence[dict[str, Any]]) -> str:
    """(3), or which seeds a mean leaves out"""
    done, diverged = sum("last" in one for one in some), sum("failure" in one for one in some)
    left = [(diverged, "diverged"), (len(some) - done - diverged, "not finished")]
    return "(" + ", ".join([str(done), *(f"{count} {what}" for count, what in left if count)]) + ")"


def _levels(some: Sequence[dict[str, Any]]) -> list[tuple[float, ...]]:
    return list(zip(*(one["alike"] for one in some if "alike" in one), strict=True))


def _differences(rows: dict[str, list[dict[str, Any]]], last: dict[str, list[float]]) -> dict[str, tuple[str, str]]:
    """Of every row from its baseline, and the test"""
    found, said, spread = {}, {}, spreads(last)
    for name, one in last.items():
        control = rows[name][0]["baseline"]
        if control not in last or name == control:
            continue
        difference = statistics.mean(one) - statistics.mean(last[control])
        if spread[name].variance:
            found[name] = between(difference, len(one), len(last[control]), spread[name], spread[control])
        else:  # single seeds, or seeds that agree to the last image
            said[name] = (_points(difference), "spread over seeds not known")
    for (name, one), worth in zip(found.items(), holm([one.p for one in found.values()]), strict=True):
        said[name] = with_correction(one, worth)
    return said


def _conditions(found: Sequence[dict[str, Any]], last: dict[str, list[float]]) -> list[str]:
    def each(fact: str) -> str:
        return ", ".join(dict.fromkeys(str(one[fact]) for one in found))

    hardware = ", ".join(dict.fromkeys(str(one["environment"].get("hardware")) for one in found))
    said = [
        f"Recipe {each('recipe')}; {each('epochs')} epochs, {each('precision')}, {hardware}, seeds {each('seed')}. "
        f"Accuracy on validation images in percent: mean of the last {LAST} epochs ± deviation over seeds (n). "
        "Difference in points with its 95 % interval; bold where p, corrected by Holm for all differences of the "
        f"table, is below {LEVEL}."
    ]
    wide = apart(last)
    spread = pooled(values for name, values in last.items() if name not in wide)
    if spread.variance:
        n = max(map(len, last.values()))
        said.append(
            f"A single run varies by {percent(math.sqrt(spread.variance))} points ({spread.freedom} degrees of "
            f"freedom); between {n} and {n} seeds a single difference of {percent(spread.margin(n, n))} is significant."
        )
    for name in sorted(wide):
        own = percent(statistics.stdev(last[name]))
        said.append(f"{name} varies by {own}, more than chance allows: it is compared by Welch's test.")
    return said


# ---- equivalence ---------------------------------------------------------------------------------------------------


class Equivalence(NamedTuple):
    difference: float
    half: float  # of the 90 % interval
    test: str
    p: float  # the larger of the two one-sided tests

    @property
    def shown(self) -> bool:
        return self.p < LEVEL


def tost(one: Sequence[float], other: Sequence[float], margin: float) -> Equivalence:
    """Two one-sided tests of |μ₁ − μ₂| < margin. As in the tables: one pooled spread, or Welch's test if the seeds of
    one side vary by more than chance more than the other's."""
    n, m = len(one), len(other)
    spread = spreads({"one": one, "other": other})
    own, others = spread["one"], spread["other"]
    if min(n, m) < 2 or not own.variance or not others.variance:
        raise InputError("An equivalence test needs at least two seeds on each side, with different results.")
    difference = statistics.mean(one) - statistics.mean(other)
    room = margin - abs(difference)
    tail = own.p(room, n, m, others) / 2
    test = "t" if own is others else "Welch"
    return Equivalence(difference, own.margin(n, m, others, 2 * LEVEL), test, tail if room > 0 else 1 - tail)


def _points(difference: float) -> str:
    return percent(difference, sign="+").replace("-", "−")


def equivalence(found: Sequence[dict[str, Any]]) -> str:
    """Fused kernels against plain PyTorch, within the margin that was set before the runs."""
    rows = _rows([one for one in found if "margin" in one])
    last, lines = _finished(rows), []
    for name, some in rows.items():
        control = some[0]["baseline"]
        if name == control or not last.get(name) or not last.get(control):
            continue
        if all(_plain(one) for one in rows[control]):
            raise InputError("Nothing ran on the fused kernels, so there is nothing to compare; use a CUDA device.")
        margins = {one["margin"] for one in (*some, *rows[control])}
        if len(margins) > 1:
            raise InputError(f"The runs were started with different margins: {sorted(margins)}.")
        (margin,) = margins
        tested = tost(last[control], last[name], margin / 100)
        low, middle, high = (_points(tested.difference + side * tested.half) for side in (-1, 0, 1))
        sides = [f"{mean_and_deviation(last[side])} ({len(last[side])})" for side in (control, name)]
        verdict = "equivalent" if tested.shown else "not shown"
        cells = [some[0]["recipe"], *sides, middle, f"[{low}, {high}]", f"{margin:g}"]
        lines.append([*cells, f"{tested.test}, p = {tested.p:.3f}", verdict])
    columns = ["recipe", "fused", "plain PyTorch", "fused − plain", "90 % interval", "margin", "TOST, 5 %", "verdict"]
    said = f"Validation accuracy in percent, mean of the last {LAST} epochs ± standard deviation over seeds (n)."
    return f"{said}\n\n{markdown_table([columns, *lines]).rstrip()}" if lines else "Not all runs have finished."


# ---- command -------------------------------------------------------------------------------------------------------


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")
    return int(text)


def main() -> None:
    known = "\n".join(f"  {name:23} {reading.question:4} {reading.kind}" for name, reading in READINGS.items())
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=f"readings, with their decision in docs/decisions.md:\n{known}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=Path("runs/readings"), help="folder of the runs (%(default)s)")
    parser.add_argument("--only", nargs="+", choices=READINGS, metavar="READING", help="these readings; default all")
    parser.add_argument("--recipe", default="mnist", help="the experiment to change (%(default)s)")
    parser.add_argument("--epochs", type=_positive, default=10, help="number of epochs (%(default)s)")
    parser.add_argument("--seeds", type=_positive, default=3, help="number of seeds (%(default)s)")
    parser.add_argument("--data-dir", type=Path, default=default_data_dir(), help="dataset directory")
    parser.add_argument("--download", action="store_true", help="download the dataset if it is missing")
    parser.add_argument("--equivalence", action="store_true", help="fused kernels against plain PyTorch")
    parser.add_argument("--margin", type=float, default=1.0, help="equivalence margin in points (%(default)s)")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--table", action="store_true", help="only print the results of --out, a folder or a record")
    instead.add_argument("--keep", type=Path, metavar="FILE", help="only add the finished runs of --out to this record")
    asked = parser.parse_args()
    with in_a_sentence():
        if asked.keep:
            keep(asked.out, asked.keep)
        elif not asked.table:
            base = recipe(asked.recipe)
            base = replace(base, training=base.training.with_epochs(asked.epochs))
            dataset = load_dataset(base.data, data_dir=asked.data_dir, download=asked.download)
            names, facts = asked.only or that_apply_to(base), {}
            if asked.equivalence:
                names, facts = [AS_DECIDED, AS_DECIDED_PLAIN], {"margin": asked.margin}
            train(asked.out, names, base, range(asked.seeds), dataset, choose_device("auto"), **facts)
        print(report(records(asked.keep or asked.out)))


if __name__ == "__main__":
    main()
