"""Open indexes from the cache, build missing ones, and check them against the settings.

A folder has everything that an index needs: documents, words, vectors, and `index.json`, which records how they were
made. The folder's name is a digest of the index's identity, so another corpus, prefix or library format gives another
folder.
"""

from __future__ import annotations

import datetime
import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from treadle.core.config import differing_keys, digest_json
from treadle.core.engines.cache import cache_root
from treadle.core.errors import ConfigError, DataError, StorageError
from treadle.core.runs.provenance import package_versions
from treadle.core.untrusted.input_files import file_sha256, unreadable
from treadle.retriever import bm25
from treadle.retriever.config import EncoderSettings, IndexSettings
from treadle.retriever.corpus import Chunking, read_corpus
from treadle.retriever.dense import index as dense
from treadle.retriever.dense.embedding import discard_vectors, embed_documents
from treadle.retriever.dense.encoders import Encoder, HashingEncoder
from treadle.retriever.documents import DocumentStore, write_documents
from treadle.retriever.folder import MANIFEST, build_once, read_manifest
from treadle.retriever.index import Index, IndexInfo

LAYOUT = 2
"""Version of the folder's format; raised when its meaning changes."""
_SAMPLE_BYTES = 1 << 20
Notify = Callable[[str, int, int | None], None]
"""Progress callback: name of the current step, number of documents done, and their total if known."""


def open_index(settings: IndexSettings, on_progress: Notify | None = None) -> Index:
    """Open the index that the settings describe, building it first if it is not in the cache.

    Concurrent processes wait for the one that builds the index. Raises DataError for a bad corpus, ConfigError if the
    settings do not fit the model or the finished `index_folder`, StorageError if the cache cannot be written,
    ModelError if an encoder fails.
    """
    if settings.corpus_sha256 is None:
        settings = settings.with_digests()
    if settings.prepared is not None and (settings.engine == "hybrid" or settings.chunk_words is not None):
        raise ConfigError(
            "a prepared index needs engine bm25 or dense, and unsplit documents; "
            "unset prepared, or change the engine and unset chunk_words"
        )
    encoder = open_encoder(settings.encoder) if settings.engine != "bm25" else None
    try:
        identity = file_identity(settings, encoder)
        if settings.index_folder is not None:
            return _open_built(
                settings.index_folder, _checked_manifest(settings.index_folder, identity), settings, encoder
            )
        folder = _cache(settings) / f"{settings.engine}-{digest_json(identity)[:32]}"
        built: list[Path] = []

        def fill(building: Path) -> Mapping[str, Any]:
            built.append(building)
            return _write_index(building, settings, identity, encoder, on_progress)

        manifest = build_once(folder, fill)
        if built and encoder is not None and settings.prepared is None:
            # Not earlier: a kill before the folder is in place would lose the vectors.
            discard_vectors(_cache(settings), identity)
        return _open_built(folder, manifest, settings, encoder)
    except BaseException:
        if encoder is not None:
            encoder.close()
        raise


def open_encoder(settings: EncoderSettings) -> Encoder:
    """Create the encoder that the settings select.

    Raises ConfigError if the settings are incomplete or contradict the model, EngineError if a download fails.
    """
    if settings.type == "hashing":
        return HashingEncoder(settings)
    if settings.type == "endpoint":
        from treadle.retriever.dense.endpoint_encoder import EndpointEncoder

        return EndpointEncoder(settings)
    from treadle.retriever.dense.encoder_models import find_model, runs_on_torch

    model = find_model(settings)
    if runs_on_torch(model, settings):
        from treadle.retriever.dense.torch_encoder import TorchEncoder

        return TorchEncoder(model, settings)
    from treadle.retriever.dense.bert import BertEncoder

    return BertEncoder(model, settings)


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


def _cache(settings: IndexSettings) -> Path:
    return settings.cache_folder or cache_root() / "indexes"


def _checked_manifest(folder: Path, identity: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest of a finished folder; raise ConfigError with each field that differs from `identity`."""
    manifest = read_manifest(folder)
    if manifest is None:
        raise DataError(f"{folder} contains no finished index: {MANIFEST} is missing, or a file has the wrong size")
    made = manifest.get("identity", {})
    differences = differing_keys(made, identity)
    if differences:
        raise ConfigError(
            f"the index in {folder} was built with other settings ({'; '.join(differences)}); "
            "change the settings, or build it again"
        )
    return manifest


def _write_index(
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
        with embed_documents(store, encoder, _cache(settings), identity, report("vectors", num_documents)) as shards:
            dense.write_vectors(folder / dense.FILE, shards, encoder.dimension, settings.dense)
    return {
        "identity": identity,
        "num_documents": num_documents,
        "dimension": encoder.dimension if encoder is not None else None,
        "built_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "built_with": package_versions(("treadle", "tantivy", "PyStemmer", "faiss-cpu", "numpy", "tokenizers")),
    }


def _open_built(folder: Path, manifest: dict[str, Any], settings: IndexSettings, encoder: Encoder | None) -> Index:
    identity = manifest["identity"]
    info = IndexInfo(
        engine=settings.engine,
        fingerprint=digest_json(identity),
        num_documents=manifest["num_documents"],
        num_bytes=sum(manifest["files"].values()),
        encoder=str(encoder.identity["name"]) if encoder is not None else None,
        dimension=manifest["dimension"],
        metadata={name: value for name, value in manifest.items() if name != "files"},
    )
    try:
        return _index(folder, info, settings, encoder)
    except OSError as error:
        raise StorageError(
            f"the search index {folder} cannot be read: {error.strerror or error}; "
            "check the disk, or delete that folder: it is built again"
        ) from error


def _index(folder: Path, info: IndexInfo, settings: IndexSettings, encoder: Encoder | None) -> Index:
    documents = DocumentStore(folder)
    if encoder is None and settings.prepared is not None:
        from treadle.retriever.flashrag import PreparedBm25Index

        return PreparedBm25Index(folder, info, documents, settings.prepared)
    if encoder is None:
        return bm25.Bm25Index(folder, info, documents)
    if settings.engine == "dense":
        return dense.DenseIndex(folder, info, documents, settings.dense, encoder, settings.prepared)
    from treadle.retriever.hybrid import HybridIndex

    return HybridIndex(folder, info, documents, settings.dense, encoder)
