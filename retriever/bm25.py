"""Rank a corpus with BM25: a tantivy index that is built in bounded memory and memory-mapped for searches.

tantivy gets pre-tokenised words (`retriever/tokens.py`), so documents and queries are always tokenised alike,
independent of tantivy's own analysers. See docs/behaviour/retrieval.md and docs/decisions/0005-sparse-engine.md.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from treadle.core.errors import ConfigError, DataError
from treadle.retriever.corpus import Document
from treadle.retriever.documents import DocumentStore
from treadle.retriever.index import Index, IndexInfo, Ranking
from treadle.retriever.tokens import RULES, Tokenizer

FOLDER = "bm25"
_WORDS = "words"
_ROW = "row"
_BUFFER_BYTES: Final = 256 << 20
"""Size of tantivy's buffer, after which it writes a segment; determines the memory of a build for any corpus."""
_MAX_TIES: Final = 4_096


def identity() -> dict[str, Any]:
    """Return everything that determines the BM25 ranking of a corpus, as JSON-able data."""
    return {
        "tokens": {**RULES, "stemmer_version": _version("PyStemmer")},
        # k1 and b are tantivy's constants; document lengths are stored in one byte.
        "scores": {"formula": "tantivy bm25", "k1": 1.2, "b": 0.75},
        "format": _format(),
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError(f"search needs the package {package}; install treadle with its extra retriever") from None


def _format() -> str:
    _version("tantivy")
    import tantivy

    # For example "tantivy v0.27.0, index_format v7".
    return str(vars(tantivy)["__version__"]).rpartition("index_format ")[2]


def build(folder: Path, documents: Iterable[Document], *, segment_documents: int | None = None) -> int:
    """Index the words of all documents into an empty folder and return the number of documents.

    Memory: the buffer, 256 MiB, and what merging segments needs. `segment_documents` ends a segment after that many
    documents; by default the buffer decides. Raises DataError if no document has a word.
    """
    import tantivy

    builder = tantivy.SchemaBuilder()
    builder.add_text_field(_WORDS, tokenizer_name="whitespace", index_option="freq")
    builder.add_unsigned_field(_ROW, fast=True)
    with _as_os_errors():
        # Sorted by row, so that documents with equal scores are in corpus order.
        index = tantivy.Index(builder.build(), path=str(folder), sort_by_field=_ROW)
        writer = index.writer(heap_size=_BUFFER_BYTES, num_threads=1)
        try:
            return _write(writer, documents, segment_documents)
        except BaseException:
            # The writer's thread must stop before the folder is deleted.
            writer.rollback()
            raise
        finally:
            writer.wait_merging_threads()


@contextlib.contextmanager
def _as_os_errors() -> Iterator[None]:
    """Turn a ValueError of tantivy, which reports a full disk as one, into an OSError for the caller."""
    try:
        yield
    except UnicodeError:
        raise
    except ValueError as error:
        raise OSError(str(error)) from error


def _write(writer: Any, documents: Iterable[Document], segment_documents: int | None) -> int:
    import tantivy

    tokenizer = Tokenizer()
    rows = num_words = 0
    for row, document in enumerate(documents):
        words = tokenizer.words(document.contents)
        entry = tantivy.Document()
        entry.add_text(_WORDS, " ".join(words))
        entry.add_unsigned(_ROW, row)
        writer.add_document(entry)
        rows, num_words = row + 1, num_words + len(words)
        if segment_documents and rows % segment_documents == 0:
            writer.commit()
    if not num_words:
        raise DataError("no document of the corpus has an indexable word")
    writer.commit()
    return rows


class WordRanker:
    """A ranker of the rows of a BM25 folder; thread-safe."""

    def __init__(self, folder: Path) -> None:
        """Open the index; raise DataError if the folder is not an index that this tantivy can read."""
        import tantivy

        try:
            index = tantivy.Index.open(str(folder))
            self._schema = index.schema
            self._searcher = index.searcher()
        except ValueError as error:
            raise DataError(f"{folder} is not a readable BM25 index: {str(error)[:300]}; build it again") from None
        self._tokenizer = Tokenizer()

    def rank(self, query: str, top_n: int) -> Ranking:
        """Return at most `top_n` rows that share a word with the query; their scores are above 0."""
        import tantivy

        should = tantivy.Occur.Should
        terms = [tantivy.Query.term_query(self._schema, _WORDS, w, "freq") for w in self._tokenizer.words(query)]
        if not terms:
            return []
        question = tantivy.Query.boolean_query([(should, term) for term in terms])
        limit = top_n
        while True:
            ranking = self._ask(question, limit)
            cut = len(ranking) == limit and ranking[top_n - 1][1] == ranking[-1][1]
            if self._searcher.num_segments == 1 or not cut or limit >= top_n + _MAX_TIES:
                return ranking[:top_n]
            # Equal scores are in corpus order within a segment, but not across segments: fetch all of them.
            limit = top_n + min(max(16, 4 * (limit - top_n)), _MAX_TIES)

    def _ask(self, question: Any, limit: int) -> Ranking:
        found = self._searcher.search(question, limit, count=False).hits
        rows = self._searcher.fast_field_values(_ROW, [address for _, address in found])
        ranking = [(int(row or 0), float(score)) for row, (score, _) in zip(rows, found, strict=True)]
        return sorted(ranking, key=lambda item: (-item[1], item[0]))


class Bm25Index(Index):
    """A BM25 index. It finds only documents that share a word with the query."""

    def __init__(self, folder: Path, info: IndexInfo, documents: DocumentStore) -> None:
        super().__init__(folder, info, documents)
        self._ranker = WordRanker(folder / FOLDER)

    def _rank(self, queries: Sequence[str], top_n: int) -> list[Ranking]:
        return [self._ranker.rank(query, top_n) for query in queries]
