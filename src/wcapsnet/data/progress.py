"""The progress bar of long work on files."""

from __future__ import annotations

from rich.console import Console
from rich.progress import Progress, ProgressColumn


def progress_bar(*columns: str | ProgressColumn, quiet: bool) -> Progress:
    """A bar on the error stream, so that results on the output stream stay clean; silent without a terminal."""
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)
