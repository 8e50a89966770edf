"""Check the result of `python -m build`: the wheel's size, and that it works in an empty environment.

python tools/check_dist.py [dist]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from PIL import Image

from wcapsnet.data import DataConfig, load_dataset

ROOT = Path(__file__).parents[1]
LARGEST = 20_000_000  # bytes of a wheel


class Unreachable(Exception):
    """pip could not fetch the dependencies."""


def only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise SystemExit(f"{folder} must hold exactly one {pattern}, but it holds {len(found)}.")
    return found[0].resolve()  # pip runs in another folder


def check_size(wheel: Path) -> str:
    size = wheel.stat().st_size
    if size >= LARGEST:
        raise SystemExit(f"{wheel.name} has {size / 1e6:.1f} MB; a wheel must be under {LARGEST / 1e6:.0f} MB.")
    return f"{wheel.name}: {size / 1e6:.1f} MB"


def digit(path: Path) -> str:
    """Write a picture of a digit that the package contains; returns which one it is."""
    test = load_dataset(DataConfig(source="sample", validation=1000)).test
    Image.fromarray(test.images[0, 0].numpy()).save(path)
    return str(int(test.labels[0]))


def try_out(wheel: Path) -> str:
    """Install the wheel into an empty environment and classify a digit there; returns a sentence."""
    with tempfile.TemporaryDirectory() as scratch:
        place, picture = Path(scratch), Path(scratch) / "digit.png"
        label = digit(picture)
        venv.create(place / "env", with_pip=True)
        bin = place / "env" / ("Scripts" if os.name == "nt" else "bin")
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        pip = [bin / "python", "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel]
        installed = subprocess.run(pip, env=clean, cwd=place, capture_output=True, text=True)
        if installed.returncode:
            raise Unreachable(installed.stderr.strip().splitlines()[-1] if installed.stderr.strip() else "pip failed")
        command = [bin / "wcapsnet", "predict", "wcapsnet-mnist", picture, "--json"]
        answer = subprocess.run(command, env=clean, cwd=place, capture_output=True, text=True)
    found = json.loads(answer.stdout)[0]["class"] if answer.returncode == 0 else answer.stderr
    if found != label:
        raise SystemExit(f"The installed wheel did not recognise a {label}: {found}")
    return f"installed into an empty environment, it recognises a {label}"


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "dist")
    wheel = only(folder, "*.whl")
    only(folder, "*.tar.gz")
    print(check_size(wheel))
    try:
        print(try_out(wheel))
    except Unreachable as error:
        raise SystemExit(f"The wheel was built but not tried out: pip could not install it ({error}).") from None


if __name__ == "__main__":
    main()
