"""Models of the hub on this machine: all of one commit, so that what comes after reads a folder and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

from treadle.core.engines.cache import Notify, quiet
from treadle.core.errors import EngineError

_SMALL = ["*.json", "*.jinja", "*.txt", "tokenizer.model"]
_WEIGHTS = ["*.safetensors"]
_OLDER_WEIGHTS = ["pytorch_model*.bin"]
"""Taken where there are no others."""
_FOLDERS = ["*/*"]
"""What lies in folders of a repository is for other programs."""


def fetch_model(model: str, revision: str, notify: Notify = quiet, *, key: str) -> Path:
    """Folder of a hub id at a commit or tag, in Hugging Face format; its name is the commit.

    Files that are there already are not fetched again. An empty revision takes the newest. `key` names the setting in
    errors. Raises EngineError where the hub cannot be reached or has no such model.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    def fetch(patterns: list[str]) -> Path:
        return Path(
            snapshot_download(
                model,
                revision=revision or None,
                allow_patterns=patterns,
                ignore_patterns=_FOLDERS,
                endpoint=os.environ.get("HF_ENDPOINT"),
            )
        )

    # The base of the hub's HTTP error is that of the HTTP library in use.
    errors: tuple[type[BaseException], ...] = (OSError, ValueError, HfHubHTTPError, *HfHubHTTPError.__bases__)
    notify(f"fetching {model} from the model hub")
    try:
        folder = fetch([*_SMALL, *_WEIGHTS])
        if not any(folder.glob("*.safetensors")):
            folder = fetch([*_SMALL, *_OLDER_WEIGHTS])
    except errors as error:
        reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0].partition('. ')[0]}"
        raise EngineError(
            f"{key} = {model} cannot be fetched from the model hub ({reason}); check its name, its revision and the "
            "network, or name a folder that holds it"
        ) from error
    if not (folder / "config.json").is_file():
        raise EngineError(f"{key} = {model} has no config.json; name a model in Hugging Face format")
    return folder
