"""Latency that a user sees: of a network's report, and of the live page from a stroke to the prediction.

    python benchmarks/pages_on_cpu.py HARDWARE-NAME --report RUN|NAME --live RUN|NAME --file PAGE [--data-dir DATA]

The report is made from scratch, with a pass over every test image. On the live page, in Chromium, short strokes are
drawn one at a time; the browser measures the time from the pointer's last event to the last change of the page, with
all blocks on and with one block of every level switched off. For comparison, the network alone is timed for that image
in a tight loop, with one thread and with all. --file draws in the same way on a page of
`wcapsnet export --to html`, opened from disk. Needs playwright.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as the command line does
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import record
import torch

from wcapsnet import load
from wcapsnet.__main__ import keep_freed_memory
from wcapsnet.bench.measure import in_turns

STROKES, ROUNDS, REPORTS = 60, 5, 4

WATCH = """
window.touched = window.answered = 0;
for (const kind of ["pointerdown", "pointermove"])
  addEventListener(kind, (event) => { if (event.buttons) window.touched = performance.now(); }, true);
addEventListener("DOMContentLoaded", () => {
  const seen = new MutationObserver(() => requestAnimationFrame(() => window.answered = performance.now()));
  seen.observe(document.getElementById("classes"), { childList: true, subtree: true, attributes: true });
});
"""
REST = "performance.now() - Math.max(window.touched, window.answered) > 400 && window.answered > window.touched"


def wcapsnet(*args: object) -> list[str]:
    return [sys.executable, "-m", "wcapsnet", *map(str, args)]


def report(source: str, data_dir: list[object]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        run, page = Path(place) / "run", Path(place) / "report.html"
        if Path(source).is_dir():
            source = str(shutil.copytree(source, run))
        fresh, again = [], []
        for _ in range(REPORTS):
            (run / "survey.safetensors").unlink(missing_ok=True)  # what it saw before
            for seconds in (fresh, again):
                start = time.perf_counter()
                subprocess.run(wcapsnet("report", source, "--out", page, *data_dir), check=True)
                seconds.append(round(time.perf_counter() - start, 1))
        return {"seconds": fresh, "seconds_again": again, "bytes": page.stat().st_size}


def live(source: str, data_dir: list[object]) -> dict[str, Any]:
    where = [] if Path(source).is_file() else data_dir  # weights alone have no images
    command = wcapsnet("explore", source, "--port", 0, "--no-browser", *where)
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        found = re.search(r"http://\S+/", server.stdout.readline())
        assert found, "the server did not start"
        return drawn_on(found[0])
    finally:
        server.terminate()
        server.wait()


def drawn_on(address: str) -> dict[str, Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as engine:
        browser = engine.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.add_init_script(WATCH)
        start = time.perf_counter()
        page.goto(address)
        page.wait_for_selector("body.ready")
        times: dict[str, Any] = {"seconds_until_ready": round(time.perf_counter() - start, 2)}
        times["all blocks on"] = strokes(page)
        levels = page.eval_on_selector_all(
            "#table tr", "all => [...new Set(all.map(r => r.dataset.block.split('.')[0]))]"
        )
        page.click("#numbers summary")
        for level in levels:
            page.click(f'#table tr[data-block="{level}.0"] input')
        times["one block of every level off"] = strokes(page)
        browser.close()
    return times


def one_image(source: str) -> dict[str, Any]:
    """Milliseconds by threads, in turns"""
    classifier = load(source).eval()
    image = torch.randn(1, *classifier.shape)

    @torch.no_grad()
    def call(threads: int) -> None:
        torch.set_num_threads(threads)
        classifier.network(image)

    calls = {threads: partial(call, threads) for threads in sorted({1, torch.get_num_threads()})}
    times = in_turns(calls, torch.device("cpu"), ROUNDS, 0.2)
    return {f"{threads} threads, median_ms": round(found["ms"], 1) for threads, found in times.items()}


def strokes(page: Any) -> dict[str, Any]:
    """Milliseconds. A drawing of ten strokes, then another."""
    places = random.Random(0)
    times: list[float] = []
    for number in range(STROKES):
        if number % 10 == 0 and page.is_enabled("#clear"):
            page.click("#clear")
        page.locator("#easel").scroll_into_view_if_needed()
        box = page.locator("#easel").bounding_box()
        for press in (page.mouse.down, page.mouse.up):
            across, down = places.uniform(0.2, 0.8), places.uniform(0.2, 0.8)
            page.mouse.move(box["x"] + box["width"] * across, box["y"] + box["height"] * down)
            press()
        while not page.evaluate(REST):
            page.wait_for_timeout(50)
        times.append(page.evaluate("window.answered - window.touched"))
    times.sort()
    return {
        "shortest_ms": round(times[0], 1),
        "one_of_ten_under_ms": round(times[len(times) // 10], 1),
        "median_ms": round(statistics.median(times), 1),
        "nine_of_ten_under_ms": round(times[len(times) * 9 // 10], 1),
        "longest_ms": round(times[-1], 1),
        "strokes": len(times),
        "load_average": round(os.getloadavg()[0], 1),  # of one minute; these benchmarks alone make about 1
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hardware")
    parser.add_argument("--report")
    parser.add_argument("--live")
    parser.add_argument("--file", type=Path)
    parser.add_argument("--data-dir", type=Path)
    asked = parser.parse_args()
    data_dir = ["--data-dir", asked.data_dir] if asked.data_dir else []
    keep_freed_memory()
    results: dict[str, Any] = {}
    if asked.live:
        results["live page"] = {"network": Path(asked.live).name, **live(asked.live, data_dir)}
        results["one image"] = {"network": Path(asked.live).name, **one_image(asked.live)}
    if asked.file:
        facts = {"file": asked.file.name, "bytes": asked.file.stat().st_size}
        results["static page"] = facts | drawn_on(asked.file.resolve().as_uri())
    if asked.report:
        results["report"] = {"network": Path(asked.report).name, **report(asked.report, data_dir)}
    print(results)
    record.write("pages_on_cpu", asked.hardware, results)


if __name__ == "__main__":
    main()
