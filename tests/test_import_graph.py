"""Packages depend on each other in one direction."""

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "wcapsnet"
# Every package may import those in the lines before its own, and nothing else.
LAYERS = [
    ["errors", "formatting", "launched", "lazy", "limits"],
    ["atomic", "cache", "console", "device", "host_memory"],
    ["parts", "scores"],
    ["plugins", "pretrained"],
    ["settings", "network"],
    ["memory"],
    ["baselines", "data", "objective"],
    ["engine", "experiment", "models", "prediction"],
    ["kernels", "classifier", "recipes"],
    ["model_card"],
    ["training"],
    ["shipped", "explanations"],
    ["hub"],
    ["sweeps"],
    ["reports"],
    ["explore"],
    ["exports"],
    ["bench"],
    ["api"],
    ["cli"],
]


def imported(path):
    """Top-level names of this package that a module imports when it is loaded"""
    depth = len(path.relative_to(SRC).parts) - 1
    found = set()
    for node in ast.parse(path.read_text()).body:  # not inside functions: those are imported when they are called
        if not isinstance(node, ast.ImportFrom) or node.level == 0:
            continue
        if node.level == depth + 1:
            found |= {node.module.split(".")[0]} if node.module else {alias.name for alias in node.names}
    return found


@pytest.mark.parametrize("path", sorted(SRC.rglob("*.py")), ids=lambda path: str(path.relative_to(SRC)))
def test_a_module_imports_only_what_is_below_it(path):
    rank = {name: at for at, names in enumerate(LAYERS) for name in names}
    own = path.relative_to(SRC).parts[0].removesuffix(".py")
    if own in ("__init__", "__main__"):
        return
    assert own in rank, f"{own} has no layer: put it into LAYERS"
    for other in imported(path) - {own, "__version__"}:
        assert rank[other] < rank[own], f"{own} imports {other}, which is not below it"
