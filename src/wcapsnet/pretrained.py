"""`save_pretrained`, `from_pretrained` and `push_to_hub`, in the manner of huggingface_hub.

A saved folder holds model.safetensors (weights, and in its metadata everything needed to use them), config.json (the
same description for people and for the Hub) and README.md, the model card. Nothing is ever unpickled.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

from .atomic import write_text
from .device import choose_device
from .errors import InputError, first_line

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"


def is_pretrained(path: Path) -> bool:
    """Whether this is a folder that `save_pretrained` wrote"""
    return (path / WEIGHTS).is_file()


class Pretrained:
    """The three methods, for `Classifier`"""

    def save_pretrained(self: Any, folder: str | Path, *, name: str | None = None, license: str | None = None) -> Path:
        """Write the network, its description and its model card into a folder, new or existing. Returns the folder.

        `name` is the card's title, by default the folder's name; `license` is a licence identifier such as apache-2.0.
        """
        from .model_card import card

        folder = Path(folder)
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is a file; choose a folder.")
        described = self.description()
        # a loaded network is stored in fp32, whatever its file was stored in
        more = {key: value for key, value in self.facts.items() if key not in (*described, "checksum", "stored")}
        self.save(folder / WEIGHTS, **more)
        saved = type(self).load(folder / WEIGHTS)
        config = {
            "library_name": "wcapsnet",
            **{key: saved.facts[key] for key in (*described, "checksum")},
            "id2label": dict(enumerate(self.classes)),
        }
        write_text(folder / CONFIG, json.dumps(config, indent=2, ensure_ascii=False) + "\n")
        write_text(folder / CARD, card(saved, name or folder.resolve().name, license))
        return folder

    @classmethod
    def from_pretrained(
        cls: Any,
        source: str | Path,
        *,
        device: str = "cpu",
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
    ) -> Any:
        """A classifier from a folder written by `save_pretrained`, without any network access, or from a repository
        OWNER/NAME on the Hugging Face Hub, which needs `pip install 'wcapsnet[hub]'`.
        """
        folder = Path(source).expanduser()
        if not folder.is_dir():
            options = {"revision": revision, "token": token, "cache_dir": cache_dir}
            folder = _downloaded(str(source), local_files_only=local_files_only, **options)
        if not is_pretrained(folder):
            raise InputError(f"{source} has no {WEIGHTS}; use wcapsnet.load for a run folder.")
        classifier = cls.load(folder / WEIGHTS, choose_device(device))
        _check_config(folder / CONFIG, classifier.facts.get("checksum"))
        return classifier

    def push_to_hub(
        self: Any,
        repo_id: str,
        *,
        license: str | None = None,
        private: bool | None = None,
        token: str | bool | None = None,
        commit_message: str = "Upload a wcapsnet network",
    ) -> str:
        """Save to the repository OWNER/NAME on the Hugging Face Hub, created if it does not exist. Returns its URL."""
        hub = _hub()
        _check_repository(repo_id)
        try:
            api = hub.HfApi(token=token)
            url = api.create_repo(repo_id, private=private, exist_ok=True)
            with tempfile.TemporaryDirectory() as place:
                self.save_pretrained(place, name=repo_id.partition("/")[2], license=license)
                api.upload_folder(repo_id=repo_id, folder_path=place, commit_message=commit_message)
        except (OSError, ValueError) as error:
            raise InputError(f"{repo_id} could not be written to the Hub: {first_line(error)}.") from error
        return str(url)


def _downloaded(repo_id: str, **options: Any) -> Path:
    _check_repository(repo_id)
    hub = _hub()
    try:
        return Path(hub.snapshot_download(repo_id, allow_patterns=[WEIGHTS, CONFIG], **options))
    except (OSError, ValueError) as error:
        raise InputError(f"{repo_id} could not be read from the Hub: {first_line(error)}.") from error


def _check_repository(repo_id: str) -> None:
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo_id):
        raise InputError(f"There is no folder {repo_id}, and a repository on the Hub is named OWNER/NAME.")


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise InputError("The Hub needs huggingface_hub; install it with: pip install 'wcapsnet[hub]'.") from error
    return huggingface_hub


def _check_config(path: Path, checksum: str | None) -> None:
    """Refuse a config.json that describes weights other than those in its folder."""
    if not path.exists():
        return
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        stated = config.get("checksum") if isinstance(config, dict) else None
    except (ValueError, RecursionError, OSError) as error:
        raise InputError(f"{path} is not readable JSON; restore it, or delete it.") from error
    if stated != checksum:
        raise InputError(f"{path} does not belong to the weights in its folder; save the network again.")
