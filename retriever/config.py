"""Define the settings of an index: its documents, how they are ranked, and the encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from treadle.core.config import Operational, Section
from treadle.core.engines.cache import cache_root
from treadle.core.errors import ConfigError
from treadle.core.llm.config import EndpointSettings
from treadle.core.untrusted.input_files import file_sha256
from treadle.retriever.corpus import check_first_rows
from treadle.retriever.folder import read_manifest


class EncoderSettings(Section):
    """Encoder of text into vectors; only dense and hybrid indexes have one."""

    type: Literal["embedded", "model", "endpoint", "hashing"] = "embedded"
    """Kind of encoder. `embedded`: all-MiniLM-L6-v2, which is installed with pip and runs on a CPU; `model`: a model in
    Hugging Face format; `endpoint`: a server with the OpenAI embeddings API; `hashing`: words hashed to dimensions, for
    tests."""
    model: str = ""
    """For `model` a folder or hub id, for `endpoint` the model name in requests."""
    revision: str = ""
    """Commit or tag of a hub id; for an endpoint, a name for the weights behind the model name."""
    query_prefix: str | None = None
    """Text put before every query. By default it is taken from the model's files or its published name. If neither has
    it, the model is refused until both prefixes are set."""
    passage_prefix: str | None = None
    """Text put before every document; see `query_prefix`."""
    pooling: Literal["mean", "cls", "pooler"] | None = None
    """Pooling of token vectors into one. By default it is taken from the model's own pooling file."""
    normalize: bool = True
    """Whether vectors are scaled to length 1, so that inner products are cosines."""
    query_max_tokens: int = Field(default=128, ge=3)
    """Maximum number of tokens of a query; a longer one is truncated."""
    passage_max_tokens: int = Field(default=256, ge=3)
    """Maximum number of tokens of a document; a longer one is truncated and its rest is not searched, so split longer
    documents with `chunk_words`."""
    dimension: int = Field(default=256, ge=2)
    """Length of the vectors of `hashing`; other encoders have their own."""
    batch_size: Operational[int] = Field(default=64, ge=1)
    """Number of texts per request to an endpoint, or per pass on a GPU."""
    device: Operational[Literal["auto", "cpu", "cuda"]] = "auto"
    """Device of a `model`. `auto` uses a GPU if torch finds one."""
    endpoints: Operational[tuple[EndpointSettings, ...]] = ()
    """Servers of an `endpoint` encoder, used in turn."""

    @model_validator(mode="after")
    def check_model(self) -> Self:
        """Refuse an encoder type without the keys that it requires."""
        if self.type in ("model", "endpoint") and not self.model:
            raise ValueError(f"an encoder of type {self.type} needs its `model`")
        if self.type == "endpoint" and not self.endpoints:
            raise ValueError("an encoder of type endpoint needs at least one of `endpoints`")
        return self


class DenseSettings(Section):
    """Storage and search of vectors."""

    type: Literal["flat", "ivf", "hnsw"] = "flat"
    """Kind of index: `flat` is exact; `ivf` searches some of many lists; `hnsw` walks a graph."""
    storage: Literal["fp32", "fp16", "sq8"] = "fp32"
    """Number format of the vectors: 4, 2 or 1 bytes per number."""
    ivf_lists: int | None = Field(default=None, ge=1)
    """Number of lists of `ivf`; by default four times the square root of the number of documents."""
    ivf_probes: int = Field(default=32, ge=1)
    """Number of `ivf` lists searched per query."""
    hnsw_links: int = Field(default=32, ge=4)
    """Number of neighbours of a document in the `hnsw` graph."""
    hnsw_build_width: int = Field(default=200, ge=8)
    """Number of candidates kept while the graph is built."""
    hnsw_search_width: int = Field(default=128, ge=8)
    """Number of candidates kept while the graph is searched; never fewer than the documents asked for."""
    device: Operational[Literal["auto", "cpu", "cuda"]] = "auto"
    """Device for vector search. `auto` uses a GPU if faiss was built with GPU support and finds one."""


class IndexSettings(Section):
    """A corpus and how to search it."""

    engine: Literal["bm25", "dense", "hybrid"] = "bm25"
    """Ranking of documents: by words, by vectors, or by both ranks together (reciprocal rank fusion)."""
    corpus: Operational[tuple[Path, ...]] = ()
    """Files of documents: .jsonl, .json, .csv or .parquet with {id, contents} or {id, title, text}."""
    corpus_sha256: tuple[str, ...] | None = None
    """SHA-256 of each file; set when the run starts."""
    chunk_words: int | None = Field(default=None, ge=8)
    """Number of words per passage into which longer documents are split; by default documents are kept whole."""
    chunk_overlap_words: int = Field(default=0, ge=0)
    """Number of words that a passage repeats from the previous one; at most half of `chunk_words`."""
    encoder: EncoderSettings = EncoderSettings()
    """Encoder of text into vectors, for `dense` and `hybrid`."""
    dense: DenseSettings = DenseSettings()
    """Vector search, for `dense` and `hybrid`."""
    prepared: Path | None = None
    """Index that FlashRAG built over `corpus`, used unchanged: a faiss file such as `e5_Flat.index` (engine dense) or a
    `bm25` folder of bm25s (engine bm25). Row i belongs to document i."""
    index_folder: Operational[Path | None] = None
    """Finished index to load instead of one from the cache; refused if it was built with other settings."""
    cache_folder: Operational[Path | None] = None
    """Folder for indexes; by default `indexes` in $TREADLE_CACHE or ~/.cache/treadle."""

    @field_validator("corpus", mode="before")
    @classmethod
    def _one_file_is_a_list(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str | Path) else value

    @model_validator(mode="after")
    def check_chunks(self) -> Self:
        """Refuse an overlap of more than half a passage."""
        if self.chunk_overlap_words and self.chunk_overlap_words * 2 > (self.chunk_words or 0):
            raise ValueError("chunk_overlap_words is at most half of chunk_words")
        return self

    @property
    def cache(self) -> Path:
        """Folder of the indexes that were built before, one folder each."""
        return self.cache_folder or cache_root() / "indexes"

    def with_digests(self, key: str = "environment.search") -> Self:
        """Return these settings with the digests of the corpus files, after checking the files' first rows.

        `key` is the configuration key of the search tool's table. Raises ConfigError, which names it, or DataError.
        """
        if not self.corpus and self.index_folder is not None:
            manifest = read_manifest(self.index_folder) or {}
            return self.model_copy(
                update={"corpus_sha256": tuple(manifest.get("identity", {}).get("corpus_sha256") or ())}
            )
        if not self.corpus:
            raise ConfigError(
                f"the search tool has no corpus: set {key}.corpus to a .jsonl or .parquet file, "
                f"or {key}.enabled = false"
            )
        check_first_rows(self.corpus)
        return self.model_copy(update={"corpus_sha256": tuple(file_sha256(path) for path in self.corpus)})
