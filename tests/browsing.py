"""Pages in Chromium: opened and watched for errors, drawn on, waited for, read."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from PIL import Image


@contextmanager
def opening(browser: Any, script: str = "", **usual: Any) -> Iterator[Any]:
    """A function that opens an address. At the end there must have been no error in any console: `errors`; what the
    pages requested is in `asked`. `script` runs before a page's own; `usual` are options of every page's context."""
    contexts: list[Any] = []

    def visit(address: str, **options: Any) -> Any:
        context = browser.new_context(**({"viewport": {"width": 1400, "height": 1000}} | usual | options))
        contexts.append(context)
        context.add_init_script(script)
        page = context.new_page()
        page.on("pageerror", lambda error: visit.errors.append(str(error)))
        page.on("console", lambda line: visit.errors.append(line.text) if line.type in ("error", "warning") else None)
        page.on("request", lambda request: visit.asked.append(request.url))
        page.goto(address)
        return page

    visit.errors, visit.asked = [], []
    yield visit
    for context in contexts:
        context.close()
    assert visit.errors == []


def until(page: Any, true: Callable[[], bool]) -> None:
    """`page.wait_for_function` would need eval, which the page forbids."""
    for _ in range(600):
        if true():
            return
        page.wait_for_timeout(50)
    pytest.fail("it did not come about in 30 s")


def settled(page: Any) -> None:
    """Every question answered, and the address brought up to date; the test counts questions in `window.asked`."""
    since = page.evaluate("performance.now()")
    quiet = f"!window.asked.open && performance.now() - Math.max(window.asked.last, {since}) > 450"
    until(page, lambda: page.evaluate(quiet))


def click(page: Any, selector: str) -> None:
    page.click(selector)
    settled(page)


def stroke(page: Any, *points: tuple[float, float]) -> None:
    """Drawn with the mouse; the corners of the easel are (0, 0) and (1, 1)"""
    box = page.locator("#easel").bounding_box()
    places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in points]
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place, steps=4)
    page.mouse.up()


def draw(page: Any, *points: tuple[float, float]) -> None:
    stroke(page, *points)
    settled(page)


def canvas(page: Any, name: str) -> str:
    return page.evaluate(f"document.getElementById('{name}').toDataURL()")


def picture(page: Any, name: str) -> np.ndarray:
    """uint8 (h, w, 3): what a canvas shows"""
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(canvas(page, name).split(",")[1]))).convert("RGB"))


def probabilities(page: Any) -> dict[int, float]:
    """Of the classes that are shown"""
    shown = page.eval_on_selector_all(
        "#classes button", "all => all.map(b => [b.dataset.class, b.dataset.probability])"
    )
    return {int(r): float(p) for r, p in shown}
