"""What the live page's server refuses, and how it speaks HTTP."""

import re
import socket
import struct
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from urllib.parse import quote

import pytest
import torch
from explore_helpers import classifier_of, images_of, serving, text
from PIL import Image

from wcapsnet.errors import InputError
from wcapsnet.explore import Explorer, Server, api
from wcapsnet.explore.server import PAGE

POSTS = ("/api/explain", "/api/block", "/api/decode", "/api/near", "/api/survey", "/api/picture")


@pytest.fixture(scope="module")
def bare():
    """Without test images."""
    with serving(classifier_of()) as asker:
        yield asker


def test_the_page_and_all_it_names_is_served(asker):
    page = asker.get("/")
    assert page.status == 200
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert asker.server.token in page.content.decode()
    assert "{{" not in page.content.decode()
    named = set(re.findall(r'(?:src|href)="(/[^"#]+)"', page.content.decode()))
    named |= {f"/{name}" for path in PAGE.glob("*.js") for name in re.findall(r'from "\./(.+?)"', path.read_text())}
    assert named == {f"/{path.name}" for path in PAGE.iterdir() if path.name != "index.html"}
    for path in named:
        assert asker.get(path).status == 200, path


def test_the_page_needs_nothing_from_elsewhere():
    for path in PAGE.iterdir():
        outside = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[\w/.-]*", path.read_text()))
        assert outside <= {"http://www.w3.org/2000/svg"}, path.name


def test_every_answer_forbids_what_the_page_does_not_need(asker):
    for answer in (asker.get("/"), asker.get("/api/about"), asker.get("/nowhere"), asker.post("/api/survey", {})):
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]


@pytest.mark.parametrize(
    "host", ["127.0.0.1:{}", "localhost:{}", "LOCALHOST:{}", "[::1]:{}", "127.8.8.8:{}", "localhost:9000", "localhost"]
)
def test_the_server_answers_to_the_names_of_this_machine(asker, host):
    assert asker.get("/", Host=host.format(asker.server.server_port)).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:{}",
        "127.0.0.1.evil.example:{}",
        "localhost.evil.example:{}",
        "192.168.0.1:{}",
        "127.0.0.1:{}@evil.example",
        "evil.example@127.0.0.1:{}",
        "127.0.0.1:x",
        "[::1",
        "",
        None,
    ],
)
def test_other_hosts_get_nothing(asker, host):
    host = host and host.format(asker.server.server_port)
    for answer in (asker.get("/", Host=host), asker.post("/api/explain", {"test": 0}, Host=host)):
        assert answer.status == 403
        assert asker.server.token not in answer.content.decode()


def test_on_all_interfaces_addresses_are_welcome_and_foreign_names_are_not():
    with serving(classifier_of(), host="0.0.0.0") as asker:
        port = asker.server.server_port
        assert asker.server.loopback is False
        assert asker.get("/", Host=f"192.168.0.1:{port}").status == 200
        assert asker.get("/", Host=f"{socket.gethostname()}:{port}").status == 200
        assert asker.get("/", Host=f"evil.example:{port}").status == 403
        assert re.fullmatch(rf"http://[\d.]+:{port}/", asker.server.url)
        assert "0.0.0.0" not in asker.server.url


def test_only_the_loopback_interface_is_bound_by_default(asker):
    assert asker.server.server_address[0] == "127.0.0.1"
    assert asker.server.loopback


@pytest.mark.parametrize("path", POSTS)
def test_questions_need_the_token_their_own_origin_and_content_type(asker, path):
    port = asker.server.server_port
    for token in (None, "", "wrong", "ä".encode().decode("latin-1")):
        assert asker.post(path, {"test": 0}, X_Wcapsnet_Token=token).status == 403
    for origin in ("http://evil.example", f"http://evil.example:{port}", "null", f"https://127.0.0.1:{port}"):
        assert asker.post(path, {"test": 0}, Origin=origin).status == 403
    for kind in ("text/plain", "multipart/form-data", "application/x-www-form-urlencoded", None):
        assert asker.post(path, {"test": 0}, Content_Type=kind).status == 415
    assert asker.post("/api/explain", {"test": 0}, Origin=f"http://127.0.0.1:{port}").status == 200


