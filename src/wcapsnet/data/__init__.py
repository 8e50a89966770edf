"""Data: original files and folders of images → one tensor for each part of a dataset."""

from . import augment  # noqa: F401 - registers them
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
