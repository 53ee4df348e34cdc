"""Write the files of an index into an empty folder."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

from treadle.core.errors import DataError
from treadle.core.runs.provenance import package_versions
from treadle.core.untrusted.input_files import file_sha256
from treadle.retriever import bm25
from treadle.retriever.config import IndexSettings
from treadle.retriever.corpus import Chunking, read_corpus
from treadle.retriever.dense import index as dense
from treadle.retriever.dense.embedding import embed_documents
from treadle.retriever.dense.encoders import Encoder
from treadle.retriever.documents import DocumentStore, write_documents

Notify = Callable[[str, int, int | None], None]
"""Progress callback: name of the current step, number of documents done, and their total if known."""


def write_index(
    folder: Path,
    settings: IndexSettings,
    identity: dict[str, Any],
    encoder: Encoder | None,
    on_progress: Notify | None,
) -> dict[str, Any]:
    """Write all files of an index into an empty folder; return its manifest without the file sizes."""

    def report(what: str, total: int | None = None) -> Callable[[int], None]:
        return lambda done: on_progress(what, done, total) if on_progress is not None else None

    chunking = Chunking(settings.chunk_words, settings.chunk_overlap_words) if settings.chunk_words else None
    is_unranked = settings.engine == "dense" or settings.prepared is not None
    progress = report("documents" if is_unranked else "words")
    documents = write_documents(folder, read_corpus(settings.corpus, chunking), progress)
    if is_unranked:
        num_documents = sum(1 for _ in documents)
    else:
        (folder / bm25.FOLDER).mkdir()
        num_documents = bm25.build(folder / bm25.FOLDER, documents)
    for path, expected in zip(settings.corpus, settings.corpus_sha256 or (), strict=True):
        if file_sha256(path) != expected:
            raise DataError(f"corpus {path} was changed while its index was built; start again")
    if encoder is not None and settings.prepared is None:
        store = DocumentStore(folder)
        with embed_documents(store, encoder, settings.cache, identity, report("vectors", num_documents)) as shards:
            dense.write_vectors(folder / dense.FILE, shards, encoder.dimension, settings.dense)
    return {
        "identity": identity,
        "num_documents": num_documents,
        "dimension": encoder.dimension if encoder is not None else None,
        "built_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "built_with": package_versions(("treadle", "tantivy", "PyStemmer", "faiss-cpu", "numpy", "tokenizers")),
    }
