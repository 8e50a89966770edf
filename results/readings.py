"""Open questions of the paper's text (docs/decisions.md) answered otherwise: short runs, validation images only.

    python results/readings.py --data-dir data                 all on MNIST, 10 epochs, three seeds each
    python results/readings.py --data-dir data --only warm-up  some
    python results/readings.py --table                         what came of them
    python results/readings.py --data-dir data --recipe cifar10-normalized --epochs 20 --out runs/normalized
    python results/readings.py --keep results/readings/mnist   the records of what is over go there; then its table

The test images are never looked at. Ctrl-C saves every run, and the same command goes on.

Such runs can show what costs or gains more than the spread over seeds, which is printed above the table. With softmax
they can hardly tell the answers to D2, D6, D7, D8 and D14 apart by accuracy, for leaving the Wasserstein loss out
altogether hardly changes full runs (CE in docs/results.md). Therefore the Wasserstein term, which these act on, stands
there too.

A run folder has the weights and the reading's name, not what the code did otherwise: load it within
READINGS[name].changed(), or it is another network.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn

from wcapsnet.data import Dataset, default_data_dir, load_dataset
from wcapsnet.cli.exit import in_a_sentence
from wcapsnet.errors import InputError
from wcapsnet.experiment import Experiment, TrainingConfig
from wcapsnet.network import Output, Routing, WCapsNet, capsules, critic, routing, wcapsnet
from wcapsnet.network.per_capsule import BatchNorm, PerCapsuleConv2d, PerCapsuleShortcut, shared_over_capsules
from wcapsnet.objective import Terms, correctness, objective, wasserstein_loss
from wcapsnet.recipes import recipe
from wcapsnet.report.noise import LEVEL, apart, between, holm, pooled, spreads
from wcapsnet.report.records import environment_of, in_all, keep_training
from wcapsnet.report.tables import with_correction
from wcapsnet.rounding import mean_and_deviation, percent
from wcapsnet.settings import differing, with_setting
from wcapsnet.sweeps import check_same
from wcapsnet.training import step
from wcapsnet.training.board import make_board
from wcapsnet.training.precision import choose_device
from wcapsnet.training.progress import Progress
from wcapsnet.training.run import Run, describe_environment, read_json, write_json
from wcapsnet.training.together import SharedData, train_together
from wcapsnet.training.trainer import Measure, Trainer

FIGURES = ("best", "last", "wasserstein")
LAST = 3  # epochs whose mean stands beside the best one, which is the luckiest too


@dataclass(frozen=True)
class Reading:
    question: str  # of docs/decisions.md
    kind: str  # reading: the text may mean it; departure: it says otherwise or nothing, and where did we fall short?
    settings: tuple[str, ...] = ()
    changed: Callable[[], Any] = nullcontext  # what the code does otherwise as long as this is entered
    plain: bool = False  # the fused kernels do not know it
    weighting: str | None = None  # only a network with these weights notices


def replacing(*changes: tuple[Any, str, Any]) -> Callable[[], Any]:
    @contextmanager
    def changed() -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, value in changes:
                stack.enter_context(patch.object(owner, name, value))
            yield

    return changed


def after_building(change: Callable[[WCapsNet], None]) -> Callable[[], Any]:
    build = WCapsNet.__init__

    def built(self: WCapsNet, *args: Any) -> None:
        build(self, *args)
        with torch.no_grad():
            change(self)

    return replacing((WCapsNet, "__init__", built))


def fan_out(network: WCapsNet) -> None:
    """The same draw, scaled"""
    kernels = [layer.weight for layer in network.modules() if isinstance(layer, PerCapsuleConv2d)]
    for weight in (network.init_conv.weight, *kernels):
        outputs, inputs = weight.shape[-4:-2]
        weight.mul_(math.sqrt(inputs / outputs))


def batch_norms(**values: float) -> Callable[[WCapsNet], None]:
    def change(network: WCapsNet) -> None:
        for layer in network.modules():
            if isinstance(layer, BatchNorm):
                vars(layer).update(values)

    return change


def all_parameters(self: WCapsNet) -> list[torch.nn.Parameter]:
    return list(self.parameters())


def all_kernels(self: WCapsNet) -> list[torch.nn.Parameter]:
    return [p for name, p in self.named_parameters() if p.dim() >= 4 and "weight" in name]


def warming_up(self: TrainingConfig, epoch: int) -> float:
    """Over three epochs, or as many as leave a short run one at the full rate before it falls."""
    rising = min((3, *(milestone - 1 for milestone in self.milestones)))
    share = (epoch + 1) / (rising + 1) if epoch < rising else self.decay ** sum(epoch >= m for m in self.milestones)
    return self.lr * share


def where_strided(change: Callable[[capsules.CapsuleBlocks, PerCapsuleShortcut], None]) -> Callable[[], Any]:
    """What is drawn for the rest of the network stays the same."""

    def every(network: WCapsNet) -> None:
        for blocks in network.capsules:
            if isinstance(blocks.dense.shortcut, PerCapsuleShortcut):
                change(blocks, blocks.dense.shortcut)

    return after_building(every)


def shortcut_conv_plus(blocks: capsules.CapsuleBlocks, shortcut: PerCapsuleShortcut) -> None:
    n, channels = shortcut.weight.shape[:2]
    blocks.dense.shortcut = capsules.ConvPlus(n, channels, channels, shortcut.stride, shortcut.stride)
    blocks.dense.shortcut.conv = shortcut


class PerChannel(nn.Module):
    """Channels take the place of capsules: each has a kernel of its own and sees no other."""

    def __init__(self, capsules: int, channels: int, stride: int):
        super().__init__()
        self.conv = PerCapsuleShortcut(capsules * channels, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.flatten(1, 2).unsqueeze(2)).squeeze(2).unflatten(1, x.shape[1:3])


def shortcut_per_channel(blocks: capsules.CapsuleBlocks, shortcut: PerCapsuleShortcut) -> None:
    blocks.dense.shortcut = PerChannel(*shortcut.weight.shape[:2], shortcut.stride)


class MeanPool(nn.Module):
    def __init__(self, stride: int):
        super().__init__()
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        return shared_over_capsules(lambda c: F.avg_pool2d(c, self.stride, ceil_mode=True), x)


def shortcut_pooled(blocks: capsules.CapsuleBlocks, shortcut: PerCapsuleShortcut) -> None:
    blocks.dense.shortcut = MeanPool(shortcut.stride)


def strided_kernel_as_the_stride(blocks: capsules.CapsuleBlocks, shortcut: PerCapsuleShortcut) -> None:
    first = blocks.dense.layers[0]
    n, growth, channels = first.conv.weight.shape[:3]
    narrow = PerCapsuleShortcut(n, channels, shortcut.stride)
    narrow.weight = nn.Parameter(narrow.weight[:, :growth].clone())
    first.conv = narrow


def stride_in_transition(blocks: capsules.CapsuleBlocks, shortcut: PerCapsuleShortcut) -> None:
    """DenseNet's place for it: after the 1×1 convolution, by a mean"""
    blocks.dense.shortcut, blocks.dense.layers[0].conv.stride = nn.Identity(), 1
    blocks.trans.conv_plus = nn.Sequential(blocks.trans.conv_plus, MeanPool(shortcut.stride))


