"""Measure how often an index finds the documents that a question needs, hop by hop."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treadle.core.errors import DataError
from treadle.core.untrusted.confined_rows import MAX_UNPACKED_BYTES
from treadle.core.untrusted.input_files import read_rows
from treadle.retriever.index import Hit, Index

DEFAULT_KS = (1, 4, 10, 20)
_BATCH = 64


@dataclass(frozen=True, slots=True)
class RecallCase:
    """A query and the ids of the documents that support its answer, in the order of hops; empty if unknown."""

    query: str
    supports: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RetrievalRecall:
    """Shares of supporting documents that were found, for each number of results k."""

    num_cases: int
    """Number of cases with supporting documents, to which the shares refer."""
    num_skipped: int
    """Number of cases without supporting documents."""
    by_hop: dict[int, dict[int, float]]
    """Share by hop (from 1) and k: of the cases with such a hop, those whose document is among the first k results."""
    num_by_hop: dict[int, int]
    all_hops: dict[int, float]
    """Share by k of the cases whose documents are all among the first k results."""


def read_cases(path: Path) -> Iterator[RecallCase]:
    """Yield cases from a .jsonl, .json or .parquet file: `question` (or `query`) and `supports`, a list of ids.

    Rows whose `supports` is missing, null or empty give cases without supporting documents. Raises DataError with file
    and row for the first bad row, and after the last row if no case has supporting documents.
    """
    num_supported = 0
    for row in read_rows(path, columns=("question", "query", "supports"), max_unpacked_bytes=MAX_UNPACKED_BYTES):
        fields: dict[str, Any] = row.value or {}
        query = fields.get("question", fields.get("query"))
        if not isinstance(query, str) or not query.strip():
            raise DataError(f"{path} row {row.number}: {row.detail or 'no text in question or query'}")
        supports = _supports(fields)
        if supports is None:
            raise DataError(f"{path} row {row.number}: supports must be a list of document ids, in the order of hops")
        num_supported += bool(supports)
        yield RecallCase(query, supports)
    if not num_supported:
        raise DataError(f"{path}: no question names its supporting documents; add `supports`, a list of document ids")


def _supports(fields: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the ids as text (non-empty strings or integers, as in a corpus), or None if they are not valid."""
    given = fields.get("supports")
    given = [] if given is None else given
    if not isinstance(given, list):
        return None
    if any(isinstance(id_, bool) or not isinstance(id_, str | int) or id_ == "" for id_ in given):
        return None
    return tuple(str(id_) for id_ in given)


def measure_recall(index: Index, cases: Iterable[RecallCase], ks: Sequence[int] = DEFAULT_KS) -> RetrievalRecall:
    """Search once for every query with supporting documents, with the largest k, and return the recall.

    Passages of a split document count as the document. Reads the documents once, until all supporting ones are found.
    Raises DataError if no case has supporting documents, or if the corpus lacks one of them.
    """
    cases = list(cases)
    supported = [case for case in cases if case.supports]
    if not supported:
        raise DataError("no question has known supporting documents")
    _refuse_unknown(index, supported)
    ranks: list[list[float]] = []
    for start in range(0, len(supported), _BATCH):
        batch = supported[start : start + _BATCH]
        ranks += map(_ranks, batch, index.search_batch([case.query for case in batch], max(ks)))
    hops = range(1, max(map(len, ranks)) + 1)
    by_hop = {hop: [places[hop - 1] for places in ranks if len(places) >= hop] for hop in hops}
    return RetrievalRecall(
        len(supported),
        len(cases) - len(supported),
        {hop: _shares(places, ks) for hop, places in by_hop.items()},
        {hop: len(places) for hop, places in by_hop.items()},
        _shares([max(places) for places in ranks], ks),
    )


def _shares(ranks: Sequence[float], ks: Sequence[int]) -> dict[int, float]:
    return {k: sum(rank <= k for rank in ranks) / len(ranks) for k in ks}


def _ranks(case: RecallCase, hits: Sequence[Hit]) -> list[float]:
    """Return the rank, from 1, of each supporting document; infinity if it is not among the hits."""
    ranks: dict[str, int] = {}
    for rank, hit in enumerate(hits, start=1):
        ranks.setdefault(hit.id, rank)
        ranks.setdefault(_document_id(hit.id), rank)
    return [ranks.get(id_, math.inf) for id_ in case.supports]


def _document_id(id_: str) -> str:
    """Return the id of the document that a passage is part of."""
    return id_.rpartition("#")[0] or id_


def _refuse_unknown(index: Index, cases: Sequence[RecallCase]) -> None:
    missing = {id_ for case in cases for id_ in case.supports}
    for document in index.documents:
        missing -= {document.id, _document_id(document.id)}
        if not missing:
            return
    case, id_ = next((case, id_) for case in cases for id_ in case.supports if id_ in missing)
    raise DataError(
        f"the corpus lacks {len(missing):,} of the supporting documents, the first is {id_[:60]!r} "
        f"of the question {case.query[:60]!r}; use the corpus that these questions were made for"
    )
