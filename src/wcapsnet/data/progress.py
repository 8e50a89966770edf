"""A progress bar for long operations on files."""

from __future__ import annotations

from rich.console import Console
from rich.progress import Progress, ProgressColumn


def progress_bar(*columns: str | ProgressColumn, quiet: bool) -> Progress:
    """A bar on stderr, so that results on stdout stay clean; silent without a terminal."""
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)
