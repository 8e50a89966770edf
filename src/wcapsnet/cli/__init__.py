"""The command line, one file per command. A new file in this folder that registers with `app` is a new command."""

from __future__ import annotations

import sys
from typing import NoReturn

from .app import app, load_commands
from .exit import in_a_sentence

__all__ = ["app", "load_commands", "main"]


def main() -> NoReturn:
    with in_a_sentence(_short_of_memory(*sys.argv[1:])):
        app()
    sys.exit(0)


def _short_of_memory(command: str = "", *words: str) -> str:
    """What to do when memory runs out, in terms of the command's options."""
    resumed = any(word.partition("=")[0] == "--resume" for word in words)  # continues as it was started
    if command in ("train", "sweep", "ablate") and not resumed:
        return "choose a smaller --batch-size or, for a folder of pictures, a smaller --size"
    if command == "bench":
        return "choose a smaller --batch"
    other = "" if command in ("tables", "list") else ", or choose another --device"
    return f"close other programs that use it{other}"
