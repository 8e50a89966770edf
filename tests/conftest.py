"""Settings of all tests."""

import os
import shutil
import sys
from pathlib import Path

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # as wcapsnet/__main__.py does, and for its reason

import pytest
import torch
from hypothesis import HealthCheck, settings

from wcapsnet.parts import Kind

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), *(str(path) for path in HERE.iterdir() if path.is_dir())]  # twins and helpers, from any test

torch.set_num_threads(1)  # the networks here are too small for two; session fixtures may be made before any test

settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _one_thread():
    """Also after a test that chose another number, as the live page does"""
    torch.set_num_threads(1)


@pytest.fixture
def clean():
    """What plugins of a test leave behind is removed: parts and modules."""
    before = [(kind, dict(kind)) for kind in Kind.every]
    modules = set(sys.modules)
    yield
    for kind, known in before:
        kind.clear()
        kind.update(known)
    for name in set(sys.modules) - modules:
        if name.startswith("wcapsnet_plugin_"):
            del sys.modules[name]


@pytest.fixture(scope="module")
def browser():
    """Chromium: WCAPSNET_CHROMIUM, one of the system or playwright's own."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    found = os.environ.get("WCAPSNET_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    quiet = ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run")
    with playwright.sync_playwright() as engine:
        if not found and not os.path.exists(engine.chromium.executable_path):
            pytest.skip("there is no Chromium here")
        browser = engine.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu", *quiet])
        yield browser
        browser.close()


# Files that take long as a whole; single tests carry the marker themselves.
SLOW = (
    "cli/test_cli_sweep.py",
    "explore/test_explore_browser.py",
    "kernels/test_kernels_level.py",
    "kernels/test_kernels_network.py",
    "reports/test_report_browser.py",
    "usage/test_examples.py",
    "usage/test_extending.py",
    "usage/test_readme.py",
)


def pytest_collection_modifyitems(items):
    assert all((HERE / name).is_file() for name in SLOW)
    for item in items:
        if item.path.relative_to(HERE).as_posix() in SLOW:
            item.add_marker(pytest.mark.slow)
