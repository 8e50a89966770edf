"""Data: original files and folders of images → one tensor for each part of a dataset."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..lazy import lazy

if TYPE_CHECKING:
    from .datasets import DATASETS, Archive, DatasetInfo, default_data_dir, load_dataset, statistics
    from .decode import IMAGE_SUFFIXES, image_files, read_image
    from .folder import FolderSummary, load_folder, load_labelled, scan_folder
    from .types import MAX_SIDE, DataConfig, Dataset, Split

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


_find = lazy(
    __name__,
    {
        "datasets": ["DATASETS", "Archive", "DatasetInfo", "default_data_dir", "load_dataset", "statistics"],
        "decode": ["IMAGE_SUFFIXES", "image_files", "read_image"],
        "folder": ["FolderSummary", "load_folder", "load_labelled", "scan_folder"],
        "types": ["MAX_SIDE", "DataConfig", "Dataset", "Split"],
    },
)


def __getattr__(name: str) -> Any:
    found = _find(name)
    import_module(".augment", __name__)  # registers the augmentations, which a configuration may name
    return found
