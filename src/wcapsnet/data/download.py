"""Download files with checksums: the result is complete and correct, or absent."""

from __future__ import annotations

import hashlib
import os
import re
import urllib.error
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException, HTTPResponse
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from ..errors import InputError
from .progress import progress_bar

_CHUNK = 1 << 18
_ATTEMPTS = 4  # connections per URL; each resumes where the last one broke off


class _FetchError(Exception):
    """This URL did not provide the file; the next one may."""


class _BrokenOffError(_FetchError):
    """The connection broke off; the received data is kept, and another attempt can resume."""


def download(
    url: str | Sequence[str],
    target: Path,
    *,
    md5: str | None = None,
    sha256: str | None = None,
    quiet: bool = False,
    timeout: float = 30.0,
) -> Path:
    """Download `target` from the first URL that has it, resuming from `target.part` if it exists.

    The file appears under its name only when it is complete and its checksum is correct. Without a checksum nothing is
    resumed, because a stale partial file could not be detected.
    """
    urls = (url,) if isinstance(url, str) else tuple(url)
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if md5 is None and sha256 is None:
            part.unlink(missing_ok=True)
        failures: list[str] = []
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        with progress_bar(*columns, quiet=quiet) as progress:
            for address in urls:
                try:
                    _fetch_verified(address, part, md5, sha256, progress, timeout)
                    os.replace(part, target)
                    return target
                except _FetchError as error:
                    failures.append(f"{address} {error}")
    except OSError as error:
        raise InputError(
            f"Cannot write {target}: {error.strerror or error}; check the permissions and free space of that folder."
        ) from error
    raise InputError(
        f"Cannot download {target.name}: {'; '.join(failures)}; "
        f"check the network and try again, or put the file at {target} yourself."
    )


def _fetch_verified(
    url: str, part: Path, md5: str | None, sha256: str | None, progress: Progress, timeout: float
) -> None:
    for attempt in range(1, _ATTEMPTS + 1):
        resumed = _size(part) > 0
        try:
            _fetch(url, part, progress, timeout)
        except _BrokenOffError:
            if attempt == _ATTEMPTS:
                raise
            continue
        wrong = _wrong_checksum(part, md5, sha256)
        if wrong is None:
            return
        part.unlink()
        # a stale partial file may be the cause, so it gets one more attempt; a complete wrong file will stay wrong
        if not resumed:
            raise _FetchError(f"serves a file with the wrong checksum ({wrong})")
    raise _FetchError("kept breaking off")


def _fetch(url: str, part: Path, progress: Progress, timeout: float) -> None:
    """One connection: append to `part`, or start over if the server cannot resume."""
    offset = _size(part)
    try:
        # some servers reject Python's default user agent
        request = urllib.request.Request(url, headers={"User-Agent": "wcapsnet"})
        if offset:
            request.add_header("Range", f"bytes={offset}-")
        response: HTTPResponse = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and offset:  # nothing is left after `offset`: the checksum decides
            return
        raise _FetchError(f"answered {error.code} {error.reason}") from error
    except (OSError, HTTPException, ValueError) as error:
        raise _FetchError(f"cannot be reached ({getattr(error, 'reason', None) or error})") from error

    with response:
        if offset and not _continues(response, offset):
            offset = 0
            if response.status == 206:  # a range from another position is useless
                part.unlink()
                raise _BrokenOffError("answered with a different range than requested")
        length = response.headers.get("Content-Length")
        total = offset + int(length) if length and length.isdigit() else None
        task = progress.add_task(part.stem, total=total, completed=offset)
        try:
            with part.open("ab" if offset else "wb") as file:
                while chunk := _receive(response):
                    file.write(chunk)
                    progress.advance(task, len(chunk))
        finally:
            progress.remove_task(task)
    if total is not None and _size(part) < total:
        raise _BrokenOffError(f"broke off after {_size(part)} of {total} bytes")


def _receive(response: HTTPResponse) -> bytes:
    try:
        return response.read(_CHUNK)
    except (OSError, HTTPException) as error:
        raise _BrokenOffError(f"broke off ({error})") from error


def _continues(response: HTTPResponse, offset: int) -> bool:
    if response.status != 206:
        return False
    sent = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return sent is not None and int(sent[1]) == offset


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _wrong_checksum(path: Path, md5: str | None, sha256: str | None) -> str | None:
    for name, expected in (("md5", md5), ("sha256", sha256)):
        if expected is None:
            continue
        # the checksums guard against accidents; usedforsecurity lets md5 work on hardened systems
        digest = hashlib.new(name, usedforsecurity=False)
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        if digest.hexdigest() != expected.lower():
            return f"{name} {digest.hexdigest()} instead of {expected}"
    return None
