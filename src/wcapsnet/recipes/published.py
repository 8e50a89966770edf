"""Published test accuracies in %: the paper's Tables II to V as printed, and other systems from their own papers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..data import DATASETS
from ..models import model_config


@dataclass(frozen=True)
class PaperTable:
    title: str
    reference: str  # the row of the network of Table I: WS+CE, softmax, tilt
    rows: dict[str, dict[str, float]]  # the name of a row → dataset → test accuracy
    parameters: dict[str, str] = field(default_factory=dict)  # Table V: size of each network
    notes: tuple[str, ...] = ()


def _columns(
    cifar10: float | None, cifar100: float | None, svhn: float | None, mnist: float | None
) -> dict[str, float]:
    """In the paper's order."""
    figures = {"cifar10": cifar10, "cifar100": cifar100, "svhn": svhn, "mnist": mnist}
    return {dataset: figure for dataset, figure in figures.items() if figure is not None}


PAPER_COLUMNS = ("cifar10", "cifar100", "svhn", "mnist")
PAPER_TABLES = {
    "II": PaperTable(
        title="weighting functions",
        reference="softmax",
        rows={
            "softmax": _columns(93.43, 70.39, 96.46, 99.68),
            "normalized": _columns(93.04, 69.75, 96.33, 99.58),
        },
    ),
    "III": PaperTable(
        title="vector non-linearities",
        reference="tilt",
        rows={
            "squash": _columns(92.91, 64.42, 96.51, 99.64),
            "tilt": _columns(93.43, 70.39, 96.46, 99.68),
        },
    ),
    "IV": PaperTable(
        title="routing variants",
        reference="WS+CE",
        rows={
            "WS+CE": _columns(93.43, 70.39, 96.46, 99.68),
            "WS": _columns(92.54, 69.10, 96.56, 99.60),
            "CE": _columns(93.05, 70.30, 96.39, 99.65),
            "Random": _columns(91.90, 66.81, 96.20, 99.49),
            "Uniform": _columns(93.00, 70.14, 96.37, 99.64),
        },
    ),
    "V": PaperTable(
        title="comparison with other networks",
        reference="WCapsNet",
        rows={
            "DenseNet 250": _columns(96.40, 82.40, 98.41, None),
            "ResNet 1001 (pre-act.)": _columns(95.38, 77.30, None, None),
            "VGG 19": _columns(93.66, 73.26, None, None),
            "CapsNets": _columns(70.01, None, 91.71, 99.62),
            "DeepCaps": _columns(91.01, None, 97.16, 99.72),
            "Self-Routing CapsNet": _columns(92.14, None, 96.88, None),
            "WCapsNet": _columns(93.43, 70.39, 96.56, 99.68),
        },
        parameters={
            "DenseNet 250": "15.3M",
            "ResNet 1001 (pre-act.)": "10.2M",
            "VGG 19": "20M",
            "CapsNets": "8.2M",
            "DeepCaps": "8.5M",
            "Self-Routing CapsNet": "3.2M",
            "WCapsNet": "950k",
        },
        notes=(
            "The paper quotes all accuracies except WCapsNet's from other papers. These have 96.38 for DenseNet on "
            "CIFAR-10 and 77.29 for ResNet on CIFAR-100. On CIFAR-10 and SVHN, DeepCaps used images of 64×64, for "
            "which it has 13.4M parameters; CapsNet has 8.2M on MNIST and 22.5M on CIFAR-10.",
            "WCapsNet has 950k parameters according to the paper; ours has 968,877 on MNIST and Fashion-MNIST, 975,743 "
            "on CIFAR-10 and SVHN, 1,014,975 on CIFAR-100 (D17).",
            "The paper's SVHN figure for WCapsNet is that of WS alone in Table IV; with WS+CE it is 96.46.",
        ),
    ),
}


