"""The two consoles everything is printed to, and progress bars."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich import console
from rich.text import Text

from .formatting import plural, printable

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn


class Console(console.Console):
    def __init__(self, stderr: bool = False):
        stream = sys.stderr if stderr else sys.stdout  # None if it is closed
        # Piped output goes to files and programs: do not wrap it at 80 columns.
        super().__init__(stderr=stderr, width=None if stream and stream.isatty() else 200, highlight=False)

    def render_str(self, text: str, **options: Any) -> Text:
        # Escape sequences in the names of files and classes must not reach the terminal.
        return super().render_str(printable(text, keep="\n\t"), **options)


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


def tell_skipped(files: Sequence[str]) -> None:
    if files:
        warn(f"{plural(len(files), 'file was', 'files were')} skipped:")
        few(files)


def progress_bar(*columns: str | ProgressColumn, quiet: bool) -> Progress:
    """On stderr, so that results on stdout stay clean; silent unless in a terminal or a notebook"""
    from rich.progress import Progress

    shown = not quiet and (err.is_terminal or err.is_jupyter)
    return Progress(*columns, console=err, transient=True, disable=not shown)


@contextmanager
def counting(quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """A progress bar for images: call the result with the number done and the total."""
    with progress_bar(quiet=quiet) as bar:
        task = bar.add_task("images", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
