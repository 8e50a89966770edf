"""Compile CUDA sources to launchable functions, using only NVRTC (included with PyTorch) and the driver.

No compiler has to be installed. Compiled kernels are cached on disk; later starts only load them.
"""

from __future__ import annotations

import ctypes
import functools
import glob
import hashlib
import os
import re
import site
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import torch

from .. import cache
from ..atomic import replacing
from ..errors import InputError

SOURCES = Path(__file__).parent / "cuda"
TYPES = {
    "int": ctypes.c_int,
    "bool": ctypes.c_bool,
    "float": ctypes.c_float,
    "unsigned": ctypes.c_uint,
    "long long": ctypes.c_longlong,
}


LARGEST_SHARED = 99 * 1024  # bytes a block may use: available on every GPU since Ampere


def largest_shared() -> int:
    """Bytes of shared memory available to a block on this GPU."""
    if not torch.cuda.is_available():
        return LARGEST_SHARED
    properties: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
    return int(getattr(properties, "shared_memory_per_block_optin", LARGEST_SHARED))  # known since PyTorch 2.7


class Unavailable(Exception):
    """Why kernels cannot be compiled or run here, as the end of a sentence."""


# ── structures ──────────────────────────────────────────────────────────────────────────────────────────────────────


def source(name: str) -> str:
    """A source with its includes, each file once."""
    seen: set[str] = set()

    def expand(name: str) -> str:
        if name in seen:
            return ""
        seen.add(name)
        text = (SOURCES / name).read_text(encoding="utf-8")
        return re.sub(r'^#include "(.+)"$', lambda match: expand(match[1]), text, flags=re.MULTILINE)

    return expand(name)


@functools.cache
def structures(name: str) -> dict[str, type[ctypes.Structure]]:
    """The structs of a source as ctypes, so that they are defined only in the source."""
    text = re.sub(r"//.*", "", source(name))
    constants = {key: int(value) for key, value in re.findall(r"^#define (\w+) (\d+)$", text, re.MULTILINE)}
    found: dict[str, type[ctypes.Structure]] = {}
    for struct, body in re.findall(r"struct (\w+) \{(.*?)\};", text, re.DOTALL):
        fields: list[tuple[str, Any]] = []
        for declared, field, count in re.findall(r"([\w\s]+\*?)\s+(\w+)(?:\[(\w+)\])?;", body):
            declared = declared.strip()
            kind: Any = ctypes.c_void_p if declared.endswith("*") else found.get(declared) or TYPES[declared]
            if count:
                kind = kind * (constants[count] if count in constants else int(count))
            fields.append((field, kind))
        found[struct] = type(struct, (ctypes.Structure,), {"_fields_": fields})
    return found


# ── compiling and launching ─────────────────────────────────────────────────────────────────────────────────────────


class Backend(Protocol):
    """Compiles and runs kernels: CUDA, or the tests' emulator."""

    def compile(self, file: str, kernel: str, defines: tuple[str, ...]) -> Any: ...

    def launch(
        self, function: Any, grid: tuple[int, int, int], threads: int, shared: int, arguments: ctypes.Structure
    ) -> None: ...


class Kernel:
    """One kernel of one source with its compile-time constants."""

    def __init__(self, file: str, kernel: str, **defines: int):
        self.file, self.kernel = file, kernel
        self.defines = tuple(f"-D{name}={value}" for name, value in sorted(defines.items()))

    def key(self) -> tuple[str, str, tuple[str, ...]]:
        return self.file, self.kernel, self.defines

    def __call__(self, grid: tuple[int, int, int], threads: int, shared: int, arguments: ctypes.Structure) -> None:
        if _rehearsed is not None:
            _rehearsed[self.key()] = self
            return
        backend.launch(function(self), grid, threads, shared, arguments)


_functions: dict[Any, Any] = {}


def function(kernel: Kernel) -> Any:
    # The backend itself, not its id, which another object may reuse later.
    place = (backend, torch.cuda.current_device() if isinstance(backend, Cuda) else None, kernel.key())
    if place not in _functions:
        _functions[place] = backend.compile(*kernel.key())
    return _functions[place]


