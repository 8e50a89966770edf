"""One way of turning pictures into numbers, for every kind of picture."""

from __future__ import annotations

import contextlib
import io
import os
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from data_helpers import noise
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from wcapsnet.data import decode as module
from wcapsnet.data import image_files, read_image
from wcapsnet.errors import InputError


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def read(source: object, channels: int = 3, size: tuple[int, int] = (20, 20)) -> np.ndarray:
    return read_image(source, channels=channels, height=size[0], width=size[1])


def planar(image: Image.Image) -> np.ndarray:
    return np.asarray(image.convert("RGB")).transpose(2, 0, 1)


LOSSLESS = [("PNG", {}), ("BMP", {}), ("TIFF", {}), ("TIFF", {"compression": "tiff_lzw"}), ("WEBP", {"lossless": True})]


@pytest.mark.parametrize(("kind", "options"), LOSSLESS)
def test_a_picture_of_the_right_size_keeps_every_bit(kind, options):
    image = noise(1)
    assert np.array_equal(read(saved(image, kind, **options)), planar(image))


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "GIF"])
def test_gray_keeps_every_bit_also_when_stored_or_asked_for_as_colour(kind):
    gray = noise(2, "L")
    pixels = np.asarray(gray)
    data = saved(gray, kind)
    assert np.array_equal(read(data, channels=1), pixels[None])
    assert np.array_equal(read(data, channels=3), np.stack([pixels] * 3))
    assert np.array_equal(read(saved(gray.convert("RGB"), "PNG"), channels=1), pixels[None])


def test_every_source_gives_the_same(tmp_path):
    image = noise(4, size=(31, 17))
    path = tmp_path / "ein Bild ü.png"
    image.save(path)
    expected = read(path, size=(8, 8))
    assert expected.shape == (3, 8, 8)
    assert expected.dtype == np.uint8
    assert expected.flags.c_contiguous
    with path.open("rb") as stream:
        sources = [str(path), path.read_bytes(), stream, image]
        assert all(np.array_equal(read(source, size=(8, 8)), expected) for source in sources)
    image.load()  # still open and as it was
    assert image.size == (31, 17)


def test_transparency_lies_on_white():
    rgba = Image.new("RGBA", (20, 20), (200, 0, 0, 0))
    rgba.paste((0, 0, 0, 255), (0, 0, 10, 20))  # left half black and opaque, right half unseen red
    for data in (saved(rgba, "PNG"), saved(rgba, "WEBP", lossless=True), saved(rgba, "TIFF"), rgba):
        pixels = read(data)
        assert (pixels[:, :, :10] == 0).all()
        assert (pixels[:, :, 10:] == 255).all()
    half = Image.new("RGBA", (20, 20), (0, 0, 0, 128))
    assert (np.abs(read(half).astype(int) - 127) <= 1).all()
    gray = Image.new("LA", (20, 20), (0, 0))
    assert (read(saved(gray, "PNG"), channels=1) == 255).all()


def test_transparent_palettes_and_colour_keys():
    palette = Image.new("P", (20, 20), 0)
    palette.putpalette([0, 0, 255, 255, 0, 0])
    palette.paste(1, (0, 0, 20, 10))
    plain = read(saved(palette, "PNG"))
    assert plain[:, 0, 0].tolist() == [255, 0, 0]
    assert plain[:, 19, 0].tolist() == [0, 0, 255]
    for data in (
        saved(palette, "PNG", transparency=0),
        saved(palette, "GIF", transparency=0),
        saved(palette, "PNG", transparency=bytes([0, 255])),
    ):
        pixels = read(data)
        assert pixels[:, 0, 0].tolist() == [255, 0, 0]
        assert pixels[:, 19, 0].tolist() == [255, 255, 255]
    key = Image.new("RGB", (20, 20), (1, 2, 3))
    assert (read(saved(key, "PNG", transparency=(1, 2, 3))) == 255).all()
    dark = Image.new("L", (20, 20), 7)
    assert (read(saved(dark, "PNG", transparency=7), channels=1) == 255).all()


def test_one_bit_and_cmyk():
    bits = noise(5, "L").convert("1")
    for kind in ("PNG", "TIFF", "BMP"):
        assert np.array_equal(read(saved(bits, kind), channels=1), np.asarray(bits).astype(np.uint8)[None] * 255)
    cyan = Image.new("CMYK", (20, 20), (255, 0, 0, 0))
    for kind in ("TIFF", "JPEG"):
        assert np.abs(read(saved(cyan, kind))[:, 5, 5].astype(int) - [0, 255, 255]).max() < 10


