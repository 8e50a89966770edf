"""`make dist`: the wheel is small and works in an empty environment."""

import subprocess
import sys
from pathlib import Path

import pytest

import check_dist

ROOT = Path(__file__).parents[2]
NO_INDEX = ("No matching distribution", "Could not find a version", "Connection", "Temporary failure", "timed out")


def test_a_wheel_that_is_too_large_is_refused(tmp_path):
    wheel = tmp_path / "wcapsnet-1-py3-none-any.whl"
    with wheel.open("wb") as file:
        file.truncate(check_dist.LARGEST)
    with pytest.raises(SystemExit, match="20"):
        check_dist.check_size(wheel)


def test_a_folder_with_two_wheels_is_refused(tmp_path):
    for name in ("a.whl", "b.whl"):
        (tmp_path / name).touch()
    with pytest.raises(SystemExit, match="exactly one"):
        check_dist.only(tmp_path, "*.whl")


def test_a_wheel_in_a_relative_folder_is_found_from_any_other(tmp_path, monkeypatch):
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "a.whl").touch()
    monkeypatch.chdir(tmp_path)
    assert check_dist.only(Path("dist"), "*.whl") == tmp_path / "dist" / "a.whl"


@pytest.mark.slow
def test_the_wheel_is_under_20_mb_and_recognises_a_digit_in_an_empty_environment(tmp_path):
    pytest.importorskip("build")
    command = [sys.executable, "-m", "build", "--outdir", str(tmp_path), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode and any(sign in built.stdout + built.stderr for sign in NO_INDEX):
        pytest.skip("pip cannot reach an index")
    assert built.returncode == 0, built.stdout + built.stderr
    wheel = check_dist.only(tmp_path, "*.whl")
    check_dist.check_size(wheel)
    try:
        check_dist.try_out(wheel)
    except check_dist.Unreachable as error:
        if any(sign in str(error) for sign in NO_INDEX):
            pytest.skip("pip cannot reach an index")
        raise
