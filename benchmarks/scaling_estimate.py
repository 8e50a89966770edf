"""An estimate, not a measurement: training steps of the CIFAR-10 network on 8 and 64 GPUs (docs/scaling.md).

    python benchmarks/scaling_estimate.py

Counted here: the collectives of one data-parallel step and their bytes. Measured on one H200: the step (records of
`bench train`). Assumed: latency and bandwidth of a collective. Then, for K ranks with M images each,

    step(K) = step(1) + Σ over all-reduces (latency + 2 (K − 1)/K · bytes / bandwidth)
                      + Σ over all-gathers (latency + (K − 1) · bytes of a rank / bandwidth)

without overlap of computing and communicating: the code has none.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import record
import torch
from torch import Tensor

from wcapsnet.recipes import recipe
from wcapsnet.training.data_parallel import DataParallel
from wcapsnet.training.step import summed

RECORDS = Path(__file__).parent / "records"
NETWORKS = {  # assumed, for NCCL; messages here are too small for the peak bandwidth
    8: {"what": "one machine, NVLink", "latency_us": 20.0, "gb_per_s": 300.0},
    64: {"what": "eight machines, InfiniBand", "latency_us": 60.0, "gb_per_s": 40.0},
}
STEPS = {  # contender and images per GPU → the record with its time
    ("eager", 64): "2026-11-15_bench-train-cifar10_h200.json",
    ("plain", 64): "2026-11-15_bench-train-cifar10_h200.json",
    ("plain", 512): "2026-11-15_bench-train-cifar10-512_h200.json",
    ("fused", 64): "2026-11-15_bench-train-cifar10_h200.json",
    ("fused", 512): "2026-11-15_bench-train-cifar10-512_h200.json",
}


class Counting:
    """A group of one that notes what would be sent"""

    world, backend = 1, "counted"

    def __init__(self) -> None:
        self.reduced: list[int] = []  # bytes
        self.gathered: list[int] = []

    def mine(self, index: Tensor) -> Tensor:
        return index

    def sum(self, tensor: Tensor) -> None:
        self.reduced.append(tensor.nbytes)

    def whole(self, own: Tensor) -> Tensor:
        self.gathered.append(own.nbytes)
        return own


def count(images: int = 2) -> dict[str, Any]:
    """The collectives of one step; bytes that depend on the batch are per image."""
    experiment, group = recipe("cifar10"), Counting()
    network = experiment.model.build()
    engine = DataParallel(network, group)  # type: ignore[arg-type]
    x, labels = torch.randn(images, 3, 32, 32), torch.arange(images)
    sums = torch.zeros(len(summed(experiment.objective)), dtype=torch.float64)
    output = engine.forward(x, labels)
    forward = len(group.reduced)
    total = engine.terms(output, x, labels, experiment.objective, sums).total
    engine.backward(total)
    norms = [*group.reduced[:forward], *group.reduced[forward + 1 : -1]]
    return {
        "parameters": sum(p.numel() for p in network.parameters()),
        "batch_norms": forward,
        "batch_norm_reductions": len(norms),
        "batch_norm_bytes": sum(norms),
        "gradient_bytes": group.reduced[-1],
        "figure_bytes": group.reduced[forward],
        "gathers": len(group.gathered),
        "gathered_bytes_per_image": sum(group.gathered) / images,
    }


def communication_ms(counted: dict[str, Any], ranks: int, images: int) -> dict[str, float]:
    latency, rate = NETWORKS[ranks]["latency_us"] / 1e3, NETWORKS[ranks]["gb_per_s"] * 1e6  # type: ignore[operator]
    ring = 2 * (ranks - 1) / ranks / rate
    norms = counted["batch_norm_reductions"] * latency + counted["batch_norm_bytes"] * ring
    gradients = latency + counted["gradient_bytes"] * ring
    losses = (counted["gathers"] + 1) * latency
    losses += counted["gathered_bytes_per_image"] * images * (ranks - 1) / rate
    return {"batch_norms": round(norms, 3), "gradients": round(gradients, 3), "losses": round(losses, 3)}


def main() -> None:
    counted, rows = count(), []
    for (contender, images), name in STEPS.items():
        results = json.loads((RECORDS / name).read_text())["results"]
        (alone,) = (one["ms"] for one in results if one["contender"] == contender)
        rows.append({"step": contender, "images_per_gpu": images, "gpus": 1, "ms": alone, "from": name})
        rows[-1]["images_per_s"] = round(1e3 * images / alone)
        for ranks in NETWORKS:
            parts = communication_ms(counted, ranks, images)
            step = alone + sum(parts.values())
            row = {"step": contender, "images_per_gpu": images, "gpus": ranks, "ms": round(step, 2)}
            row |= {"communication_ms": parts, "images_per_s": round(1e3 * ranks * images / step)}
            rows.append({**row, "efficiency": round(alone / step, 3)})
    for row in rows:
        print(row)
    print(counted)
    record.write("scaling_estimate", "estimate", {"counted": counted, "assumed": NETWORKS, "estimated": rows})


if __name__ == "__main__":
    main()
