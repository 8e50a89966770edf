"""Datasets and their configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ..parts import augmentation
from ..settings import Amounts, checked
from . import formats
from .stream import STREAMING, Images, Rows, chunks

if TYPE_CHECKING:
    from torch import Tensor

NORMALIZATIONS = ("unit", "standardize")
MAX_SIDE = 1024


class Augmentations(Amounts):
    kind = augmentation
    at_most = {"mirror": 1, "erase": 1, "mixup": 1, "cutmix": 1}  # noqa: RUF012 - probabilities, and a share


class Split(NamedTuple):
    """Images as stored (uint8), so that a whole dataset fits on the device; if it does not, they are read when used."""

    images: Images  # (m, ch, h, w) uint8
    labels: Tensor  # (m,) int64

    def some(self, places: Tensor) -> Split:
        """The images at these places"""
        images = self.images.some(places) if isinstance(self.images, Rows) else self.images[places]
        return Split(images, self.labels[places])


@dataclass(frozen=True)
class DataConfig:
    """Which images, how they are split, and how they are preprocessed. Plain values only."""

    source: str = "mnist"  # a name in DATASETS, or the path of a folder of images
    height: int | None = None  # folders: size to resize pictures to; None: chosen automatically
    width: int | None = None
    channels: int | None = None  # folders: 1 (gray) or 3 (colour); None: chosen automatically
    validation: float = 10000  # >= 1: that many training images; < 1: that fraction of them
    test: float = 0.15  # folders without a test folder: the fraction held out
    exclude: tuple[str, ...] = ()  # folders: class folders, or folders next to train and test, to leave out
    stream: str = "auto"  # read images from disk during training: "always", "never"; "auto": if memory is too small
    balance: bool = False  # draw training images of all classes equally often, if their numbers differ much
    split_seed: int = 0
    normalization: str = "unit"  # "unit": [0, 1]; "standardize": mean 0, variance 1 for each channel
    mirror: bool = False  # augmentation: random horizontal flips
    shift: int = 0  # augmentation: up to this many pixels in each direction
    augment: Augmentations = field(default_factory=Augmentations)  # further augmentations by name, each with a number

    def __post_init__(self) -> None:
        check = checked(self, "data")
        check("source", self.source.strip() != "", "the name of a dataset or a folder")
        for side, size in (("height", self.height), ("width", self.width)):
            check(side, size is None or 1 <= size <= MAX_SIDE, f"between 1 and {MAX_SIDE}, or none")
        check("channels", self.channels in (None, 1, 3), "1 or 3, or none")
        count = self.validation >= 1 and float(self.validation).is_integer()
        check("validation", 0 < self.validation < 1 or count, "a number of images, or a fraction between 0 and 1")
        check("test", 0 < self.test < 1, "a fraction between 0 and 1")
        check("exclude", all(self.exclude), "a list of folder names")
        check("stream", self.stream in STREAMING, f"one of {', '.join(STREAMING)}")
        check("split_seed", 0 <= self.split_seed < 2**63, f"between 0 and {2**63 - 1:,}")
        check("normalization", self.normalization in NORMALIZATIONS, f"one of {', '.join(NORMALIZATIONS)}")
        check("shift", 0 <= self.shift <= MAX_SIDE, f"a number of pixels between 0 and {MAX_SIDE}")

    def augmentations(self) -> dict[str, float]:
        """All augmentations by name, in the order of application"""
        mirrored, shifted = {"mirror": 0.5} if self.mirror else {}, {"shift": self.shift} if self.shift else {}
        return {**mirrored, **shifted, **self.augment}


@dataclass(frozen=True)
class Dataset:
    """The three parts of a dataset, with its class names."""

    name: str
    classes: tuple[str, ...]
    train: Split
    validation: Split
    test: Split
    train_files: tuple[str, ...] = ()  # folders: the file of each training image
    validation_files: tuple[str, ...] = ()
    test_files: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()  # skipped files of a folder: "path: reason"
    warnings: tuple[str, ...] = ()  # sentences about a folder that its owner should know
    # every run of a sweep needs it; cached with the images, so that other images at the same path have their own
    _digests: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def fingerprint(self, *parts: str) -> dict[str, str]:
        """Checksums of the parts: a run is resumed and evaluated on the images it was started with."""
        for part in parts:
            if part not in self._digests:
                self._digests[part] = checksum(getattr(self, part))[:32]
        return {part: self._digests[part] for part in parts}


def checksum(split: Split, start: bytes = b"") -> str:
    """SHA-256 of the labels and images; the same whether they are in memory or in a file"""
    return formats.checksum(split.labels.numpy(), (images.numpy() for images in chunks(split.images)), start)
