"""The live page (explore/) with the network inside: one HTML file, no server.

bundle.py           the page's modules as one script
onnxruntime_web.py  runs the network in the browser
page/               answers requests in the browser: local.js replaces explore/page/api.js
"""

from __future__ import annotations

import base64
import gzip
import html
import json
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ... import __version__, explore
from ...classifier import Classifier
from ...data import Split
from ...data.device_data import DeviceSplit
from ...explanations import check_routing, survey
from ...explore import Explorer
from ...explore.api import MAX_PIXELS
from ..graph import DecoderGraph, Graph
from ..onnx_model import facts_of, onnx_bytes
from .bundle import bundle
from .onnxruntime_web import Runtime

IMAGES = 100  # test images in the page
MOST_BYTES = 2**22  # and of their pixels
SERVED = Path(explore.__file__).parent / "page"
LOCAL = Path(__file__).parent / "page"
# Nothing outside the page can be loaded, and nothing can be sent.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'wasm-unsafe-eval' blob:; worker-src blob:; "
    "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
)


class Page(NamedTuple):
    text: str
    network: bytes  # the ONNX file inside
    images: Split | None  # the test images inside


def html_page(
    classifier: Classifier, name: str, runtime: Runtime, test: Split | None = None, *, source: str = ""
) -> Page:
    """The page. `test` are the test images to choose a sample from, `source` is the name of their dataset."""
    check_routing(classifier.network)
    part = None if test is None else sample(test, classifier.config.classes)
    facts, vectors = _facts(classifier, name, part, source)
    graph = Graph(classifier, extras=("fitness", "capsules", "vector", "contributions"), switches=True)
    decoder = DecoderGraph(classifier)
    files = {
        "runtime": runtime.script,
        "loader": runtime.loader,
        "wasm": runtime.wasm,
        "worker": (LOCAL / "worker.js").read_bytes(),
        "look": onnx_bytes(graph, facts_of(classifier, graph, name)),
        "decode": onnx_bytes(decoder, {}),
    }
    if part is not None and test is not None:
        if len(part.labels) < len(test.labels):
            facts["about"]["test"]["of"] = len(test.labels)
        files |= {"images": part.images[:].contiguous().numpy().tobytes(), "vectors": vectors}
    return Page(composed(facts, files, runtime), files["look"], part)


def sample(test: Split, classes: int, count: int = IMAGES) -> Split:
    """The first images of every class, in their order: `count` in all, fewer of large images"""
    count = min(count, MOST_BYTES // test.images[0].numel())
    rank = torch.zeros(len(test.labels), dtype=torch.long)  # its place among the images of its class
    for r in range(classes):
        of_class = test.labels == r
        rank[of_class] = torch.arange(int(of_class.sum()))
    chosen = rank.sort(stable=True).indices[: max(1, count)].sort().values
    return Split(test.images[chosen], test.labels[chosen])


def _facts(classifier: Classifier, name: str, part: Split | None, source: str) -> tuple[dict[str, Any], bytes]:
    """What the live page's server would say, and the test images' decoded vectors"""
    seen = None
    if part is not None:
        seen = survey(classifier.network, DeviceSplit(part, *classifier.normalization, classifier.mean.device))
    explorer = Explorer(classifier, name, part, source=source, seen=seen)
    try:
        facts: dict[str, Any] = {"about": explorer.about() | {"max_pixels": MAX_PIXELS}, "survey": {"state": "none"}}
        if explorer.favourites and seen is not None:
            explorer.survey()
            explorer.favourites.wait(60)
            facts["survey"] = explorer.survey()
            facts["favourites"] = {
                f"{level}.{n}": explorer.favourites.of(level, n)
                for level, row in enumerate(classifier.config.levels)
                for n in range(row.capsules)
            }
    finally:
        explorer.close()
    return facts, b"" if seen is None else seen.vectors.contiguous().numpy().tobytes()


def composed(facts: dict[str, Any], files: dict[str, bytes], runtime: Runtime) -> str:
    """The live page's HTML with its style, its script, the facts and the files inside"""
    page: dict[str, str] = {}
    modules: dict[str, str] = {}
    for file in (*SERVED.iterdir(), *LOCAL.iterdir()):
        (modules if file.suffix == ".js" else page)[file.name] = file.read_text(encoding="utf-8")
    modules["api.js"] = modules.pop("local.js")
    icon = f"data:image/svg+xml;base64,{_text(page['icon.svg'].encode())}"
    licence = "".join(f"<p>{html.escape(part)}</p>" for part in runtime.license.split("\n\n"))
    about = (
        '<p class="muted small">This file holds the network and runs it in your browser; it sends nothing. '
        f"Made by wcapsnet {__version__}, with ONNX Runtime Web {runtime.version} by Microsoft Corporation (MIT).</p>\n"
        f'  <details class="small"><summary>Licence of ONNX Runtime Web</summary><div class="licence">{licence}</div>'
        "</details>\n"
    )
    known = json.dumps(facts, allow_nan=False).replace("<", r"\u003c")  # a class may be named </script>
    content = [
        f'<script type="application/json" id="file-facts">{known}</script>',
        *(
            f'<script type="application/gzip" id="file-{name}">{_text(gzip.compress(data, 9, mtime=0))}</script>'
            for name, data in files.items()
        ),
        f'<script type="module">\n{bundle(modules, "app.js")}\n</script>',
    ]
    changes = {
        '<meta name="token" content="{{token}}">': f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<link rel="icon" href="/icon.svg">': f'<link rel="icon" href="{icon}">',
        '<img src="/icon.svg"': f'<img src="{icon}"',
        '<link rel="stylesheet" href="/style.css">': f"<style>\n{page['style.css']}</style>",
        '<script type="module" src="/app.js"></script>\n': "",
        "Restart with": "Export the page again with",
        '<form method="dialog">': f'{about}  <form method="dialog">',
        "</body>": "\n".join(content) + "\n</body>",
    }
    text = page["index.html"]
    for old, new in changes.items():
        if text.count(old) != 1:
            raise ValueError(f"index.html has {text.count(old)} times {old!r}")
        text = text.replace(old, new)
    return text


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
