"""How often an index finds the documents that a question needs, hop by hop."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treadle.core.errors import DataError
from treadle.core.inputs import read_rows
from treadle.retriever.index import Hit, Index

DEFAULT_KS = (1, 4, 10, 20)
_BATCH = 64


@dataclass(frozen=True, slots=True)
class RecallCase:
    """A query and the ids of the documents that support its answer, in the order of the hops; none where unknown."""

    query: str
    supports: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Recall:
    """Shares of supporting documents that were found, for each number of documents asked for."""

    num_cases: int
    """Cases with supporting documents; the shares are of these."""
    num_skipped: int
    """Cases without."""
    by_hop: dict[int, dict[int, float]]
    """hop (from 1) -> k -> share of the cases with such a hop whose document of it is among the first k."""
    num_by_hop: dict[int, int]
    every_hop: dict[int, float]
    """k -> share of the cases whose documents are all among the first k."""


def read_cases(path: Path) -> Iterator[RecallCase]:
    """Stream cases from a .jsonl, .json or .parquet file: `question` (or `query`) and `supports`, a list of ids.

    Rows whose `supports` is missing, null or empty come as cases without. Raises DataError with file and row for the
    first bad one, and after the last row where none has any.
    """
    num_supported = 0
    for row in read_rows(path):
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
    """None where they cannot be read. Ids are as in a corpus: text that is not empty, or integers."""
    given = fields.get("supports")
    given = [] if given is None else given
    if not isinstance(given, list):
        return None
    if any(isinstance(id_, bool) or not isinstance(id_, str | int) or id_ == "" for id_ in given):
        return None
    return tuple(str(id_) for id_ in given)


def measure_recall(index: Index, cases: Iterable[RecallCase], ks: Sequence[int] = DEFAULT_KS) -> Recall:
    """Ask the index every query with supporting documents once, for the largest k.

    Passages of a split document count as the document. The documents are read through once, to where all that
    support an answer have been seen. Raises DataError where no case has any, or where the corpus lacks one.
    """
    cases = list(cases)
    supported = [case for case in cases if case.supports]
    if not supported:
        raise DataError("there is no question with known supporting documents")
    _refuse_unknown(index, supported)
    found: dict[int, dict[int, int]] = {}
    totals: dict[int, int] = {}
    complete = dict.fromkeys(ks, 0)
    for start in range(0, len(supported), _BATCH):
        batch = supported[start : start + _BATCH]
        for case, hits in zip(batch, index.search_batch([case.query for case in batch], max(ks)), strict=True):
            places = _places(case, hits)
            for hop, place in enumerate(places, start=1):
                totals[hop] = totals.get(hop, 0) + 1
                counts = found.setdefault(hop, dict.fromkeys(ks, 0))
                for k in ks:
                    counts[k] += place <= k
            for k in ks:
                complete[k] += max(places) <= k
    return Recall(
        len(supported),
        len(cases) - len(supported),
        {hop: {k: count / totals[hop] for k, count in counts.items()} for hop, counts in sorted(found.items())},
        dict(sorted(totals.items())),
        {k: count / len(supported) for k, count in complete.items()},
    )


def _places(case: RecallCase, hits: Sequence[Hit]) -> list[float]:
    """The rank from 1 of each supporting document; infinity where it is not among the hits."""
    ranks: dict[str, int] = {}
    for rank, hit in enumerate(hits, start=1):
        ranks.setdefault(hit.id, rank)
        ranks.setdefault(_whole(hit.id), rank)
    return [ranks.get(id_, math.inf) for id_ in case.supports]


def _whole(id_: str) -> str:
    """The id of the document that a passage is part of."""
    return id_.rpartition("#")[0] or id_


def _refuse_unknown(index: Index, cases: Sequence[RecallCase]) -> None:
    missing = {id_ for case in cases for id_ in case.supports}
    for document in index.documents:
        missing -= {document.id, _whole(document.id)}
        if not missing:
            return
    case, id_ = next((case, id_) for case in cases for id_ in case.supports if id_ in missing)
    raise DataError(
        f"the corpus lacks {len(missing):,} of the supporting documents, the first is {id_[:60]!r} "
        f"of the question {case.query[:60]!r}; give the corpus that these questions were made for"
    )
