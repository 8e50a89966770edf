"""Figures from records."""

import json
import sys
from pathlib import Path

import pytest
from cli_helpers import call, sentence


def record(path: str, axis: str | None, values: tuple[int, ...] = (16, 64, 256)) -> str:
    rows = [
        {"contender": name, "subject": "step", "value": v, "images_per_s": speed * v**0.5, "macs_per_image": 1000 * v}
        for name, speed in (("fused", 900), ("plain", 300), ("loop:fp32", 20))
        for v in values
    ]
    facts = {"hardware": "a card", "torch": "2.x", "commit": None}
    settings = {"scaling": axis, "model": "toy"}
    text = json.dumps({"benchmark": "train", "environment": facts, "settings": settings, "results": rows})
    Path(path).write_text(text)
    return path


def test_a_panel_for_each_axis_and_a_name_at_each_line():
    files = [record("batch.json", "batch"), record("capsules.json", "capsules"), record("levels.json", "levels")]
    answer = call("bench", "plot", *files, "--out", "speed.svg")
    assert answer.code == 0, answer
    svg = Path("speed.svg").read_text()
    for name in ("fused", "plain", "loop:fp32", "a card", "training step of toy"):
        assert f">{name}" in svg
    for axis in ("batch size", "capsules in level 1", "levels"):
        assert f">{axis}" in svg


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "Name the records to draw"),
        (("batch.json",), "Name the records to draw"),
        (("--out", "figure.svg"), "Name the records to draw"),
        (("batch.json", "--out", "figure.txt"), "end with .svg"),
        (("none.json", "--out", "figure.svg"), "There is no file none.json"),
        (("flat.json", "--out", "figure.svg"), "no axis to draw"),
        (("batch.json", "--out", "nowhere/figure.svg"), "There is no folder"),
    ],
)
def test_bad_input_is_one_sentence(arguments, says):
    record("batch.json", "batch")
    record("flat.json", None)
    assert says in sentence(call("bench", "plot", *arguments))
    assert not Path("figure.svg").exists()


def test_without_typst_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "typst", None)
    assert "wcapsnet[plots]" in sentence(call("bench", "plot", record("batch.json", "batch"), "--out", "figure.pdf"))
