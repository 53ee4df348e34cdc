"""What training begins with: where the base model lies on this machine, and which one it is."""

from __future__ import annotations

import hashlib
from pathlib import Path

from treadle.core.engines.cache import Notify, quiet
from treadle.core.engines.config import EMBEDDED
from treadle.core.engines.serving import embedded_folder
from treadle.core.errors import ConfigError
from treadle.core.schemas import MODEL_FOLDER
from treadle.core.stage import Rows

_WHOLE_BYTES = 1 << 20
"""Files up to this size count with all their bytes; of larger ones the first and the last so many."""


def base_model(model: str, checkpoints: tuple[Rows, ...], notify: Notify = quiet, *, key: str) -> Path | str:
    """Folder of the model in Hugging Face format, or a hub id as it is.

    A checkpoint of the run is the one that was bound; `embedded` is made in the cache on first use. `key` names the
    setting in errors. Raises ConfigError for a folder that holds no model, EngineError.
    """
    if checkpoints:
        return checkpoints[0].folder(MODEL_FOLDER)
    if model == EMBEDDED:
        return embedded_folder("model", notify)
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError(f"{key}: {folder} has no config.json; name a folder in Hugging Face format")
        return folder.absolute()
    if model.startswith(("/", ".", "~")) or model.count("/") > 1:
        raise ConfigError(f"{key}: folder {model} does not exist")
    return model


def folder_digest(model: str) -> str:
    """Hex digest that tells the model in a folder from others; empty for what is no folder.

    Over the names and sizes of its files and their bytes, of large ones those at both ends: a model of 15 GB is told
    apart in a moment, and training a changed one is not mistaken for work done.
    """
    folder = Path(model).expanduser()
    if model == EMBEDDED or not folder.is_dir():
        return ""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            digest.update(file.read(_WHOLE_BYTES))
            if size > _WHOLE_BYTES:
                file.seek(-min(_WHOLE_BYTES, size), 2)
                digest.update(file.read())
    return digest.hexdigest()
