"""On a CUDA device: benchmarks with graphs, memory and ceilings. Run with `pytest -m gpu`."""

from dataclasses import replace

import pytest
import torch

from twins import tiny
from wcapsnet.bench.contenders import parse
from wcapsnet.bench.suite import Request, run
from wcapsnet.recipes import recipe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("what", ["train", "infer", "level"])
def test_everything_that_needs_no_compiler_runs_with_its_share_of_the_ceilings(what):
    experiment = replace(recipe("cifar10"), model=tiny())
    contenders = parse("plain,eager,loop,plain:fp32" + ("" if what == "level" else ",densenet"), "bf16")
    record = run(Request(what, experiment, contenders, [8], torch.device("cuda"), repeats=2, window=0.01))
    assert record["cannot"] == {}
    assert {row["contender"] for row in record["results"]} == {contender.label for contender in contenders}
    assert record["ceilings"]["matmul_tflop_per_s"] > 1
    for row in record["results"]:
        assert 0 <= row["of_matmul"] < 1
        assert 0 <= row["of_copy"] < 1
        assert what == "level" or row["peak_mib"] > 0
        assert row.get("largest_error_of_logits", 0) < (0.1 if row["precision"] == "bf16" else 1e-3)


def test_the_parts_of_a_step_are_recorded_graphs():
    experiment = replace(recipe("cifar10"), model=tiny())
    request = Request("train", experiment, parse("plain", "bf16"), [8], torch.device("cuda"), 2, 0.01, parts=True)
    assert len(run(request)["results"]) == 4
