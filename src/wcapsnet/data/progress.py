"""Progress bars on stderr, so that results on stdout stay clean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import Progress, ProgressColumn

from ..console import err


def progress_bar(*columns: str | ProgressColumn, quiet: bool) -> Progress:
    """Silent unless in a terminal or a notebook"""
    shown = not quiet and (err.is_terminal or err.is_jupyter)
    return Progress(*columns, console=err, transient=True, disable=not shown)


@contextmanager
def counting(quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Counts images: call the result with the number of finished ones and the total."""
    with progress_bar(quiet=quiet) as bar:
        task = bar.add_task("images", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
