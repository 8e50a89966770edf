"""Read any picture as numbers, identically for training and prediction."""

from __future__ import annotations

import re
import stat
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeAlias, TypeGuard, cast

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.Image import Transpose

from ..errors import InputError
from ..formatting import printable

if TYPE_CHECKING:  # pictures can be read without torch
    from torch import Tensor

IMAGE_SUFFIXES: frozenset[str] = frozenset({".png", ".jpg", ".jpeg", ".jfif", ".webp", ".bmp", ".gif", ".tif", ".tiff"})
# Pillow would also try formats that start external programs (EPS runs Ghostscript).
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
MAX_STREAM = 1 << 28  # bytes read from a pipe
_ORIENTATION = 0x0112  # EXIF tag
_UPRIGHT = {
    2: Transpose.FLIP_LEFT_RIGHT, 3: Transpose.ROTATE_180, 4: Transpose.FLIP_TOP_BOTTOM, 5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270, 7: Transpose.TRANSVERSE, 8: Transpose.ROTATE_90,
}  # fmt: skip

ImageSource: TypeAlias = "str | Path | bytes | BinaryIO | Image.Image | np.ndarray | Tensor"


class UnreadableImageError(InputError):
    """An unreadable picture; `reason` is the part of the message after the file name."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(printable(f"Cannot read the picture {name}: {reason}."))
        self.reason = reason


def read_image(
    source: ImageSource, *, channels: int, height: int, width: int, most_pixels: int | None = None
) -> np.ndarray:
    """One picture as uint8 (ch, h, w). A picture with more than `most_pixels` is refused, as by Pillow's own limit.

    The picture is rotated according to its EXIF data, composited on white where it is transparent (as drawings and
    logos expect), converted to 8 bits, resized with an antialiasing filter until it covers height x width, and
    cropped to its centre. A picture that already has this size is unchanged. Of an animation, the first frame is used.
    """
    with _opened(source, most_pixels) as image:
        image.load()  # first: Pillow applies the orientation of TIFFs while loading, and then drops the tag
        turn = _UPRIGHT.get(_orientation(image))
        picture = _eight_bit(image if turn is None else image.transpose(turn)).convert("L" if channels == 1 else "RGB")
        if picture.size != (width, height):
            picture = ImageOps.fit(picture, (width, height), method=Image.Resampling.LANCZOS)
        pixels = np.asarray(picture, dtype=np.uint8).reshape(height, width, channels)
        return np.ascontiguousarray(pixels.transpose(2, 0, 1))


class ImageHeader(NamedTuple):
    """Size and colour of a picture, from its header where possible."""

    height: int
    width: int
    color: bool


def read_header(source: ImageSource, *, look_for_color: bool) -> ImageHeader:
    """Height and width after rotation, and whether there is colour.

    Gray pictures are often stored as RGB, so a small version of the pixels is checked for colour.
    """
    with _opened(source) as image:
        width, height = image.size
        turned = _orientation(image) >= 5
        color = look_for_color and _has_color(image)
    return ImageHeader(width, height, color) if turned else ImageHeader(height, width, color)


def image_files(path: Path) -> list[Path]:
    """The pictures under a folder, recognised by suffix, in natural order; a single file is used as it is.

    Hidden files and folders are skipped. Links are followed, each folder once.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputError(f"There is no file or folder {path}: check the path.")
    found: list[Path] = []
    _collect(path, found, set())
    return sorted(found, key=lambda file: [natural_key(part) for part in file.relative_to(path).parts])


def is_hidden(path: Path) -> bool:
    """Hidden by name, or the folder macOS adds to its archives (its ._ files look like pictures)."""
    return path.name.startswith(".") or path.name == "__MACOSX"


def natural_key(name: str) -> tuple[list[tuple[int, int, str]], str]:
    """Sorts "2" before "10", and digits before letters; the name itself settles ties such as "1" and "01"."""
    pieces = re.findall(r"([0-9]+)|([^0-9]+)", name)
    return [(0, int(digits), "") if digits else (1, 0, text.casefold()) for digits, text in pieces], name