def not_detached(output: Output, images: Tensor, labels: Tensor, config: Any) -> Terms:
    terms = objective(output, images, labels, config)
    cos = correctness(output.logits, labels)
    # Below this N_h is what rounding made of cos θ, and a division by it makes anything of the gradient.
    known = (1 - cos.detach()).clamp_min(0).sum() > len(cos) * torch.finfo(torch.float32).eps
    cos = torch.where(known, cos, cos.detach())
    wasserstein = torch.stack([wasserstein_loss(one, cos) for one in output.routings]).sum()
    return terms._replace(
        total=terms.total + config.lambda_ws * (wasserstein - terms.wasserstein), wasserstein=wasserstein
    )


def weights_as_given(output: Output, images: Tensor, labels: Tensor, config: Any) -> Terms:
    given = tuple(Routing(one.fitness, one.weights.detach()) for one in output.routings)
    return objective(output._replace(routings=given), images, labels, config)


def weights_as_used(self: WCapsNet, images: Tensor) -> Output:
    """The loss sees the b that weighed capsules; the decoder still chooses by those before their dropout (D8)."""
    if not self.training:  # nothing is dropped, and threads share the network
        return self.trace(images).output
    used: list[Tensor] = []

    def applied(b: Tensor) -> Tensor:
        used.append(WCapsNet.applied(self, b))
        return used[-1]

    with patch.object(self, "applied", applied):
        output = self.trace(images).output
    routings = (one._replace(weights=b) for one, b in zip(output.routings, used, strict=True))
    return output._replace(routings=tuple(routings))


