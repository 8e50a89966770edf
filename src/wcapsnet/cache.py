"""The cache directory: anything in it may be deleted."""

from __future__ import annotations

import os
from pathlib import Path


def directory() -> Path | None:
    """None if there is no place for a cache, for example for a user without a home directory."""
    if named := os.environ.get("WCAPSNET_CACHE"):
        return Path(named).expanduser()
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "wcapsnet"
    try:
        return Path.home() / ".cache" / "wcapsnet"
    except RuntimeError:
        return None