def _collect(folder: Path, found: list[Path], visited: set[Path]) -> None:
    real = folder.resolve()
    if real in visited:  # avoids infinite recursion through links
        return
    visited.add(real)
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise InputError(f"Cannot list the folder {folder}: {error.strerror}; check its permissions.") from error
    for entry in entries:
        if is_hidden(entry):
            continue
        if entry.is_dir():
            _collect(entry, found, visited)
        elif entry.suffix.lower() in IMAGE_SUFFIXES and not entry.is_fifo():  # a pipe may never be written to
            found.append(entry)


@contextmanager
def _opened(source: ImageSource, most_pixels: int | None = None) -> Iterator[Image.Image]:
    """Open a picture; any error while it is used becomes an `UnreadableImageError`."""
    name = _name(source)
    with _PILLOW_QUIET:
        try:
            with _open(source, name) as image:
                _refuse_bomb(image, name, most_pixels)
                yield image
        except InputError:
            raise
        except Exception as error:  # Pillow's decoders raise all kinds of exceptions on broken bytes
            raise UnreadableImageError(name, _reason(error)) from error


def _name(source: ImageSource) -> str:
    if isinstance(source, (str, Path)):
        return str(source)
    return str(getattr(source, "filename", None) or getattr(source, "name", None) or "given as data")


def _open(source: ImageSource, name: str) -> Image.Image:
    if isinstance(source, Image.Image):
        return source.copy()  # leave the caller's picture open and unchanged
    if isinstance(source, np.ndarray) or is_tensor(source):
        return from_array(source)
    if isinstance(source, (str, Path)):
        path = Path(source)
        try:
            status = path.stat()
        except FileNotFoundError:
            raise UnreadableImageError(name, "there is no such file") from None
        if stat.S_ISDIR(status.st_mode):
            raise UnreadableImageError(name, "it is a folder")
        if stat.S_ISREG(status.st_mode):
            if status.st_size == 0:
                raise UnreadableImageError(name, "the file is empty")
            return Image.open(path, formats=_FORMATS)
        if not stat.S_ISFIFO(status.st_mode):
            raise UnreadableImageError(name, "it is neither a file nor a pipe")
        with path.open("rb") as pipe:
            source = read_stream(pipe, name)
    if isinstance(source, bytes):
        if not source:
            raise UnreadableImageError(name, "it is empty")
        return Image.open(BytesIO(source), formats=_FORMATS)
    if not hasattr(source, "read"):
        kind = type(source).__name__
        raise UnreadableImageError(name, f"{kind} is not a file name, open file, bytes, PIL image, array or tensor")
    return Image.open(cast(BinaryIO, source), formats=_FORMATS)


def is_tensor(value: object) -> TypeGuard[Tensor]:
    torch = sys.modules.get("torch")  # where it is not loaded, there are no tensors
    return torch is not None and isinstance(value, torch.Tensor)


def from_array(source: np.ndarray | Tensor) -> Image.Image:
    """Arrays (h, w) or (h, w, ch), tensors (h, w) or (ch, h, w): bytes, or floats from 0 to 1."""
    if is_tensor(source):
        kind, layout, cpu = "A tensor", "(ch, h, w)", source.detach().cpu()
        values = (cpu.float() if cpu.is_floating_point() else cpu).numpy()
        values = values.transpose(1, 2, 0) if cpu.ndim == 3 else values
    else:
        kind, layout, values = "An array", "(h, w, ch)", cast(np.ndarray, source)
    shape, colors = tuple(source.shape), values.shape[2] if values.ndim == 3 else 1
    if values.ndim not in (2, 3) or colors not in (1, 3, 4) or (values.dtype != np.uint8 and values.dtype.kind != "f"):
        raise InputError(
            f"{kind} must be of shape (h, w) or {layout} with 1, 3 or 4 channels, in uint8 or float, "
            f"not {values.dtype} {shape}."
        )
    if values.size == 0:
        raise InputError(f"{kind} of shape {shape} has no pixels.")
    if values.dtype != np.uint8:
        scaled = np.rint(values * 255.0)
        if not (scaled.min() >= 0 and scaled.max() <= 255):  # also if one is NaN
            low, high = values.min(), values.max()
            raise InputError(f"{kind} of floats must hold values from 0 to 1, not from {low:g} to {high:g}.")
        values = scaled.astype(np.uint8)
    return Image.fromarray(values[:, :, 0] if values.ndim == 3 and colors == 1 else values)


