"""The two consoles everything is printed to."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from rich.console import Console

# Piped output goes to files and programs: do not wrap it at 80 columns.
out = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
err = Console(stderr=True, width=None if sys.stderr.isatty() else 200, highlight=False)


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