@dataclass(frozen=True)
class System:
    """A network that is compared with others: WCapsNet, the systems of Table V, and others of interest."""

    title: str
    model: str  # as `create` knows it
    color: str = ""  # the model for colour images, if it is another one
    row: str = ""  # in Table V
    own: dict[str, tuple[float, str]] = field(default_factory=dict)  # dataset → accuracy and source, before Table V's

    def model_for(self, channels: int) -> str:
        return self.color or self.model if channels == 3 else self.model

    def config(self, dataset: str) -> Any:
        """The network for this dataset"""
        info = DATASETS[dataset]
        return model_config(self.model_for(info.channels), len(info.classes), info.channels, info.height, info.width)

    def published(self, dataset: str) -> tuple[float, str] | None:
        """Accuracy in % and its source"""
        quoted = PAPER_TABLES["V"].rows.get(self.row, {}).get(dataset)
        return self.own.get(dataset) or (None if quoted is None else (quoted, "Table V"))


_OWN, _BEST, _SLIMMING = "its paper", "its paper, best run", "Liu et al. 2017"
_QUOTED = "second-hand"  # agrees with others who quote the paper; not compared with the paper itself
# By the name of the row that their recipes and records share: capsnet-mnist is a run of capsnet on mnist.
# Unless second-hand, figures from other papers were compared with the paper or its authors' repository. Self-Routing
# CapsNet is known only from Table V, whose 3.2M parameters are those of depth 2; no figure was found for depth 1.
SYSTEMS = {
    "wcapsnet": System("WCapsNet", "wcapsnet", row="WCapsNet", own={"svhn": (96.46, "Table IV, WS+CE")}),
    "wcapsnet-plus": System("WCapsNet-plus", "wcapsnet-plus"),
    "capsnet": System(
        *("CapsNet", "capsnet", "capsnet-cifar", "CapsNets"),
        own={"mnist": (99.75, f"{_OWN}, {_QUOTED}"), "cifar10": (89.4, f"{_OWN}, ensemble of 7, {_QUOTED}")},
    ),
    "deepcaps": System(
        *("DeepCaps", "deepcaps", "deepcaps-64", "DeepCaps"),
        own={
            "mnist": (99.72, "its authors' repository"),
            "fashion-mnist": (94.46, f"{_OWN}, {_QUOTED}"),
            "cifar10": (91.01, f"{_OWN}, {_QUOTED}"),
            "svhn": (97.16, f"{_OWN}, {_QUOTED}"),
        },
    ),
    "sr-capsnet": System("Self-Routing CapsNet, depth 1", "sr-capsnet"),
    "sr-capsnet-2": System("Self-Routing CapsNet, depth 2", "sr-capsnet-2", row="Self-Routing CapsNet"),
    "attention-routing": System(
        *("Attention routing", "attention-routing"), own={"cifar10": (95.14, _BEST), "cifar100": (78.02, _BEST)}
    ),
    "efficient-capsnet": System(
        *("Efficient-CapsNet", "efficient-capsnet"), own={"mnist": (99.74, f"{_OWN}, mean, {_QUOTED}")}
    ),
    "densenet-bc-100": System(
        *("DenseNet-BC-100 (k = 12)", "densenet-bc-100"), own={"cifar10": (95.49, _OWN), "cifar100": (77.73, _OWN)}
    ),
    "densenet-bc-250": System(
        *("DenseNet-BC-250 (k = 24)", "densenet-bc-250"),
        row="DenseNet 250",
        own={"cifar10": (96.38, _OWN), "cifar100": (82.40, _OWN)},
    ),
    "resnet-1001": System(
        *("ResNet-1001 (pre-act.)", "resnet-1001"),
        row="ResNet 1001 (pre-act.)",
        own={"cifar10": (95.38, f"{_OWN}, batch size 64"), "cifar100": (77.29, _OWN)},
    ),
    "vgg-19": System(
        "VGG-19", "vgg-19", row="VGG 19", own={"cifar10": (93.66, _SLIMMING), "cifar100": (73.26, _SLIMMING)}
    ),
}

# The most accurate capsule networks found, single and of any size: in %, and the name. Second-hand.
BEST_CAPSULES = {
    "cifar10": (95.71, "PT-CapsNet"),
    "cifar100": (78.36, "PT-CapsNet"),
    "mnist": (99.83, "HVC"),
}
