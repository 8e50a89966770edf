"""Data: original files and folders of images → one tensor for each part of a dataset."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .datasets import DATASETS, Archive, DatasetInfo, default_data_dir, load_dataset, statistics
    from .decode import IMAGE_SUFFIXES, image_files, read_image
    from .folder import FolderSummary, load_folder, load_labelled, scan_folder
    from .types import MAX_SIDE, DataConfig, Dataset, Split

_PLACES = {
    "DATASETS": "datasets",
    "IMAGE_SUFFIXES": "decode",
    "MAX_SIDE": "types",
    "Archive": "datasets",
    "DataConfig": "types",
    "Dataset": "types",
    "DatasetInfo": "datasets",
    "FolderSummary": "folder",
    "Split": "types",
    "default_data_dir": "datasets",
    "image_files": "decode",
    "load_dataset": "datasets",
    "load_folder": "folder",
    "load_labelled": "folder",
    "read_image": "decode",
    "scan_folder": "folder",
    "statistics": "datasets",
}
__all__ = [
    "DATASETS",
    "IMAGE_SUFFIXES",
    "MAX_SIDE",
    "Archive",
    "DataConfig",
    "Dataset",
    "DatasetInfo",
    "FolderSummary",
    "Split",
    "default_data_dir",
    "image_files",
    "load_dataset",
    "load_folder",
    "load_labelled",
    "read_image",
    "scan_folder",
    "statistics",
]


def __getattr__(name: str) -> Any:
    """Names are imported on first use: reading pictures from a module of this package needs no torch."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import_module(".augment", __name__)  # registers the augmentations, which a configuration may name
    return getattr(import_module(f".{_PLACES[name]}", __name__), name)
