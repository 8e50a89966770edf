"""What an ONNX file of ours says about itself, and the checksum by which damage is found before the file is run.

Both are metadata properties, stored at the end of the file. Reading them needs neither torch nor onnx.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from ..errors import InputError

FACTS, CHECKSUM = "wcapsnet", "wcapsnet.sha256"
UNSEALED = "0" * 64
# Protocol buffers: field 2, the value, of length 64
_PLACE = re.compile(re.escape(CHECKSUM).encode() + rb"\x12\x40([0-9a-f]{64})")


def sealed(content: bytes) -> bytes:
    """The file with its checksum in place of the 64 zeros: SHA-256 of the file with the zeros."""
    return _with_checksum(content, hashlib.sha256(content).hexdigest())


def read_sealed(path: Path) -> bytes:
    """The bytes of an undamaged ONNX file that wcapsnet wrote."""
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise InputError(f"There is no file {path}.") from error
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}.") from error
    found = _PLACE.findall(content)
    if not found:
        raise InputError(
            f"{path} is not an ONNX file written by `wcapsnet export`, or its end is missing; export it again."
        )
    if hashlib.sha256(_with_checksum(content, UNSEALED)).hexdigest().encode() != found[-1]:
        raise InputError(f"{path} is damaged: it does not match its checksum; export it again.")
    return content


def facts_from(properties: dict[str, str], path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(properties.get(FACTS, ""))
    except ValueError:
        facts = None
    if not isinstance(facts, dict):
        raise InputError(f"{path} does not describe its network; export it again.")
    return facts


def _with_checksum(content: bytes, digest: str) -> bytes:
    place = list(_PLACE.finditer(content))[-1]
    return content[: place.start(1)] + digest.encode() + content[place.end(1) :]
