"""Good and bad requests from many clients at once to the live page, on the loopback interface only."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .common import Outcome, Sample, percentiles
from .photos import fuzzed, originals

HOST = "127.0.0.1"
CLIENTS = 32
GROWTH = 32  # MB that the server may grow between the first tenth of the requests and the end


def requests(sample: Sample, tries: int, seed: int) -> Outcome:
    """`tries` requests in all. The server is a process of its own and ends with this function."""
    outcome = Outcome()
    command = [sys.executable, "-m", "wcapsnet", "explore", sample.run, "--port", "0", "--host", HOST, "--no-browser"]
    with tempfile.TemporaryFile() as err:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, text=True)
        try:
            found = re.search(r"http://127\.0\.0\.1:(\d+)/", server.stdout.readline())
            if not found:
                raise SystemExit("The live page did not start.")
            port = int(found[1])
            page = _asked(port, "/")[1].decode()
            token = re.findall(r'name="token" content="([^"]+)"', page)[0]
            about = json.loads(_asked(port, "/api/about")[1])
            load = _Load(port, token, about, seed)
            load.run(max(tries // 10, 1))
            warm = _megabytes(server.pid)
            load.run(tries - load.done)
            time.sleep(0.5)
            end = _megabytes(server.pid)
            alive = _asked(port, "/api/about")[0]
            server.send_signal(signal.SIGINT)
            code = server.wait(timeout=30)
        finally:
            server.kill()
            server.communicate()
        err.seek(0)
        said = err.read().decode("utf-8", "replace")
    outcome.ended.update(load.ended)
    outcome.faults += load.faults[:20]
    if "Traceback" in said or "Warning" in said:  # libtiff itself writes lines about damaged TIFF files
        outcome.faults.append(f"written to standard error: {said[-1500:]}")
    if code not in (0, 130) or alive != 200:
        outcome.faults.append(f"the server ended with {code}; its last answer was {alive}")
    if end - warm > GROWTH:
        outcome.faults.append(f"memory grew from {warm} to {end} MB")
    outcome.facts = {
        "clients": CLIENTS,
        "latency_ms": percentiles(load.good),
        "latency_of_bad_ms": percentiles(load.bad),
        "megabytes": [warm, end],
    }
    return outcome


def _megabytes(process: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    return int(found[1]) // 1024 if found else 0


def _asked(port: int, path: str) -> tuple[int, bytes]:
    with contextlib.closing(http.client.HTTPConnection(HOST, port, timeout=60)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()


class _Load:
    def __init__(self, port: int, token: str, about: dict[str, Any], seed: int):
        self.port, self.about, self.seed = port, about, seed
        self.headers = {"X-Wcapsnet-Token": token, "Content-Type": "application/json"}
        self.bytes = about["channels"] * about["height"] * about["width"]
        self.pictures = originals()
        self.done = 0
        self.ended: Counter[str] = Counter()
        self.faults: list[str] = []
        self.good: list[float] = []
        self.bad: list[float] = []

    def run(self, count: int) -> None:
        numbers = iter(range(self.done, self.done + count))  # every client takes the next one
        with ThreadPoolExecutor(CLIENTS) as clients:
            answers = [one for each in clients.map(self._client, [numbers] * CLIENTS) for one in each]
        self.done += count
        for status, took, fault in answers:
            self.ended["answered" if status == 200 else "one sentence" if status >= 400 else "broken off"] += 1
            (self.good if status == 200 else self.bad).append(took)
            self.faults += [fault] if fault else []

    def _client(self, numbers: Iterator[int]) -> list[tuple[int, float, str]]:
        """Status, milliseconds and fault of each request"""
        answers = []
        with contextlib.closing(http.client.HTTPConnection(HOST, self.port, timeout=60)) as connection:
            for number in numbers:
                chance, began, status, fault = random.Random(f"{self.seed} {number}"), time.perf_counter(), -1, ""
                try:
                    kind, wanted, status = self._one(connection, number, chance)
                    if wanted and status not in wanted:
                        fault = f"request {number}, {kind}: status {status}, not {wanted}"
                except (OSError, http.client.HTTPException) as error:
                    fault = f"request {number}: {type(error).__name__} {error}"
                    connection.close()
                answers.append((status, 1000 * (time.perf_counter() - began), fault))
        return answers

    def _one(
        self, connection: http.client.HTTPConnection, number: int, chance: random.Random
    ) -> tuple[str, tuple[int, ...], int]:
        """Send request `number`. Returns its kind, the statuses that are right, and the status that came."""
        kind = chance.choice(KINDS)
        headers, path, body, wanted = dict(self.headers), "/api/explain", b"", (200,)
        image = {"pixels": base64.b64encode(chance.randbytes(self.bytes)).decode()}
        if kind == "explain":
            body = json.dumps(image).encode()
        elif kind == "test image":
            body = json.dumps({"test": chance.randrange(self.about["test"]["images"])}).encode()
        elif kind == "block":
            path, body = "/api/block", json.dumps({**image, "block": [0, chance.randrange(2)]}).encode()
        elif kind == "blocks off":
            body = json.dumps({**image, "off": [[0, chance.randrange(2)]]}).encode()
        elif kind == "picture":
            path, body = "/api/picture", chance.choice(list(self.pictures.values()))
            headers["Content-Type"] = "application/octet-stream"
        elif kind == "fuzzed picture":
            path, (_, body), wanted = "/api/picture", fuzzed(number, self.seed, self.pictures), (200, 400)
            headers["Content-Type"] = "application/octet-stream"
            body = body or b"x"
        elif kind == "page":
            path = chance.choice(("/", "/app.js", "/style.css", "/api/about"))
            return kind, (200,), self._send(connection, "GET", path)
        elif kind == "test picture":
            return kind, (200, 400), self._send(connection, "GET", f"/api/test/{chance.randrange(-2, 20)}.png")
        elif kind == "no page":
            path = chance.choice(("/../../etc/passwd", "/%2e%2e/x", "/api/test/1e9.png", "/a" * 500, "/api/test/"))
            return kind, (404, 400), self._send(connection, "GET", path)
        elif kind == "no token":
            headers, body, wanted = {"Content-Type": "application/json"}, json.dumps(image).encode(), (403,)
        elif kind == "wrong host":
            headers, wanted = {**headers, "Host": chance.choice(("example.org", "", "127.0.0.1@x", "[::"))}, (403, 400)
        elif kind == "wrong JSON":
            valid = json.dumps(image).encode()
            wrong = ({}, {"pixels": 3}, {"pixels": "AAAA"}, {"test": -1}, {"test": 10**30}, {**image, "off": [[9, 9]]})
            more = (
                {**image, "off": "x"},
                {**image, "class": "one"},
                {**image, "block": {}},
                {"pixels": None, "test": None},
            )
            raw = (b"[" * 5000, b"\xff\xfe", valid[: len(valid) // 2], b"null", b"[1]", b'{"test": 1e999}', b"{}" * 9)
            one = chance.choice((*wrong, *more, *raw))
            body, wanted = one if isinstance(one, bytes) else json.dumps(one).encode(), (400,)
            path = chance.choice(("/api/explain", "/api/block", "/api/decode", "/api/near"))
            if path == "/api/explain" and one == more[2]:
                wanted = (200,)  # which block is not its question
        elif kind == "too large":
            headers, wanted = {**headers, "Content-Length": str(10**12)}, (413, 411)
        elif kind == "other method":
            return kind, (501,), self._send(connection, chance.choice(("PUT", "DELETE", "TRACE", "X")), "/")
        else:
            return kind, (), self._raw(kind, chance)
        return kind, wanted, self._send(connection, "POST", path, body, headers)

    def _send(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: bytes = b"", headers: Any = None
    ) -> int:
        for attempt in range(2):
            try:
                connection.request(method, path, body or None, headers or {})
                answer = connection.getresponse()
                answer.read()
                if answer.will_close:
                    connection.close()
                return answer.status
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                connection.close()  # a refused request closes its connection, perhaps before all of it was sent
                if attempt:
                    raise
        return -1

    def _raw(self, kind: str, chance: random.Random) -> int:
        """Bytes that are not a request, or an incomplete request"""
        with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), timeout=5) as client:
            if kind == "bytes":
                client.sendall(chance.randbytes(chance.choice((1, 100, 5000))) + b"\r\n\r\n")
                client.shutdown(socket.SHUT_WR)
                while client.recv(4096):
                    pass
            else:
                lines = [f"{name}: {value}" for name, value in {**self.headers, "Content-Length": "5000"}.items()]
                head = "\r\n".join(("POST /api/explain HTTP/1.1", f"Host: {HOST}:{self.port}", *lines, "", "{"))
                client.sendall(head.encode())
        return 0


KINDS = (
    *("explain", "explain", "explain", "test image", "test image", "block", "blocks off", "picture", "page", "page"),
    *("test picture", "fuzzed picture", "no page", "no token", "wrong host", "wrong JSON", "wrong JSON", "too large"),
    *("other method", "bytes", "broken off"),
)