def of_the_sum(b: Tensor, c: Tensor, w: Tensor) -> Tensor:
    with torch.autocast(c.device.type, enabled=False):
        total = torch.einsum("mnij,mnkij->mk", b.float(), c.float())
        return F.dropout(total, 0.3, torch.is_grad_enabled()) @ w.float()


def votes_as_they_are(a: Tensor) -> Tensor:
    """Where they sum to nearly zero the weights are anything: such a run may diverge."""
    return a / a.flatten(1).sum(1).view(-1, *[1] * (a.dim() - 1))


def rectified(self: critic.Critic, x: Tensor) -> Tensor:
    for layer in self.layers:
        x = self.drop(F.relu(layer(x)))
    return self.norm(x).float().sigmoid()


def normed_last(self: capsules.CapsTrans, x: Tensor) -> Tensor:
    return shared_over_capsules(self.norm, self.nonlinearity(self.conv_plus(x)))


class OwnStatistics(BatchNorm):
    """Each of n capsules is normalised by statistics of its own; γ and β stay shared."""

    def __init__(self, n: int, shared: BatchNorm):
        super().__init__(n, *shared.shape, momentum=shared.momentum, eps=shared.eps)
        self.weight, self.bias = shared.weight, shared.bias

    def forward(self, x: Tensor) -> Tensor:
        c = x.unflatten(0, (-1, self.shape[0]))  # (m·n, k, i, j) → (m, n, k, i, j)
        own = (self.running_mean.view(-1), self.running_var.view(-1))
        affine = (parameter.repeat(self.shape[0]) for parameter in (self.weight, self.bias))
        return F.batch_norm(c.flatten(1, 2), *own, *affine, self.training, self.momentum, self.eps).view(x.shape)


def statistics_of_their_own(network: WCapsNet) -> None:
    for blocks in network.capsules:
        blocks.trans.norm = OwnStatistics(blocks.capsules, blocks.trans.norm)


AS_DECIDED, AS_DECIDED_PLAIN = "as-decided", "as-decided-plain"
READINGS = {
    AS_DECIDED: Reading("–", "–"),
    "no-extra-class": Reading("D5", "departure", ("model.extra_class=false",)),
    "mean-over-levels": Reading("D7", "reading", ("objective.lambda_ws={mean}",)),
    "noise-variance": Reading("D8", "reading", ("model.routing.noise_std=0.7071",)),
    "no-noise": Reading("D8", "departure", ("model.routing.noise_share=0",)),
    "no-critic-dropout": Reading("D34", "departure", ("model.critic_dropout=0",)),
    "all-weights-decay": Reading(
        "D10", "departure", changed=replacing((WCapsNet, "decayed_parameters", all_parameters))
    ),
    "all-kernels-decay": Reading("D10", "departure", changed=replacing((WCapsNet, "decayed_parameters", all_kernels))),
    "l2-not-halved": Reading("D32", "reading", ("training.weight_decay={twice}",)),
    "fan-out": Reading("D20", "reading", changed=after_building(fan_out)),
    "batch-norm-momentum": Reading("D20", "departure", changed=after_building(batch_norms(momentum=0.01))),
    "warm-up": Reading("D33", "departure", changed=replacing((TrainingConfig, "learning_rate", warming_up))),
    AS_DECIDED_PLAIN: Reading("–", "–", plain=True),
    "batch-norm-epsilon": Reading("D20", "departure", changed=after_building(batch_norms(eps=1e-3)), plain=True),
    "statistics-per-capsule": Reading("D4", "reading", changed=after_building(statistics_of_their_own), plain=True),
    "cos-not-detached": Reading("D1", "reading", changed=replacing((step, "objective", not_detached)), plain=True),
    "b-after-dropout": Reading("D2", "reading", changed=replacing((WCapsNet, "plain", weights_as_used)), plain=True),
    "b-not-differentiated": Reading(
        "D6", "reading", changed=replacing((step, "objective", weights_as_given)), plain=True
    ),
    "critic-rectified": Reading("D14", "reading", changed=replacing((critic.Critic, "judge", rectified)), plain=True),
    "votes-as-they-are": Reading(
        "D21",
        "reading",
        changed=replacing((wcapsnet, "WEIGHTINGS", {**routing.WEIGHTINGS, "normalized": votes_as_they_are})),
        plain=True,
        weighting="normalized",
    ),
    "dropout-on-the-sum": Reading(
        "D15", "reading", ("model.projection_dropout=0",), replacing((wcapsnet, "predict", of_the_sum)), plain=True
    ),
    "batch-norm-last": Reading(
        "D27", "reading", changed=replacing((capsules.CapsTrans, "forward", normed_last)), plain=True
    ),
    "shortcut-conv-plus": Reading("D35", "reading", changed=where_strided(shortcut_conv_plus), plain=True),
    "shortcut-per-channel": Reading("D35", "reading", changed=where_strided(shortcut_per_channel), plain=True),
    "shortcut-pooled": Reading("D35", "departure", changed=where_strided(shortcut_pooled), plain=True),
    "strided-kernel": Reading("D35", "reading", changed=where_strided(strided_kernel_as_the_stride), plain=True),
    "stride-in-transition": Reading("D35", "departure", changed=where_strided(stride_in_transition), plain=True),
}


