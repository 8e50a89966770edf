"""`wcapsnet explore`"""

from __future__ import annotations

import threading
import webbrowser
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.markup import escape

from .. import cache, shipped
from .. import reports as report_page
from ..classifier import Classifier
from ..console import out, warn
from ..data import Split
from ..device import choose_device
from ..errors import InputError
from ..explanations import Survey, has_routing, without_routing
from ..explore import Explorer, Server
from ..hub import load, load_with_data
from .app import LOOK, app, examples
from .options import DataDir, Device, Download, Plugin, Weights


@app.command(
    rich_help_panel=LOOK,
    epilog=examples(
        "wcapsnet explore runs/demo                        draw a digit and see how every block is weighted",
        "wcapsnet explore wcapsnet-mnist --port 0          a shipped network, on any free port",
        "wcapsnet explore runs/photos --host 0.0.0.0       reachable from the local network",
    ),
)
def explore(
    run: Weights,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines use the page.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 for any free one.")] = 8765,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open a browser.")] = False,
    data_dir: DataDir = None,
    download: Download = False,
    device: Device = "auto",
    plugin: Plugin = None,
) -> None:
    """Serve a live page: draw or drop an image, see the routing, switch blocks off, change the decoded vector."""
    classifier, test, source = _to_explore(run, choose_device(device), data_dir, download)
    if not has_routing(classifier.network):
        warn(without_routing(classifier.network))
    name = run if run in shipped.names() else Path(run).resolve().name
    seen = None if test is None else _seen_in_training(run)
    explorer = Explorer(classifier, name, test, source=source, cache=cache.directory(), seen=seen)
    server = Server(explorer, host, port)
    try:
        explorer.warm_up()
        if not server.loopback:
            warn(f"Anyone who can reach this machine on port {server.server_port} can use the page.")
        out.print(f"{escape(name)} is at [bold]{server.url}[/] (press Ctrl-C to stop)", soft_wrap=True)
        if not no_browser:
            threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()
        server.serve_forever()
    except KeyboardInterrupt:
        out.print("Closed.")
    finally:
        server.close()


def _to_explore(
    source: str, device: torch.device, data_dir: Path | None, download: bool
) -> tuple[Classifier, Split | None, str]:
    """A trained network, its test images if available, and their name"""
    try:
        classifier, dataset = load_with_data(source, "test", device=device, data_dir=data_dir, download=download)
    except InputError as error:
        if data_dir is not None or download:
            raise
        classifier = load(source, device=str(device))
        warn(f"No test images: {error}")
        return classifier, None, ""
    return classifier, dataset.test, dataset.name


def _seen_in_training(source: str) -> Survey | None:
    """The survey of the test images made with the run's current weights"""
    if source in shipped.names() or not Path(source).is_dir():
        return None
    seen = report_page.saved_survey(report_page.subject_of_run(Path(source)))
    return seen.survey if seen and seen.part == "test" else None