def test_what_computes_is_not_asked_by_get(asker):
    for path in POSTS:
        assert asker.get(path).status == 404


@pytest.mark.parametrize(
    "path",
    [
        "/nowhere",
        "/../api.py",
        "/%2e%2e/api.py",
        "//etc/passwd",
        "/page/app.js",
        "/.",
        "/api/test/x.txt",
        f"/{300 * 'a'}.js",
    ],
)
def test_there_is_nothing_else(asker, path):
    assert asker.get(path).status == 404
    assert asker.post(path, {}).status == 404


PIXELS = text(torch.zeros(64, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("path", "asked", "words"),
    [
        ("/api/explain", {}, "1×8×8 bytes"),
        ("/api/explain", {"pixels": PIXELS[:-4]}, "1×8×8 bytes"),
        ("/api/explain", {"pixels": "ä"}, "1×8×8 bytes"),
        ("/api/explain", {"pixels": None}, "1×8×8 bytes"),
        ("/api/explain", {"test": 20}, "0 to 19"),
        ("/api/explain", {"test": True}, "0 to 19"),
        ("/api/explain", {"test": [0, 1]}, "0 to 19"),
        ("/api/explain", {"test": 0, "off": 3}, "list of blocks"),
        ("/api/explain", {"test": 0, "off": ["01"]}, "level and a capsule"),
        ("/api/explain", {"test": 0, "off": [[0, 1.5]]}, "level and a capsule"),
        ("/api/explain", {"test": 0, "off": [[0, 3]]}, "no block 1.3"),
        ("/api/explain", {"test": 0, "off": [[-1, 0]]}, "no block 0.0"),
        ("/api/explain", {"test": 0, "off": [[1, 0], [1, 1]]}, "All blocks of level 2 are off"),
        ("/api/explain", {"test": 0, "class": 3}, "0 to 2"),
        ("/api/explain", {"test": 0, "class": "two"}, "0 to 2"),
        ("/api/block", {"test": 0}, "level and a capsule"),
        ("/api/block", {"test": 0, "block": [0, 3]}, "no block 1.3"),
        ("/api/decode", {"vector": [1, 2], "position": [0, 0]}, "list of 3 numbers"),
        ("/api/decode", {"vector": [1, 2, 1e300], "position": [0, 0]}, "list of 3 numbers"),
        ("/api/decode", {"vector": [1, 2, 3]}, "list of 2 numbers"),
        ("/api/near", {}, "list of 3 numbers"),
        ("/api/explain", b"{", "JSON object"),
        ("/api/explain", b"\xff", "JSON object"),
        ("/api/explain", b"[" * 60000, "JSON object"),
        ("/api/decode", b'{"vector": [NaN, 0, 0], "position": [0, 0]}', "list of 3 numbers"),
        ("/api/block", b'{"test": 0, "block": [' + b"9" * 4300 + b", 0]}", "level and a capsule"),
    ],
)
def test_a_wrong_question_gets_one_sentence(asker, path, asked, words):
    answer = asker.post(path, asked)
    assert answer.status == 400
    assert words in answer.sentence


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"not a picture", "not a picture in a known format"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 40, "cannot be read"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not a picture in a known format"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not a picture in a known format"),
    ],
)
def test_a_bad_picture_gets_one_sentence_and_the_server_goes_on(asker, data, words):
    assert words in asker.post("/api/picture", data).sentence
    assert asker.post("/api/explain", {"test": 0}).status == 200


