"""Train every run behind the tables, several at a time on one GPU.

    python tools/campaign.py --data-dir data --download               the paper's tables, in the order below
    python tools/campaign.py --data-dir data table-v                  the other systems of Table V
    python tools/campaign.py --data-dir data plus-search --out runs/plus-search   candidates for wcapsnet-plus
    python tools/campaign.py --data-dir data cifar10:0,1 vgg-19-cifar10:0   selected runs, RECIPE:SEED,SEED

Runs are saved in --out as they go. Ctrl-C and --minutes save them at once, and the same command resumes
them; --set changes every run, for a short trial. Then: python tools/update_docs.py runs/campaign
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from plus_search import CANDIDATES, facts, table
from wcapsnet.cli import console
from wcapsnet.cli.exit import in_a_sentence
from wcapsnet.device import choose_device
from wcapsnet.errors import InputError
from wcapsnet.recipes import recipe
from wcapsnet.settings import with_setting
from wcapsnet.sweeps import Planned, Sweep
from wcapsnet.sweeps.run import train_all
from wcapsnet.training.run_folder import Run

OTHER_ROWS = ("normalized", "squash", "ws", "ce", "random")
ALL = (
    *("cifar10:0,1,2,3,4", "cifar10-uniform:0,1,2,3,4", *(f"cifar10-{row}:0,1" for row in OTHER_ROWS)),
    *("mnist:0,1,2", "mnist-uniform:0,1,2", *(f"mnist-{row}:0,1,2" for row in OTHER_ROWS)),
    *("cifar100:0,1,2", "cifar100-uniform:0,1,2", *(f"cifar100-{row}:0" for row in OTHER_ROWS)),
    *("fashion-mnist:0,1,2", "fashion-mnist-uniform:0,1,2"),
)
SYSTEMS = (  # the shortest first
    *("efficient-capsnet-mnist:0", "capsnet-mnist:0", "sr-capsnet-cifar10:0", "densenet-bc-100-cifar10:0"),
    *("sr-capsnet-2-cifar10:0", "deepcaps-fashion-mnist:0", "capsnet-cifar10:0", "densenet-bc-100-cifar100:0"),
    *("attention-routing-cifar10:0", "vgg-19-cifar10:0", "deepcaps-cifar10:0"),
)
GROUPS = {"paper": ALL, "table-v": SYSTEMS, "plus-search": tuple(f"{name}:0" for name in CANDIDATES)}


def planned(wanted: str, precision: str, settings: list[str]) -> list[Planned]:
    name, _, seeds = wanted.partition(":")
    experiment, runs = CANDIDATES.get(name, lambda: recipe(name))(), []
    for assignment in settings:
        experiment = with_setting(experiment, assignment)
    for seed in seeds.split(","):
        if not seed.isdecimal():
            raise InputError(f"A run is asked for as RECIPE:SEED,SEED, such as cifar10:0,1; not {wanted!r}.")
        training = replace(experiment.training, precision=precision, seed=int(seed))
        runs.append(Planned({"recipe": name, "seed": str(int(seed))}, replace(experiment, training=training)))
    return runs


@contextmanager
def stopped_after(minutes: float | None) -> Iterator[None]:
    """As if Ctrl-C were pressed then: every run is saved."""

    def stop(*_: object) -> None:
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # else the signal would be lost
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGALRM, stop)
    if minutes is not None:
        signal.setitimer(signal.ITIMER_REAL, max(60 * minutes, 0.001), 0.05)  # again until it is heard
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", default=["paper"], metavar="RECIPE:SEED,SEED|paper|table-v|plus-search")
    parser.add_argument("--out", type=Path, default=Path("runs/campaign"))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--download", action="store_true")
    parser.add_argument("--parallel", type=int, help="runs at a time on a GPU")
    parser.add_argument("--minutes", type=float, help="save and stop after this long")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", dest="settings")
    asked = parser.parse_intermixed_args()
    with in_a_sentence():
        device = choose_device("auto")
        precision = "bf16" if device.type == "cuda" else "fp32"
        names = [name for wanted in asked.runs for name in GROUPS.get(wanted, [wanted])]
        runs = [one for name in names for one in planned(name, precision, asked.settings)]
        sweep, given = Sweep(asked.out, runs), {"data_dir": asked.data_dir, "download": asked.download}
        choosing = {name.partition(":")[0] for name in names} <= set(CANDIDATES)  # no test accuracies then
        measured = "validation" if choosing else "test"
        with stopped_after(asked.minutes):
            sweep.failures = train_all(sweep, device, parallel=asked.parallel, measured=measured, **given)
        if choosing:
            print(table([facts(run) for run in sweep.runs if Run.is_run(run.path)]), end="")
        else:
            console.sweep(sweep)
        if sweep.failures:
            sys.exit(1)


if __name__ == "__main__":
    main()