@pytest.mark.parametrize("order", ["<u2", ">u2"])
def test_16_bit_gray_is_scaled_not_clipped(order):
    values = np.linspace(0, 65535, 400).round().reshape(20, 20).astype(np.uint16)
    expected = np.rint(values / 257).astype(np.uint8)
    mode = "I;16" if order == "<u2" else "I;16B"
    image = Image.frombytes(mode, (20, 20), values.astype(order).tobytes())
    assert np.array_equal(read(image, channels=1)[0], expected)
    assert np.array_equal(read(saved(image, "TIFF"), channels=1)[0], expected)
    if mode == "I;16":
        assert np.array_equal(read(saved(image, "PNG"), channels=1)[0], expected)
    wide = Image.fromarray(values.astype(np.int32))  # how older Pillows open 16-bit PNGs
    assert wide.mode == "I"
    assert np.array_equal(read(wide, channels=3)[1], expected)


@pytest.mark.parametrize(
    ("low", "high", "kind", "first", "last"),
    [
        (0, 1, np.float32, 0, 255),
        (0, 200, np.float32, 0, 200),
        (-5, 5, np.float32, 0, 255),
        (-3, -3, np.float32, 0, 0),
        (-1000, 1_000_000, np.int32, 0, 255),
    ],
)
def test_floats_and_wide_integers_use_their_own_range(low, high, kind, first, last):
    values = np.linspace(low, high, 400).reshape(20, 20).astype(kind)
    pixels = read(saved(Image.fromarray(values), "TIFF"), channels=1)[0]
    assert (pixels[0, 0], pixels[-1, -1]) == (first, last)


SIGNALLING = np.array(0x7F800001, np.uint32).view(np.float32)  # a NaN whose conversion is a warning


@pytest.mark.parametrize("value", [np.nan, np.inf, SIGNALLING])
def test_a_tiff_with_values_that_are_not_finite_is_refused(value):
    values = np.zeros((20, 20), np.float32)
    values[3:4, 3:4] = value
    with pytest.raises(InputError, match="NaN or infinite"):
        read(saved(Image.fromarray(values), "TIFF"), channels=1)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "TIFF"])
def test_of_several_frames_the_first_counts(kind):
    first, second = Image.new("RGB", (20, 20), "black"), Image.new("RGB", (20, 20), "white")
    assert (read(saved(first, kind, save_all=True, append_images=[second])) == 0).all()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(kind, orientation):
    # one dark corner; where each orientation puts the stored top-left pixel on the upright picture
    stored = Image.new("L", (40, 24), 255).convert("RGB")
    stored.paste("black", (0, 0, 8, 8))
    top, left = {1: (1, 1), 2: (1, 0), 3: (0, 0), 4: (0, 1), 5: (1, 1), 6: (1, 0), 7: (0, 0), 8: (0, 1)}[orientation]
    height, width = (24, 40) if orientation < 5 else (40, 24)
    exif = Image.Exif()
    exif[0x0112] = orientation
    pixels = read(saved(stored, kind, exif=exif), channels=1, size=(height, width))[0]
    assert (pixels[0 if top else -1, 0 if left else -1]) < 40
    corners = pixels[[0, 0, -1, -1], [0, -1, 0, -1]]
    assert (corners > 200).sum() == 3


def test_garbled_exif_is_passed_over():
    image = noise(6)
    data = saved(image, "PNG", exif=b"Exif\0\0garbage that is no TIFF header")
    assert np.array_equal(read(data), planar(image))


def test_cover_and_centre_crop_keep_the_aspect_ratio():
    # a wide picture with a white middle square: the square is what remains
    image = Image.new("L", (300, 100), 0)
    image.paste(255, (100, 0, 200, 100))
    pixels = read(image, channels=1, size=(20, 20))[0]
    assert (pixels[:, 1:-1] > 250).all()
    tall = image.transpose(Image.Transpose.ROTATE_90)
    assert (read(tall, channels=1, size=(20, 20))[0][1:-1] > 250).all()


def test_reducing_averages_instead_of_picking():
    board = np.indices((200, 200)).sum(0) % 2 * 255  # one-pixel chess board
    pixels = read(Image.fromarray(board.astype(np.uint8)), channels=1, size=(20, 20))
    assert abs(pixels.astype(int) - 127).max() < 12


@settings(max_examples=40, deadline=None)
@given(
    st.tuples(st.integers(1, 90), st.integers(1, 90)),
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.sampled_from(
        ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB", "I", "F", "I;16"]
    ),
    st.sampled_from([1, 3]),
)
def test_any_size_and_mode_gives_the_asked_shape(size, wanted, mode, channels):
    pixels = read(Image.new(mode, size), channels=channels, size=wanted)
    assert pixels.shape == (channels, *wanted)
    assert pixels.dtype == np.uint8


