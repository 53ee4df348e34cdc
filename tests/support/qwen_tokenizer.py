"""A real Qwen2.5 tokenizer folder, built from the vocabulary that the `dashscope` package carries.

Token-level tests need a vocabulary whose tokens straddle tags and newlines as a real model's do. The package is only
read, never imported.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import json
import os
import tempfile
from pathlib import Path

from treadle.core.chat import byte_letters

BASE_SIZE = 151_643
SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
]  # fmt: skip
ADDED_TEXT = [
    "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
    "<|repo_name|>", "<|file_sep|>",
]  # fmt: skip
DEFAULT_SYSTEM = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEMPLATE = (
    "{%- if messages[0]['role'] != 'system' %}\n"
    "    {{- '<|im_start|>system\\n" + DEFAULT_SYSTEM + "<|im_end|>\\n' }}\n"
    "{%- endif %}\n"
    "{%- for message in messages %}\n"
    "    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n"
    "    {{- '<|im_start|>assistant\\n' }}\n"
    "{%- endif %}\n"
)


def qwen_tokenizer() -> Path:
    """Folder with Qwen2.5's tokenizer and a ChatML template; built once and kept in the cache directory."""
    vocabulary = vocabulary_file().read_bytes()
    key = hashlib.sha256(vocabulary + Path(__file__).read_bytes()).hexdigest()[:12]
    root = Path(os.environ.get("TREADLE_CACHE") or Path.home() / ".cache" / "treadle") / "tests"
    folder = root / f"qwen-tokenizer-{key}"
    if not folder.exists():
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root) as scratch:
            made = Path(scratch) / "qwen"
            made.mkdir()
            _write(made, _ranks(vocabulary))
            try:
                made.rename(folder)
            except OSError:  # another test process was first
                if not folder.exists():
                    raise
    return folder


def vocabulary_file() -> Path:
    """Return the vocabulary: one base64 token and its rank per line."""
    distribution = importlib.metadata.distribution("dashscope")
    return Path(str(distribution.locate_file("dashscope/resources/qwen.tiktoken")))


def _ranks(vocabulary: bytes) -> dict[bytes, int]:
    return {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, vocabulary.splitlines())}


def _write(folder: Path, ranks: dict[bytes, int]) -> None:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    letters = byte_letters()
    spell = {token: "".join(letters[byte] for byte in token) for token in ranks}
    vocab = {spell[token]: rank for token, rank in ranks.items()}
    merges = [(spell[left], spell[right]) for left, right in _merges(ranks)]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, fuse_unk=False, byte_fallback=False))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in ADDED_TEXT])
    assert tokenizer.token_to_id("<|im_end|>") == BASE_SIZE + 2
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [BASE_SIZE + 2, BASE_SIZE]}))


def _merges(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """Merge pairs in order of rank: each token is cut into the two parts that earlier merges leave of it."""
    pairs = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) == 1:
            continue
        parts = [token[i : i + 1] for i in range(len(token))]
        while len(parts) > 2:
            best = min(range(len(parts) - 1), key=lambda i: ranks.get(parts[i] + parts[i + 1], rank))
            assert ranks.get(parts[best] + parts[best + 1], rank) < rank, token
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        pairs.append((parts[0], parts[1]))
    return pairs
