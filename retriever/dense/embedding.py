"""Embed all documents in shards that survive an interrupted build.

Shards are stored in the cache next to the indexes. Their folder's name depends only on the documents and the passage
side of the encoder. Each shard is written atomically, and an interrupted build resumes after the last one. Shards are
deleted when the index that they were made for is complete.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from treadle.core.config import digest_json
from treadle.core.errors import ModelError
from treadle.retriever.dense.encoders import Encoder
from treadle.retriever.documents import DocumentStore
from treadle.retriever.folder import exclusive

SHARD_DOCUMENTS: Final = 4_096
"""Number of documents per shard, which is the most that a kill can cost."""
_DOCUMENT_KEYS = ("layout", "corpus_sha256", "chunk_words", "chunk_overlap_words")
_QUERY_KEYS = ("query_prefix", "query_max_tokens")


@contextlib.contextmanager
def embed_documents(
    documents: DocumentStore,
    encoder: Encoder,
    cache: Path,
    identity: Mapping[str, Any],
    on_progress: Callable[[int], None],
) -> Iterator[list[Path]]:
    """Write the missing shards and yield all, as `.npy` files of float32 rows in corpus order.

    `identity` is the identity of the index. Memory: one shard and what the encoder needs. Raises ModelError if the
    encoder fails or returns numbers that are not finite.
    """
    folder = _folder(cache, identity)
    # An index of another type may need the same vectors: it finds them, unless they have been deleted by then.
    with exclusive(folder.with_name(f"{folder.name}.lock")):
        folder.mkdir(exist_ok=True)
        shards = []
        for number, start in enumerate(range(0, len(documents), SHARD_DOCUMENTS)):
            rows = range(start, min(start + SHARD_DOCUMENTS, len(documents)))
            shard = folder / f"{number:06d}.npy"
            if not shard.exists():
                _write_shard(shard, encoder, [documents[row].contents for row in rows])
            on_progress(rows.stop)
            shards.append(shard)
        yield shards


def discard_vectors(cache: Path, identity: Mapping[str, Any]) -> None:
    """Delete the shards of a complete index; wait for a build that is using them."""
    folder = _folder(cache, identity)
    with exclusive(folder.with_name(f"{folder.name}.lock")):
        shutil.rmtree(folder, ignore_errors=True)


def _folder(cache: Path, identity: Mapping[str, Any]) -> Path:
    return cache / f"vectors-{digest_json(_passage_side(identity))[:32]}"


def _passage_side(identity: Mapping[str, Any]) -> dict[str, Any]:
    encoder = {name: value for name, value in identity["encoder"].items() if name not in _QUERY_KEYS}
    return {**{name: identity[name] for name in _DOCUMENT_KEYS}, "encoder": encoder, "shard": SHARD_DOCUMENTS}


def _write_shard(shard: Path, encoder: Encoder, texts: list[str]) -> None:
    import numpy as np

    vectors = encoder.encode_passages(texts)
    if vectors.shape != (len(texts), encoder.dimension) or not np.isfinite(vectors).all():
        raise ModelError(
            f"the encoder {encoder.identity['name']} returned vectors of a wrong shape or with NaN or infinite values"
        )
    part = shard.with_suffix(".part")
    with part.open("wb") as stream:
        np.save(stream, vectors)
        stream.flush()
        os.fsync(stream.fileno())
    part.rename(shard)
