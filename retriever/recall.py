"""How often an index finds the documents that a question needs, hop by hop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treadle.core.errors import DataError
from treadle.core.inputs import read_rows
from treadle.retriever.index import Index

_BATCH = 64


@dataclass(frozen=True, slots=True)
class RecallCase:
    """A query and the ids of the documents that support its answer, in the order of the hops."""

    query: str
    supports: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Recall:
    """Shares of supporting documents that were found, for each number of documents asked for."""

    num_cases: int
    by_hop: dict[int, dict[int, float]]
    """hop (from 1) -> k -> share of the cases with such a hop whose document of it is among the first k."""
    num_by_hop: dict[int, int]
    every_hop: dict[int, float]
    """k -> share of the cases whose documents are all among the first k."""


def read_cases(path: Path) -> Iterator[RecallCase]:
    """Stream cases from a .jsonl, .json or .parquet file: `question` (or `query`) and `supports`, a list of ids.

    Raises DataError with file and row for the first bad one.
    """
    for row in read_rows(path):
        fields: dict[str, Any] = row.value or {}
        query = fields.get("question", fields.get("query"))
        supports = fields.get("supports")
        if not isinstance(query, str) or not query.strip():
            raise DataError(f"{path} row {row.number}: {row.detail or 'no text in question or query'}")
        if not isinstance(supports, list) or not supports or not all(isinstance(item, str | int) for item in supports):
            raise DataError(f"{path} row {row.number}: supports must be a list of at least one document id")
        yield RecallCase(query, tuple(str(item) for item in supports))


def measure_recall(index: Index, cases: Iterable[RecallCase], ks: Sequence[int] = (1, 4, 10, 20)) -> Recall:
    """Ask the index every query once, for the largest k. Passages of a split document count as the document.

    Raises DataError where there is no case.
    """
    found: dict[int, dict[int, int]] = {}
    totals: dict[int, int] = {}
    complete = dict.fromkeys(ks, 0)
    num_cases = 0
    for batch in _batches(cases):
        for case, hits in zip(batch, index.search_batch([case.query for case in batch], max(ks)), strict=True):
            num_cases += 1
            ranks: dict[str, int] = {}
            for rank, hit in enumerate(hits, start=1):
                ranks.setdefault(hit.id, rank)
                ranks.setdefault(hit.id.rpartition("#")[0] or hit.id, rank)
            places = [ranks.get(id_, max(ks) + 1) for id_ in case.supports]
            for hop, place in enumerate(places, start=1):
                totals[hop] = totals.get(hop, 0) + 1
                counts = found.setdefault(hop, dict.fromkeys(ks, 0))
                for k in ks:
                    counts[k] += place <= k
            for k in ks:
                complete[k] += max(places) <= k
    if not num_cases:
        raise DataError("there is no question with known supporting documents")
    return Recall(
        num_cases,
        {hop: {k: count / totals[hop] for k, count in counts.items()} for hop, counts in sorted(found.items())},
        dict(sorted(totals.items())),
        {k: count / num_cases for k, count in complete.items()},
    )


def _batches(cases: Iterable[RecallCase]) -> Iterator[list[RecallCase]]:
    batch: list[RecallCase] = []
    for case in cases:
        batch.append(case)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
