"""A bar that counts images, in a terminal or a notebook."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import Progress

from ..console import err


@contextmanager
def counting(quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Call the result with the number of finished images and the total."""
    shown = not quiet and (err.is_terminal or err.is_jupyter)
    with Progress(console=err, transient=True, disable=not shown) as bar:
        task = bar.add_task("images", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
