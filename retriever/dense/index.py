"""Search documents by the inner products of their vectors with the query's, in a faiss index.

The exact index is stored in faiss' own format, written shard by shard and memory-mapped. See
docs/behaviour/retrieval.md.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from treadle.core.errors import ConfigError, DataError
from treadle.retriever.config import DenseSettings
from treadle.retriever.documents import DocumentStore
from treadle.retriever.index import Index, IndexInfo, Ranking

if TYPE_CHECKING:
    from treadle.retriever.dense.encoders import Encoder, Vectors

FILE = "vectors.faiss"
_EXTRA: Final = 16
"""Number of additional candidates, because a different order of summation may swap neighbours."""
_MAX_TIES: Final = 4_096
_NOISE: Final = 1e-5
"""Difference of inner products of unit vectors below which they may be equal."""
_MATRIX_FROM_QUERIES: Final = 4
_READ_AHEAD_BYTES: Final = 1 << 20
_TRAINING_PER_LIST: Final = 64
_SUFFIXES = {"fp32": "Flat", "fp16": "SQfp16", "sq8": "SQ8"}


def identity(settings: DenseSettings) -> dict[str, Any]:
    """Return the settings that affect the ranking of given vectors."""
    given = settings.model_dump(mode="json", exclude={"device"})
    return {name: value for name, value in given.items() if "_" not in name or name.startswith(settings.type)}


def factory(settings: DenseSettings, num_documents: int) -> str:
    """Return faiss' name for the index, such as `IVF4096,SQ8`."""
    suffix = _SUFFIXES[settings.storage]
    if settings.type == "hnsw":
        return f"HNSW{settings.hnsw_links},{suffix}"
    if settings.type == "ivf":
        lists = settings.ivf_lists or 4 * math.isqrt(num_documents)
        return f"IVF{max(1, min(lists, num_documents // 39 or 1))},{suffix}"
    return suffix


def write_vectors(path: Path, shards: Sequence[Path], dimension: int, settings: DenseSettings) -> None:
    """Build the index from shards of vectors (`.npy`, float32, rows in corpus order).

    Memory: one shard for `flat` in fp32; otherwise the index itself, one shard, and the training sample of `ivf`.
    """
    import numpy as np

    total = sum(len(np.load(shard, mmap_mode="r")) for shard in shards)
    if settings.type == "flat" and settings.storage == "fp32":
        _write_flat(path, shards, dimension, total)
        return
    faiss = import_faiss()
    index = faiss.index_factory(dimension, factory(settings, total), faiss.METRIC_INNER_PRODUCT)
    if settings.type == "hnsw":
        index.hnsw.efConstruction = settings.hnsw_build_width
    if not index.is_trained:
        index.train(_sample(shards, total, _sample_size(settings, total)))
    for shard in shards:
        index.add(np.load(shard))
    faiss.write_index(index, str(path))


def _write_flat(path: Path, shards: Sequence[Path], dimension: int, total: int) -> None:
    """Write the file format of faiss' IndexFlatIP: a header, then all numbers."""
    import numpy as np

    with path.open("wb") as stream:
        # Magic, dimension, rows, two unused numbers, is trained, metric (0: inner product), count of floats.
        stream.write(b"IxFI" + struct.pack("<iqqqBiQ", dimension, total, 1 << 20, 1 << 20, 1, 0, total * dimension))
        for shard in shards:
            stream.write(np.load(shard).astype("<f4", copy=False).tobytes())


def _sample_size(settings: DenseSettings, total: int) -> int:
    lists = settings.ivf_lists or 4 * math.isqrt(total)
    return min(total, max(_TRAINING_PER_LIST * lists if settings.type == "ivf" else 0, 65_536))


def _sample(shards: Sequence[Path], total: int, size: int) -> Vectors:
    """Return rows spread evenly over the corpus."""
    import numpy as np

    wanted = np.unique(np.linspace(0, total - 1, size).astype(np.int64))
    parts, start = [], 0
    for shard in shards:
        rows = np.load(shard, mmap_mode="r")
        shard_rows = wanted[(wanted >= start) & (wanted < start + len(rows))] - start
        parts.append(np.asarray(rows[shard_rows]))
        start += len(rows)
    return np.concatenate(parts)


