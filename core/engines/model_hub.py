"""Models of the hub on this machine: all of one commit, so that what comes after reads a folder and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

from treadle.core.engines.cache import Notify, quiet
from treadle.core.engines.process import printable
from treadle.core.engines.weight_files import PYTORCH, SAFETENSORS, weight_files
from treadle.core.errors import EngineError

_SMALL = ["*.json", "*.jinja", "*.txt", "tokenizer.model"]
_FOLDERS = ["*/*"]
"""What lies in folders of a repository is for other programs."""


def fetch_model(model: str, revision: str, notify: Notify = quiet, *, key: str) -> Path:
    """Folder of a hub id at a commit or tag, in Hugging Face format; its name is the commit.

    Files that are there already are not fetched again. An empty revision takes the newest. Of the weights those are
    fetched that transformers loads, whatever others lie beside them. `key` names the setting in errors. Raises
    EngineError where the hub cannot be reached or has no such model, and where a file of the weights is missing.
    """
    from huggingface_hub.errors import HfHubHTTPError

    # The base of the hub's HTTP error is that of the HTTP library in use.
    errors: tuple[type[BaseException], ...] = (OSError, ValueError, HfHubHTTPError, *HfHubHTTPError.__bases__)
    notify(f"fetching {model} from the model hub")
    try:
        folder = _fetch(model, revision, [*_SMALL, SAFETENSORS])
        # From here on at the commit that was met: a newer one would be another model.
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
    """Kind of an error and the first sentence that it says, if it says one."""
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
    """Raise EngineError unless all files of the weights are there.

    Where the hub cannot be reached, a folder that was fetched in part is all that there is of a model.
    """
    missing = [name for name in names if not (folder / name).is_file()]
    if not names:
        raise EngineError(
            f"{what} has no weights that transformers loads: neither {SAFETENSORS} nor {PYTORCH} nor an index of them "
            f"is in {folder}; check the network, or name a model in Hugging Face format"
        )
    if missing:
        raise EngineError(
            f"{what} is not whole on this machine: {len(missing)} of {len(names)} files of weights are missing in "
            f"{folder} ({', '.join(missing[:3])}); check the network and fetch it again, or name a folder that holds it"
        )
