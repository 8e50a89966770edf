"""Images that are read from disk while they are used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from wcapsnet import host_memory
from wcapsnet.data import DataConfig, load_dataset, load_folder, pictures, statistics
from wcapsnet.data.device_data import DeviceSplit, epoch_order
from wcapsnet.data.reader import AHEAD, Reader
from wcapsnet.data.stream import Rows
from wcapsnet.data.types import Dataset, Split
from wcapsnet.errors import InputError

CPU = torch.device("cpu")


@pytest.fixture
def folder(picture_folder: Callable[..., Path]) -> Path:
    return picture_folder({"a": 12, "b": 12, "a/0.png": b"broken"})


def read(folder: Path, **options: object) -> Dataset:
    return load_folder(DataConfig(str(folder), 8, 8, 3, validation=0.2, **options))


def test_streamed_parts_hold_what_parts_in_memory_hold(folder):
    here, there = read(folder, stream="never"), read(folder, stream="always")
    for part in ("train", "validation", "test"):
        images, rows = getattr(here, part).images, getattr(there, part).images
        assert isinstance(rows, Rows)
        assert isinstance(images, torch.Tensor)
        assert rows.shape == images.shape
        for index in (0, slice(1, 3), slice(None), torch.tensor([2, 0])):
            assert torch.equal(rows[index], images[index])
        assert torch.equal(rows.some(torch.tensor([1, 0]))[1], images[0])
    parts = ("train", "validation", "test")
    assert here.fingerprint(*parts) == there.fingerprint(*parts)
    assert statistics(here.train.images, "standardize") == statistics(there.train.images, "standardize")
    assert (here.skipped, here.warnings, here.train_files) == (there.skipped, there.warnings, there.train_files)


def test_a_folder_that_does_not_fit_into_memory_is_streamed(folder, monkeypatch):
    assert isinstance(read(folder).train.images, torch.Tensor)
    monkeypatch.setattr(host_memory, "free", lambda: 24 * 3 * 8 * 8)  # as much as the images, which get half
    assert isinstance(read(folder).train.images, Rows)
    assert isinstance(read(folder, stream="never").train.images, torch.Tensor)


def test_a_folder_that_fits_neither_into_memory_nor_on_disk_is_refused(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(host_memory, "free", lambda: 1000)
    monkeypatch.setattr(pictures.shutil, "disk_usage", lambda path: pictures.shutil._ntuple_diskusage(9, 9, 0))
    with pytest.raises(InputError, match="WCAPSNET_CACHE"):
        read(folder)
    monkeypatch.setattr(host_memory, "free", lambda: 10**6)
    assert read(folder).train.images.shape[1:] == (3, 8, 8)  # decoded into memory instead


def test_decoding_holds_only_a_chunk_in_memory(folder, monkeypatch):
    whole = read(folder, stream="never").train.images
    monkeypatch.setattr(pictures, "READER_VERSION", 99)  # decode again
    monkeypatch.setattr(pictures, "CHUNK", 5 * 3 * 8 * 8)
    sizes: list[int] = []
    decode = pictures._decode

    def spied(source, shape, write, quiet):
        return decode(source, shape, lambda at, images: (sizes.append(len(images)), write(at, images)), quiet)

    monkeypatch.setattr(pictures, "_decode", spied)
    again = read(folder, stream="always").train.images
    assert sizes == [5, 5, 5, 5, 4]
    assert torch.equal(again[:], whole)


def test_what_a_killed_process_left_of_its_cache_is_removed(folder, tmp_path):
    read(folder)
    (entry,) = (tmp_path / "cache").iterdir()
    partial = entry.with_name(f".{entry.name}.1.partial")
    entry.rename(partial)
    read(folder)
    assert not partial.exists()
    assert entry.exists()


def test_batches_are_read_ahead_in_the_announced_order():
    array = np.random.default_rng(0).integers(0, 256, (100, 1, 4, 4), dtype=np.uint8)
    order = epoch_order(90, 8, seed=0, epoch=0)
    rows = Rows(array, np.arange(90) + 5)
    reader = Reader(rows, CPU)
    reader.expect(order[1:])
    assert len(reader._under_way) == AHEAD
    for step in (1, 2, 0, 3, 4, 5, 6, 7, 8, 9, 10):  # 0 was not announced
        assert torch.equal(reader(order[step]), torch.from_numpy(array[order[step].numpy() + 5]))
    assert not reader._under_way
    reader.expect(order)  # a new epoch before the last one has ended
    reader.expect(order.flip(0))
    assert torch.equal(reader(order[-1]), rows[order[-1]])
    assert len(reader._under_way) == AHEAD
    assert torch.equal(reader(slice(85, 200)), rows[85:])


def test_a_failed_read_is_an_error_and_not_a_batch():
    reader = Reader(Rows(np.zeros((4, 1, 2, 2), np.uint8), np.arange(4)), CPU)
    order = torch.tensor([[0, 9]])
    reader.expect(order)
    with pytest.raises(IndexError):
        reader(order[0])


def test_a_recorded_step_reads_every_batch_from_the_same_memory():
    """What `GraphedStep` does before a replay, without a graph."""
    images = torch.randint(0, 256, (20, 1, 4, 4), dtype=torch.uint8)
    split = Split(images, torch.arange(20))
    streamed, here = (DeviceSplit(split, (0.5,), (0.5,), CPU, how) for how in ("always", "never"))
    window = streamed.window(4)
    assert here.window(4) is here
    for index in epoch_order(20, 4, 0, 0):
        assert type(streamed.staged(index)[0]) is DeviceSplit  # the fused kernels take nothing else
        place = streamed.copy_to(window, index)
        for one, other in zip(window.take(place), here.take(index), strict=True):
            assert torch.equal(one, other)


def test_other_sources_stream_too(monkeypatch):
    here = load_dataset(DataConfig("sample", validation=1000))
    there = load_dataset(DataConfig("sample", validation=1000, stream="always"))
    assert isinstance(there.train.images, Rows)
    assert here.fingerprint("validation") == there.fingerprint("validation")


def test_processes_on_one_machine_share_its_memory(monkeypatch):
    monkeypatch.setattr(host_memory, "free", lambda: 1000.0)
    assert host_memory.fits(500)
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "8"), ("LOCAL_WORLD_SIZE", "4")):
        monkeypatch.setenv(name, value)
    assert host_memory.fits(125)
    assert not host_memory.fits(126)