class Untested(Trainer):
    """Measures validation images at the end, and nothing else."""

    def finish(self, measure: Measure | None = None) -> Any:
        records = self.run.metrics()
        figures = {"best": max(record["validation_accuracy"] for record in records)}
        for name, column in (("last", "validation_accuracy"), ("wasserstein", "wasserstein")):
            figures[name] = statistics.mean(record[column] for record in records[-LAST:])
        self.run.write_json("validation.json", figures)


class UntestedRun(Run):
    def results(self) -> dict[str, Any]:
        return {"accuracy": read_json(self.file("validation.json"))["best"]}


def experiment_of(name: str, base: Experiment, seed: int, precision: str) -> Experiment:
    reading, experiment = READINGS[name], base
    mean, twice = base.objective.lambda_ws / len(base.model.levels), 2 * base.training.weight_decay
    for setting in reading.settings:
        experiment = with_setting(experiment, setting.format(mean=mean, twice=twice))
    kernels = "plain" if reading.plain else "auto"
    training = replace(experiment.training, seed=seed, precision=precision, kernels=kernels)
    return replace(experiment, training=training)


def that_apply_to(base: Experiment) -> list[str]:
    weighting = base.model.routing.weighting
    return [name for name, reading in READINGS.items() if reading.weighting in (None, weighting)]


def train(
    out: Path, names: list[str], base: Experiment, seeds: list[int], dataset: Dataset, device: torch.device
) -> None:
    if missed := [name for name in names if name not in that_apply_to(base)]:
        raise InputError(
            f"{missed[0]} is about {READINGS[missed[0]].weighting} weights, which {base.name} does not have; "
            "choose a --recipe that has."
        )
    precision, console = "bf16" if device.type == "cuda" else "fp32", Console()
    shared = SharedData(lambda config: dataset, device)
    for name, begun in runs_in(out).items():  # also those that are not asked for: they will share a table
        for run in begun:
            check_same(run.path, experiment_of(name, base, run.experiment.training.seed, precision))
    for name in names:
        runs: list[Run] = [
            UntestedRun(out / name / f"seed={seed}", experiment_of(name, base, seed, precision)) for seed in seeds
        ]
        runs = [run for run in runs if not run.file("validation.json").exists() and run.failure is None]

        def make(run: Run, progress: Progress) -> Trainer:
            if Run.is_run(run.path):
                run.hold()
            trainer = Untested(run, shared.of(run.experiment.data), device, progress)
            environment = describe_environment(device, None, len(seeds), trainer.computed_by)
            run.start(environment | {"reading": run.path.parent.name}, trainer.state.epoch)
            return trainer

        board = make_board(console, runs)
        board.measured = "validation"
        with READINGS[name].changed():
            for run, failure in train_together(runs, make, device, len(seeds), board):
                if failure and run.failure is None:  # it did not diverge: somebody can put it right
                    raise InputError(f"{name}: {failure}")


def runs_in(out: Path) -> dict[str, list[Run]]:
    paths = {name: sorted((out / name).glob("seed=*/experiment.json")) for name in READINGS}
    runs = {name: [Run.open(path.parent) for path in some] for name, some in paths.items() if some}
    for name, run in ((name, run) for name, some in runs.items() for run in some):
        reading = environment_of(run).get("reading", name)  # the first runs do not say
        if reading != name:
            raise InputError(f"{run.path} is a run of {reading}; it belongs into {out / reading}.")
    return runs


