"""The CUDA sources on a CPU: compiled by the C++ compiler against emulator.h, every thread a fiber."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from wcapsnet.kernels import compile as kernels

HERE = Path(__file__).parent
COMPILER = (shutil.which("g++") or shutil.which("clang++")) if sys.platform == "linux" else None
TOGETHER = 8  # kernels of a library
Key = tuple[str, str, tuple[str, ...]]
OPTIONS = ("-O0", "-std=c++17", "-fPIC", "-w", "-U_FORTIFY_SOURCE")


class Emulator:
    """A backend of `wcapsnet.kernels.compile`. Compiled sources are in `folder`, named after their source."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ready: dict[Key, Any] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self._run(*OPTIONS, "-x", "c++-header", str(HERE / "emulator.h"), "-o", str(folder / "emulator.h.gch"))

    def compile(self, file: str, kernel: str, defines: tuple[str, ...]) -> Any:
        key = (file, kernel, defines)
        if key not in self.ready:
            self._compile([key])
        return self.ready[key]

    def launch(
        self, function: Any, grid: tuple[int, int, int], threads: int, shared: int, arguments: ctypes.Structure
    ) -> None:
        function(ctypes.byref(arguments), *grid, threads, shared)

    def compile_together(self, plays: Iterable[Callable[[], object]]) -> None:
        """All that these would launch, on all cores; nothing is launched."""
        kernels._rehearsed = {}
        try:
            for play in plays:
                play()
            wanted = sorted(key for key in kernels._rehearsed if key not in self.ready)
        finally:
            kernels._rehearsed = None
        groups = [list(some) for _, some in itertools.groupby(wanted, key=lambda key: key[0])]
        some = [group[start : start + TOGETHER] for group in groups for start in range(0, len(group), TOGETHER)]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(self._compile, sorted(some, key=len, reverse=True)))

    def _compile(self, keys: list[Key]) -> None:
        """Some kernels as one library: most of a compiler's time goes into beginning."""
        text = '#include "emulator.h"\n'  # first, or its precompiled form does not serve
        text += "".join(_kernel(*key, index) for index, key in enumerate(keys))
        path = self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.cpp"
        library = path.with_suffix(".so")
        if not library.exists():
            path.write_text(text, encoding="utf-8")
            self._run(*OPTIONS, "-shared", f"-I{self.folder}", f"-I{HERE}", str(path), "-o", str(library))
        loaded = ctypes.CDLL(str(library))
        for index, key in enumerate(keys):
            self.ready[key] = getattr(loaded, f"run{index}")

    def _run(self, *options: str) -> None:
        assert COMPILER is not None
        subprocess.run([COMPILER, *options], check=True)


def _kernel(file: str, kernel: str, defines: tuple[str, ...], index: int) -> str:
    """A source in a namespace of its own, and how to launch one of its kernels from outside."""
    source = kernels.source(file)
    (arguments,) = re.findall(rf"\b{kernel}\(ARGUMENTS\((\w+)\)", source)
    constants = [define.removeprefix("-D").split("=") for define in defines]
    own = re.sub(r"^#ifndef EMULATED$.*?^#endif$", "", source, flags=re.MULTILINE | re.DOTALL)
    ended = {name for name, _ in constants} | set(re.findall(r"^#define (\w+)", own, re.MULTILINE))
    return "\n".join(
        [
            *(f"#define {name} {value}" for name, value in constants),
            f"namespace kernel{index} {{",
            "using ::pack;",
            source,
            f"static const {arguments}* kept;",
            f'extern "C" void run{index}(const {arguments}* a, int x, int y, int z, int threads, int shared) {{',
            f"    kept = a;\n    emulator::launch([] {{ {kernel}(*kept); }}, x, y, z, threads, shared);",
            "}",
            "}",
            *(f"#undef {name}" for name in sorted(ended)),
            "",
        ]
    )
