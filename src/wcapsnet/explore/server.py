"""An HTTP server for one page on the loopback interface, using the standard library, and its request checks.

Other websites can make a browser send requests here. So the Host header must name this machine (which defeats DNS
rebinding), computations require a POST with a token that only our own page can read, and no response may be read by
other origins.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import ipaddress
import json
import os
import re
import secrets
import socket
import socketserver
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import CancelledError
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .. import __version__
from ..errors import InputError
from .api import MAX_UPLOAD, Explorer

PAGE = Path(__file__).parent / "page"
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
TOKEN = "X-Wcapsnet-Token"


class Refused(InputError):
    """With an HTTP status other than 400"""

    def __init__(self, status: int, sentence: str):
        super().__init__(sentence)
        self.status = status


class Server(ThreadingHTTPServer):
    """`Server(explorer).serve_forever()`; port 0 picks a free one, which is in `url`."""

    daemon_threads = False  # `close` waits for them
    request_queue_size = 128  # a whole class may open the page at once; the default of 5 would refuse some
    allow_reuse_address = os.name != "nt"  # on Windows it would let two servers share a port

    def __init__(self, explorer: Explorer, host: str = "127.0.0.1", port: int = 8765):
        self.explorer, self.host = explorer, host
        self._open: set[socket.socket] = set()
        self.token = secrets.token_urlsafe(24)
        config = explorer.classifier.config
        self.max_question = 2 * config.channels * config.height * config.width + 2**16
        try:
            self.address_family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self.loopback = ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback
            super().__init__(address[:2], Handler)  # type: ignore[arg-type]
        except (OSError, OverflowError) as error:
            explorer.close()
            raise InputError(_why_not(error, host, port)) from error

    def server_bind(self) -> None:
        # Not HTTPServer's method: it looks up our host name, which can be slow and is not needed.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.host, self.server_address[1]

    @property
    def url(self) -> str:
        host = _own_address() if self.host in ("0.0.0.0", "::", "") else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.server_port}/"

    def names_us(self, host: str | None) -> bool:
        """Whether this Host header is ours. Addresses are, since they cannot be redirected; names only if known."""
        try:
            parts = urlsplit(f"//{host}")
            name, _ = parts.hostname or "", parts.port
        except ValueError:
            return False
        if parts.username is not None or parts.path:  # the port may differ: the page may be reached through a tunnel
            return False
        try:
            return ipaddress.ip_address(name).is_loopback or not self.loopback
        except ValueError:
            known = {"localhost", self.host.lower()}
            return name in (known if self.loopback else known | {socket.gethostname().lower()})

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def close(self) -> None:
        """Returns when no request is being answered: a thread that still holds the network while Python exits would
        crash the interpreter."""
        self.explorer.close()
        for connection in self._open.copy():
            with contextlib.suppress(OSError):  # already closed
                connection.shutdown(socket.SHUT_RDWR)
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore browsers that disconnect during a response, and requests cancelled by closing."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError, CancelledError)):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = f"wcapsnet/{__version__}", ""
    timeout = 60
    disable_nagle_algorithm = True  # send small responses at once
    wbufsize = -1  # and in one packet

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    do_HEAD = do_GET

    def _path(self) -> str:
        try:
            return urlsplit(self.path).path
        except ValueError:
            raise InputError("The address is malformed.") from None

    def _get(self) -> tuple[str, bytes]:
        path = self._path()
        if path == "/api/about":
            return _json(self.server.explorer.about())
        if named := re.fullmatch(r"/api/test/(.*)\.png", path):
            index = int(named[1]) if re.fullmatch("[0-9]{1,9}", named[1]) else -1
            return "image/png", self.server.explorer.test_picture(index)
        name = "index.html" if path == "/" else path.removeprefix("/")
        if name not in {file.name for file in PAGE.iterdir() if file.suffix in KINDS}:
            raise Refused(404, "There is no such page.")
        file = PAGE / name
        content = file.read_bytes().replace(b"{{token}}", self.server.token.encode())
        return f"{KINDS[file.suffix]}; charset=utf-8", content

    def _post(self) -> tuple[str, bytes]:
        path, explorer = self._path(), self.server.explorer
        answers: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "/api/explain": explorer.explain,
            "/api/block": explorer.block,
            "/api/decode": explorer.decode,
            "/api/near": explorer.near,
            "/api/survey": lambda asked: explorer.survey(),
        }
        if path == "/api/picture":
            return _json(explorer.picture(self._body("application/octet-stream", MAX_UPLOAD)))
        if path not in answers:
            raise Refused(404, "There is no such page.")
        body = self._body("application/json", self.server.max_question)
        try:
            asked = json.loads(body)
        except (ValueError, RecursionError):
            asked = None
        if not isinstance(asked, dict):
            raise InputError("The request must be a JSON object.")
        return _json(answers[path](asked))

    def _check(self) -> None:
        """Check that the request comes from our page, before anything else."""
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not self.server.names_us(hosts[0]):
            raise Refused(403, "This server only answers requests to its own address.")
        if "Transfer-Encoding" in self.headers:
            raise Refused(411, "A request must have a Content-Length, not a Transfer-Encoding.")
        if self._length() and self.command != "POST":
            raise InputError("Only a POST request may have a body.")
        if "websocket" in " ".join(self.headers.get_all("Upgrade", [])).lower():
            raise InputError("This server does not support WebSockets.")
        if self.command == "POST":
            origin = self.headers.get("Origin")
            if origin is not None and origin != f"http://{self.headers.get('Host')}":
                raise Refused(403, "Requests from other sites are not allowed.")
            if not hmac.compare_digest(self.headers.get(TOKEN, "").encode(), self.server.token.encode()):
                raise Refused(403, "The page is older than the server; reload it.")

    def _body(self, kind: str, most: int) -> bytes:
        if self.headers.get_content_type() != kind:
            raise Refused(415, f"The content type must be {kind}.")
        length = self._length()
        if length is None:
            raise Refused(411, "The request has no Content-Length.")
        if length > most:
            raise Refused(413, f"The request is too large; the limit is {most / 2**20:.3g} MB.")
        return self.rfile.read(length)

    def _length(self) -> int | None:
        given = self.headers.get_all("Content-Length", [])
        if not given:
            return None
        if len(given) > 1 or not re.fullmatch("[0-9]+", given[0]):
            raise Refused(411, "The Content-Length must be one number.")
        return int(given[0].lstrip("0")[:19] or 0)  # what is longer is too large by its first digits

    def _answer(self, make: Callable[[], tuple[str, bytes]]) -> None:
        status = 200
        try:
            self._check()
            kind, content = make()
        except InputError as error:
            status, (kind, content) = getattr(error, "status", 400), _json({"error": str(error)})
        except (ConnectionError, TimeoutError, CancelledError):
            raise
        except Exception:  # a bug: the details go to the terminal, not to the page
            traceback.print_exc()
            status, (kind, content) = 500, _json({"error": "Something went wrong; see the terminal for details."})
        # The unread body of a refused request would be taken for the next request.
        self.close_connection = self.close_connection or status >= 400
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _json(answer: dict[str, Any]) -> tuple[str, bytes]:
    return "application/json", json.dumps(answer, allow_nan=False, ensure_ascii=False).encode()


def _own_address() -> str:
    """This machine's address on the network. Nothing is sent: the system only reports which route it would use."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        try:
            way.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(way.getsockname()[0])


def _why_not(error: Exception, host: str, port: int) -> str:
    if isinstance(error, socket.gaierror):
        return f"There is no address {host}."
    if isinstance(error, OverflowError):
        return f"A port is a number from 0 to 65535, not {port}."
    if getattr(error, "errno", None) == errno.EADDRINUSE:
        return f"Port {port} is in use; choose another with --port, or use --port 0 for a free one."
    return f"Cannot listen on {host}:{port}: {getattr(error, 'strerror', None) or error}."
