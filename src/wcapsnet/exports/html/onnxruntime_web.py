"""onnxruntime-web, the WebAssembly runtime in the page. It is not part of wcapsnet: downloaded once, or given."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from ... import cache
from ...data.download import download
from ...errors import InputError

VERSION = "1.22.0"  # the smallest with one build for the plain CPU: 2.9 MB compressed, 1.30 has 3.7 MB
# The API, the WebAssembly loader and the WebAssembly, with their SHA-256 in the npm package.
FILES = {
    "ort.wasm.min.js": "65e09376df69107e881b5c34d2d37aed333a366b6d941073ec518168e269b87d",
    "ort-wasm-simd-threaded.mjs": "30dd851d9c00622940500f71ddd2ff8820c5cb65270816080175b958705385a8",
    "ort-wasm-simd-threaded.wasm": "71aef04959c5c1b6de461b6538e2058e306610034a85aad2742d0c7fd4533fe4",
}
SOURCES = ("https://cdn.jsdelivr.net/npm/onnxruntime-web@{}/dist/{}", "https://unpkg.com/onnxruntime-web@{}/dist/{}")
LICENSE = """\
ONNX Runtime Web {version}, https://github.com/microsoft/onnxruntime

MIT License

Copyright (c) Microsoft Corporation

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE."""


@dataclass(frozen=True)
class Runtime:
    """The files of one version of onnxruntime-web"""

    script: bytes  # defines `ort`
    loader: bytes  # a module that starts the WebAssembly
    wasm: bytes

    @property
    def version(self) -> str:
        found = re.search(rb"ONNX Runtime Web v([\w.-]+)", self.script[:500])
        return found[1].decode() if found else "of unknown version"

    @property
    def license(self) -> str:
        return LICENSE.format(version=self.version)


def onnxruntime_web(given: str | Path | None = None) -> Runtime:
    """From a folder or the .tgz of the npm package (default: $WCAPSNET_ORT_WEB), or downloaded into the cache with
    pinned checksums."""
    if not (given := given or os.environ.get("WCAPSNET_ORT_WEB")):
        return Runtime(*(_downloaded(name, digest) for name, digest in FILES.items()))
    given = Path(given)
    if not given.exists():
        raise InputError(f"There is no file or folder {given}.")
    try:
        found = _unpacked(given) if given.is_file() else [_in_folder(given, name) for name in FILES]
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise InputError(f"{given} is not the .tgz file of an npm package, or it is damaged.") from error
    except OSError as error:
        raise InputError(f"Cannot read {given}: {error.strerror}.") from error
    missing = [name for name, content in zip(FILES, found, strict=True) if content is None]
    if missing:
        raise InputError(
            f"{given} has no {missing[0]}; give the folder or the .tgz file that `npm pack onnxruntime-web@{VERSION}` "
            "makes."
        )
    return Runtime(*(content for content in found if content is not None))


def _in_folder(folder: Path, name: str) -> bytes | None:
    places = (folder / part / name for part in ("", "dist", "package/dist", "node_modules/onnxruntime-web/dist"))
    file = next((place for place in places if place.is_file()), None)
    return file.read_bytes() if file else None


def _unpacked(archive: Path) -> list[bytes | None]:
    with tarfile.open(archive) as package:
        files = {Path(member.name).name: member for member in package if member.isfile() and "/dist/" in member.name}
        readers = [package.extractfile(files[name]) if name in files else None for name in FILES]
        return [reader.read() if reader else None for reader in readers]


def _downloaded(name: str, digest: str) -> bytes:
    folder = cache.directory()
    if folder is None:
        raise InputError("There is no cache folder for onnxruntime-web; set WCAPSNET_CACHE, or give --runtime.")
    target = folder / f"onnxruntime-web-{VERSION}" / name
    try:
        content = target.read_bytes() if target.exists() else b""
        if hashlib.sha256(content).hexdigest() != digest:  # not there, or damaged since
            content = download([url.format(VERSION, name) for url in SOURCES], target, sha256=digest).read_bytes()
        return content
    except InputError as error:
        raise InputError(
            f"{str(error).rstrip('.')}, or give the result of `npm pack onnxruntime-web@{VERSION}` with --runtime."
        ) from error
    except OSError as error:
        raise InputError(f"Cannot read {target}: {error.strerror}.") from error
