"""What the tests of the documents share: their code blocks and their commands."""

import re
import shlex
from pathlib import Path

from cli_helpers import Answer, call

ROOT = Path(__file__).parents[2]


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(content: str, language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```", content, re.DOTALL | re.M)
    return [block for written_in, block in found if written_in == language]


def run(command: str) -> Answer:
    return call(*shlex.split(command)[1:])
