"""The CUDA sources on a CPU: compiled by the C++ compiler against emulator.h, every thread a fiber."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from wcapsnet.kernels import compile as kernels

HERE = Path(__file__).parent
COMPILER = shutil.which("g++") or shutil.which("clang++")


class Emulator:
    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="wcapsnet-emulator-"))

    def compile(self, file: str, kernel: str, defines: tuple[str, ...]) -> Any:
        text = f'#include "emulator.h"\n{kernels.source(file)}\n'
        for name in kernels.structures(file):
            if f"ARGUMENTS({name}) " in text and f"{kernel}(ARGUMENTS({name})" in text:
                text += (
                    f"static const {name}* kept;\n"
                    f'extern "C" void run(const {name}* a, int x, int y, int z, int threads, int shared) {{\n'
                    f"    kept = a;\n    emulator::launch([] {{ {kernel}(*kept); }}, x, y, z, threads, shared);\n}}\n"
                )
        name = hashlib.sha256((text + " ".join(defines)).encode()).hexdigest()[:16]
        path = self.folder / f"{name}.cpp"
        path.write_text(text)
        library = path.with_suffix(".so")
        subprocess.run(
            [COMPILER, "-O1", "-std=c++17", "-shared", "-fPIC", "-w", "-U_FORTIFY_SOURCE", f"-I{HERE}", *defines,
             str(path), "-o", str(library)],
            check=True,
        )  # fmt: skip
        return ctypes.CDLL(str(library)).run

    def launch(
        self, function: Any, grid: tuple[int, int, int], threads: int, shared: int, arguments: ctypes.Structure
    ) -> None:
        function(ctypes.byref(arguments), *grid, threads, shared)
