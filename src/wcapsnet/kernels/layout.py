"""Memory layout of tensors, and how thread blocks cover them, as in the CUDA sources."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from .compile import LARGEST_SHARED, Unavailable, structures

STRUCTURES = {
    file: structures(file) for file in ("convolve.cu", "pull.cu", "finish.cu", "weigh.cu", "vectors.cu", "block.cu")
}
AS_IT_IS, ACTIVATED, MASKED, BIASED, NORMED = range(5)  # epilogues of `convolve`
MULTIPROCESSORS = 132  # number that a launch should roughly fill; smaller GPUs are filled more easily


def build(kind: type[ctypes.Structure], **values: Any) -> Any:
    """A ctypes structure from keywords; tensors become their addresses."""
    kinds: Any = {field[0]: field[1] for field in kind._fields_}
    for name, value in values.items():
        if isinstance(value, Tensor):
            values[name] = value.data_ptr()
        elif isinstance(value, list):
            values[name] = kinds[name](*value)
        elif name not in kinds:
            raise TypeError(f"{kind.__name__} has no {name}")
    return kind(**values)


@dataclass(frozen=True)
class Where:
    """Strides, in elements, of chunks of eight channels (View in the sources)."""

    data: int
    chunk: int
    image: int
    capsule: int
    position: int

    def view(self, file: str) -> Any:
        return STRUCTURES[file]["View"](self.data, self.chunk, self.image, self.capsule, self.position)

    def on(self, tensor: Tensor) -> Where:
        return replace(self, data=tensor.data_ptr())


NOWHERE = Where(0, 0, 0, 0, 0)


def grown_layout(buffer: Tensor, first: int = 0) -> Where:
    """(chunk, m, n, position, 8)"""
    _, _, n, positions, _ = buffer.shape
    address = buffer.data_ptr() + 2 * first * buffer.stride(0)
    return Where(address, buffer.stride(0), n * positions * 8, positions * 8, 8)


def map_layout(x: Tensor) -> Where:
    """(m, position, channel), or (chunk, m, position, 8); the same for every capsule"""
    if x.dim() == 4:
        return Where(x.data_ptr(), x.stride(0), x.stride(1), 0, 8)
    return Where(x.data_ptr(), 8, x.stride(0), 0, x.stride(1))


def capsule_layout(c: Tensor) -> Where:
    """(m, n, position, channel)"""
    return Where(c.data_ptr(), 8, c.stride(0), c.stride(1), c.stride(2))


@dataclass(frozen=True)
class Tiling:
    """How thread blocks cover the maps of a batch (Tile in the sources)."""

    images: int
    height: int
    width: int
    taps: int
    rows_a_warp: int
    rows: int
    per_block: int
    shift: bool = False

    @property
    def strip_log(self) -> int:
        return min(3, (self.width - 1).bit_length())

    @property
    def strips(self) -> int:
        return max(1, -(-self.width // 8))

    @property
    def units(self) -> int:
        return self.per_block // (8 >> self.strip_log) * self.strips * (self.rows // self.rows_a_warp)

    @property
    def warps(self) -> int:
        return -(-self.units // 2)

    @property
    def made_positions(self) -> int:
        """Tiles of the gradient in `weigh`: whole strips, with a border if it is shifted."""
        return self.per_block * self.rows * ((self.strips << self.strip_log) + 2 * self.shift)

    @property
    def threads(self) -> int:
        """At least four warps: those without a product to compute help with loading."""
        return 32 * max(4, self.warps)

    @property
    def tiles(self) -> int:
        return -(-self.height // self.rows)

    @property
    def positions(self) -> int:
        wide = self.strips << self.strip_log if self.shift else self.width + self.taps - 1
        return self.per_block * (self.rows + self.taps - 1) * wide

    @property
    def blocks(self) -> int:
        return -(-self.images // self.per_block) * self.tiles

    def defines(self) -> dict[str, int]:
        return {
            "HEIGHT": self.height,
            "WIDTH": self.width,
            "TAPS": self.taps,
            "ROWS": self.rows_a_warp,
            "TILE_ROWS": self.rows,
            "PER_BLOCK": self.per_block,
            "SHIFT": int(self.shift),
        }


def tiling(
    images: int, height: int, width: int, taps: int, others: int, bytes_a_position: int, most_rows: int = 4,
    shift: bool = False, beside: int = 0,
) -> Tiling:  # fmt: skip
    """Tiles that fit shared memory, with several images per block if maps are small and there are enough images.
    `beside`: bytes that a thread block needs for other things, if they are more than 8192."""
    room = LARGEST_SHARED - max(8192, beside)
    enough = 8 * MULTIPROCESSORS  # warps
    about = 1 << (images.bit_length() - 1)  # so that batches of similar size use the same kernels
    least = 8 >> min(3, (width - 1).bit_length())

    def with_rows(rows_a_warp: int, rows: int, per_block: int) -> Tiling:
        return Tiling(images, height, width, taps, rows_a_warp, rows, per_block, shift)

    def fits(t: Tiling) -> bool:
        return t.positions * bytes_a_position <= room and t.warps <= 8

    for rows_a_warp in (4, 2, 1):
        groups = -(-height // rows_a_warp)
        if rows_a_warp > 1 and (
            rows_a_warp > min(height, most_rows) or about * others * groups * -(-width // 8) < 2 * enough
        ):
            continue
        chosen = with_rows(rows_a_warp, rows_a_warp * groups, least)
        while not fits(chosen) and groups > 1:
            groups = -(-groups // 2)
            chosen = with_rows(rows_a_warp, rows_a_warp * groups, least)
        if fits(chosen):
            break
    else:
        raise Unavailable(f"a map {width} wide does not fit into shared memory")
    while True:
        larger = with_rows(chosen.rows_a_warp, chosen.rows, chosen.per_block * 2)
        if (
            larger.warps > 4
            or not fits(larger)
            or about // larger.per_block * larger.tiles * others < 2 * MULTIPROCESSORS
        ):
            return chosen
        chosen = larger


def occupancy(threads: int, shared: int, registers: int) -> dict[str, int]:
    """The number of blocks of this many threads that a multiprocessor can hold, so that the compiler knows how many
    registers are free; leaves at least `registers` per thread."""
    blocks = min(220 * 1024 // (shared + 1024), 65536 // (threads * registers), 16)
    return {"THREADS": threads, "BLOCKS": max(1, blocks)}


def registers(tile: Tiling, columns: int) -> int:
    """The shared memory of `convolve`: sums, weights (twice, if prefetched), and workspace."""
    sums = tile.rows_a_warp * columns * 4 * (tile.taps if tile.shift else 1)
    weights = tile.taps**2 * columns * 2 * (1 if tile.shift else 2)
    return max(72, sums + weights + 32)


@dataclass(frozen=True)
class Layer:
    """One convolution as the kernels see it (Input and Weights in the sources)."""

    before: int  # channels from before the block
    growth: int
    earlier: int  # earlier layers of the block that it also reads
    out: int
    kernel: int
    pad: int
    stride: int
    to_one: bool = False  # the output is a single position: only the middle tap on patches is used
    patched: bool = False  # the backward pass of a convolution on patches: its taps

    @property
    def taps(self) -> int:
        if self.pad and not self.to_one:
            return 3 if self.stride == 1 and not self.patched else 2
        return 1

    @property
    def low(self) -> int:
        return 0 if self.to_one else -self.pad

    @property
    def grown_chunks(self) -> int:
        return -(-self.growth // 8)

    @property
    def before_chunks(self) -> int:
        return -(-self.before // 8)

    @property
    def split(self) -> int:
        return self.before_chunks * self.stride**2

    @property
    def chunks(self) -> int:
        return self.split + self.earlier * self.grown_chunks

    @property
    def channels(self) -> int:
        return self.before + self.earlier * self.growth

    @property
    def out_chunks(self) -> int:
        return -(-self.out // 8)

    @property
    def columns(self) -> int:
        return min(self.out_chunks, 4)

    @property
    def even(self) -> int:
        return -(-self.chunks // 2) * 2

    @property
    def pitch(self) -> int:
        """Bytes of one position in shared memory."""
        return (self.even + 1) * 16

    @property
    def beside(self) -> int:
        """Bytes of shared memory beside a tile: for the norm, and for the sums of up to 8 warps and 8 chunks."""
        return self.even * 64 + 4096

    def shift(self, width: int) -> bool:
        """Taps of a row are combined in registers if a warp holds a whole row."""
        return self.taps == 3 and width <= 16

    def check(self, width: int) -> None:
        """Whether the smallest tile of a map this wide fits, together with the gradient."""
        room = self.pitch + 16 * self.columns
        tiling(1, 1, width, self.taps, 1, room, shift=self.shift(width), beside=self.beside)

    def defines(self, norm: nn.Module | None, tile: Tiling, read: Any) -> dict[str, int]:
        """`read`: the Input covered by these tiles."""
        divided = (read.height, read.width) == (tile.height * self.stride, tile.width * self.stride)
        return {
            "BEFORE": self.before_chunks,
            "STRIDE": self.stride,
            "GROWN": self.grown_chunks,
            "EVEN": self.even,
            "NORM": int(norm is not None),
            "DIVIDED": int(divided),
        }

    @property
    def sums_size(self) -> int:
        return self.even // 2 * self.out_chunks * self.taps**2 * 128

    @property
    def forward_size(self) -> int:
        return -(-self.chunks // 2) * self.taps**2 * self.out_chunks * 64

    def transposed_size(self, capsules: int) -> int:
        return -(-capsules * self.out_chunks // 2) * self.taps**2 * self.chunks * 64

    @property
    def backward_size(self) -> int:
        made = -(-self.out_chunks // 2) * 2 if self.taps == 1 else self.out_chunks
        return self.chunks * made * self.taps**2 * 32


def norm_arguments(norm: nn.Module) -> dict[str, Any]:
    return {
        "gamma": norm.weight,
        "beta": norm.bias,
        "running_mean": norm.running_mean,
        "running_var": norm.running_var,
        "eps": norm.eps,
        "momentum": norm.momentum,
    }


@dataclass(frozen=True)
class SumsAt:
    """The location of the sums of some channels (Statistics in the sources)."""

    sum: int
    square: int
    capsule: int

    def addresses(self) -> tuple[int, int, int]:
        return self.sum, self.square, self.capsule


def means(file: str, readers: list[Any], repeats: int, channel: int, channels: int, sums: SumsAt, count: int) -> Any:
    own = STRUCTURES[file]
    return build(
        own["Means"],
        reader=readers,
        readers=len(readers),
        repeats=repeats,
        channel=channel,
        channels=channels,
        statistics=own["Statistics"](*sums.addresses()),
        count=count,
        eps=1e-5,
    )
