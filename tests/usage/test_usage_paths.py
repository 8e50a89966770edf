"""Python functions take a path as text too."""

import pytest

import wcapsnet
from wcapsnet.errors import InputError


@pytest.mark.parametrize(
    ("verb", "target"),
    [
        (wcapsnet.train, "quick"),
        (wcapsnet.sweep, "quick"),
        (wcapsnet.evaluate, "wcapsnet-mnist"),
        (wcapsnet.explain, "wcapsnet-mnist"),
    ],
)
def test_a_data_directory_can_be_a_string(verb, target, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="empty"):  # not a TypeError
        verb(target, data_dir=str(tmp_path / "empty"), device="cpu")
