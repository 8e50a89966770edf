"""JavaScript modules as one script: a page opened from disk cannot load others."""

from __future__ import annotations

import re
from collections.abc import Mapping

# The two forms of import and the four of export that our modules use
_IMPORT = re.compile(r'^import (?:\* as (\w+)|\{ ([^}]+) \}) from "\./([\w.]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async function|function|class|const) (\w+))", re.MULTILINE)
_OTHER = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)


def bundle(modules: Mapping[str, str], entry: str) -> str:
    """One script from modules by file name: each becomes a function that returns its exports, after what it imports."""
    written: dict[str, str] = {}
    _write(modules, entry, written, ())
    return "\n".join(written.values())


def _write(modules: Mapping[str, str], name: str, written: dict[str, str], parents: tuple[str, ...]) -> None:
    if name in parents:
        raise ValueError(f"{name} imports itself, through {' and '.join(parents)}")
    text = modules[name]
    for _, _, imported in _IMPORT.findall(text):
        if imported not in written:
            _write(modules, imported, written, (*parents, name))
    exports = [found for _, found in _EXPORT.findall(text)]
    body = _EXPORT.sub(r"\1", _IMPORT.sub(_constant, text))
    if odd := _OTHER.search(body):
        raise ValueError(f"{name}: cannot bundle {odd[0]!r}")
    written[name] = f"const {_variable(name)} = (() => {{\n{body}\nreturn {{ {', '.join(exports)} }};\n}})();"


def _constant(found: re.Match[str]) -> str:
    whole, names, module = found.groups()
    return f"const {whole or '{ ' + names.replace(' as ', ': ') + ' }'} = {_variable(module)};"


def _variable(module: str) -> str:
    return re.sub(r"\W", "_", f"module_{module}")
