"""Where and how a run was made: environment.json."""

from __future__ import annotations

import itertools
import os
import platform
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from .. import __version__


def describe_environment(
    device: torch.device, data_dir: Path | None, at_a_time: int = 1, computed_by: str | None = None
) -> dict[str, Any]:
    """`at_a_time`: how many runs share the device; `computed_by`: fused kernels or plain PyTorch"""
    cuda = device.type == "cuda"
    return {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": command_line(),
        "wcapsnet": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "device": str(device),
        "hardware": torch.cuda.get_device_name(device) if cuda else _cpu_name(),
        "cuda": torch.version.cuda if cuda else None,
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "runs_at_a_time": at_a_time,
        "computed_by": computed_by,
        "data_dir": str(data_dir.resolve()) if data_dir else None,
    }


def runs_at_a_time(environment: dict[str, Any]) -> int:
    """The largest number of runs that shared the device: above 1, the time of a run includes waiting for others."""
    command, resumed = (
        found if isinstance(found := environment.get(name), list) else [] for name in ("command", "resumed")
    )
    older = [b for a, b in itertools.pairwise(command) if a == "--parallel"]  # records that do not state it
    own = environment.get("runs_at_a_time", next((int(number) for number in older if str(number).isdecimal()), 1))
    others = [runs_at_a_time(again) for again in resumed if isinstance(again, dict)]
    return max(number if type(number) is int else 1 for number in (own, *others))  # the file may be damaged


def command_line() -> list[str]:
    """The command that was called, with its arguments"""
    return [*program(), *sys.argv[1:]]


def program() -> list[str]:
    """The command that was called: it may also be the user's own script."""
    script = Path(sys.argv[0])
    if script.suffix != ".py" or script.name == "__main__.py":
        return ["wcapsnet"]
    return ["python", "/".join(script.parts[-2:])]


def commit() -> str | None:
    """The commit of the code that ran; for a copy without git history, the value of WCAPSNET_COMMIT."""
    if said := os.environ.get("WCAPSNET_COMMIT"):
        return said
    here = Path(__file__)

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", here.name)  # an installed copy may be inside an unrelated repository
        return git("describe", "--always", "--dirty", "--abbrev=12")
    except (OSError, subprocess.CalledProcessError):
        return None


def file_names_only(command: list[str]) -> list[str]:
    """For published records: remove the paths of local files."""
    return [Path(word).name if Path(word).is_absolute() else word for word in command]


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
