"""Define the interface of text encoders, and open the one that the settings select.

The implementations: `hashing` (below), BERT in numpy (`bert.py`), torch (`torch_encoder.py`), a server
(`endpoint_encoder.py`). Prefixes, pooling and lengths are fixed before an encoder is created and are part of an index's
identity, so queries and documents are always encoded alike.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from treadle.core.errors import ConfigError, ModelError
from treadle.retriever.config import EncoderSettings
from treadle.retriever.tokens import RULES, Tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]

IN_IDENTITY = {"normalize", "query_max_tokens", "passage_max_tokens"}
"""Settings that determine the vectors of any model."""


class Encoder(ABC):
    """An encoder of queries and documents; thread-safe."""

    def __init__(self, dimension: int, identity: dict[str, Any]) -> None:
        self.dimension = dimension
        self.identity = identity
        """Everything that determines the vectors: model, prefixes, pooling, normalisation, lengths."""

    def encode_queries(self, queries: Sequence[str]) -> Vectors:
        """Return the vectors of queries, float32 of shape (number, dimension); raise ModelError on failure."""
        return self._finish(self._encode([self.identity["query_prefix"] + text for text in queries], is_query=True))

    def encode_passages(self, passages: Sequence[str]) -> Vectors:
        """Return the vectors of passages, float32 of shape (number, dimension); raise ModelError on failure."""
        return self._finish(self._encode([self.identity["passage_prefix"] + text for text in passages], is_query=False))

    @abstractmethod
    def _encode(self, texts: Sequence[str], *, is_query: bool) -> Vectors:
        """Return the pooled vectors of texts that already have their prefix; the list of texts may be empty."""

    def _finish(self, vectors: Vectors) -> Vectors:
        import numpy as np

        vectors = np.ascontiguousarray(vectors, dtype=np.float32).reshape(-1, self.dimension)
        if not np.isfinite(vectors).all():
            raise ModelError(f"encoder {self.identity['name']} gave a vector with a number that is not finite")
        return normalized(vectors) if self.identity["normalize"] else vectors

    def close(self) -> None:  # noqa: B027
        """Release connections or GPU memory."""


def normalized(vectors: Vectors) -> Vectors:
    """Scale each row to length 1; a row of zeros stays unchanged."""
    import numpy as np

    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))
    return (vectors / np.where(lengths > 0, lengths, 1.0)[:, None]).astype(np.float32)


def pool(hidden: Any, mask: Any, pooling: str) -> Any:
    """Return one vector per text from its token vectors; works with numpy arrays and torch tensors.

    hidden: (texts, tokens, width); mask: (texts, tokens), 1 for tokens that are not padding. `mean` averages these
    tokens, `cls` takes the first.
    """
    if pooling == "cls":
        return hidden[:, 0]
    if pooling == "mean":
        weights = mask[:, :, None]
        return (hidden * weights).sum(1) / weights.sum(1)
    raise ConfigError(f"pooling {pooling!r} needs the model's own pooler")


class HashingEncoder(Encoder):
    """A deterministic encoder without a model, for tests.

    Each word adds 1 or -1 to a dimension given by its checksum.
    """

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
