"""Collect everything that determines an index's answers: its identity."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from treadle.core.config import digest_json
from treadle.core.untrusted.input_files import unreadable
from treadle.retriever import bm25
from treadle.retriever.config import IndexSettings
from treadle.retriever.dense import index as dense
from treadle.retriever.dense.encoders import Encoder

LAYOUT = 2
"""Version of the folder's format; raised when its meaning changes."""


_SAMPLE_BYTES = 1 << 20


def file_identity(settings: IndexSettings, encoder: Encoder | None) -> dict[str, Any]:
    """Return everything that determines an index's answers, as JSON-able data; its digest is the fingerprint."""
    identity: dict[str, Any] = {
        "layout": LAYOUT,
        "engine": settings.engine,
        "corpus_sha256": list(settings.corpus_sha256) if settings.corpus_sha256 is not None else None,
        "chunk_words": settings.chunk_words,
        "chunk_overlap_words": settings.chunk_overlap_words,
    }
    if settings.prepared is not None:
        identity["prepared"] = _sampled_digest(settings.prepared)
    elif settings.engine != "dense":
        identity["bm25"] = bm25.identity()
    if encoder is not None:
        identity["encoder"] = encoder.identity
        identity["dense"] = dense.identity(settings.dense)
    return identity


def _sampled_digest(path: Path) -> str:
    """Return a digest of the sizes and both ends of all files, so that large prepared indexes are not read whole."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    parts = []
    try:
        for file in files:
            with file.open("rb") as stream:
                size = stream.seek(0, os.SEEK_END)
                stream.seek(0)
                head = stream.read(_SAMPLE_BYTES)
                stream.seek(max(0, size - _SAMPLE_BYTES))
                parts.append([size, hashlib.sha256(head + stream.read(_SAMPLE_BYTES)).hexdigest()])
    except OSError as error:
        raise unreadable(path, error) from error
    return digest_json(parts)
