"""What the command settles before it loads PyTorch."""

import ctypes
import os
import sys
from types import SimpleNamespace

import pytest

import wcapsnet
from wcapsnet.__main__ import keep_freed_memory, main


@pytest.fixture
def told(monkeypatch):
    """What glibc would be told."""
    calls: list[tuple[int, int]] = []
    for name in list(os.environ):
        if name.startswith("MALLOC_") or name == "GLIBC_TUNABLES":
            monkeypatch.delenv(name)
    libc = SimpleNamespace(mallopt=lambda *given: calls.append(given))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: libc)
    return calls


def test_freed_memory_is_kept(told):
    keep_freed_memory()
    assert dict(told) == {-4: 0, -1: 2**31 - 1}


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_what_the_user_set_stands(told, name, monkeypatch):
    monkeypatch.setenv(name, "1")
    keep_freed_memory()
    assert told == []


def test_ctrl_c_while_pytorch_is_loaded_is_no_traceback(monkeypatch):
    class Slow:
        def find_spec(self, name, path=None, target=None):
            if name == "wcapsnet.cli":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "wcapsnet.cli", raising=False)
    monkeypatch.delattr(wcapsnet, "cli", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Slow(), *sys.meta_path])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130