def _some_runs_in(out: Path) -> dict[str, list[Run]]:
    if not (runs := runs_in(out)):
        raise InputError(f"There are no runs of readings in {out}.")
    return runs


def computed_by(run: Run) -> str:
    return str(in_all(read_json(run.file("environment.json")), "computed_by"))


def check_comparable(runs: dict[str, list[Run]]) -> None:
    """Refuse runs that differ by more than their readings."""
    first = next(iter(runs))
    base = runs[first][0]
    free = {setting.partition("=")[0] for setting in READINGS[first].settings}  # nobody but the first was told so
    by: dict[bool, Run] = {}
    for name, run in ((name, run) for name, some in runs.items() for run in some):
        training = base.experiment.training
        asked = experiment_of(name, base.experiment, run.experiment.training.seed, training.precision)
        for field, found, expected in differing(run.experiment, asked):
            if field not in free:
                raise InputError(
                    f"{run.path} cannot stand in a table with {base.path}: its {field} is {found}, not {expected}, "
                    f"which is not what {name} is about."
                )
        other = by.setdefault(READINGS[name].plain, run)
        if computed_by(run) != computed_by(other):
            raise InputError(
                f"{run.path} cannot stand in a table with {other.path}: it was computed by {computed_by(run)}, not by "
                f"{computed_by(other)}."
            )


def _differences(last: dict[str, list[float]]) -> dict[str, str]:
    """Of every reading from what is in use and computed alike"""
    found, said, spread = {}, {}, spreads(last)
    for name, one in last.items():
        control = AS_DECIDED_PLAIN if READINGS[name].plain and name != AS_DECIDED_PLAIN else AS_DECIDED
        if control not in last or name == control:
            continue
        other, n, m = last[control], len(one), len(last[control])
        difference = statistics.mean(one) - statistics.mean(other)
        if spread[name].variance:
            found[name] = between(difference, n, m, spread[name], spread[control])
        else:  # single seeds, or such that agree to the last image
            said[name] = f"{percent(difference, sign='+')}, spread over seeds not known"
    for (name, one), worth in zip(found.items(), holm([one.p for one in found.values()]), strict=True):
        said[name] = ", ".join(with_correction(one, worth))
    return said


def keep(out: Path, results: Path) -> None:
    """The records of runs that are over, without weights and paths; all or, if one may not stand there, none"""
    over = {place: run for place, run in _by_place(_some_runs_in(out)).items() if _ends(run)}
    kept = _by_place(runs_in(results))
    for place, run in over.items():
        there = kept.setdefault(place, run)
        if (there.experiment, _ends(there)) != (run.experiment, _ends(run)):
            raise InputError(f"{there.path} is another run than {run.path}; choose another folder with --keep.")
    check_comparable({name: [run for (other, _), run in kept.items() if other == name] for name, _ in kept})
    for (name, seed), run in over.items():
        keep_training(run, results / name / seed, reading=name)
        for end, content in _ends(run).items():
            write_json(results / name / seed / end, content)


def _by_place(runs: dict[str, list[Run]]) -> dict[tuple[str, str], Run]:
    return {(name, run.path.name): run for name, some in runs.items() for run in some}


def _ends(run: Run) -> dict[str, Any]:
    """How it ended, if it has"""
    return {end: read_json(run.file(end)) for end in ("validation.json", "failed.json") if run.file(end).exists()}


def figures_of(run: Run) -> dict[str, float] | None:
    """Of a run that is over"""
    path = run.file("validation.json")
    if not path.exists():
        return None
    figures = read_json(path)
    if not all(isinstance(figures.get(name), float) for name in FIGURES):
        raise InputError(f"{path} is damaged; delete {run.path} and train it again.")
    return dict(figures)


def table(out: Path) -> str:
    """Validation accuracy of the best epoch and mean of the last ones, over seeds, how far that is from what is in use,
    and what became of the Wasserstein term."""
    runs = _some_runs_in(out)
    check_comparable(runs)
    reached = {name: [f for run in some if (f := figures_of(run))] for name, some in runs.items()}
    last = {name: [one["last"] for one in some] for name, some in reached.items() if some}
    differences = _differences(last)
    lines = []
    for name, some in runs.items():
        cells = ["", "", "", ""]
        if name in last:
            terms = [one["wasserstein"] for one in reached[name]]
            deviation = f" ± {statistics.stdev(terms):.3f}" if len(terms) > 1 else ""
            cells = [
                mean_and_deviation([one["best"] for one in reached[name]]),
                mean_and_deviation(last[name]),
                differences.get(name, ""),
                f"{statistics.mean(terms):.3f}{deviation}".replace("-", "−"),
            ]
        reading = READINGS[name]
        facts = [reading.question, reading.kind, name, computed_by(some[0]), _seeds(some, len(reached[name])), *cells]
        lines.append(f"| {' | '.join(facts)} |")
    columns = ["question", "kind", "reading", "computed by", "seeds", "best epoch", f"last {LAST} epochs"]
    columns += ["these, from as-decided", f"Wasserstein term, last {LAST} epochs"]
    heading = [f"| {' | '.join(columns)} |", "|" + " --- |" * len(columns)]
    return "\n".join([*_conditions(runs, last), "", *heading, *lines])


