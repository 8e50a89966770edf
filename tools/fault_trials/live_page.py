"""Good and bad requests from many clients at once to the live page, on the loopback interface only."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import random
import re
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import wcapsnet.cli

from .common import Outcome, Sample, percentiles
from .photos import fuzzed, originals

HOST = "127.0.0.1"
CLIENTS = 32
GROWTH = 32  # MB that the server may grow between the first tenth of the requests and the end


def requests(sample: Sample, tries: int, seed: int) -> Outcome:
    """`tries` requests in all. The server is a process of its own and ends with this function."""
    outcome = Outcome()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        server = _served(sample, out.fileno(), err.fileno())
        try:
            port = _port(out, server)
            page = _asked(port, "GET", "/")[1].decode()
            token = re.findall(r'name="token" content="([^"]+)"', page)[0]
            about = json.loads(_asked(port, "GET", "/api/about")[1])
            load = _Load(port, token, about, seed)
            load.run(max(tries // 10, 1))
            warm = _megabytes(server)
            load.run(tries - load.done)
            time.sleep(0.5)
            end = _megabytes(server)
            alive = _asked(port, "GET", "/api/about")[0]
        finally:
            os.kill(server, signal.SIGINT)
            code = _ended(server)
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


def _served(sample: Sample, out: int, err: int) -> int:
    child = os.fork()
    if child:
        return child
    try:
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.argv = ["wcapsnet", "explore", str(sample.run), "--port", "0", "--host", HOST, "--no-browser"]
        wcapsnet.cli.main()
    except SystemExit as end:
        sys.stdout.flush()
        os._exit(end.code if isinstance(end.code, int) else 1)
    finally:
        os._exit(121)


def _port(out: Any, server: int) -> int:
    for _ in range(1200):
        text = os.pread(out.fileno(), 4096, 0).decode()
        if found := re.search(r"http://127\.0\.0\.1:(\d+)/", text):
            return int(found[1])
        if os.waitpid(server, os.WNOHANG)[0]:
            break
        time.sleep(0.05)
    raise SystemExit("The live page did not start.")


def _ended(server: int) -> int:
    for _ in range(600):
        done, status = os.waitpid(server, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(server, signal.SIGKILL)
    os.waitpid(server, 0)
    return -9


def _megabytes(process: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    return int(found[1]) // 1024 if found else 0


def _asked(port: int, method: str, path: str, body: bytes | None = None, headers: Any = None) -> tuple[int, bytes]:
    with contextlib.closing(http.client.HTTPConnection(HOST, port, timeout=60)) as connection:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()


class _Load:
    def __init__(self, port: int, token: str, about: dict[str, Any], seed: int):
        self.port, self.about, self.seed = port, about, seed
        self.headers = {"X-Wcapsnet-Token": token, "Content-Type": "application/json"}
        self.bytes = about["channels"] * about["height"] * about["width"]
        self.pictures = originals()
        self.done, self.next = 0, 0
        self.ended: dict[str, int] = {}
        self.faults: list[str] = []
        self.good: list[float] = []
        self.bad: list[float] = []
        self._lock = threading.Lock()

    def run(self, count: int) -> None:
        end = self.next + count
        threads = [threading.Thread(target=self._client, args=(end,)) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _client(self, end: int) -> None:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=60)
        while True:
            with self._lock:
                if self.next >= end:
                    break
                number, self.next = self.next, self.next + 1
            chance = random.Random(f"{self.seed} {number}")
            began = time.perf_counter()
            kind, wanted, status = "?", (), -1
            try:
                kind, wanted, status = self._one(connection, number, chance)
            except (OSError, http.client.HTTPException) as error:
                with self._lock:
                    self.faults.append(f"request {number}: {type(error).__name__} {error}")
                connection.close()
            took = 1000 * (time.perf_counter() - began)
            with self._lock:
                self.done += 1
                name = "answered" if status == 200 else "one sentence" if status >= 400 else "broken off"
                self.ended[name] = self.ended.get(name, 0) + 1
                (self.good if status == 200 else self.bad).append(took)
                if wanted and status not in wanted:
                    self.faults.append(f"request {number}, {kind}: status {status}, not {wanted}")
        connection.close()

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
            return (
                kind,
                (200,),
                self._send(connection, "GET", chance.choice(("/", "/app.js", "/style.css", "/api/about"))),
            )
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
