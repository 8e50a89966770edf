"""Where things are kept that may be lost."""

from __future__ import annotations

import os
from pathlib import Path


def directory(given: Path | None = None) -> Path | None:
    """None where there is no place for a cache, such as a user without a home."""
    if given is not None:
        return given
    if named := os.environ.get("WCAPSNET_CACHE"):
        return Path(named).expanduser()
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "wcapsnet"
    try:
        return Path.home() / ".cache" / "wcapsnet"
    except RuntimeError:
        return None
