"""A BERT model of a few numbers, in Hugging Face format, its weights from a fixed series."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "of", "red", "blue", "tower", "gate")
WIDTH, WIDE, LAYERS, HEADS, POSITIONS = 8, 16, 2, 2, 16


def write_tiny_bert(folder: Path, dtype: str = "F32") -> Path:
    """Write configuration, tokenizer and weights (`F32`, `F16` or `BF16`)."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "bert", "architectures": ["BertModel"], "hidden_act": "gelu", "hidden_size": WIDTH,
        "intermediate_size": WIDE, "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "layer_norm_eps": 1e-12,
        "max_position_embeddings": POSITIONS, "type_vocab_size": 2, "vocab_size": len(WORDS), "pad_token_id": 0,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_weights(folder / "model.safetensors", dtype)
    return folder


def _shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (len(WORDS), WIDTH),
        "embeddings.position_embeddings.weight": (POSITIONS, WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
        "embeddings.LayerNorm.weight": (WIDTH,),
        "embeddings.LayerNorm.bias": (WIDTH,),
    }
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}."
        linear = {f"attention.self.{part}": (WIDTH, WIDTH) for part in ("query", "key", "value")}
        linear |= {"attention.output.dense": (WIDTH, WIDTH), "intermediate.dense": (WIDE, WIDTH)}
        linear |= {"output.dense": (WIDTH, WIDE)}
        for name, shape in linear.items():
            shapes |= {f"{at}{name}.weight": shape, f"{at}{name}.bias": shape[:1]}
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes |= {f"{at}{name}.weight": (WIDTH,), f"{at}{name}.bias": (WIDTH,)}
    return shapes


def _write_weights(path: Path, dtype: str) -> None:
    header, parts, start = {}, [], 0
    for number, (name, shape) in enumerate(sorted(_shapes().items())):
        size = math.prod(shape)
        values = np.sin(np.arange(size) * 1.7 + number).astype(np.float32) * 1.5
        if name.endswith("LayerNorm.weight"):
            values = 1 + values / 10
        if dtype == "BF16":
            data = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        else:
            data = values.astype({"F32": "<f4", "F16": "<f2"}[dtype]).tobytes()
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, start + len(data)]}
        parts.append(data)
        start += len(data)
    text = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))
