"""Read the files of a folder that holds a model's tokenizer and chat template."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.core.errors import ConfigError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def read(path: Path) -> bytes:
    """Return a file's bytes; raise ConfigError naming it if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"tokenizer file {path} cannot be read: {error.strerror}") from error


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; raise ConfigError naming the file if it holds anything else."""
    try:
        value = json.loads(read(path))
    except ValueError as error:
        raise ConfigError(f"tokenizer file {path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"tokenizer file {path} does not hold a JSON object")
    return value


def build_tokenizer(folder: Path, tokenizer_json: bytes) -> Tokenizer:
    """Return the tokenizer without padding and truncation; raise ConfigError naming the file if it is damaged."""
    from tokenizers import Tokenizer

    # Batches of one text gain nothing from threads, and a fork after using them would cause a warning.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        tokenizer = Tokenizer.from_buffer(tokenizer_json)
    # The library raises a bare Exception for every defect of the file.
    except Exception as error:
        raise ConfigError(f"tokenizer file {folder / 'tokenizer.json'} cannot be used: {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def named_special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Return `bos_token`, `eos_token` and the like, which templates may print."""
    named = {}
    for key in ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"):
        value = config.get(key)
        text = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(text, str):
            named[key] = text
    return named


def find_template(folder: Path, config: Mapping[str, Any]) -> str:
    """Return the source of the chat template: `chat_template.jinja` if it exists, else the key of the configuration.

    Raises ConfigError if there is none.
    """
    file = folder / "chat_template.jinja"
    if file.exists():
        return read(file).decode("utf-8", "replace")
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {item.get("name"): item.get("template") for item in template if isinstance(item, Mapping)}
        template = named.get("default")
    if not isinstance(template, str):
        raise ConfigError(
            f"model folder {folder} has no chat template; use the tokenizer of an instruction-tuned model"
        )
    return template
