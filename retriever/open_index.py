"""Open indexes from the cache, build missing ones, and check them against the settings.

A folder has everything that an index needs: documents, words, vectors, and `index.json`, which records how they were
made. The folder's name is a digest of the index's identity, so another corpus, prefix or library format gives another
folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from treadle.core.config import differing_keys, digest_json
from treadle.core.errors import ConfigError, DataError, StorageError
from treadle.retriever import bm25
from treadle.retriever.build_index import Notify, write_index
from treadle.retriever.config import IndexSettings
from treadle.retriever.dense import index as dense
from treadle.retriever.dense.embedding import discard_vectors
from treadle.retriever.dense.encoders import Encoder
from treadle.retriever.dense.open_encoder import open_encoder
from treadle.retriever.documents import DocumentStore
from treadle.retriever.folder import MANIFEST, build_once, read_manifest
from treadle.retriever.index import Index, IndexInfo
from treadle.retriever.index_identity import file_identity


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
        folder = settings.cache / f"{settings.engine}-{digest_json(identity)[:32]}"
        built: list[Path] = []

        def fill(building: Path) -> Mapping[str, Any]:
            built.append(building)
            return write_index(building, settings, identity, encoder, on_progress)

        manifest = build_once(folder, fill)
        if built and encoder is not None and settings.prepared is None:
            # Not earlier: a kill before the folder is in place would lose the vectors.
            discard_vectors(settings.cache, identity)
        return _open_built(folder, manifest, settings, encoder)
    except BaseException:
        if encoder is not None:
            encoder.close()
        raise


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