class VectorRanker:
    """A ranker of the rows of a faiss index; thread-safe."""

    def __init__(self, path: Path, settings: DenseSettings) -> None:
        """Open the index.

        Raises DataError if the file is not a faiss index by inner product, ConfigError without faiss.
        """
        faiss = import_faiss()
        try:
            index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
        except RuntimeError as error:
            raise DataError(f"{path} is not a readable faiss index: {str(error)[-300:]}; build it again") from None
        if index.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise DataError(f"{path} does not rank by inner product; build it again with faiss' inner-product metric")
        self.dimension: int = index.d
        self.num_rows: int = index.ntotal
        self._parameters = _search_parameters(faiss, index, settings)
        self._is_exact = isinstance(index, faiss.IndexFlat | faiss.IndexScalarQuantizer)
        if self._is_exact:
            _read_ahead(path)
        # From this many queries on, one matrix product answers all. faiss-cpu 1.15 compares the total count of numbers,
        # with a default of 128,000, which leaves most batches as slow as separate queries; for a single query the
        # product is slower.
        faiss.cvar.distance_compute_blas_threshold = _MATRIX_FROM_QUERIES * index.d
        self._stored = index
        self._index = _on_gpu(faiss, index, settings)

    def rank(self, vectors: Vectors, top_n: int) -> list[Ranking]:
        """Return at most `top_n` rows per vector; `flat` returns exactly the best ones."""
        if not self._is_exact:
            return [_ranking(rows, scores)[:top_n] for rows, scores in self._ask(vectors, top_n)]
        found = self._ask(vectors, top_n + _EXTRA)
        return [self._exact(vector, rows, scores, top_n) for vector, (rows, scores) in zip(vectors, found, strict=True)]

    def _ask(self, vectors: Vectors, limit: int) -> list[tuple[Any, Any]]:
        scores, rows = self._index.search(vectors, min(limit, self.num_rows), params=self._parameters)
        # -1 marks missing results of an approximate search.
        return [(row[row >= 0], score[row >= 0]) for row, score in zip(rows, scores, strict=True)]

    def _exact(self, vector: Any, rows: Any, scores: Any, top_n: int) -> Ranking:
        """Return the ranking of the candidates with scores computed again, independent of the number of queries.

        faiss sums in another order for another number of queries.
        """
        limit = top_n + _EXTRA
        while len(rows) == limit < min(self.num_rows, top_n + _MAX_TIES) and scores[top_n - 1] - scores[-1] < _NOISE:
            limit = min(limit * 4, top_n + _MAX_TIES)
            ((rows, scores),) = self._ask(vector[None], limit)
        import numpy as np

        stored = self._stored.reconstruct_batch(np.ascontiguousarray(rows))
        again = (stored.astype(np.float64) * vector).sum(axis=1).astype(np.float32)
        return _ranking(rows, again)[:top_n]


def _read_ahead(path: Path) -> None:
    """Make the system read a whole file that every search reads completely.

    faiss maps the file for random access, so without this each first access to a page of 4 KiB would be a separate
    read.
    """
    with path.open("rb") as stream:
        # The system truncates longer requests.
        for start in range(0, path.stat().st_size, _READ_AHEAD_BYTES):
            os.posix_fadvise(stream.fileno(), start, _READ_AHEAD_BYTES, os.POSIX_FADV_WILLNEED)


def _ranking(rows: Any, scores: Any) -> Ranking:
    pairs = [(int(row), float(score)) for row, score in zip(rows, scores, strict=True)]
    return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))


def _search_parameters(faiss: Any, index: Any, settings: DenseSettings) -> Any:
    # Depends on the file, because a prepared index need not be of the type in the settings.
    if isinstance(index, faiss.IndexIVF):
        return faiss.SearchParametersIVF(nprobe=min(settings.ivf_probes, index.nlist))
    if isinstance(index, faiss.IndexHNSW):
        return faiss.SearchParametersHNSW(efSearch=settings.hnsw_search_width)
    return None


def _on_gpu(faiss: Any, index: Any, settings: DenseSettings) -> Any:
    """Return the index sharded over all GPUs if configured and possible; HNSW has no GPU implementation."""
    gpus = faiss.get_num_gpus() if hasattr(faiss, "StandardGpuResources") else 0
    if settings.device == "cuda" and (not gpus or settings.type == "hnsw"):
        reason = "an hnsw index runs on the CPU only" if gpus else "this faiss finds no GPU (install faiss-gpu)"
        raise ConfigError(f"dense.device is cuda, but {reason}; set it to auto or cpu")
    if settings.device == "cpu" or not gpus or settings.type == "hnsw":
        return index
    options = faiss.GpuMultipleClonerOptions()
    options.shard = True
    options.useFloat16 = settings.storage == "fp16"
    return faiss.index_cpu_to_all_gpus(index, co=options)


def import_faiss() -> Any:
    """Import and return faiss; raise ConfigError if it is not installed."""
    try:
        import faiss
    except ImportError:
        raise ConfigError("dense search needs faiss; install treadle with its extra dense") from None
    return faiss


class DenseIndex(Index):
    """A dense index: every document has a score, so a large `top_n` returns the whole corpus."""

    def __init__(
        self,
        folder: Path,
        info: IndexInfo,
        documents: DocumentStore,
        settings: DenseSettings,
        encoder: Encoder,
        prepared: Path | None = None,
    ) -> None:
        """Open the index; `prepared` is a faiss file to use instead of the folder's."""
        super().__init__(folder, info, documents)
        self._encoder = encoder
        self._ranker = VectorRanker(prepared or folder / FILE, settings)
        if self._ranker.num_rows != len(documents):
            raise DataError(f"{folder} has {self._ranker.num_rows:,} vectors for {len(documents):,} documents")
        if self._ranker.dimension != encoder.dimension:
            raise ConfigError(
                f"{folder} holds vectors of dimension {self._ranker.dimension}, but the encoder makes vectors of "
                f"dimension {encoder.dimension}; use the encoder that the index was built with, or build it again"
            )

    def _rank(self, queries: Sequence[str], top_n: int) -> list[Ranking]:
        return self._ranker.rank(self._encoder.encode_queries(queries), top_n)

    def close(self) -> None:
        """Close the encoder."""
        self._encoder.close()
