"""The two consoles everything is printed to."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import Any

from rich import console
from rich.text import Text

# Escape sequences in the names of files and classes must not reach the terminal.
CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


class Console(console.Console):
    def __init__(self, stderr: bool = False):
        stream = sys.stderr if stderr else sys.stdout  # None if it is closed
        # Piped output goes to files and programs: do not wrap it at 80 columns.
        super().__init__(stderr=stderr, width=None if stream and stream.isatty() else 200, highlight=False)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(text.translate(CONTROL), **options)


out, err = Console(), Console(stderr=True)


def warn(sentence: str) -> None:
    err.print(sentence, style="yellow", markup=False, soft_wrap=True)


def command(text: str, *arguments: str) -> None:
    """A command that can be pasted into a shell."""
    out.print(" ".join([text, *map(shlex.quote, arguments)]), markup=False, soft_wrap=True)


def few(lines: Sequence[str], most: int = 10) -> None:
    """The first lines of a list, and the number of remaining ones."""
    for line in lines[:most]:
        err.print(f"  {line}", markup=False, soft_wrap=True)
    if len(lines) > most:
        err.print(f"  and {len(lines) - most} more")
