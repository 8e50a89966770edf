"""A trained network and what it needs to classify a picture: class names and preprocessing.

One safetensors file holds all of it: the weights, and in its metadata the configuration, names and normalisation.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias, overload

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from . import baselines  # noqa: F401 - a file may hold any built-in network
from .atomic import replacing
from .data.decode import ImageSource
from .data.device_data import normalize
from .device import arithmetic
from .errors import InputError
from .memory import built
from .network import Output, WCapsNet, WCapsNetConfig
from .plugins import plugins, recorded_plugins, require
from .prediction import Prediction, best_first, predict, read_images
from .pretrained import Pretrained
from .settings import model_from_dict, to_dict

METADATA = "wcapsnet"  # the key of our metadata in a safetensors file
RESTORE = "restore it from a backup, or train again"
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

Picture: TypeAlias = ImageSource


class Classifier(nn.Module, Pretrained):
    """`classifier(images)` runs the network on normalised images; `classifier.predict(picture)` on any picture."""

    mean: Tensor
    std: Tensor

    def __init__(self, network: WCapsNet, classes: Sequence[str], mean: Sequence[float], std: Sequence[float]):
        super().__init__()
        if len(classes) != network.config.classes:
            raise InputError(f"{len(classes)} class names were given for {network.config.classes} classes.")
        self.network = network
        self.classes = tuple(classes)
        self.facts: dict[str, Any] = {}  # the metadata of the file it was loaded from
        # float64, as in the metadata, so that saving a loaded classifier changes nothing.
        self.normalization = (tuple(mean), tuple(std))
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1), persistent=False)

    @property
    def config(self) -> WCapsNetConfig:
        return self.network.config

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of its images"""
        return self.config.channels, self.config.height, self.config.width

    def forward(self, images: Tensor) -> Output:
        return self.network(images)

    def probabilities(self, output: Output) -> Tensor:
        """(m, N): over the real classes"""
        return output.logits[:, : self.config.classes].float().softmax(1)

    def preprocess(self, pictures: Iterable[Picture]) -> Tensor:
        """Pictures of any kind and size → normalised images (m, ch, h, w) on the classifier's device"""
        return self._normalized(read_images(pictures, self.shape))

    def _normalized(self, pixels: np.ndarray) -> Tensor:
        return normalize(torch.from_numpy(pixels).to(self.mean.device), self.mean, self.std)

    def pixels(self, images: Tensor) -> Tensor:
        """The inverse, for images and reconstructions (…, ch, h, w): values between 0 and 1"""
        mean, std = self.mean[0].to(images.device), self.std[0].to(images.device)
        return (images * std + mean).clamp(0, 1)

    @overload
    def predict(self, pictures: Picture, top: int = 3) -> Prediction: ...  # type: ignore[overload-overlap]
    @overload
    def predict(self, pictures: Sequence[Picture], top: int = 3) -> list[Prediction]: ...
    def predict(self, pictures: Picture | Sequence[Picture], top: int = 3) -> Prediction | list[Prediction]:
        """Class, probability and routing of one picture, or of each in a list.

        A picture is a file name, an open file, its bytes, a PIL image, an array (h, w) or (h, w, ch), or a tensor
        (h, w) or (ch, h, w). Arrays and tensors hold uint8, or floats from 0 to 1, not normalised. An array or tensor
        of four dimensions is a batch, treated like a list.
        """
        return predict(self, pictures, top)

    def classify(self, pixels: np.ndarray, top: int, names: Sequence[str | None]) -> list[Prediction]:
        """Predictions for pictures as `read_image` returns them: uint8 (m, ch, h, w). In evaluation mode and in fp32,
        like the test-set results."""
        was_training = self.training
        self.eval()
        try:
            with torch.no_grad(), arithmetic("fp32", self.mean.device):
                output = self(self._normalized(pixels))
        finally:
            self.train(was_training)
        weights = [r.weights.float().cpu() for r in getattr(output, "routings", ())]
        return best_first(self.probabilities(output).cpu().numpy(), weights, self.classes, top, names)

    def description(self) -> dict[str, Any]:
        """Everything except the weights that is needed to build it."""
        mean, std = self.normalization
        facts = {"model": to_dict(self.config), "classes": self.classes, "mean": mean, "std": std}
        used = [plugin._asdict() for plugin in plugins(facts)]
        return {**facts, "plugins": used} if used else facts

    def save(self, path: Path, **more: Any) -> None:
        save_tensors(path, self.network.state_dict(), {**self.description(), **more})

    @staticmethod
    def load(path: Path, device: torch.device | str = "cpu") -> Classifier:
        tensors, facts = load_tensors(path)
        if not {"model", "classes", "mean", "std"} <= facts.keys():
            raise InputError(f"{path} does not hold a classifier; in a run folder, best.safetensors does.")
        require(recorded_plugins(facts.get("plugins", []), path), path)
        network = built(model_from_dict(facts["model"]))
        _check_types(tensors, network, path)
        try:
            network.load_state_dict(tensors)
            classifier = Classifier(network, tuple(map(str, facts["classes"])), facts["mean"], facts["std"])
            channels = classifier.config.channels
            if not len(facts["mean"]) == len(facts["std"]) == channels or not (classifier.std > 0).all():
                raise ValueError("mean and std")
        except (RuntimeError, TypeError, ValueError) as error:
            raise InputError(f"The weights in {path} do not fit the network they describe.") from error
        if name := not_finite(classifier):
            raise InputError(f"{path} holds a broken network: {name} is not finite; train again.")
        classifier.facts = facts
        return classifier.to(device).eval()


