"""Every run behind the paper's tables in one go, several at a time on one GPU.

    python tools/campaign.py --data-dir data --download           all of them, in the order below
    python tools/campaign.py --data-dir data cifar10:0,1 mnist:2  some: RECIPE:SEED,SEED

Ctrl-C saves every run, and the same command goes on. Then: python tools/update_docs.py runs/campaign
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from wcapsnet.cli import console
from wcapsnet.cli.exit import in_a_sentence
from wcapsnet.device import choose_device
from wcapsnet.errors import InputError
from wcapsnet.recipes import recipe
from wcapsnet.sweeps import Planned, Sweep
from wcapsnet.sweeps.run import train_all

OTHER_ROWS = ("normalized", "squash", "ws", "ce", "random")
ALL = (
    *("cifar10:0,1,2,3,4", "cifar10-uniform:0,1,2,3,4", *(f"cifar10-{row}:0,1" for row in OTHER_ROWS)),
    *("mnist:0,1,2", "mnist-uniform:0,1,2", *(f"mnist-{row}:0,1,2" for row in OTHER_ROWS)),
    *("cifar100:0,1,2", "cifar100-uniform:0,1,2", *(f"cifar100-{row}:0" for row in OTHER_ROWS)),
    *("fashion-mnist:0,1,2", "fashion-mnist-uniform:0,1,2"),
)


def planned(wanted: str, precision: str) -> list[Planned]:
    name, _, seeds = wanted.partition(":")
    experiment, runs = recipe(name), []
    for seed in seeds.split(","):
        if not seed.isdecimal():
            raise InputError(f"A run is asked for as RECIPE:SEED,SEED, such as cifar10:0,1; not {wanted!r}.")
        training = replace(experiment.training, precision=precision, seed=int(seed))
        runs.append(Planned({"recipe": name, "seed": str(int(seed))}, replace(experiment, training=training)))
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", default=ALL, metavar="RECIPE:SEED,SEED")
    parser.add_argument("--out", type=Path, default=Path("runs/campaign"))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--download", action="store_true")
    parser.add_argument("--parallel", type=int)
    asked = parser.parse_intermixed_args()
    with in_a_sentence():
        device = choose_device("auto")
        precision = "bf16" if device.type == "cuda" else "fp32"
        runs = [one for wanted in asked.runs for one in planned(wanted, precision)]
        sweep, given = Sweep(asked.out, runs), {"data_dir": asked.data_dir, "download": asked.download}
        sweep.failures = train_all(sweep, device, parallel=asked.parallel, **given)
        console.sweep(sweep)
        if sweep.failures:
            sys.exit(1)


if __name__ == "__main__":
    main()