CUT = [saved(noise(7, size=(64, 64)), kind) for kind in ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF")]
CUT = [data[: len(data) // 2] for data in CUT]
STARTS = [b"", b"hello", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"\xff\xd8\xff", b"RIFF\0\0\0\0WEBP"]


@pytest.mark.parametrize("data", [*CUT, *STARTS], ids=lambda data: repr(data[:4]))
def test_what_is_no_whole_picture_is_named(tmp_path, data):
    path = tmp_path / "odd name.png"
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"Cannot read the picture .*odd name\.png: .*\.$"):
        read(path)
    with pytest.raises(InputError, match="given as data"):
        read(data)


def test_what_is_not_there_or_not_readable_is_named(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="no such file"):
        read(tmp_path / "none.png")
    with pytest.raises(InputError, match="is a folder"):
        read(tmp_path)
    with pytest.raises(InputError, match="neither a file nor a pipe"):
        read("/dev/zero")

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", refuse)  # a test run by root cannot be refused by the system
    with pytest.raises(InputError, match=r"none\.png: Permission denied"):
        read(tmp_path / "none.png")


def test_a_pipe_is_read_like_a_file_up_to_a_limit(tmp_path, monkeypatch):
    image = noise(1)
    data, pipe = saved(image, "PNG"), tmp_path / "pipe"  # as a shell makes for <(…)
    os.mkfifo(pipe)
    for limit in (len(data), len(data) - 1):
        monkeypatch.setattr(module, "MAX_STREAM", limit)
        writer = threading.Thread(target=pipe.write_bytes, args=(data,))
        writer.start()
        if limit == len(data):
            assert np.array_equal(read(pipe), planar(image))
        else:
            with pytest.raises(InputError, match="holds more than"):
                read(pipe)
        writer.join()


def test_formats_that_start_programs_are_not_read():
    with pytest.raises(InputError, match="known format"):
        read(saved(noise(8), "EPS"))


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF"]), st.data())
def test_damaged_bytes_give_a_picture_or_an_input_error(kind, data):
    content = bytearray(saved(noise(9, size=(12, 12)), kind))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(InputError):
        assert read(bytes(content)).shape == (3, 20, 20)


@pytest.mark.parametrize(("pixels", "limit"), [(111, 110), (150, None), (250, None)])
def test_decompression_bombs(tmp_path, monkeypatch, pixels, limit):
    """A limit may be asked for; beyond its own, Pillow warns, and beyond twice that it refuses."""
    path = tmp_path / "bomb.png"
    Image.new("L", (pixels, 1)).save(path)
    if limit is None:
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    shape = {"channels": 1, "height": 4, "width": 4}
    with pytest.raises(InputError, match=r"bomb\.png: .*limit"):
        read_image(path, **shape, most_pixels=limit)
    Image.new("L", (limit or 100, 1)).save(path)
    assert read_image(path, **shape, most_pixels=limit).shape == (1, 4, 4)


def test_warnings_are_silenced_and_filters_restored_even_with_threads():
    before = list(warnings.filters)
    data = saved(noise(10), "PNG")
    threads = [threading.Thread(target=lambda: [read(data) for _ in range(30)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert warnings.filters == before
    with module._PILLOW_QUIET:
        warnings.warn_explicit("odd file", UserWarning, "x.py", 1, module="PIL.TiffImagePlugin")
        with pytest.raises(UserWarning):
            warnings.warn("of someone else", stacklevel=1)


def test_image_files_are_found_sorted_and_hidden_ones_skipped(tmp_path):
    names = ["10.png", "2.PNG", "a/1.JPG", "a/b/ü ö.tiff", ".hidden.png", ".git/x.png", "__MACOSX/._1.png", "notes.txt"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = [path.relative_to(tmp_path).as_posix() for path in image_files(tmp_path)]
    assert found == ["2.PNG", "10.png", "a/1.JPG", "a/b/ü ö.tiff"]
    assert image_files(tmp_path / "notes.txt") == [tmp_path / "notes.txt"]  # named by the user: not ours to doubt
    with pytest.raises(InputError, match="no file or folder"):
        image_files(tmp_path / "none")


def test_links_are_followed_and_circles_end(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "1.png").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "linked").symlink_to(tmp_path / "real")
    (tmp_path / "folder" / "2.png").symlink_to(tmp_path / "real" / "1.png")
    (tmp_path / "folder" / "back").symlink_to(tmp_path / "folder")
    found = [path.relative_to(tmp_path / "folder").as_posix() for path in image_files(tmp_path / "folder")]
    assert found == ["2.png", "linked/1.png"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_in_a_folder_is_passed_over_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "file.png").touch()
    assert image_files(tmp_path) == [tmp_path / "file.png"]