def not_finite(module: nn.Module) -> str | None:
    """The name of the first parameter or buffer that holds a NaN or an infinity."""
    named = [*module.named_parameters(), *module.named_buffers()]
    finite = torch.stack([tensor.isfinite().all() for _, tensor in named]).tolist()  # one wait for the device
    return next((name for (name, _), good in zip(named, finite, strict=True) if not good), None)


def _check_types(tensors: dict[str, Tensor], network: nn.Module, path: Path) -> None:
    """Floating-point weights may be stored in any such type; nothing else is converted."""
    for name, own in network.state_dict().items():
        stored = tensors[name].dtype if name in tensors else own.dtype  # load_state_dict names what is missing
        if stored != own.dtype and not (own.dtype in FLOATS and stored in FLOATS):
            raise InputError(f"{path} cannot be used: {name} is {stored}, but it must be {own.dtype}.")


def save_tensors(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    plain = _on_cpu(tensors)
    with replacing(path) as partial:
        # Not save_file: this way disk errors are OSErrors, as for any other file.
        partial.write_bytes(save(plain, {METADATA: json.dumps(sealed(plain, facts))}))


def _on_cpu(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous, on the CPU. Tensors on a device are copied together by type: each small copy would wait for it."""
    found = {name: tensor.detach() for name, tensor in tensors.items()}
    kinds: dict[tuple[torch.device, torch.dtype], list[str]] = {}
    for name, tensor in found.items():
        kinds.setdefault((tensor.device, tensor.dtype), []).append(name)
    for (device, _), names in kinds.items():
        if device.type != "cpu":
            flat = torch.cat([found[name].reshape(-1) for name in names]).cpu()
            parts = flat.split([found[name].numel() for name in names])
            found |= {name: part.view(found[name].shape) for name, part in zip(names, parts, strict=True)}
    # safetensors refuses tensors that share memory.
    return {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in found.items()}


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        path.open("rb").close()  # safetensors says that an unreadable file does not exist
        with safe_open(path, "pt") as file:
            facts = (file.metadata() or {}).get(METADATA)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except FileNotFoundError as error:
        raise InputError(f"There is no file {path}.") from error
    except PermissionError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}; check its permissions.") from error
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is not a readable safetensors file ({error}); {RESTORE}.") from error
    try:
        described = json.loads(facts or "")
    except (ValueError, RecursionError):
        described = None
    if not isinstance(described, dict):
        raise InputError(f"{path} was not written by wcapsnet: it does not say which network its weights belong to.")
    found = checksum(tensors, described)
    if described.setdefault("checksum", found) != found:  # earlier versions stored none
        raise InputError(f"{path} is damaged: it does not match its checksum; {RESTORE}.")
    return tensors, described


def weights_checksum(path: Path) -> str:
    """The checksum that the file states, verified, or for a file without one, its own"""
    return str(load_tensors(path)[1]["checksum"])


def sealed(tensors: dict[str, Tensor], facts: dict[str, Any]) -> dict[str, Any]:
    """`facts` with a checksum, which is verified on loading."""
    facts = json.loads(json.dumps(facts))  # as they will be read
    return {**facts, "checksum": checksum(tensors, facts)}


def checksum(tensors: dict[str, Tensor], facts: dict[str, Any]) -> str:
    """SHA-256 of all tensors and of all facts but the checksum."""
    described = {name: value for name, value in facts.items() if name != "checksum"}
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
