"""Settings of an index: which documents, how they are ranked, and by which encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from treadle.core.config import Operational, Section
from treadle.core.errors import ConfigError
from treadle.core.inputs import file_sha256
from treadle.core.llm.config import EndpointSettings
from treadle.retriever.folder import read_manifest


class EncoderSettings(Section):
    """What turns text into vectors. Only dense and hybrid indexes have one."""

    type: Literal["embedded", "model", "endpoint", "hashing"] = "embedded"
    """`embedded`: all-MiniLM-L6-v2, which comes by pip and runs on a CPU; `model`: an encoder in Hugging Face format;
    `endpoint`: a server with the OpenAI embeddings API; `hashing`: words hashed to dimensions, for tests."""
    model: str = ""
    """For `model` a folder or hub id, for `endpoint` the name in requests."""
    revision: str = ""
    """Commit or tag of a hub id; for an endpoint, which weights stand behind the name."""
    query_prefix: str | None = None
    """Put before every query. None means what the model's files or its published name say; where neither tells, the
    model is refused until both prefixes are given."""
    passage_prefix: str | None = None
    """Put before every document; see `query_prefix`."""
    pooling: Literal["mean", "cls", "pooler"] | None = None
    """How token vectors become one. None means what the model's own pooling file says."""
    normalize: bool = True
    """Whether vectors are scaled to length 1, so that inner products are cosines."""
    query_max_tokens: int = Field(default=128, ge=3)
    """A longer query is cut."""
    passage_max_tokens: int = Field(default=256, ge=3)
    """A longer document is cut; what lies beyond is not searched, so split longer ones (`chunk_words`)."""
    dimension: int = Field(default=256, ge=2)
    """Length of the vectors; of `hashing` only, models bring theirs."""
    batch_size: Operational[int] = Field(default=64, ge=1)
    """Texts of one request to an endpoint, or of one pass on a GPU."""
    device: Operational[Literal["auto", "cpu", "cuda"]] = "auto"
    """Where a `model` runs. `auto`: on a GPU where torch finds one."""
    endpoints: Operational[tuple[EndpointSettings, ...]] = ()
    """Servers of `endpoint`, used in turn."""

    @model_validator(mode="after")
    def check_model(self) -> Self:
        """Refuse a type that lacks what it needs."""
        if self.type in ("model", "endpoint") and not self.model:
            raise ValueError(f"an encoder of type {self.type} needs its `model`")
        if self.type == "endpoint" and not self.endpoints:
            raise ValueError("an encoder of type endpoint needs at least one of `endpoints`")
        return self


class DenseSettings(Section):
    """How vectors are kept and searched."""

    type: Literal["flat", "ivf", "hnsw"] = "flat"
    """`flat` is exact; `ivf` looks into some of many lists; `hnsw` walks a graph."""
    storage: Literal["fp32", "fp16", "sq8"] = "fp32"
    """Bytes per number of a vector: 4, 2 or 1."""
    ivf_lists: int | None = Field(default=None, ge=1)
    """Lists of `ivf`; None means four times the root of the number of documents."""
    ivf_probes: int = Field(default=32, ge=1)
    """Lists that a query looks into."""
    hnsw_links: int = Field(default=32, ge=4)
    """Neighbours of a document in the graph."""
    hnsw_build_width: int = Field(default=200, ge=8)
    """Candidates kept while the graph is built."""
    hnsw_search_width: int = Field(default=128, ge=8)
    """Candidates kept while it is searched; never fewer than the documents asked for."""
    device: Operational[Literal["auto", "cpu", "cuda"]] = "auto"
    """Where vectors are searched. `auto`: on a GPU where faiss was built for one and finds it."""


class IndexSettings(Section):
    """A corpus and how it is searched."""

    engine: Literal["bm25", "dense", "hybrid"] = "bm25"
    """How documents are ranked: by words, by vectors, or by both ranks together (reciprocal rank fusion)."""
    corpus: Operational[tuple[Path, ...]] = ()
    """Files of documents: .jsonl, .json or .parquet with {id, contents} or {id, title, text}."""
    corpus_sha256: tuple[str, ...] | None = None
    """Content of the files; filled in when the run starts."""
    chunk_words: int | None = Field(default=None, ge=8)
    """Split documents of more words into passages of so many; None keeps documents whole."""
    chunk_overlap_words: int = Field(default=0, ge=0)
    """Words that a passage repeats from the one before."""
    encoder: EncoderSettings = EncoderSettings()
    """What turns text into vectors, for `dense` and `hybrid`."""
    dense: DenseSettings = DenseSettings()
    """How vectors are searched, for `dense` and `hybrid`."""
    prepared: Path | None = None
    """An index that FlashRAG built over `corpus`, used as it is: a faiss file such as `e5_Flat.index` (engine dense)
    or a `bm25` folder of bm25s (engine bm25). Row i belongs to document i."""
    index_folder: Operational[Path | None] = None
    """A finished index to load instead of one from the cache; refused where it was built otherwise than set here."""
    cache_folder: Operational[Path | None] = None
    """Where indexes are kept; default: the folder `indexes` in $TREADLE_CACHE or ~/.cache/treadle."""

    @field_validator("corpus", mode="before")
    @classmethod
    def _one_file_is_a_list(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str | Path) else value

    @model_validator(mode="after")
    def check_chunks(self) -> Self:
        """Refuse an overlap that would never end."""
        if self.chunk_overlap_words and self.chunk_overlap_words * 2 > (self.chunk_words or 0):
            raise ValueError("chunk_overlap_words is at most half of chunk_words")
        return self

    def with_digests(self) -> Self:
        """Fill in the content of the corpus files as part of the fingerprint; raises ConfigError or DataError."""
        if not self.corpus and self.index_folder is not None:
            manifest = read_manifest(self.index_folder) or {}
            return self.model_copy(
                update={"corpus_sha256": tuple(manifest.get("identity", {}).get("corpus_sha256") or ())}
            )
        if not self.corpus:
            raise ConfigError("the search tool has no corpus; set its corpus to a .jsonl or .parquet file of documents")
        return self.model_copy(update={"corpus_sha256": tuple(file_sha256(path) for path in self.corpus)})