def read_stream(stream: BinaryIO, name: str) -> bytes:
    """All bytes of a pipe, if it ends."""
    data = stream.read(MAX_STREAM + 1)
    if len(data) > MAX_STREAM:
        raise UnreadableImageError(name, f"it holds more than {MAX_STREAM >> 20} MB")
    return data


def _refuse_bomb(image: Image.Image, name: str, most_pixels: int | None) -> None:
    # Pillow only warns up to twice its limit; a few such pictures at once fill the memory
    limit = min((n for n in (Image.MAX_IMAGE_PIXELS, most_pixels) if n is not None), default=None)
    if image.width * image.height == 0:
        raise UnreadableImageError(name, "it has no pixels")
    if limit is not None and image.width * image.height > limit:
        raise UnreadableImageError(name, f"its {image.width} x {image.height} pixels exceed the limit of {limit}")


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # damaged metadata does not affect the pixels
        return 1


def _eight_bit(image: Image.Image) -> Image.Image:
    """Convert any mode to opaque 8-bit gray or colour."""
    if image.mode.startswith("I;16"):
        return _from_16_bit(np.asarray(image))
    if image.mode == "I":  # 16-bit PNGs in older Pillows, 32-bit TIFFs in all
        values = np.asarray(image)
        in_16_bit = values.min() >= 0 and values.max() <= 65535
        return _from_16_bit(values) if in_16_bit else _from_range(values)
    if image.mode == "F":
        return _from_float(np.asarray(image))
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return image if image.mode in ("L", "RGB") else image.convert("L" if image.mode == "1" else "RGB")


def _from_16_bit(values: np.ndarray) -> Image.Image:
    # 65535 = 255 · 257, so this maps white to white and keeps the full range, where convert() would clip
    return Image.fromarray(((values.astype(np.uint32) + 128) // 257).astype(np.uint8))


def _from_float(values: np.ndarray) -> Image.Image:
    """Floats have no fixed scale: [0, 1] and [0, 255] are used as they are; any other range is stretched."""
    if not np.isfinite(values).all():  # before the conversion, which warns about some NaNs
        raise ValueError("it holds NaN or infinite values")
    values = values.astype(np.float64)
    if values.min() < 0 or values.max() > 255:
        return _from_range(values)
    scale = 255.0 if values.max() <= 1 else 1.0
    return Image.fromarray(np.rint(values * scale).astype(np.uint8))


def _from_range(values: np.ndarray) -> Image.Image:
    values = values.astype(np.float64)
    low, high = values.min(), values.max()
    stretched = (values - low) * (255.0 / (high - low if high > low else 1.0))
    return Image.fromarray(np.rint(stretched).astype(np.uint8))


def _has_color(image: Image.Image, tolerance: int = 16) -> bool:
    """Whether red, green and blue differ anywhere by more than the noise of JPEG's colour planes."""
    if image.mode in ("1", "L", "LA", "La", "F", "I") or image.mode.startswith("I;16"):
        return False
    image.draft("RGB", (64, 64))  # JPEGs decode at the small size; other formats ignore this
    image.thumbnail((64, 64))
    pixels = np.asarray(_eight_bit(image).convert("RGB"), dtype=np.int16)
    return bool((pixels.max(axis=2) - pixels.min(axis=2)).max() > tolerance)


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "it is not a picture in a known format (PNG, JPEG, WebP, BMP, GIF or TIFF), or it is damaged"
    if isinstance(error, Image.DecompressionBombError):
        return "it has more pixels than Pillow's limit for safe decoding"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split()).rstrip(".")


class _PillowQuiet:
    """Silences Pillow's warnings about odd files while at least one thread is inside.

    `warnings.catch_warnings` alone restores the wrong filters when threads do not leave in the reverse order of entry;
    here the first thread in saves them and the last one out restores them.
    """

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._saved = warnings.catch_warnings()
                self._saved.__enter__()
                warnings.filterwarnings("ignore", module=r"PIL\.")
            self._inside += 1

    def __exit__(self, *error: Any) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._saved.__exit__(*error)


_PILLOW_QUIET = _PillowQuiet()
