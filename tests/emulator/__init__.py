"""The CUDA sources on a CPU: compiled by the C++ compiler against emulator.h, every thread a fiber."""

from __future__ import annotations

import ctypes
import hashlib
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
OPTIONS = ("-O1", "-std=c++17", "-fPIC", "-w", "-U_FORTIFY_SOURCE")


class Emulator:
    """A backend of `wcapsnet.kernels.compile`. What it compiled lies in `folder`, named by its source."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._run(*OPTIONS, "-x", "c++-header", str(HERE / "emulator.h"), "-o", str(folder / "emulator.h.gch"))

    def compile(self, file: str, kernel: str, defines: tuple[str, ...]) -> Any:
        text = '#include "emulator.h"\n'  # first, or its precompiled form does not serve
        for define in defines:
            key, value = define.removeprefix("-D").split("=")
            text += f"#define {key} {0 if key in ('THREADS', 'BLOCKS') else value}\n"  # those are for NVRTC
        text += kernels.source(file)
        for name in kernels.structures(file):
            if f"{kernel}(ARGUMENTS({name})" in text:
                text += (
                    f"static const {name}* kept;\n"
                    f'extern "C" void run(const {name}* a, int x, int y, int z, int threads, int shared) {{\n'
                    f"    kept = a;\n    emulator::launch([] {{ {kernel}(*kept); }}, x, y, z, threads, shared);\n}}\n"
                )
        name = hashlib.sha256(text.encode()).hexdigest()[:16]
        path = self.folder / f"{name}.cpp"
        library = path.with_suffix(".so")
        if not library.exists():
            path.write_text(text)
            self._run(*OPTIONS, "-shared", f"-I{self.folder}", f"-I{HERE}", str(path), "-o", str(library))
        return ctypes.CDLL(str(library)).run

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
            wanted = list(kernels._rehearsed.values())
        finally:
            kernels._rehearsed = None
        with ThreadPoolExecutor() as pool:
            list(pool.map(kernels.function, wanted))

    def _run(self, *options: str) -> None:
        assert COMPILER is not None
        subprocess.run([COMPILER, *options], check=True)
