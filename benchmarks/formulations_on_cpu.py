"""The quick network's training and inference and the full network's inference on a CPU: which formulation is fastest?

    python benchmarks/formulations_on_cpu.py HARDWARE-NAME

Everything takes turns, 9 windows of at least 0.2 s each; medians. Half of the processes keep the memory they free
(`wcapsnet.__main__.keep_freed_memory`), half leave it to glibc's defaults: that is decided once a process.
torch.compile is a contender of `wcapsnet bench`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as the command line does
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import torch
import torch.nn.functional as F
from torch import Tensor

from wcapsnet.__main__ import keep_freed_memory
from wcapsnet.bench.contenders import Contender
from wcapsnet.bench.measure import Call, in_turns
from wcapsnet.bench.tasks import Job, inference, synthetic, training
from wcapsnet.network.per_capsule import PerCapsuleConv2d
from wcapsnet.recipes import recipe

CASES = (("quick", "train", 64), ("quick", "infer", 1), ("quick", "infer", 64), ("cifar10", "infer", 1))


def grouped(self: PerCapsuleConv2d, x: Tensor, padding: int) -> Tensor:
    n = x.shape[1]
    y = F.conv2d(x.flatten(1, 2), self.weight.flatten(0, 1), None, self.stride, padding, groups=n)
    return y.unflatten(1, (n, -1))


def channels_last(self: PerCapsuleConv2d, x: Tensor, padding: int) -> Tensor:
    n = x.shape[1]
    last = x.flatten(1, 2).contiguous(memory_format=torch.channels_last)
    return F.conv2d(last, self.weight.flatten(0, 1), None, self.stride, padding, groups=n).unflatten(1, (n, -1))


def product_and_fold(self: PerCapsuleConv2d, x: Tensor, padding: int) -> Tensor:
    """A 3×3 convolution to g channels as a product to 9·g columns and nine shifted additions."""
    if not (self.kernel == 3 and self.stride == 1):
        return CHOSEN(self, x, padding)
    m, n, c, i, j = x.shape
    taps = self.weight.flip(3, 4).permute(0, 1, 3, 4, 2).reshape(n, -1, c)
    return F.fold((taps @ x.flatten(3)).flatten(0, 1), (i, j), 3, padding=1).unflatten(0, (m, n))


CHOSEN = PerCapsuleConv2d._convolve
FORMULATIONS = {
    "loop over capsules": ("loop", "fp32", CHOSEN),
    "grouped": ("plain", "fp32", grouped),
    "grouped, channels last": ("plain", "fp32", channels_last),
    "product and fold": ("plain", "fp32", product_and_fold),
    "as it is now": ("plain", "fp32", CHOSEN),
    "as it is now, bf16": ("plain", "bf16", CHOSEN),
}


def measure() -> None:
    """Prints milliseconds of every case and formulation."""
    cpu, results = torch.device("cpu"), []
    for model, what, batch in CASES:
        experiment = recipe(model)
        data = synthetic(experiment, cpu)
        calls: dict[str, Call] = {}
        for name, (contender, precision, convolve) in FORMULATIONS.items():
            who = Contender(contender, precision, name)
            PerCapsuleConv2d._convolve = convolve
            job: Job = (
                training(who, experiment, batch, data) if what == "train" else inference(who, experiment, batch, cpu)
            )

            def call(job: Job = job, convolve: object = convolve) -> None:
                PerCapsuleConv2d._convolve = convolve
                job.call()

            calls[name] = call
            call()
        times = in_turns(calls, cpu, repeats=9, window=0.2)
        results.append({"model": model, "what": what, "batch": batch, "ms": times})
    print(json.dumps(results))


def main() -> None:
    import record

    results = []
    for repetition in range(2):
        for kept in (False, True):
            command = [sys.executable, __file__, "--measure", *(["--keep"] if kept else [])]
            answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            for row in json.loads(answer):
                results.append({"freed_memory_kept": kept, "repetition": repetition, **row})
                medians = {name: times["ms"] for name, times in row["ms"].items()}
                print(f"{row['model']} {row['what']}, batch {row['batch']}, kept {kept}: {medians}")
    record.write("formulations_on_cpu", sys.argv[1], results)


if __name__ == "__main__":
    if "--measure" in sys.argv:
        if "--keep" in sys.argv:
            keep_freed_memory()
        measure()
    else:
        main()
