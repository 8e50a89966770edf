"""A network as a `torch.export` program: runs in PyTorch without this package."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .graph import INPUTS, Graph, captured

FACTS = "wcapsnet.json"  # an extra file of the archive: classes, image size, preprocessing


def save_program(graph: Graph, facts: dict[str, Any], path: Path) -> None:
    archive = io.BytesIO()  # a file's suffix would have to be .pt2
    torch.export.save(captured(graph), archive, extra_files={FACTS: json.dumps(facts, ensure_ascii=False)})
    path.write_bytes(archive.getvalue())


class Program:
    """A saved program, read back."""

    def __init__(self, path: Path):
        extra = {FACTS: ""}
        self._program = torch.export.load(io.BytesIO(path.read_bytes()), extra_files=extra)
        self.facts: dict[str, Any] = json.loads(extra[FACTS])
        self._module = self._program.module()

    @torch.no_grad()
    def run(self, pixels: np.ndarray) -> dict[str, np.ndarray]:
        """uint8 images (m, ch, h, w) → the named outputs"""
        images = torch.from_numpy(np.ascontiguousarray(pixels))
        images = images if INPUTS[self.facts["input"]] == torch.uint8 else images.float() / 255
        answers = self._module(images, *(torch.ones(n, dtype=torch.bool) for n in self.facts.get("switches", ())))
        return {name: value.numpy() for name, value in answers.items()}
