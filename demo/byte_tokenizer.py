"""Write a tokenizer that needs no download: one id per UTF-8 byte, three control tokens, the ChatML template.

It gives runs with the tutor token ids without fetching anything. The id of a byte is its value.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

import orjson

from treadle.core.errors import StorageError

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = {END_OF_TEXT: 256, TURN_START: 257, TURN_END: 258}
VOCABULARY_SIZE = 259

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_characters() -> list[str]:
    """Return the character that byte-level tokenizers write for each byte 0..255.

    Printable Latin-1 characters represent themselves; the other bytes map to characters from U+0100 on (as in GPT-2).
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def _tokenizer_json() -> dict[str, Any]:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {character: byte for byte, character in enumerate(byte_characters())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    # The regex splits long texts into words; otherwise whole texts would fill the library's word cache.
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    parsed: dict[str, Any] = orjson.loads(tokenizer.to_str())
    return parsed


def write_byte_tokenizer(folder: Path) -> Path:
    """Write `tokenizer.json` and `tokenizer_config.json` into a folder (created if missing) and return the folder.

    The content is always the same and is written by rename, so several processes may call this at once. Raises
    StorageError.
    """
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": CHAT_TEMPLATE,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "bos_token": None,
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1_000_000,
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in (("tokenizer.json", _tokenizer_json()), ("tokenizer_config.json", config)):
            part = folder / f".{name}.{os.getpid()}.{uuid.uuid4().hex}"
            part.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))
            part.replace(folder / name)
    except OSError as error:
        raise StorageError(f"the byte tokenizer cannot be written to {folder}: {error}") from error
    return folder