class Cuda:
    """NVRTC compiles, the driver launches, in PyTorch's context and on its stream."""

    def __init__(self) -> None:
        self.nvrtc = _nvrtc()
        try:
            self.driver = ctypes.CDLL("libcuda.so.1" if sys.platform != "win32" else "nvcuda.dll")
        except OSError as error:
            raise Unavailable("the CUDA driver was not found") from error

    def compile(self, file: str, kernel: str, defines: tuple[str, ...]) -> Any:
        image = self.binary(file, defines)
        module, found = ctypes.c_void_p(), ctypes.c_void_p()
        self._check(self.driver.cuModuleLoadData(ctypes.byref(module), image))
        self._check(self.driver.cuModuleGetFunction(ctypes.byref(found), module, kernel.encode()))
        self._check(self.driver.cuFuncSetAttribute(found, 8, largest_shared()))  # as much as available
        return found

    def binary(self, file: str, defines: tuple[str, ...]) -> bytes:
        """The compiled source, from the disk cache if possible."""
        text, options, kept = self._wanted(file, defines)
        try:
            if kept is not None:
                return kept.read_bytes()
        except OSError:
            pass
        image = compile_source(self.nvrtc, text, file, options)
        try:
            if kept is not None:
                with replacing(kept) as partial:
                    partial.write_bytes(image)
        except OSError:
            pass  # without a cache, the next start compiles again
        return image

    def is_kept(self, file: str, defines: tuple[str, ...]) -> bool:
        kept = self._wanted(file, defines)[2]
        return kept is not None and kept.is_file()

    def _wanted(self, file: str, defines: tuple[str, ...]) -> tuple[str, tuple[str, ...], Path | None]:
        """The source, the compiler options, and the cache file."""
        major, minor = torch.cuda.get_device_capability()
        options = (
            f"--gpu-architecture=sm_{major}{minor}",
            "--std=c++17",
            "--use_fast_math",
            "-default-device",
            *defines,
        )
        text, folder = source(file), cache.directory()
        name = hashlib.sha256("\n".join((text, *options, self._version())).encode()).hexdigest()[:32]
        return text, options, folder / "kernels" / f"{Path(file).stem}-{name}.cubin" if folder else None

    def _version(self) -> str:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"

    def launch(
        self, function: Any, grid: tuple[int, int, int], threads: int, shared: int, arguments: ctypes.Structure
    ) -> None:
        if shared > LARGEST_SHARED and shared > largest_shared():
            raise InputError(f"The fused kernels need {shared} bytes of shared memory here; choose --kernels plain.")
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self._check(self.driver.cuLaunchKernel(function, *grid, threads, 1, 1, shared, stream, pointers, None))

    def _check(self, status: int) -> None:
        if status:
            message = ctypes.c_char_p()
            self.driver.cuGetErrorString(status, ctypes.byref(message))
            raise RuntimeError(f"CUDA: {(message.value or b'unknown error').decode()} ({status})")


def compile_source(nvrtc: ctypes.CDLL, text: str, name: str, options: tuple[str, ...]) -> bytes:
    program = ctypes.c_void_p()
    if nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), name.encode(), 0, None, None):
        raise Unavailable("NVRTC does not work")
    try:
        flags = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        size = ctypes.c_size_t()
        if nvrtc.nvrtcCompileProgram(program, len(options), flags):
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            nvrtc.nvrtcGetProgramLog(program, log)
            raise RuntimeError(f"{name} does not compile:\n{log.value.decode()}")
        nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
        image = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetCUBIN(program, image)
        return image.raw
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _nvrtc() -> ctypes.CDLL:
    """The version PyTorch was built with, or any other: they are in the packages next to torch."""
    major = (torch.version.cuda or "").split(".")[0]
    folders = [*site.getsitepackages(), site.getusersitepackages(), str(Path(torch.__file__).parents[1])]
    places = [
        *(f"{folder}/nvidia/*/lib/libnvrtc.so.{major}*" for folder in folders),
        *(f"{folder}/torch/lib/libnvrtc*.so*" for folder in folders),
        *(f"{folder}/nvidia/*/lib/libnvrtc.so.*" for folder in folders),
        f"{os.environ.get('CUDA_HOME', '/usr/local/cuda')}/lib64/libnvrtc.so",
    ]
    found = [
        path for place in places for path in sorted(glob.glob(place)) if "alt" not in path and "builtins" not in path
    ]
    for name in (*found, f"libnvrtc.so.{major}", "libnvrtc.so"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise Unavailable("NVRTC, which is part of PyTorch's CUDA builds, was not found")


backend: Backend  # set by `start` or by the tests


def start(chosen: Backend | None = None) -> None:
    global backend
    backend = chosen or Cuda()


_rehearsed: dict[Any, Kernel] | None = None
tell: Callable[[str], object] | None = None  # prints a progress message


def rehearse(play: Callable[[], object]) -> None:
    """Compile everything that `play` would launch, at once and on all cores, without launching anything."""
    global _rehearsed
    if not isinstance(backend, Cuda):
        return
    _rehearsed = {}
    try:
        play()
        wanted = list(_rehearsed.values())
    finally:
        _rehearsed = None
    device, nvrtc = torch.cuda.current_device(), backend

    def one(key: tuple[str, tuple[str, ...]]) -> None:
        torch.cuda.set_device(device)
        nvrtc.binary(*key)

    keys = {(kernel.file, kernel.defines) for kernel in wanted}
    missing = sum(not nvrtc.is_kept(*key) for key in keys)
    if tell and missing > 8:
        tell(f"Compiling {missing} GPU kernels, only once for this kind of network …")
    with ThreadPoolExecutor() as pool:
        list(pool.map(one, keys))
    for kernel in wanted:
        function(kernel)
