"""Read the files of a folder that holds a model's tokenizer and chat template."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import orjson

from treadle.core.config import canonical_json
from treadle.core.errors import ConfigError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_ADDED_TOKENS = re.compile(rb'"added_tokens"\s*:\s*\[')
_ADDED_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class TokenizerFiles:
    """Contents of a folder with a tokenizer and a chat template.

    Attributes:
        folder: Folder they were read from.
        tokenizer_json: Bytes of `tokenizer.json`.
        template: Source of the chat template.
        config: Object of `tokenizer_config.json`.
        generation_eos: Ids that end a turn by `generation_config.json`, if there is one.
    """

    folder: Path
    tokenizer_json: bytes
    template: str
    config: Mapping[str, Any]
    generation_eos: tuple[int, ...]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the files. Raises ConfigError naming the one that is missing or damaged; `tokenizer.json` is not parsed.

        The template is `chat_template.jinja` if that file exists, else the key in `tokenizer_config.json`.
        """
        tokenizer_json = read(folder / "tokenizer.json")
        config = read_object(folder / "tokenizer_config.json")
        generation = folder / "generation_config.json"
        eos = read_object(generation).get("eos_token_id") if generation.exists() else None
        listed = eos if isinstance(eos, list) else [eos]
        ids = sorted({item for item in listed if isinstance(item, int)})
        return cls(folder, tokenizer_json, find_template(folder, config), config, tuple(ids))

    @functools.cached_property
    def named_special_tokens(self) -> dict[str, str]:
        """`bos_token`, `eos_token` and the like, which templates may print."""
        return named_special_tokens(self.config)

    @functools.cached_property
    def digest(self) -> str:
        """Hex SHA-256 of `tokenizer.json`, the template, the named special tokens and the ids that end a turn.

        It is computed without building the tokenizer, which takes seconds for large vocabularies.
        """
        eos = self.named_special_tokens.get("eos_token")
        named = _token_id(self.tokenizer_json, eos) if eos is not None else None
        ids = {*self.generation_eos, *(() if named is None else (named,))}
        facts = canonical_json([self.named_special_tokens, sorted(ids)])
        parts = [hashlib.sha256(self.tokenizer_json).digest(), self.template.encode(), facts]
        return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _token_id(tokenizer_json: bytes, token: str) -> int | None:
    """Return the id of a token; None if the file does not have it, or is damaged.

    Tokens that end a turn are nearly always added tokens, which precede the vocabulary: reading these alone takes a
    thousandth of the time.
    """
    if start := _ADDED_TOKENS.search(tokenizer_json):
        text = tokenizer_json[start.end() - 1 : start.end() + _ADDED_BYTES].decode("utf-8", "ignore")
        with suppress(ValueError):
            if (found := _added_id(json.JSONDecoder().raw_decode(text)[0], token)) is not None:
                return found
    try:
        whole = orjson.loads(tokenizer_json)
        vocabulary = whole["model"]["vocab"]
        if (found := _added_id(whole.get("added_tokens") or [], token)) is not None:
            return found
        if isinstance(vocabulary, dict):
            return vocabulary.get(token)
        return next((index for index, item in enumerate(vocabulary) if item[0] == token), None)
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


def _added_id(added: object, token: str) -> int | None:
    items = added if isinstance(added, list) else []
    return next((item.get("id") for item in items if isinstance(item, dict) and item.get("content") == token), None)


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
