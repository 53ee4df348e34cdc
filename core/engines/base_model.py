"""Locate the base model of a training on this machine, and identify it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import orjson

from treadle.core.engines.cache import Notify, quiet
from treadle.core.engines.config import EMBEDDED
from treadle.core.engines.serving import local_model
from treadle.core.runs.stage import Rows
from treadle.core.tables import MODEL_FOLDER

_SMALL_FILE_BYTES = 1 << 20
"""Files of up to this many bytes are hashed completely, of larger ones this many bytes at either end."""
_LONGEST_WINDOW = 1 << 24
"""Context lengths from this number on mean no limit: tokenizers without a limit give numbers such as 10**30."""


def base_model(model: str, checkpoints: tuple[Rows, ...], notify: Notify = quiet, *, key: str) -> Path | str:
    """Return the folder of the base model in Hugging Face format, or a hub id unchanged.

    If `checkpoints` of the run are given, the first one is used; `embedded` is created in the cache on first use. `key`
    names the setting in errors. Raise ConfigError for a folder that holds no model, EngineError if `embedded` fails.
    """
    if checkpoints:
        return checkpoints[0].folder(MODEL_FOLDER)
    return local_model(model, notify, f"{key}: folder") or model


def folder_digest(model: str) -> str:
    """Return a hex digest that identifies the model in a folder; empty if `model` is not a folder.

    It covers the names, sizes and bytes of the files; of a large file only the bytes at its beginning and end. So
    hashing a model of 15 GB takes only a moment. If the model changes, its digest changes, and a training of it does
    not count as finished.
    """
    folder = Path(model).expanduser()
    if model == EMBEDDED or not folder.is_dir():
        return ""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            digest.update(file.read(_SMALL_FILE_BYTES))
            if size > _SMALL_FILE_BYTES:
                file.seek(-min(_SMALL_FILE_BYTES, size), 2)
                digest.update(file.read())
    return digest.hexdigest()


def context_window(folder: Path) -> int | None:
    """Return the context length in tokens of the model in a folder, from its files; None if they do not give it."""
    found = []
    for name, key in (("config.json", "max_position_embeddings"), ("tokenizer_config.json", "model_max_length")):
        try:
            value = orjson.loads((folder / name).read_bytes()).get(key)
        except (OSError, ValueError, AttributeError):
            continue
        if isinstance(value, int) and 0 < value < _LONGEST_WINDOW:
            found.append(value)
    return min(found, default=None)
