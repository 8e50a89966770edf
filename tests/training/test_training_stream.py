"""Training on images that are read from disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from training_helpers import (
    CPU,
    CtrlC,
    assert_same_run,
    begin,
    go_on,
    to_the_end,
    toy_dataset,
    toy_experiment,
    trained,
)

from wcapsnet.data import Dataset, Split
from wcapsnet.data.device_data import DeviceData
from wcapsnet.data.reader import Reader
from wcapsnet.data.stream import Rows
from wcapsnet.training.run_folder import Run
from wcapsnet.training.trainer import Interrupted


def in_a_file(dataset: Dataset, folder: Path) -> Dataset:
    """The same images, memory-mapped."""
    import numpy as np

    def mapped(part: str) -> Split:
        split = getattr(dataset, part)
        np.save(folder / f"{part}.npy", split.images.numpy()[::-1])
        array = np.load(folder / f"{part}.npy", mmap_mode="r")
        return Split(Rows(array, np.arange(len(array))[::-1].copy()), split.labels)

    return replace(dataset, **{part: mapped(part) for part in ("train", "validation", "test")})


def same(one: Run, other: Run) -> None:
    assert_same_run(one, other)
    assert one.file("data.json").read_text() == other.file("data.json").read_text()


def test_streamed_training_is_bit_equal_to_training_in_memory(unbroken: Run, tmp_path: Path) -> None:
    same(trained(tmp_path / "run", toy_experiment(), in_a_file(toy_dataset(), tmp_path)), unbroken)


def test_a_streamed_run_resumes_in_the_middle_of_an_epoch_and_in_memory(unbroken: Run, tmp_path: Path) -> None:
    dataset = in_a_file(toy_dataset(), tmp_path)
    with pytest.raises(Interrupted):
        begin(tmp_path / "run", toy_experiment(), dataset, CtrlC(0, 1)).fit()
    with pytest.raises(Interrupted):
        go_on(tmp_path / "run", dataset, CtrlC(1, 2)).fit()
    same(to_the_end(go_on(tmp_path / "run")), unbroken)


def test_every_training_batch_was_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late: list[int] = []
    read = Rows.read

    def spied(self: Rows, index: Any, out: torch.Tensor) -> torch.Tensor:
        import threading

        if threading.current_thread() is threading.main_thread():
            late.append(len(out))
        return read(self, index, out)

    monkeypatch.setattr(Rows, "read", spied)
    trainer = begin(tmp_path / "run", toy_experiment(epochs=2), in_a_file(toy_dataset(), tmp_path))
    assert isinstance(trainer.train_data.reader, Reader)
    trainer.fit()
    assert late == [13, 13]  # validation


def test_a_part_of_streamed_images_is_that_part_and_stays_unread(tmp_path: Path) -> None:
    memory = DeviceData(toy_dataset(), "unit", CPU).validation.part(5, 11)
    part = DeviceData(in_a_file(toy_dataset(), tmp_path), "unit", CPU).validation.part(5, 11)
    assert isinstance(part.images, Rows)
    assert len(part) == 6
    for some in (slice(0, 4), slice(4, 8)):
        assert all(map(torch.equal, part.take(some), memory.take(some)))
