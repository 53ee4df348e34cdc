"""What turns text into vectors: one small interface, and the choice by settings.

The encoders themselves: `hashing` (below), BERT in numpy (`bert.py`), torch (`torch_encoder.py`), a server
(`endpoint_encoder.py`). Prefixes, pooling and lengths are settled before any of them is made, and are part of an
index's identity, so that queries are never encoded otherwise than documents were.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from treadle.core.errors import ConfigError
from treadle.retriever.config import EncoderSettings
from treadle.retriever.tokens import RULES, Tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]


class Encoder(ABC):
    """Encodes queries and documents; may be used from many threads at once."""

    def __init__(self, dimension: int, identity: dict[str, Any]) -> None:
        self.dimension = dimension
        self.identity = identity
        """All that decides the vectors: model, prefixes, pooling, normalisation, lengths."""

    def encode_queries(self, queries: Sequence[str]) -> Vectors:
        """Vectors of queries, float32 of shape (number, dimension); raises ModelError."""
        return self._finish(self._encode([self.identity["query_prefix"] + text for text in queries], is_query=True))

    def encode_passages(self, passages: Sequence[str]) -> Vectors:
        """Vectors of documents' contents, float32 of shape (number, dimension); raises ModelError."""
        return self._finish(self._encode([self.identity["passage_prefix"] + text for text in passages], is_query=False))

    @abstractmethod
    def _encode(self, texts: Sequence[str], *, is_query: bool) -> Vectors:
        """Pooled vectors of texts that have their prefix; may be empty."""

    def _finish(self, vectors: Vectors) -> Vectors:
        import numpy as np

        vectors = np.ascontiguousarray(vectors, dtype=np.float32).reshape(-1, self.dimension)
        return normalized(vectors) if self.identity["normalize"] else vectors

    def close(self) -> None:  # noqa: B027
        """Give back connections or a GPU's memory."""


def normalized(vectors: Vectors) -> Vectors:
    """Scale each row to length 1; a row of zeros stays."""
    import numpy as np

    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))
    return (vectors / np.where(lengths > 0, lengths, 1.0)[:, None]).astype(np.float32)


def pool(hidden: Any, mask: Any, pooling: str) -> Any:
    """One vector per text from its token vectors; numpy arrays or torch tensors.

    hidden: (texts, tokens, width); mask: (texts, tokens), 1 where a token is no padding. `mean` is over those tokens,
    `cls` takes the first.
    """
    if pooling == "cls":
        return hidden[:, 0]
    if pooling == "mean":
        weights = mask[:, :, None]
        return (hidden * weights).sum(1) / weights.sum(1)
    raise ConfigError(f"pooling {pooling!r} needs the model's own pooler")


class HashingEncoder(Encoder):
    """Each word adds 1 or -1 to a dimension that its checksum names. Deterministic, needs no model; for tests."""

    def __init__(self, settings: EncoderSettings) -> None:
        identity = {
            "type": "hashing",
            "name": "hashing",
            "model": {"dimension": settings.dimension, "tokens": RULES, "hash": "crc32"},
            "query_prefix": settings.query_prefix or "",
            "passage_prefix": settings.passage_prefix or "",
            "normalize": settings.normalize,
        }
        super().__init__(settings.dimension, identity)
        self._tokenizer = Tokenizer()

    def _encode(self, texts: Sequence[str], *, is_query: bool) -> Vectors:
        import numpy as np

        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for row, text in enumerate(texts):
            for word in self._tokenizer.words(text):
                number = zlib.crc32(word.encode())
                vectors[row, (number >> 1) % self.dimension] += 1.0 if number & 1 else -1.0
        return vectors


def open_encoder(settings: EncoderSettings) -> Encoder:
    """Load an encoder.

    Raises ConfigError for settings that a model contradicts or leaves open, EngineError where it cannot be fetched.
    """
    if settings.type == "hashing":
        return HashingEncoder(settings)
    if settings.type == "endpoint":
        from treadle.retriever.endpoint_encoder import EndpointEncoder

        return EndpointEncoder(settings)
    from treadle.retriever.encoder_models import find_model, runs_on_torch

    model = find_model(settings)
    if runs_on_torch(model, settings):
        from treadle.retriever.torch_encoder import TorchEncoder

        return TorchEncoder(model, settings)
    from treadle.retriever.bert import BertEncoder

    return BertEncoder(model, settings)
