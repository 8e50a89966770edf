"""What arrives under its name is whole and right, whatever the server does."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from data_helpers import Server

from wcapsnet.data.download import download
from wcapsnet.errors import InputError

BODY = bytes(range(256)) * 4000  # about 1 MB: several reads
MD5 = hashlib.md5(BODY).hexdigest()
SHA256 = hashlib.sha256(BODY).hexdigest()


@pytest.fixture(autouse=True)
def _served(server: Server) -> None:
    server.files["file.bin"] = BODY


def test_fetches_and_verifies(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "new" / "folder" / "file.bin"
    assert download(server.url + "file.bin", target, md5=MD5, sha256=SHA256) == target
    assert target.read_bytes() == BODY
    assert os.listdir(target.parent) == ["file.bin"]


def test_resumes_what_an_earlier_run_left(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "file.bin"
    (tmp_path / "file.bin.part").write_bytes(BODY[:1000])
    download(server.url + "file.bin", target, md5=MD5)
    assert target.read_bytes() == BODY
    assert server.requests == [("/file.bin", "bytes=1000-")]


def test_without_a_checksum_nothing_is_resumed(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(b"stale" * 10)
    assert download(server.url + "file.bin", tmp_path / "file.bin").read_bytes() == BODY


def test_starts_again_where_the_server_ignores_ranges(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    (tmp_path / "file.bin.part").write_bytes(BODY[:1000])
    assert download(server.url + "file.bin", tmp_path / "file.bin", md5=MD5).read_bytes() == BODY


def test_starts_again_when_another_piece_is_sent(server: Server, tmp_path: Path) -> None:
    server.wrong_piece = True
    (tmp_path / "file.bin.part").write_bytes(BODY[:1000])
    assert download(server.url + "file.bin", tmp_path / "file.bin", md5=MD5).read_bytes() == BODY


def test_a_complete_part_is_taken_without_fetching_it_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(BODY)
    assert download(server.url + "file.bin", tmp_path / "file.bin", md5=MD5).read_bytes() == BODY
    assert len(server.requests) == 1


@pytest.mark.parametrize("stale", [b"x" * 1000, b"x" * (len(BODY) + 5)])
def test_a_stale_part_is_thrown_away_and_the_file_fetched_anew(server: Server, tmp_path: Path, stale: bytes) -> None:
    (tmp_path / "file.bin.part").write_bytes(stale)
    assert download(server.url + "file.bin", tmp_path / "file.bin", md5=MD5).read_bytes() == BODY


def test_goes_on_after_a_cut_connection(server: Server, tmp_path: Path) -> None:
    server.cut_after = [300_000, 200_000]
    assert download(server.url + "file.bin", tmp_path / "file.bin", md5=MD5).read_bytes() == BODY
    assert [asked for _, asked in server.requests] == [None, "bytes=300000-", "bytes=500000-"]


def test_a_connection_that_keeps_breaking_leaves_the_part_for_next_time(server: Server, tmp_path: Path) -> None:
    server.cut_after = [1000] * 100
    with pytest.raises(InputError, match="broke off"):
        download(server.url + "file.bin", tmp_path / "file.bin", md5=MD5)
    assert not (tmp_path / "file.bin").exists()
    assert (tmp_path / "file.bin.part").read_bytes() == BODY[:4000]
    server.cut_after = []
    assert download(server.url + "file.bin", tmp_path / "file.bin", md5=MD5).read_bytes() == BODY


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_wrong_bytes_are_removed(server: Server, tmp_path: Path, kind: str) -> None:
    checksum = {"md5": MD5} if kind == "md5" else {"sha256": SHA256}
    server.files["file.bin"] = BODY[:-1] + b"!"
    with pytest.raises(InputError, match="wrong checksum"):
        download(server.url + "file.bin", tmp_path / "file.bin", **checksum)
    assert os.listdir(tmp_path) == []


def test_a_missing_file_says_404_and_what_to_do(server: Server, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"answered 404 .*put the file at"):
        download(server.url + "none.bin", tmp_path / "file.bin", md5=MD5)


def test_mirrors_are_tried_in_order(server: Server, tmp_path: Path) -> None:
    server.files["wrong.bin"] = b"wrong"
    urls = [server.url + name for name in ("none.bin", "wrong.bin", "file.bin")]
    assert download(urls, tmp_path / "file.bin", md5=MD5).read_bytes() == BODY
    assert [path for path, _ in server.requests] == ["/none.bin", "/wrong.bin", "/file.bin"]


def test_no_network(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot be reached .*check the network"):
        download("http://127.0.0.1:9/file.bin", tmp_path / "file.bin", md5=MD5)


def test_not_an_address(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be reached"):
        download("no address", tmp_path / "file.bin", md5=MD5)


def test_a_place_that_cannot_be_written(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(InputError, match="Cannot write"):
        download(server.url + "file.bin", tmp_path / "file" / "file.bin", md5=MD5)
