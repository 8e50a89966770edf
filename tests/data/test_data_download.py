"""A downloaded file is complete and correct, whatever the server does."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys

import pytest
from data_helpers import Server

from wcapsnet.atomic import _umask
from wcapsnet.data.download import download
from wcapsnet.errors import InputError

BODY = bytes(range(256)) * 4000  # about 1 MB: several reads
MD5 = hashlib.md5(BODY).hexdigest()


@pytest.fixture(autouse=True)
def _served(server: Server) -> None:
    server.files |= {"file.bin": BODY, "wrong.bin": b"wrong"}


def test_the_file_arrives_from_the_first_mirror_that_has_it_and_nothing_is_printed(server, tmp_path, capfd):
    target = tmp_path / "new" / "folder" / "file.bin"
    urls = [server.url + name for name in ("none.bin", "wrong.bin", "file.bin", "never asked")]
    assert download(urls, target, md5=MD5) == target
    assert target.read_bytes() == BODY
    assert os.listdir(target.parent) == ["file.bin"]
    assert server.requests == ["/none.bin", "/wrong.bin", "/file.bin"]
    assert capfd.readouterr() == ("", "")
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~_umask()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("{}wrong.bin", "wrong checksum"),
        ("{}none.bin", "answered 404"),
        ("{}cut.bin", "broke off"),
        ("http://127.0.0.1:9/file.bin", "cannot be reached .*refused.*check the network"),
        ("no address", "cannot be reached"),
    ],
)
def test_a_failed_download_says_why_and_leaves_nothing(server, tmp_path, url, reason):
    server.files["cut.bin"], server.cut = BODY, {"cut.bin"}
    with pytest.raises(InputError, match=f"{reason}.*put the file at .*file.bin"):
        download([url.format(server.url)], tmp_path / "file.bin", md5=MD5)
    assert os.listdir(tmp_path) == []


def test_a_place_that_cannot_be_written(server, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(InputError, match="Cannot write"):
        download([server.url + "file.bin"], tmp_path / "file" / "file.bin", md5=MD5)


def test_importing_the_data_needs_nothing_that_only_some_datasets_need():
    missing = ["lzma", "scipy", "pooch", "requests"]
    code = f"import sys; sys.modules.update(dict.fromkeys({missing})); import wcapsnet.data.datasets"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
