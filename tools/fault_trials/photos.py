"""Pictures with damaged bytes: each is an answer or one sentence, in bounded time and memory."""

from __future__ import annotations

import io
import json
import os
import random
import resource
import struct
import time
import zlib

import numpy as np
import torch
from PIL import Image

from wcapsnet.errors import InputError
from wcapsnet.hub import load

from .common import Outcome, Sample, forked
from .damage import mutated

SECONDS, MEGABYTES = 20.0, 3000  # of one picture, and in all: far more than any picture within Pillow's limit needs


def originals() -> dict[str, bytes]:
    """Real files of all six formats, in the modes and compressions that their decoders treat differently"""
    noise = np.random.default_rng(0).integers(0, 256, (24, 24, 4), np.uint8)
    smooth = np.asarray(Image.fromarray(noise).resize((40, 36), Image.Resampling.BICUBIC))
    rgba = Image.fromarray(smooth)
    rgb, gray = rgba.convert("RGB"), rgba.convert("L")
    palette = rgb.quantize(64)
    sixteen = Image.fromarray(np.asarray(gray).astype(np.uint16) * 257)
    floats = Image.fromarray(np.asarray(gray).astype(np.float32) / 255)
    exif = Image.Exif()
    exif[0x0112] = 6
    cases: dict[str, tuple[Image.Image, str, dict[str, object]]] = {
        "PNG": (rgb, "PNG", {}),
        "PNG gray": (gray, "PNG", {}),
        "PNG transparent": (rgba, "PNG", {}),
        "PNG palette": (palette, "PNG", {"transparency": 3}),
        "PNG 16 bit": (sixteen, "PNG", {}),
        "PNG 1 bit": (gray.convert("1"), "PNG", {}),
        "APNG": (rgb, "PNG", {"save_all": True, "append_images": [rgb.rotate(90)]}),
        "JPEG": (rgb, "JPEG", {"exif": exif}),
        "JPEG progressive": (rgb, "JPEG", {"progressive": True}),
        "JPEG gray": (gray, "JPEG", {}),
        "JPEG CMYK": (rgb.convert("CMYK"), "JPEG", {}),
        "WebP": (rgb, "WEBP", {}),
        "WebP lossless": (rgba, "WEBP", {"lossless": True}),
        "WebP animated": (rgb, "WEBP", {"save_all": True, "append_images": [rgb.rotate(90)]}),
        "GIF": (palette, "GIF", {}),
        "GIF animated": (palette, "GIF", {"save_all": True, "append_images": [rgb.rotate(90).quantize(8)]}),
        "BMP": (rgb, "BMP", {}),
        "BMP palette": (palette, "BMP", {}),
        "BMP 1 bit": (gray.convert("1"), "BMP", {}),
        "TIFF": (rgb, "TIFF", {}),
        "TIFF LZW": (rgb, "TIFF", {"compression": "tiff_lzw"}),
        "TIFF deflate": (rgba, "TIFF", {"compression": "tiff_adobe_deflate"}),
        "TIFF JPEG": (rgb, "TIFF", {"compression": "jpeg"}),
        "TIFF group 4": (gray.convert("1"), "TIFF", {"compression": "group4"}),
        "TIFF 16 bit": (sixteen, "TIFF", {}),
        "TIFF float": (floats, "TIFF", {}),
    }
    found = {}
    for name, (image, kind, options) in cases.items():
        file = io.BytesIO()
        image.save(file, kind, **options)
        found[name] = file.getvalue()
    return found


def fuzzed(number: int, seed: int, every: dict[str, bytes]) -> tuple[str, bytes]:
    chance = random.Random(f"{seed} {number}")
    names = list(every)
    name = names[number % len(names)]
    content = every[name]
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        if chance.random() < 0.35 and len(content) > 40:  # headers decide what a decoder does
            head = chance.choice((32, 64, 200))
            content = mutated(content[:head], chance) + content[head:]
        elif chance.random() < 0.1:  # the beginning of one format, the end of another
            other = every[chance.choice(names)]
            content = content[: chance.randrange(len(content) + 1)] + other[chance.randrange(len(other)) :]
        else:
            content = mutated(content, chance)
        if name.startswith("PNG") and chance.random() < 0.5:
            content = _right_checksums(content)  # otherwise few mutations reach what is behind them
    return name, content


def _right_checksums(content: bytes) -> bytes:
    data, at = bytearray(content), 8
    while at + 12 <= len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        end = at + 8 + length
        if end + 4 > len(data):
            break
        data[end : end + 4] = struct.pack(">I", zlib.crc32(data[at + 4 : end]))
        at = end + 4
    return bytes(data)


def pictures(sample: Sample, tries: int, seed: int) -> Outcome:
    outcome, every = Outcome(), originals()

    def all_of_them() -> None:
        torch.set_num_threads(1)
        network = load(sample.run)
        counts, slowest, slow = {"worked": 0, "one sentence": 0, "no sentence": 0}, 0.0, ""
        for content in every.values():
            network.predict(content)  # they are good ones
        before = _megabytes()
        for number in range(tries):
            name, content = fuzzed(number, seed, every)
            os.pwrite(1, f"{number:<12}".encode(), 0)  # read by the parent if this process dies
            began = time.perf_counter()
            try:
                answer = network.predict(content)
                assert 0 <= answer.probability <= 1
                counts["worked"] += 1
            except InputError as error:
                counts["one sentence" if len(str(error)) < 1000 and "\n" not in str(error) else "no sentence"] += 1
            if (took := time.perf_counter() - began) > slowest:
                slowest, slow = took, f"{number}: {name}"
        facts = {"slowest_ms": round(1000 * slowest, 1), "slowest": slow, "megabytes": [before, _megabytes()]}
        os.pwrite(1, b" " * 12 + b"\n" + json.dumps({"counts": counts, "facts": facts}).encode(), 0)

    answer = forked(all_of_them, limit=3600)
    if answer.code:
        outcome.faults.append(f"picture {answer.out[:12].strip()}: exit code {answer.code}: {answer.err[-1500:]}")
        outcome.ended["fault"] += 1
        return outcome
    said = json.loads(answer.out[13:])
    outcome.ended.update(said["counts"])
    if said["counts"]["no sentence"]:
        outcome.faults.append(f"{said['counts']['no sentence']} refusals are not one short sentence")
    outcome.facts = said["facts"] | {"kinds": len(every)}
    if "Warning" in answer.err or "Traceback" in answer.err:  # libtiff itself writes lines that nothing can prevent
        outcome.faults.append(f"written to standard error: {answer.err[:1500]}")
    if outcome.facts["slowest_ms"] > 1000 * SECONDS:
        outcome.faults.append(f"a picture took {outcome.facts['slowest_ms']} ms ({outcome.facts['slowest']})")
    if outcome.facts["megabytes"][1] > MEGABYTES:
        outcome.faults.append(f"{outcome.facts['megabytes'][1]} MB of memory")
    return outcome


def _megabytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