def bomb(side: int) -> bytes:
    """A PNG of side×side white pixels in a few kilobytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    rows = zlib.compress((b"\0" + b"\xff" * (-(-side // 8))) * side, 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def test_a_small_file_with_too_many_pixels_is_refused_before_it_is_decoded(asker, monkeypatch):
    data = bomb(7100)  # 50.4 million
    assert len(data) < 100_000
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("it was decoded"))
    assert "exceed the limit of 50000000" in asker.post("/api/picture", data).sentence


@pytest.mark.parametrize("zeros", [0, 1, 5000])
def test_what_is_too_large_is_refused_unread_whatever_its_leading_zeros(asker, zeros):
    answer = asker.post("/api/picture", b"", Content_Length="0" * zeros + str(api.MAX_UPLOAD + 1))
    assert answer.status == 413
    assert "20 MB" in answer.sentence
    assert asker.post("/api/explain", b"", Content_Length="0" * zeros + "9" * 400).status == 413
    assert asker.post("/api/survey", b"{}", Content_Length="0" * zeros + "2").status == 200
    assert asker.server.max_question < 100_000


@pytest.mark.parametrize("length", ["-1", "many", "", "²", None])
def test_a_question_without_a_length_is_refused(asker, length):
    assert asker.post("/api/explain", b"", Content_Length=length).status == 411


def raw(asker, *lines, body=b""):
    """The status of a request sent as these bytes; None if there is no answer."""
    with socket.create_connection(("127.0.0.1", asker.server.server_port), timeout=20) as connection:
        connection.sendall(b"\r\n".join(line.encode("latin-1") for line in (*lines, "", "")) + body)
        connection.shutdown(socket.SHUT_WR)
        answer = connection.makefile("rb").read()
    assert answer.count(b"HTTP/1.1 ") <= 1, "what follows a refused request is not taken for another"
    return int(answer.split()[1]) if answer.startswith(b"HTTP/") else None


@pytest.mark.parametrize(
    "lines",
    [
        ("GET / HTTP/1.1", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Key: x"),
        ("GET / HTTP/1.1", "Upgrade: h2c, WebSocket"),
        ("GET / HTTP/1.1", "Upgrade: h2c", "Upgrade: websocket"),
        ("GET / HTTP/1.1", "Content-Length: 5"),
        ("GET / HTTP/1.1", "Content-Length: +5"),
        ("GET / HTTP/1.1", "Transfer-Encoding: chunked"),
        ("GET / HTTP/1.1", "Transfer-Encoding: "),
        ("GET http://[ HTTP/1.1",),
        ("GET /\0.html HTTP/1.1",),
        ("GET / HTTP/1.1", "Host: evil.example"),
        ("POST /api/explain HTTP/1.1", "Content-Type: application/json", "Content-Length: 2", "Content-Length: 2"),
        ("POST /api/explain HTTP/1.1", "Content-Type: application/json", "Content-Length: 2, 2"),
        ("POST /api/explain HTTP/1.1", "Content-Type: application/json", "Content-Length: 0x2"),
        ("POST /api/explain HTTP/1.1", "Content-Type: application/json", "Content-Length: 2", "Transfer-Encoding: x"),
        ("BREW / HTTP/1.1",),
        ("GET / HTTP/9.9",),
        ("GET / HTTP/1.1", *(f"X-{n}: y" for n in range(200))),
        ("GET /" + "x" * 70_000 + " HTTP/1.1",),
        ("\x16\x03\x01",),
    ],
    ids=lambda lines: " ".join(lines)[:60],
)
def test_a_malformed_request_is_refused_without_a_trace(asker, capsys, lines):
    first, *headers = lines
    own = (f"Host: {asker.host}", f"X-Wcapsnet-Token: {asker.server.token}")
    status = raw(asker, first, *own, *headers, body=b"{}GET / HTTP/1.1\r\n\r\n")
    assert status is None or 400 <= status < 600
    assert status != 500
    assert "Traceback" not in capsys.readouterr().err
    assert asker.get("/").status == 200


def test_without_test_images_the_rest_works(bare):
    assert bare.get("/api/about").facts["test"] is None
    assert "not available" in bare.post("/api/explain", {"test": 0}).sentence
    assert "not available" in bare.get("/api/test/0.png").sentence
    assert bare.ask("/api/survey", {}) == {"state": "none"}
    assert bare.ask("/api/near", {"vector": [0, 0, 0]}) == {"near": None}
    assert bare.ask("/api/block", {"pixels": PIXELS, "block": [0, 0]})["favourites"] is None


@pytest.mark.parametrize("number", ["20", "-1", "x", "²", "1e1", "9" * 50])
def test_other_test_images_are_not_there(asker, number):
    assert asker.get(f"/api/test/{quote(number)}.png").status == 400


def test_a_bug_is_told_to_the_terminal_and_not_to_the_page(asker, monkeypatch, capsys):
    def fails():
        raise KeyError("/secret/path")

    monkeypatch.setattr(asker.explorer, "about", fails)
    answer = asker.get("/api/about")
    assert answer.status == 500
    assert "secret" not in answer.content.decode()
    assert "/secret/path" in capsys.readouterr().err


def test_no_path_of_the_machine_is_told(tmp_path):
    classifier = classifier_of()
    with serving(classifier, images_of(classifier), cache=tmp_path / "deep") as asker:
        said = asker.get("/api/about").content + asker.get("/").content + asker.post("/api/survey", {}).content
        said += asker.post("/api/picture", b"nothing").content
    for path in (tmp_path, PAGE):
        assert str(path).encode() not in said


def test_connections_are_kept_between_answers(asker):
    connection = HTTPConnection("127.0.0.1", asker.server.server_port)
    connection.request("GET", "/api/about")
    connection.getresponse().read()
    first = connection.sock
    assert first is not None
    connection.request("GET", "/style.css")
    assert connection.getresponse().status == 200
    assert connection.sock is first
    connection.close()


def test_nobody_holds_the_network_once_the_server_is_closed():
    """Not even a browser that keeps its connection."""
    before = set(threading.enumerate())
    with serving(classifier_of()) as asker:
        connection = HTTPConnection("127.0.0.1", asker.server.server_port)
        connection.request("GET", "/api/about")
        connection.getresponse().read()
        asker.ask("/api/explain", {"pixels": PIXELS})
        assert len(set(threading.enumerate()) - before) > 2  # the server's, the worker and this connection's
    assert not set(threading.enumerate()) - before
    connection.close()


def test_only_headers_are_sent_if_only_headers_are_asked_for(asker):
    answer = asker.send("HEAD", "/")
    assert answer.status == 200
    assert answer.content == b""
    assert int(answer.headers["Content-Length"]) > 1000


def test_many_who_ask_at_once_get_their_own_answers(asker):
    expected = [asker.ask("/api/explain", {"test": m})["probabilities"] for m in range(20)]
    asker.explorer._explained.cache_clear()
    with ThreadPoolExecutor(60) as askers:
        found = list(askers.map(lambda m: asker.ask("/api/explain", {"test": m % 20})["probabilities"], range(60)))
    assert found == expected * 3


def test_an_address_that_is_not_ours_gets_one_sentence():
    with pytest.raises(InputError, match=r"^There is no address no such host\.$"):
        Server(Explorer(classifier_of(), "toy"), "no such host")
    with pytest.raises(InputError, match=r"^Cannot listen on 192\.0\.2\.1:0: .*\.$"):
        Server(Explorer(classifier_of(), "toy"), "192.0.2.1", 0)


@pytest.mark.parametrize("faster", [1, 3])
def test_as_many_threads_compute_as_are_fastest_here(monkeypatch, faster):
    """One small image is often answered sooner by one core than by all."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    chosen = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.setattr(Explorer, "_seconds", lambda self, threads, image: abs(threads - faster))
    explorer = Explorer(classifier_of(), "toy")
    explorer.warm_up()
    explorer.close()
    assert chosen == [3, faster]
