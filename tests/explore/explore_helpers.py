"""A page's server on a free port, on networks of a few hundred weights, and somebody who asks it."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from twins import tiny
from wcapsnet import Classifier, WCapsNet
from wcapsnet.data import Split
from wcapsnet.explore import Explorer, Server


def classifier_of(**changes: Any) -> Classifier:
    torch.manual_seed(0)
    network = WCapsNet(tiny(**({"channels": 1} | changes)))
    torch.nn.init.normal_(network.projection, std=3.0)  # opinions, where an untrained network shrugs
    channels, classes = network.config.channels, network.config.classes
    names = ("zero", "one", "two") if classes == 3 else tuple(f"class {r}" for r in range(classes))
    return Classifier(network, names, (0.3,) * channels, (0.4,) * channels).eval()


def images_of(classifier: Classifier, count: int = 20) -> Split:
    config = classifier.config
    shape = (count, config.channels, config.height, config.width)
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    return Split(torch.from_numpy(pixels), torch.arange(count) % config.classes)


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    content: bytes

    @property
    def facts(self) -> dict[str, Any]:
        return json.loads(self.content)

    @property
    def sentence(self) -> str:
        """The one sentence of an answer to what is wrong."""
        assert self.status >= 400, self.content
        assert self.facts.keys() == {"error"}
        said = self.facts["error"]
        assert said.endswith("."), said
        assert "\n" not in said
        return said


class Asker:
    """What the page does, with everything that can be left out or done wrong."""

    def __init__(self, server: Server):
        self.server, self.explorer = server, server.explorer
        self.host = f"127.0.0.1:{server.server_port}"

    def send(self, method: str, path: str, body: bytes | None = None, **headers: str | None) -> Answer:
        """Headers are named with underscores; None leaves one out."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=20)
        named = {name.replace("_", "-"): value for name, value in ({"Host": self.host} | headers).items()}
        with contextlib.closing(connection):
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            if body is not None and "Content-Length" not in named:
                connection.putheader("Content-Length", str(len(body)))
            for name, value in named.items():
                if value is not None:
                    connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())

    def get(self, path: str, **headers: str | None) -> Answer:
        return self.send("GET", path, **headers)

    def post(self, path: str, asked: Any, **headers: str | None) -> Answer:
        body = asked if isinstance(asked, bytes) else json.dumps(asked).encode()
        kind = "application/octet-stream" if path == "/api/picture" else "application/json"
        return self.send(
            "POST", path, body, **({"Content_Type": kind, "X_Wcapsnet_Token": self.server.token} | headers)
        )

    def ask(self, path: str, asked: Any, **headers: str | None) -> dict[str, Any]:
        answer = self.post(path, asked, **headers)
        assert answer.status == 200, answer.content
        return answer.facts


@contextlib.contextmanager
def serving(
    classifier: Classifier, test: Split | None = None, cache: Path | None = None, host: str = "127.0.0.1", **more: Any
) -> Iterator[Asker]:
    server = Server(Explorer(classifier, "toy", test, cache=cache, **more), host, 0)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield Asker(server)
    finally:
        server.shutdown()
        server.close()
        thread.join(10)


def text(pixels: torch.Tensor) -> str:
    return base64.b64encode(pixels.numpy().tobytes()).decode()


def array(text: str, shape: list[int], kind: str = "<f4") -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(base64.b64decode(text), kind).reshape(shape).copy())


def normalized(classifier: Classifier, pixels: torch.Tensor) -> torch.Tensor:
    """(ch, h, w): what the classifier itself makes of an image that has its size"""
    picture = pixels.permute(1, 2, 0).numpy()
    return classifier.preprocess([picture])[0]
