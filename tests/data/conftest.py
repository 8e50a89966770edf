"""Fixtures of the tests on data."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from data_helpers import Mnist, Server, noise
from PIL import Image


@pytest.fixture(autouse=True)
def _own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's cache."""
    monkeypatch.setenv("WCAPSNET_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def mnist(rng: np.random.Generator) -> Mnist:
    return Mnist(rng)


@pytest.fixture
def picture_folder(tmp_path: Path) -> Callable[..., Path]:
    """Makes a folder from {"class/name.png": picture}, or {"class": how many}."""

    def make(content: dict[str, object], name: str = "pictures") -> Path:
        root = tmp_path / name
        root.mkdir(exist_ok=True)
        seed = 0
        for relative, what in content.items():
            if isinstance(what, int):
                (root / relative).mkdir(parents=True, exist_ok=True)
                for i in range(what):
                    seed += 1
                    noise(seed).save(root / relative / f"{i}.png")
                continue
            path = root / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(what, bytes):
                path.write_bytes(what)
            else:
                assert isinstance(what, Image.Image)
                what.save(path)
        return root

    return make


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.lstrip("/")
            state.requests.append(self.path)
            if name not in state.files:
                self.send_error(404)
                return
            body = state.files[name]
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if name in state.cut else body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        state.url = f"http://127.0.0.1:{http.server_address[1]}/"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield state
        http.shutdown()
        thread.join()
