"""What the tests of the documents share: their code blocks and their commands."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from wcapsnet import cli

ROOT = Path(__file__).parents[2]


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(content: str, language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```", content, re.DOTALL | re.M)
    return [block for written_in, block in found if written_in == language]


def run(command: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of a command, called in this process"""
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)
