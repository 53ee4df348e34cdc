"""Fetch models from the hub, with all files from one commit, so that later steps only need to read a folder."""

from __future__ import annotations

import os
from pathlib import Path

from treadle.core.engines.cache import Notify, quiet
from treadle.core.engines.process import printable
from treadle.core.engines.weights.files import PYTORCH, SAFETENSORS, weight_files
from treadle.core.errors import EngineError

_METADATA_FILES = ["*.json", "*.jinja", "*.txt", "tokenizer.model"]
_FOLDERS = ["*/*"]
"""Pattern of files that are not fetched: those in subfolders of a repository, which are for other programs."""


def fetch_model(model: str, revision: str, notify: Notify = quiet, *, key: str) -> Path:
    """Return the folder of a hub id at a commit or tag, in Hugging Face format; its name is the commit.

    Files that are already on this machine are not fetched again. An empty revision means the newest commit. Of the
    weights, only those that transformers loads are fetched. `key` names the setting in errors. Raise EngineError if the
    hub cannot be reached or has no such model, and if a file of the weights is missing.
    """
    from huggingface_hub.errors import HfHubHTTPError

    # The base class of the hub's HTTP error depends on the HTTP library in use.
    errors: tuple[type[BaseException], ...] = (OSError, ValueError, HfHubHTTPError, *HfHubHTTPError.__bases__)
    notify(f"fetching {model} from the model hub")
    try:
        folder = _fetch(model, revision, [*_METADATA_FILES, SAFETENSORS])
        # From here on, use the commit that was found: a newer one would be another model.
        if not (weight_files(folder) or weight_files(folder, PYTORCH)):
            _fetch(model, folder.name, [PYTORCH])
        names = weight_files(folder) or weight_files(folder, PYTORCH)
        if any(not (folder / name).is_file() for name in names):
            _fetch(model, folder.name, list(names))
    except errors as error:
        raise EngineError(
            f"{key} = {model} cannot be fetched from the model hub ({printable(first_sentence(error))}); check its "
            "name, its revision and the network, or name a folder that holds it"
        ) from error
    if not (folder / "config.json").is_file():
        raise EngineError(f"{key} = {model} has no config.json; name a model in Hugging Face format")
    _require_weights(folder, names, f"{key} = {model}")
    return folder


def first_sentence(error: BaseException) -> str:
    """Return the type of an error and the first sentence of its message, if it has one."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].partition('. ')[0]}" if lines else type(error).__name__


def _fetch(model: str, revision: str, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(
            model,
            revision=revision or None,
            allow_patterns=patterns,
            ignore_patterns=_FOLDERS,
            endpoint=os.environ.get("HF_ENDPOINT"),
        )
    )


def _require_weights(folder: Path, names: tuple[str, ...], what: str) -> None:
    """Raise EngineError unless all files of the weights exist.

    If the hub cannot be reached, only part of a model may have been fetched earlier.
    """
    missing = [name for name in names if not (folder / name).is_file()]
    if not names:
        raise EngineError(
            f"{what} has no weights that transformers can load: neither {SAFETENSORS} nor {PYTORCH} nor their index "
            f"is in {folder}; check the network, or name a model in Hugging Face format"
        )
    if missing:
        raise EngineError(
            f"{what} is incomplete on this machine: {len(missing)} of {len(names)} weight files are missing in "
            f"{folder} ({', '.join(missing[:3])}); check the network and fetch it again, or name a folder that holds it"
        )