def _seeds(runs: list[Run], reached: int) -> str:
    """A mean that left out who diverged would flatter: it is said what it is of."""
    diverged = sum(run.failure is not None for run in runs)
    under_way = len(runs) - reached - diverged
    others = [f"{count} {what}" for count, what in ((diverged, "diverged"), (under_way, "not finished")) if count]
    return ", ".join([f"{reached} of {len(runs)}", *others]) if others else str(reached)


def _conditions(runs: dict[str, list[Run]], last: dict[str, list[float]]) -> list[str]:
    """What all rows have in common, and what a difference must be to mean anything."""
    every = [run for some in runs.values() for run in some]
    experiment, seeds = every[0].experiment, sorted({run.experiment.training.seed for run in every})
    training, by = experiment.training, " and ".join(sorted({computed_by(run) for run in every}))
    said = [
        f"Recipe {experiment.name}, {training.epochs} epochs, {training.precision}, {by}, seeds "
        f"{', '.join(map(str, seeds))}; accuracies on validation images, in percent, ± their deviation over seeds.",
        f"Differences are of the last {LAST} epochs, in points, with the 95 % interval (Student's t, the variance "
        f"over seeds pooled over all rows); plain readings from {AS_DECIDED_PLAIN}, as they are computed alike.",
    ]
    wide = apart(last)
    spread = pooled(accuracies for name, accuracies in last.items() if name not in wide)
    if spread.variance:
        n = max(map(len, last.values()))
        said.append(
            f"A single run varies by {percent(math.sqrt(spread.variance), 3)} ({spread.freedom} degrees of freedom): "
            f"between {n} seeds and {n} a single difference of {percent(spread.margin(n, n), 3)} would show. Beside p "
            f"stands p corrected by Holm for the number of differences in the table; bold where that is below {LEVEL}."
        )
    for name in sorted(wide):
        own = percent(statistics.stdev(last[name]), 3)
        said.append(f"{name} varies by {own}, by more than chance more than others: compared by Welch's test.")
    return said


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 on")
    return int(text)


def main() -> None:
    tried = "\n".join(f"  {name:22} {reading.question:4} {reading.kind}" for name, reading in READINGS.items())
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=f"readings, by the question of docs/decisions.md:\n{tried}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=Path("runs/readings"), help="folder of the runs (%(default)s)")
    parser.add_argument("--only", nargs="+", choices=READINGS, metavar="READING", help="these, not all that apply")
    parser.add_argument("--recipe", default="mnist", help="what is trained otherwise (%(default)s)")
    parser.add_argument("--epochs", type=_positive, default=10, help="length of the schedule (%(default)s)")
    parser.add_argument("--seeds", type=_positive, default=3, help="how many (%(default)s)")
    parser.add_argument("--data-dir", type=Path, default=default_data_dir(), help="where data sets lie")
    parser.add_argument("--download", action="store_true", help="fetch the data set if it is not there")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--table", action="store_true", help="train nothing, print what came of the runs in --out")
    instead.add_argument("--keep", type=Path, metavar="FOLDER", help="train nothing, keep their records there")
    asked = parser.parse_args()
    with in_a_sentence():
        if asked.keep:
            keep(asked.out, asked.keep)
        elif not asked.table:
            base = recipe(asked.recipe)
            base = replace(base, training=base.training.with_epochs(asked.epochs))
            dataset = load_dataset(base.data, data_dir=asked.data_dir, download=asked.download)
            train(
                asked.out,
                asked.only or that_apply_to(base),
                base,
                list(range(asked.seeds)),
                dataset,
                choose_device("auto"),
            )
        print(table(asked.keep or asked.out))


if __name__ == "__main__":
    main()
